"""Errors that a lesson shows on purpose."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


def first_line(error: BaseException) -> str:
    r"""Give the first line of an error's message; "" if it has none to give.

    A last sentence that only announces further lines is left out; where the line is one sentence, "…" shows
    that more follows.

    Example:
        >>> first_line(ValueError("a list has no hash. The error was:\n..."))
        'a list has no hash.'
        >>> first_line(ValueError("these do not fit:\nf32[2], f32[3]"))
        'these do not fit …'
    """
    try:
        lines = str(error).strip().splitlines()
    except (Exception, KeyboardInterrupt, SystemExit):  # whatever a message of somebody's own does
        return ""
    first = lines[0].rstrip() if lines else ""
    if len(lines) < 2 or not first.endswith(":"):
        return first
    whole = re.sub(r"(?<=[.!?]) [A-Z][^.!?]{0,40}:$", "", first)
    return whole if whole != first else f"{first[:-1].rstrip()} …"


@contextmanager
def expect_error(*kinds: type[BaseException]) -> Iterator[None]:
    """Print the error that the body is meant to raise, and go on.

    Args:
        *kinds: the exception classes that may come.

    Raises:
        AssertionError: the body raised nothing.
        TypeError: `kinds` are no exception classes.

    Example:
        >>> with expect_error(ZeroDivisionError):
        ...     1 / 0
        ZeroDivisionError: division by zero
    """
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError(f"expect_error wants exception classes, e.g. expect_error(TypeError); got {kinds!r}")
    try:
        yield
    except kinds as error:
        first = first_line(error)
        print(f"{type(error).__name__}: {first}" if first else type(error).__name__)
    else:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"expected {wanted}, and nothing was raised")
