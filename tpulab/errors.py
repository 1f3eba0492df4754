"""Errors that a lesson shows on purpose."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def expect_error(*kinds: type[BaseException]) -> Iterator[None]:
    """Print the error that the body is meant to raise, and go on.

    Args:
        *kinds: the exception classes that may come.

    Raises:
        AssertionError: the body raised nothing.

    Example:
        >>> with expect_error(ZeroDivisionError):
        ...     1 / 0
        ZeroDivisionError: division by zero
    """
    try:
        yield
    except kinds as error:
        first = (str(error).strip().splitlines() or [""])[0]
        print(f"{type(error).__name__}: {first}" if first else type(error).__name__)
    else:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"expected {wanted}, and nothing was raised")
