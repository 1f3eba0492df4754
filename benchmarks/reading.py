"""How fast HLO is read: python -m benchmarks.reading [--rounds N].

The largest program of the course, one training step with 6 billion parameters (benchmarks.six_billion), is decoded by
`tpulab.xla` from its bytes and by XLA's own parser from its text, in turn in each round; medians are shown.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from . import six_billion


def main() -> int:
    """Compile or find the program, read it both ways, print rates and their ratio."""
    from tpulab.xla.module import decode

    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    data = six_billion.compiled_step("v4:8x8x8", six_billion.LAYERS).after
    text = _hlo().HloModule.from_serialized_hlo_module_proto(data).to_string()
    instructions = sum(len(computation.instructions) for computation in decode(data).computations)
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        times.setdefault("tpulab, bytes", []).append(_seconds(decode, data))
        times.setdefault("XLA, text", []).append(_seconds(_hlo().hlo_module_from_text, text))
    print(f"{instructions:,} instructions, {len(data):,} bytes, {len(text):,} characters; {rounds} rounds (measured)")
    for name, found in times.items():
        seconds = statistics.median(found)
        print(f"{name:<14} {seconds:6.3f} s  {instructions / seconds:>10,.0f} instructions/s")
    ratios = [ours / theirs for ours, theirs in zip(*times.values(), strict=True)]
    print(f"ratio of the times {statistics.median(ratios):.2f}")
    return 0


def _hlo() -> Any:
    """Find XLA's own view of HLO, which has moved between versions of jaxlib."""
    try:
        from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]

        return _hlo
    except ImportError:
        from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

        return _jax


def _seconds(function: Callable[[Any], Any], argument: Any) -> float:
    started = time.perf_counter()
    function(argument)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
