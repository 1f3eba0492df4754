"""What a program launches, in order, and how often: loops and calls followed, fusions left whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .instruction import Instruction
from .module import Computation, Module

_TRANSPARENT = ("bitcast", "copy", "convert", "copy-done", "optimization-barrier", "opt-barrier")
_DEEPEST = 64  # loops within loops


@dataclass(frozen=True, slots=True)
class Launch:
    """One thing that the device starts.

    Args:
        instruction: what is started.
        computation: where it stands.
        times: how often in one run; None when a loop's count depends on data.
        certain: False inside a branch that may not be taken.
    """

    instruction: Instruction
    computation: Computation
    times: int | None
    certain: bool = True


def launches(module: Module) -> tuple[Launch, ...]:
    """List what a program launches.

    Bodies of loops are followed and counted as often as they run, conditions once more than that; of a condition, what
    only compares scalars is bookkeeping and left out. Each branch of a conditional is listed, marked as uncertain.
    """
    return tuple(_walk(module, module.entry, 1, True, 0))


def _walk(module: Module, computation: Computation, times: int | None, certain: bool, depth: int) -> Iterator[Launch]:
    if depth > _DEEPEST:
        return
    for instruction in computation.order:
        called = module.called(instruction)
        if instruction.free:
            continue
        if instruction.opcode == "while" and len(called) == 2:
            rounds = trip_count(module, computation, instruction)
            inside = None if rounds is None or times is None else rounds * times
            yield from _walk(module, called[0], inside, certain, depth + 1)
            asked = None if rounds is None or times is None else (rounds + 1) * times
            asking = _walk(module, called[1], asked, certain, depth + 1)
            yield from (launch for launch in asking if _has_arrays(launch))
        elif instruction.opcode == "call":
            for one in called:
                yield from _walk(module, one, times, certain, depth + 1)
        elif instruction.opcode == "conditional":
            for one in called:
                yield from _walk(module, one, times, False, depth + 1)
        else:
            yield Launch(instruction, computation, times, certain)


def _has_arrays(launch: Launch) -> bool:
    """Say whether a launch takes or makes more than scalars."""
    values = (launch.instruction, *launch.computation.operands(launch.instruction))
    return any(leaf.dims for value in values for leaf in value.shape.leaves())


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Say how often a loop runs; None when that depends on data.

    The compiler's own word counts where it gives one (a CPU's does). Else the condition must be "counter < limit", both
    ends of the count constants and its step a constant too, as `lax.scan` and `lax.fori_loop` make them.
    """
    stated = loop.config.get("known_trip_count")
    if isinstance(stated, dict) and str(stated.get("n", "")).isdecimal():
        return int(stated["n"])
    body, condition = module.called(loop)
    test = condition.root
    if test.opcode != "compare" or len(test.operands) != 2 or test.comparison_direction not in ("LT", "GT"):
        return None
    low, high = condition.operands(test) if test.comparison_direction == "LT" else reversed(condition.operands(test))
    start = _state(computation, loop)
    counter = _index(condition, low)
    limit = high.literal if high.opcode == "constant" else _constant(start, _index(condition, high))
    first = _constant(start, counter)
    step = _step(module, body, counter)
    if counter is None or limit is None or first is None or not step:
        return None
    return max(0, -((first - limit) // step))


def _state(computation: Computation, loop: Instruction) -> tuple[Computation, Instruction] | None:
    """Find the tuple that a loop starts with."""
    start = computation.instruction(loop.operands[0]) if loop.operands else None
    return (computation, start) if start is not None and start.opcode == "tuple" else None


def _index(computation: Computation, value: Instruction) -> int | None:
    """Say which part of a loop's state a value is."""
    value = _through(computation, value)
    if value.opcode != "get-tuple-element":
        return None
    state = computation.instruction(value.operands[0])
    return value.tuple_index if state.opcode == "parameter" else None


def _constant(state: tuple[Computation, Instruction] | None, index: int | None) -> int | None:
    """Give the whole number that one part of a loop's state starts with."""
    if state is None or index is None or not 0 <= index < len(state[1].operands):
        return None
    value = _through(state[0], state[0].instruction(state[1].operands[index]))
    return value.literal if value.opcode == "constant" else None


def _step(module: Module, body: Computation, index: int | None) -> int | None:
    """Say by how much a round raises the counter."""
    if index is None or body.root.opcode != "tuple" or not 0 <= index < len(body.root.operands):
        return None
    value = _through(body, body.instruction(body.root.operands[index]))
    where, counter = body, lambda item: _index(body, item) == index
    if value.opcode == "fusion":  # the addition may be fused alone
        inside = module.called(value)[0]
        operands = body.operands(value)
        where, value = inside, _through(inside, inside.root)

        def counter(item: Instruction) -> bool:
            number = item.parameter_number
            return item.opcode == "parameter" and number < len(operands) and _index(body, operands[number]) == index

    if value.opcode != "add" or len(value.operands) != 2:
        return None
    one, other = (_through(where, item) for item in where.operands(value))
    if counter(other):
        one, other = other, one
    return other.literal if counter(one) and other.opcode == "constant" and (other.literal or 0) > 0 else None


def _through(computation: Computation, value: Instruction) -> Instruction:
    """Look through what only moves or renames a value."""
    while value.opcode in _TRANSPARENT and len(value.operands) == 1:
        value = computation.instruction(value.operands[0])
    return value
