"""Ceilings of the machine at hand, by a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .ceilings import Ceilings

_SIDES = {"cpu": (1024, 2048), "other": (4096, 8192)}
_STREAM_BYTES = 2**28  # each of two arrays: larger than the caches of a large server
_TRIES = 5


@lru_cache(maxsize=1)
def ceilings_here() -> Ceilings:
    """Measure how fast this machine multiplies matrices and streams memory; takes a few seconds, once.

    Arithmetic is the best of several square matrix products, in f32 on a CPU and bf16 elsewhere. Bandwidth is the best
    pass of a = 0.5 a + b over arrays far larger than any cache: two arrays are read and one is written in place. On
    simulated devices, one device is measured.
    """
    import jax

    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    dtype = "f32" if on_cpu else "bf16"
    flops = max(_product_flops_per_s(side, dtype) for side in _SIDES["cpu" if on_cpu else "other"])
    kind = "this machine's CPU" if on_cpu else f"{device.device_kind}, here"
    return Ceilings(kind, flops, _stream_bytes_per_s(), dtype, "measured")


def _product_flops_per_s(side: int, dtype: str) -> float:
    import jax
    import jax.numpy as jnp

    a = jnp.full((side, side), 0.5, {"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype])
    product = jax.jit(jnp.matmul)
    return 2 * side**3 / _best_s(lambda: product(a, a))


def _stream_bytes_per_s(array_bytes: int = _STREAM_BYTES) -> float:
    import jax
    import jax.numpy as jnp

    count = array_bytes // 4
    step = jax.jit(lambda a, b: 0.5 * a + b, donate_argnums=0)
    b = jnp.ones(count, jnp.float32)
    state = [jnp.ones(count, jnp.float32)]

    def once() -> Any:
        state[0] = step(state[0], b)
        return state[0]

    return 3 * 4 * count / _best_s(once)


def _best_s(run: Callable[[], Any]) -> float:
    """Time the fastest of a few runs after one that compiles: a ceiling is what nothing exceeds."""
    import jax

    jax.block_until_ready(run())
    best = float("inf")
    for _ in range(_TRIES):
        start = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, time.perf_counter() - start)
    return best
