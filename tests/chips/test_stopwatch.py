"""Ceilings by the clock: the right order of magnitude, and within seconds."""

import time

import numpy as np

from tpulab import chips
from tpulab.chips import roofline, stopwatch


def test_ceilings_here(monkeypatch):
    monkeypatch.setattr(stopwatch, "_SIDES", {"cpu": (512,), "other": (512,)})
    monkeypatch.setattr(stopwatch, "_STREAM_BYTES", 2**25)
    stopwatch.ceilings_here.cache_clear()
    start = time.monotonic()
    mine = chips.ceilings_here()
    assert time.monotonic() - start < 20
    assert mine.origin == "measured" and mine.dtype == "f32" and "CPU" in mine.name
    assert 1e9 < mine.flops_per_s < 1e14 and 1e8 < mine.bytes_per_s < 1e13
    assert chips.ceilings_here() is mine, "measured once"
    stopwatch.ceilings_here.cache_clear()


def test_bandwidth_agrees_with_numpy():
    """NumPy's in-place sum of two arrays crosses memory three times as well; the clocks of a busy machine vary."""
    a, b = np.ones(2**24, np.float32), np.ones(2**24, np.float32)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        np.add(a, b, out=a)
        best = min(best, time.perf_counter() - start)
    assert 0.1 < stopwatch._stream_bytes_per_s(2**26) / (3 * a.nbytes / best) < 10


def test_a_program_on_this_machine():
    model = roofline((1e9, 1e9), chips.Ceilings("here", 1e11, 1e10, "f32", "measured"))
    assert model.bound == "memory"
