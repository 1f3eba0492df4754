"""Arithmetic: how many floating-point operations one instruction does, whatever is fused into it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from .instruction import Instruction, Window
from .module import WIDEST_WINDOW, Computation, Module

# What an operation counts as follows XLA's own cost analysis (openxla/xla, xla/service/hlo_cost_analysis.cc, read
# 2026-11-30), which counts a multiply-add as 2 and integer arithmetic like any other; loops and custom calls do not.
_MOVES = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "bitcast-convert", "after-all",
    "partition-id", "replica-id", "opt-barrier", "optimization-barrier", "domain", "add-dependency",
    "async-start", "async-update", "async-done", "copy", "copy-start", "copy-done", "reshape", "broadcast",
    "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "reverse", "iota",
    "gather", "get-dimension-size", "set-dimension-size", "dynamic-reshape", "send", "send-done", "recv",
    "recv-done", "infeed", "outfeed", "all-gather", "all-gather-start", "all-gather-done", "all-to-all",
    "collective-permute", "collective-permute-start", "collective-permute-done", "collective-broadcast",
    "ragged-all-to-all", "all-reduce-done", "real", "imag",
})  # fmt: skip
_ELEMENTWISE = frozenset({
    "abs", "add", "and", "ceil", "clamp", "clz", "compare", "complex", "convert", "count-leading-zeros",
    "divide", "floor", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt",
    "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor",
})  # fmt: skip
_TRANSCENDENTAL = frozenset({
    "acos", "acosh", "asin", "asinh", "atan2", "atanh", "cbrt", "cosh", "cosine", "erf", "exponential",
    "exponential-minus-one", "expm1", "log", "log-plus-one", "log1p", "logistic", "power", "rsqrt", "sine",
    "sinh", "sqrt", "tan", "tanh",
})  # fmt: skip
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed.

    Args:
        flops: additions, multiplications, comparisons …; a multiply-add is 2.
        transcendentals: exp, log, tanh and the like, not in `flops`.
        unknown: what could not be counted, in words; then the figures are too low.
    """

    flops: int = 0
    transcendentals: int = 0
    unknown: tuple[str, ...] = ()

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            tuple(dict.fromkeys((*self.unknown, *other.unknown))),
        )

    def times(self, count: int) -> Work:
        """Do it several times."""
        return Work(self.flops * count, self.transcendentals * count, self.unknown if count else ())


