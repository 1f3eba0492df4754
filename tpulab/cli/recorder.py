"""Run the course's notebooks on a TPU and collect what they measure there."""

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record import RECORD_TO
from . import probe
from .status import NO, WRONG_USE, Stop

CELL_LIMIT_S = 600  # a first compilation on a TPU takes its time
_KERNELS = Path(__file__).parent.parent / "data" / "jupyter" / "share" / "kernels"


@dataclass(frozen=True)
class Recorded:
    """What one notebook gave.

    Args:
        slug: the notebook.
        files: measurements that it wrote.
        problem: why it did not run to its end, in one line, or "".
    """

    slug: str
    files: tuple[Path, ...]
    problem: str = ""


def require_tpu(ask: Callable[[str, float], Any] = probe.ask) -> None:
    """Refuse to record anywhere but on a TPU; asks in another process, since one process owns a TPU.

    Raises:
        Stop: there is no TPU.
    """
    found = ask("first-cell", 120.0)
    if found.get("platform") != "tpu":
        what = found.get("error") or f"JAX finds {found['devices']} x {found['kind']}"
        raise Stop(f"no TPU here: {what}; run this on a TPU machine or a Colab TPU runtime", NO)


def choose(notebooks: Sequence[Path], chapters: Sequence[str]) -> list[Path]:
    """Pick notebooks by slug or number, e.g. "03_jit" or "03"; all of them when none is named.

    Raises:
        Stop: a name fits no notebook.
    """
    chosen = []
    for name in chapters:
        fits = [path for path in notebooks if name in (path.stem, path.name, path.stem.split("_")[0])]
        if not fits:
            raise Stop(f"no chapter is called {name!r}; there are {', '.join(p.stem for p in notebooks)}", WRONG_USE)
        chosen += fits
    return sorted(set(chosen)) if chapters else list(notebooks)


def record_one(path: Path, out: Path, ran: Callable[[int, int], None] = lambda done, cells: None) -> Recorded:
    """Run one notebook in a kernel of this Python; its measurements go to `out`.

    Args:
        path: the notebook; it is not changed.
        out: a folder, made if it isn't there.
        ran: called after each cell with cells run and cells there are.

    Returns:
        The files written, whole even when a later cell failed.
    """
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    out.mkdir(parents=True, exist_ok=True)
    book, before = nbformat.read(path, as_version=4), _stamps(out)
    manager = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(_KERNELS)]))
    client = NotebookClient(book, km=manager, kernel_name="python3", timeout=CELL_LIMIT_S)
    client.on_cell_executed = lambda cell_index, **_: ran(cell_index + 1, len(book.cells))
    interrupted: list[bool] = []
    client.on_notebook_start = lambda **_: _end_on_signal(manager, interrupted)
    problem = ""
    with tempfile.TemporaryDirectory() as folder:
        client.resources = {"metadata": {"path": folder}}
        try:
            client.execute(cleanup_kc=True, env=_environment(out, Path(folder)))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            if interrupted:
                raise KeyboardInterrupt from None
            problem = _last_line(error)
    return Recorded(path.stem, tuple(sorted(p for p, stamp in _stamps(out).items() if before.get(p) != stamp)), problem)


def _end_on_signal(manager: Any, interrupted: list[bool]) -> None:
    """Let Ctrl-C end the kernel and be remembered; nbclient's own handler would only end the kernel."""

    def stop() -> None:
        interrupted.append(True)
        ending.append(asyncio.ensure_future(manager.shutdown_kernel(now=True)))

    ending: list[Any] = []  # a task that nobody holds may be collected
    for name in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError):  # Windows; not the main thread
            asyncio.get_running_loop().add_signal_handler(name, stop)


def _environment(out: Path, home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TPULAB_")}
    return kept | {RECORD_TO: str(out.absolute()), "TPULAB_HOME": str(home)}


def _stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}


def _last_line(error: Exception) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return (plain.splitlines() or [type(error).__name__])[-1][:200]
