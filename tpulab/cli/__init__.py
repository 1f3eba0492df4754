"""The command `tpulab`: runs a command, and turns whatever ends it into an exit status and one line."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from .status import INTERRUPTED, NO, OK, UNFINISHED, WRONG_USE, Stop

_LAB_EXTRA = ("typer", "click", "rich", "psutil", "nbclient", "nbformat", "jupyter_client", "jupyterlab", "ipykernel")

_NOT_WRITTEN = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG)  # of an error without a file: a stream's


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tpulab` and give its exit status.

    Args:
        arguments: without the program's name; by default those of the process.

    Returns:
        0 yes, 1 the answer is no, 2 wrong use, 3 could not finish, 130 interrupted.
    """
    if not _prepare_streams():
        return _say("standard output is closed; leave it open, or send it to /dev/null", UNFINISHED)
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except Stop as stop:
        return _say(str(stop), stop.status)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] in _LAB_EXTRA:
            line = f"this command needs more than the base install ({error.name} is missing)"
            return _say(f"{line}: pip install 'tpulab[lab]'", WRONG_USE)
        return _say(f"{error}; run `tpulab doctor`", UNFINISHED)
    except BrokenPipeError:  # `tpulab progress | head`
        _give_up_on(sys.stdout)
        return NO
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's and click's own: wrong use of an option or argument
            return _say(f"{error.format_message()} (tpulab --help)", WRONG_USE)  # pyright: ignore[reportAttributeAccessIssue]
        if os.environ.get("TPULAB_TRACEBACK"):
            raise
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.filename is None and error.errno in _NOT_WRITTEN:
            _give_up_on(sys.stdout)
            return _say(f"cannot write to standard output ({error.strerror}); send it elsewhere", UNFINISHED)
        return _say(f"this should not happen: {why}; TPULAB_TRACEBACK=1 shows where", UNFINISHED)


def _run(arguments: list[str]) -> int:
    import typer

    from .commands import app

    try:
        status = app(arguments, prog_name="tpulab", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        raise KeyboardInterrupt from None
    return status if isinstance(status, int) else OK


def _prepare_streams() -> bool:
    """Let every character be written whatever the encoding; says whether there is a standard output.

    A stream that was closed becomes the null device, so that no file that is opened later gets its number.
    """
    has_output = sys.stdout is not None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return has_output


def _give_up_on(stream: TextIO) -> None:
    """Let the rest go nowhere, so that Python does not try to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(line: str, status: int) -> int:
    try:
        print(f"tpulab: {' '.join(line.split())}", file=sys.stderr, flush=True)
    except OSError:  # then only the status tells
        _give_up_on(sys.stderr)
    return status