class Counter:
    """Counts within one module; what a fusion or reducer holds is counted once and remembered.

    Args:
        module: the program.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self._sums: dict[int, Work] = {}

    def of(self, computation: Computation, item: Instruction, depth: int = 0) -> Work:
        """Count one instruction's arithmetic, fusions descended; a loop's body once, see `launches`."""
        opcode = item.opcode
        if opcode in _MOVES:
            return Work()
        if opcode in _ELEMENTWISE:
            return Work(flops=item.shape.size)
        if opcode in _TRANSCENDENTAL:
            return Work(transcendentals=item.shape.size)
        if depth > _DEEPEST:
            return Work(unknown=(f"{item.name}: nested too deep",))
        if opcode in ("fusion", "call"):
            return _sum(self._inside(one, depth + 1) for one in self.module.called(item))
        special = getattr(self, "_of_" + opcode.replace("-", "_"), None)
        if special is None:
            return Work(unknown=(f"FLOPs of {opcode}",))
        return special(computation, item, depth)

    def _inside(self, computation: Computation, depth: int) -> Work:
        """Count a whole computation."""
        if computation.id not in self._sums:
            self._sums[computation.id] = _sum(self.of(computation, item, depth) for item in computation.instructions)
        return self._sums[computation.id]

    def _each(self, item: Instruction, depth: int) -> Work:
        """Count one use of the function that a reduce, scatter or map is given."""
        return _sum(self._inside(one, depth + 1) for one in self.module.called(item))

    def _of_dot(self, computation: Computation, item: Instruction, _depth: int) -> Work:
        left = computation.operands(item)[0].shape
        contracted = item.dot.lhs_contracting if item.dot else ()
        if any(axis >= len(left.dims) for axis in contracted):
            return Work(unknown=(f"FLOPs of {item.name}",))
        return Work(flops=2 * item.shape.size * math.prod(left.dims[axis] for axis in contracted))

    def _of_convolution(self, computation: Computation, item: Instruction, _depth: int) -> Work:
        """A TPU computes matrix products as convolutions, batches as windows that mostly fall on padding."""
        left, right = (operand.shape.dims for operand in computation.operands(item)[:2])
        numbers, result = item.convolution, item.shape.dims
        if numbers is None:
            return Work(unknown=(f"FLOPs of {item.name}",))
        try:
            count = right[numbers.kernel_input_feature] * result[numbers.output_feature] * result[numbers.output_batch]
            axes = zip(numbers.input_spatial, numbers.output_spatial, item.windows, strict=True)
            for into, out, window in axes:
                if window.size > WIDEST_WINDOW:
                    return Work(unknown=(f"FLOPs of {item.name}",))
                count *= _valid_positions(left[into], result[out], window)
        except (IndexError, ValueError):
            return Work(unknown=(f"FLOPs of {item.name}",))
        return Work(flops=2 * count)

    def _of_reduce(self, computation: Computation, item: Instruction, depth: int) -> Work:
        given = computation.operands(item)[0].shape.size
        return self._each(item, depth).times(max(0, given - item.shape.leaves()[0].size))

    def _of_reduce_window(self, _computation: Computation, item: Instruction, depth: int) -> Work:
        window = math.prod(one.size for one in item.windows)
        return self._each(item, depth).times(item.shape.leaves()[0].size * max(0, window - 1))

    def _of_select_and_scatter(self, computation: Computation, item: Instruction, depth: int) -> Work:
        source = computation.operands(item)[1].shape.size
        window = math.prod(one.size for one in item.windows)
        select, scatter = (self._inside(one, depth + 1) for one in self.module.called(item))
        return select.times(source * max(0, window - 1)) + scatter.times(source)

    def _of_map(self, _computation: Computation, item: Instruction, depth: int) -> Work:
        return self._each(item, depth).times(item.shape.size)

    def _of_scatter(self, computation: Computation, item: Instruction, depth: int) -> Work:
        operands = computation.operands(item)
        return self._each(item, depth).times(operands[len(operands) // 2 + 1].shape.size)

    def _of_sort(self, computation: Computation, item: Instruction, _depth: int) -> Work:
        count = computation.operands(item)[0].shape.size
        return Work(flops=count * max(0, count - 1).bit_length())

    def _of_rng(self, _computation: Computation, item: Instruction, _depth: int) -> Work:
        return Work(transcendentals=item.shape.size)

    def _of_custom_call(self, _computation: Computation, item: Instruction, _depth: int) -> Work:
        if item.free:
            return Work()
        called = item.config.get("custom_call_config")
        stated = called.get("cost_estimate") if isinstance(called, dict) else None
        if isinstance(stated, dict) and str(stated.get("flops", "")).isdecimal():
            functions = str(stated.get("transcendentals", "0"))
            return Work(int(stated["flops"]), int(functions) if functions.isdecimal() else 0)
        return Work(unknown=(f"FLOPs of the custom call {item.custom_call_target}",))

    def _of_all_reduce(self, computation: Computation, item: Instruction, _depth: int) -> Work:
        given = sum(operand.shape.size for operand in computation.operands(item))
        return Work(flops=given)  # each number is added once on each device

    _of_all_reduce_start = _of_reduce_scatter = _of_all_reduce

    def _of_while(self, _computation: Computation, item: Instruction, depth: int) -> Work:
        return _sum(self._inside(one, depth + 1) for one in self.module.called(item)[:1])


def _sum(parts: Iterable[Work]) -> Work:
    total = Work()
    for part in parts:
        total += part
    return total


@functools.lru_cache(maxsize=4096)
def _valid_positions(given: int, made: int, window: Window) -> int:
    """Count pairs of an output and a place in the window that meet a number, not padding or a dilation's gap."""
    stride, base = max(1, window.stride), max(1, window.base_dilation)
    common = math.gcd(stride, base)
    period = base // common  # outputs that meet a number, not a gap, come this far apart
    last = (given - 1) * base
    total = 0
    for place in range(window.size):
        offset = place * window.window_dilation - window.padding_low
        if offset % common or given < 1:
            continue
        # o * stride + offset must lie in 0 … last and be a multiple of base
        residue = (-(offset // common) * pow(stride // common, -1, period)) % period if period > 1 else 0
        low = max(0, -(offset // stride)) if offset < 0 else 0
        high = min(made - 1, (last - offset) // stride)
        first = low + (residue - low) % period
        if first <= high:
            total += (high - first) // period + 1
    return total
