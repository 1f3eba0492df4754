"""Questions that `tpulab doctor` asks in a process of its own, so that what hangs or dies there harms nothing.

`ask_all` is the side that asks; the file itself, run by name, is the side that answers.
"""

import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MARK = "tpulab answers: "  # other lines are a sitecustomize's or a package's


def ask(question: str, timeout_s: float) -> dict[str, Any]:
    """Ask one question in a fresh process of this Python; see `ask_all`."""
    return ask_all([question], timeout_s)[question]


def ask_all(questions: Sequence[str], timeout_s: float) -> dict[str, dict[str, Any]]:
    """Ask questions at once, each in a fresh process of this Python.

    Args:
        questions: of "first-cell", "kernel" and "jupyterlab".
        timeout_s: after that a process is ended.

    Returns:
        For each question its answer, or {"error": one line}.
    """
    give_up = time.monotonic() + timeout_s
    processes: dict[str, subprocess.Popen[str]] = {}
    try:
        for question in questions:
            processes[question] = _start(question)
        return {question: _answer(process, give_up, timeout_s) for question, process in processes.items()}
    finally:
        for process in processes.values():  # after Ctrl-C, or beyond the limit
            _end(process)


def _start(question: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, question],
        env=os.environ | {"PYTHONSAFEPATH": "1"},  # a learner's jax.py beside this call is not jax
        cwd=tempfile.gettempdir(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches us only; we then end it and the kernel that it started
    )


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started; a kernel that never answers would outlive it."""
    if process.poll() is None:
        started = _started_by(process.pid)
        process.kill()
        for child in started:
            with contextlib.suppress(Exception):  # gone already
                child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError):  # closed already
        process.communicate(timeout=2)


def _started_by(pid: int) -> list[Any]:
    try:
        import psutil

        return psutil.Process(pid).children(recursive=True)
    except Exception:  # gone, or no psutil: then there is no kernel either, which needs it
        return []


def _answer(process: subprocess.Popen[str], give_up: float, timeout_s: float) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=max(0.1, give_up - time.monotonic()))
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s"}
    last = (err.strip().splitlines() or [""])[-1][:200]
    if process.returncode < 0:
        return {"error": f"it was ended by signal {-process.returncode}" + (f" ({last})" if last else "")}
    if process.returncode:
        return {"error": last or f"it ended with status {process.returncode}"}
    try:
        return json.loads(next(line for line in out.split("\n") if line.startswith(_MARK)).removeprefix(_MARK))
    except (StopIteration, ValueError):
        return {"error": "it ended without an answer"}


def first_cell() -> dict[str, Any]:
    """Do what a notebook's first cell does, and say what it finds."""
    import tpulab

    tpulab.setup()
    import jax

    broken = {}
    for name in ("flax", "optax"):
        try:
            __import__(name)
        except Exception as error:
            broken[name] = f"{type(error).__name__}: {error}"[:200]
    devices = jax.devices()
    return {
        "devices": len(devices),
        "kind": devices[0].device_kind,
        "platform": devices[0].platform,
        "broken": broken,
    }


def kernel() -> dict[str, Any]:
    """Start the kernel that Jupyter finds under the name python3, and ask it which Python it is."""
    from jupyter_client.kernelspec import get_kernel_spec
    from jupyter_client.manager import start_new_kernel

    spec = get_kernel_spec("python3")
    about = {"runs": spec.argv[0], "spec": spec.resource_dir}
    try:
        manager, client = start_new_kernel(startup_timeout=60, kernel_name="python3")
    except Exception as error:
        return about | {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    try:
        questions = {
            "executable": "__import__('sys').executable",
            "prefix": "__import__('sys').prefix",
            "tpulab": "__import__('importlib.util').util.find_spec('tpulab') is not None",
        }
        reply = client.execute_interactive("", silent=True, user_expressions=questions, timeout=30)
        answers = reply["content"]["user_expressions"]
        return about | {name: ast.literal_eval(answer["data"]["text/plain"]) for name, answer in answers.items()}
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def jupyterlab() -> dict[str, Any]:
    """Import JupyterLab's application and give its version."""
    import jupyterlab
    import jupyterlab.labapp

    return {"version": jupyterlab.__version__}


_ANSWERS = {"first-cell": first_cell, "kernel": kernel, "jupyterlab": jupyterlab}


if __name__ == "__main__":
    # Last, so that nothing here hides a module of Python's own.
    sys.path.append(str(Path(__file__).parent.parent.parent))
    with contextlib.redirect_stdout(sys.stderr):
        answer = _ANSWERS[sys.argv[1]]()
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)
