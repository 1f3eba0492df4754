"""How long a function takes, measured so that the number means something."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, repr=False)
class Timing:
    """Measured seconds of one function on the hardware named.

    Args:
        median_s: the middle of all runs.
        low_s: a quarter of the runs were faster.
        high_s: a quarter of the runs were slower.
        first_s: the first call, compilation included; not among the runs.
        runs: how many runs were counted.
        hardware: what ran it, e.g. "cpu".
    """

    median_s: float
    low_s: float
    high_s: float
    first_s: float
    runs: int
    hardware: str

    def __repr__(self) -> str:
        return (
            f"{seconds_text(self.median_s)} median of {self.runs} runs, middle half {seconds_text(self.low_s)} to "
            f"{seconds_text(self.high_s)}; first call {seconds_text(self.first_s)} (measured, {self.hardware})"
        )


def seconds_text(seconds: float) -> str:
    """Write a time with a unit that suits it.

    Example:
        >>> seconds_text(0.0123), seconds_text(4.2e-6), seconds_text(75)
        ('12.3 ms', '4.2 us', '75 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def measure(
    fn: Callable[..., Any], *args: Any, runs: int | None = None, budget_s: float = 1.0, **kwargs: Any
) -> Timing:
    """Time `fn(*args)`: one call to warm up, then runs that each wait for their result.

    Args:
        fn: any function; results that JAX computes asynchronously are waited for.
        *args: its arguments.
        runs: how many runs to count; by default as many as fit into `budget_s`, 3 to 200.
        budget_s: seconds to spend when `runs` is not given.
        **kwargs: its keyword arguments.

    Returns:
        Median and spread over the runs; the first call, with tracing and compiling, apart.

    Raises:
        TypeError: called while a function is being traced: a clock in there would time the recording.
        ValueError: `runs` below 1.

    Example:
        >>> t = measure(sum, range(1000), runs=5)
        >>> t.runs, t.median_s > 0
        (5, True)
    """
    import jax

    if runs is not None and runs < 1:
        raise ValueError(f"`runs` is at least 1; got {runs}")
    first_s = _seconds(fn, args, kwargs)
    count = runs or min(200, max(3, int(budget_s / max(_seconds(fn, args, kwargs), 1e-6))))
    times = sorted(_seconds(fn, args, kwargs) for _ in range(count))
    low_s, high_s = times[count // 4], times[-1 - count // 4]
    return Timing(statistics.median(times), low_s, high_s, first_s, count, jax.devices()[0].device_kind)


def _seconds(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    import jax

    from .compat import is_traced

    _refuse(is_traced((args, kwargs)))
    start = time.perf_counter()
    result = fn(*args, **kwargs)
    _refuse(is_traced(result))
    jax.block_until_ready(result)
    return time.perf_counter() - start


def _refuse(traced: bool) -> None:
    if traced:
        raise TypeError(
            "measure was called while a function is being traced and would time the recording, not the run; "
            "call it outside: measure(jax.jit(f), x)"
        )
