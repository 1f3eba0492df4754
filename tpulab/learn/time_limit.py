"""Stop an answer that never returns."""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeLimitExceeded(BaseException):
    """The time limit passed. Not an `Exception`, so that a bare `except Exception` cannot swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in the body once `seconds` have passed.

    Where the system has SIGALRM and we are in the main thread, an alarm does it, which also wakes a
    sleeping call. Elsewhere (Windows, other threads) the exception is sent to the running thread by
    CPython and arrives between two bytecodes. **What neither can interrupt:** one long call inside
    compiled code, such as an XLA `while_loop` that never ends or, without SIGALRM, one long `sleep`;
    there the remedy is the kernel's own Interrupt, then Restart.

    Args:
        seconds: the limit, above 0.

    Raises:
        TimeLimitExceeded: the body was still running.

    Example:
        >>> try:
        ...     with time_limit(0.05):
        ...         while True:
        ...             pass
        ... except TimeLimitExceeded:
        ...     print("stopped")
        stopped
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    limit = _alarm if hasattr(signal, "SIGALRM") and in_main_thread else _thread_exception
    with limit(seconds):
        yield


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(_number: int, _frame: object) -> None:
        raise TimeLimitExceeded

    handler = signal.signal(signal.SIGALRM, ring)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        # An outer alarm (a test runner's, say) goes on from where it was.
        signal.setitimer(signal.ITIMER_REAL, remaining)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def _thread_exception(seconds: float) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    lock, done = threading.Lock(), False

    def send() -> None:
        with lock:
            if not done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeLimitExceeded))

    timer = threading.Timer(seconds, send)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            done = True
        timer.cancel()
