"""The command `tpulab`: runs a command, and turns whatever ends it into an exit status and one line."""

import os
import sys
from collections.abc import Sequence

from .status import INTERRUPTED, NO, OK, UNFINISHED, WRONG_USE, Stop

_LAB_EXTRA = ("typer", "click", "rich", "psutil", "nbclient", "nbformat", "jupyter_client", "jupyterlab", "ipykernel")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tpulab` and give its exit status.

    Args:
        arguments: without the program's name; by default those of the process.

    Returns:
        0 yes, 1 the answer is no, 2 wrong use, 3 could not finish, 130 interrupted.
    """
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's and click's own: wrong use of an option or argument
            return _say(f"{error.format_message()} (tpulab --help)", WRONG_USE)  # pyright: ignore[reportAttributeAccessIssue]
        if os.environ.get("TPULAB_TRACEBACK"):
            raise
        why = f"{type(error).__name__}: {error}"
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


def _say(line: str, status: int) -> int:
    print(f"tpulab: {' '.join(line.split())}", file=sys.stderr)
    return status
