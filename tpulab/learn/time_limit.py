"""Stop an answer that never returns."""

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeLimitExceeded(BaseException):
    """The time limit passed. Not an `Exception`, so that a bare `except Exception` cannot swallow it."""


# On a machine that others keep busy, an answer may take this many times the limit on the wall clock.
PATIENCE = 3
LOOK_S = 1.0  # between two looks
IDLE = 0.05  # a process that got less of a processor since the last look was waiting, not crowded out
INSIST_S = 0.5  # an answer that swallows the exception gets it again after so long


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in the body once it has computed or slept for `seconds`.

    What counts is the processor time of this process, so that a busy machine stops no right answer, and the
    time in which it uses hardly any, so that a sleep or a wait counts too; after three times as long on
    the wall clock it ends in any case.

    Where the system has SIGALRM and we are in the main thread, an alarm does it, which also wakes a
    sleeping call. Elsewhere (Windows, other threads) the exception is sent to the running thread by
    CPython and arrives between two bytecodes. **What neither can interrupt:** one long call inside
    compiled code, such as an XLA `while_loop` that never ends or, without SIGALRM, one long `sleep`, and code
    that swallows every exception as soon as it comes;
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
    with limit(_countdown(seconds)):
        yield


def _countdown(seconds: float) -> Callable[[], float]:
    """Give a function that says how many seconds to wait before looking again; 0 when time is up."""
    start = wall = time.monotonic()
    cpu, spent = time.process_time(), 0.0

    def left() -> float:
        nonlocal cpu, wall, spent
        computed, passed = time.process_time() - cpu, time.monotonic() - wall
        cpu, wall = cpu + computed, wall + passed
        spent += computed if computed > passed * IDLE else passed
        remaining = min(seconds - spent, PATIENCE * seconds - (wall - start))
        return 0.0 if remaining <= 0 else min(max(0.02, remaining), LOOK_S)

    return left


@contextmanager
def _alarm(left: Callable[[], float]) -> Iterator[None]:
    over = False

    def ring(_number: int, _frame: object) -> None:
        if over:
            return
        again = left()
        signal.setitimer(signal.ITIMER_REAL, again or INSIST_S)
        if not again:
            raise TimeLimitExceeded

    handler = signal.signal(signal.SIGALRM, ring)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, left())
    try:
        try:
            yield
        finally:
            over = True
    finally:  # also when the last ring came on the line above
        # An outer alarm (a test runner's, say) goes on from where it was.
        signal.setitimer(signal.ITIMER_REAL, remaining)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def _thread_exception(left: Callable[[], float]) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    lock, done = threading.Lock(), threading.Event()

    def watch() -> None:
        while not done.wait(left() or INSIST_S):
            with lock:
                if not done.is_set() and not left():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeLimitExceeded))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        try:
            with lock:
                done.set()
        finally:  # also when the exception came on the line above
            done.set()
