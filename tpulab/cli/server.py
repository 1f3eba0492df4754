"""JupyterLab on the learner's folder: this Python's, on loopback, with a token, and quiet."""

import contextlib
import http.client
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from .status import INTERRUPTED, OK, UNFINISHED, WRONG_USE, Stop

HOST = "127.0.0.1"
_FIRST_PORT = 8888
_READY_WITHIN_S = 120
_STARTS = 5  # when many start at once, another may get the port between our look and JupyterLab's
_STOPPED_WITHIN_S = 15
# Ours, put before the learner's own on Jupyter's search paths; their settings are read, never written.
_SETTINGS = Path(__file__).parent.parent / "data" / "jupyter"


def free_port(wanted: int | None = None, *, first: int = _FIRST_PORT) -> int:
    """Find a port on loopback.

    Args:
        wanted: this port or none.
        first: where to look from, upward.

    Raises:
        Stop: the wanted port is taken, or none is free.
    """
    reason = None
    for port in [wanted] if wanted else range(first, first + 1000):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            if os.name == "posix":  # as JupyterLab does: a port in TIME_WAIT is free
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                probe.listen()
                return port
            except OSError as error:
                reason = error.strerror
    if wanted:
        raise Stop(
            f"port {wanted} cannot be had ({reason}); leave --port away or choose another, e.g. {free_port()}",
            WRONG_USE,
        )
    raise Stop(
        f"no free port found from {first} to {first + 999}; stop another server, or name a port with --port", UNFINISHED
    )


def has_browser(environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether a browser window can open here; one in the terminal does not count."""
    needs_display = sys.platform.startswith("linux") and "BROWSER" not in environment
    if needs_display and not (environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def command(folder: Path, port: int, *, first: str, browser: bool) -> list[str]:
    """Give the command that starts JupyterLab; the token is not in it, since others can read commands."""
    options = {
        "ServerApp.ip": HOST,
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder,
        "ServerApp.default_url": _page(first),
        "ServerApp.open_browser": browser,
        "Application.log_level": "ERROR",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.news_url": "None",
        "LabApp.workspaces_dir": folder / ".tpulab-workspaces",  # not the tabs of some other folder
        "LabApp.extension_manager": "readonly",  # the other one asks a package index
    }
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyterlab", *root, *(f"--{name}={value}" for name, value in options.items())]


def _page(first: str) -> str:
    return f"/lab/tree/{quote(first)}" if first else "/lab"


def environment(token: str, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Give JupyterLab's environment: token, no proxy for loopback, our settings and kernel before others.

    A kernel called python3 in the learner's home may belong to another Python; ours, found first, runs
    the Python that runs JupyterLab.
    """
    changed = {**base, "JUPYTER_TOKEN": token}
    for name, folder in (("JUPYTER_CONFIG_PATH", "config"), ("JUPYTER_PATH", "share")):
        changed[name] = os.pathsep.join(filter(None, [str(_SETTINGS / folder), base.get(name)]))
    for name in ("NO_PROXY", "no_proxy"):
        changed[name] = ",".join(filter(None, [base.get(name) or base.get(name.swapcase()), HOST, "localhost"]))
    return changed


def serve(
    folder: Path, *, first: str = "", port: int | None = None, browser: bool = True, say: Callable[[str], None] = print
) -> int:
    """Run JupyterLab until it is shut down, interrupted or terminated.

    Args:
        folder: what it opens.
        first: the notebook it opens on; "" for none.
        port: this one; by default the first free from 8888.
        browser: open a window, if this machine has a browser.
        say: where the address goes.

    Returns:
        0 when it was shut down from its page, 130 after Ctrl-C or a termination signal.

    Raises:
        Stop: JupyterLab is missing or does not start, or the port is taken.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise Stop(f"JupyterLab is not installed here: pip install 'tpulab[lab]' (the notebooks are in {folder})")
    token, browser = secrets.token_urlsafe(24), browser and has_browser()
    for start in range(_STARTS):
        spread = secrets.randbelow(1000) if start else 0  # all who lost the first port look again at once
        chosen = free_port(port, first=_FIRST_PORT + spread)
        status = _serve_on(chosen, token, folder, first=first, browser=browser, say=say)
        if status is not None:
            return status
        if not port:
            say(f"Port {chosen} was taken by another program meanwhile; trying another.")
    raise Stop("each port tried was taken by another program before JupyterLab had it; try again", UNFINISHED)


def _serve_on(
    port: int, token: str, folder: Path, *, first: str, browser: bool, say: Callable[[str], None]
) -> int | None:
    """Run JupyterLab on this port and give the exit status; None if somebody else got the port first."""
    with signals_interrupt():
        process = subprocess.Popen(
            command(folder, port, first=first, browser=browser),
            cwd=folder,
            env=environment(token),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches us only; we then end it in order
        )
        try:
            if not _ready(process, port, token):
                return None
            say(f"JupyterLab runs at http://{HOST}:{port}{_page(first)}?token={token}")
            say("Its window opens by itself." if browser else "Open this address in a browser.")
            say("Ctrl-C here stops it; notebooks are saved every 15 seconds.")
            return OK if process.wait() == 0 else UNFINISHED
        except KeyboardInterrupt:
            say("Stopped.")
            return INTERRUPTED
        finally:
            _end(process, port, token)


def _ready(process: subprocess.Popen, port: int, token: str) -> bool:
    """Wait for it; False if it ended because the port is no longer free."""
    give_up = time.monotonic() + _READY_WITHIN_S
    while not answers(port, token):
        if process.poll() is not None:
            if _taken(port):
                return False
            raise Stop(f"JupyterLab ended before it was ready (status {process.returncode}); see its lines above")
        if time.monotonic() > give_up:
            raise Stop(f"JupyterLab did not answer within {_READY_WITHIN_S} s; try again, or run `tpulab doctor`")
        time.sleep(0.2)
    return True


def _taken(port: int) -> bool:
    try:
        free_port(port)
    except Stop:
        return True
    return False


def answers(port: int, token: str, ask: tuple[str, str] = ("GET", "/api/status")) -> bool:
    """Say whether a server with this token answers on the port; no proxy is asked."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request(*ask, headers={"Authorization": f"token {token}"})
        with connection.getresponse() as reply:
            return reply.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen, port: int, token: str) -> None:
    """Ask the server to stop, which ends its kernels too; insist if it doesn't."""
    if process.poll() is None:
        if not answers(port, token, ("POST", "/api/shutdown")):
            process.terminate()
        try:
            process.wait(_STOPPED_WITHIN_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let a termination or a closed terminal end the body as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
