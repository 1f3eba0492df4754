"""HBM that a program needs, from the compiler's own plan of buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from .compiled import Buffer, Memory
from .instruction import Instruction
from .module import Module, decode
from .source import lines_of, made_by
from .wire import Malformed, Message

HBM = 0
MOST_BUFFERS = 10

# Field numbers: openxla/xla, xla/service/hlo.proto, HloProto, BufferAssignmentProto, BufferAllocationProto and
# LogicalBufferProto, read 2026-11-30; compared with the compiler's memory report on three versions.


def of_dump(folder: Path, capacity_bytes: int | None) -> Memory | None:
    """Read the plan that a compilation wrote, also one that ran out of memory.

    Args:
        folder: what `xla_dump_to` named, with `xla_dump_hlo_as_proto`.
        capacity_bytes: what the compiler may use on the device.

    Returns:
        What the program needs; None where this compiler wrote no plan.
    """
    data = _dump(folder)
    if data is None:
        return None
    try:
        return of_plan(data, capacity_bytes)
    except Malformed:
        return None


def module_of_dump(folder: Path) -> bytes | None:
    """Give the optimised program as a compilation wrote it; None where it wrote none."""
    data = _dump(folder)
    return Message(data).raw(1) if data else None


def of_plan(data: bytes, capacity_bytes: int | None = None) -> Memory | None:
    """Read an HloProto with its plan of buffers.

    The peak is the sum of all allocations in HBM: the compiler has already let those that are not alive
    together share one.

    Raises:
        Malformed: the bytes are no such program.
    """
    plan = Message(data).message(3)
    allocations = [item for item in plan.messages(3) if item.integer(8) == HBM]
    if not allocations:
        return None
    sums = {"peak": 0, "argument": 0, "result": 0, "alias": 0}
    for item in allocations:
        size, argument, result = item.integer(2), bool(item.integer(5)), bool(item.integer(7))
        sums["peak"] += size
        sums["argument"] += size * argument
        sums["result"] += size * result
        sums["alias"] += size * (argument and result)
    temporary = sums["peak"] - sums["argument"] - sums["result"] + sums["alias"]
    return Memory(
        peak_bytes=sums["peak"],
        argument_bytes=sums["argument"],
        output_bytes=sums["result"],
        alias_bytes=sums["alias"],
        temporary_bytes=temporary,
        capacity_bytes=capacity_bytes,
        buffers=_largest(plan, allocations, decode(data)),
    )


def _largest(plan: Message, allocations: list[Message], module: Module) -> tuple[Buffer, ...]:
    """List the largest buffers; of those that share a place, the largest."""
    values = {item.integer(1): item for item in plan.messages(1)}
    places: list[tuple[int, int, str]] = []
    for allocation in allocations:
        largest: dict[int, tuple[int, int]] = {}
        for assigned in allocation.messages(9):
            offset, size = assigned.integer(2), assigned.integer(3)
            largest[offset] = max(largest.get(offset, (0, 0)), (size, assigned.integer(1)))
        places += [(size, value, _kind(allocation)) for size, value in largest.values()]
    places.sort(key=lambda place: -place[0])
    by_id, by_name = _instructions(module)
    lines = lines_of(module)
    found = []
    for size, value, kind in places[:MOST_BUFFERS]:
        defined = values[value].message(3) if value in values else Message(b"")
        instruction = by_id.get(defined.integer(4)) or by_name.get(defined.text(2))
        found.append(_buffer(size, kind, instruction, defined.integers(3), lines))
    return tuple(found)


def _buffer(
    size: int,
    kind: str,
    instruction: Instruction | None,
    index: tuple[int, ...],
    lines: Mapping[tuple[str, int], str],
) -> Buffer:
    """Name a buffer by what makes it."""
    if instruction is None:
        return Buffer(size, "", "", kind)
    shape = instruction.shape
    for part in index:
        if part < len(shape.parts):
            shape = shape.parts[part]
    return Buffer(size, instruction.name, str(shape), kind, made_by(instruction, lines))


def _kind(allocation: Message) -> str:
    if allocation.integer(5):
        return "argument"
    if allocation.integer(7):
        return "result"
    return "constant" if allocation.integer(12) else "temporary"


def _instructions(module: Module) -> tuple[dict[int, Instruction], dict[str, Instruction]]:
    """Index all instructions by id and by name."""
    found = list(_all(module))
    return {item.id: item for item in found}, {item.name: item for item in found}


def _all(module: Module) -> Iterator[Instruction]:
    for computation in module.computations:
        yield from computation.instructions


def _dump(folder: Path) -> bytes | None:
    """Find the optimised program among what the compiler wrote."""
    found = sorted(folder.glob("*after_optimizations.hlo.pb"), key=lambda path: path.stat().st_size)
    return found[-1].read_bytes() if found else None


def is_for_cpu(folder: Path) -> bool:
    """Say whether the compiler that wrote into a folder was the CPU's."""
    return next(folder.glob("*cpu_after_optimizations*"), None) is not None
