"""Trips to HBM: what one launch reads from the chip's main memory and writes to it."""

from __future__ import annotations

from collections.abc import Iterable

from .instruction import Instruction
from .module import Computation, Module
from .shape import Shape

HBM = 0
_SLICES = ("slice", "dynamic-slice", "gather")
_ALL = 1 << 62  # more bytes than any array has
_DEEPEST = 16
_RENAMES = ("bitcast", "reshape", "get-tuple-element")


def is_dma(instruction: Instruction) -> bool:
    """Say whether a launch only starts a copy that runs beside the kernels."""
    return instruction.opcode in ("copy-start", "async-start")


def bytes_moved(module: Module, computation: Computation, instruction: Instruction) -> tuple[int, int]:
    """Count the bytes that one launch reads from and writes to HBM, padding included.

    An operand that is named twice counts twice: the compiler's estimate for x * x is that of x * y (jax 0.10.2 with libtpu
    0.0.42.1, v5e, fusion off), more than for -x. Of an array from which only slices are taken, the slices count; of one that
    is updated in place, the part that is new.

    Returns:
        (read, written).
    """
    operands = computation.operands(instruction)
    if instruction.opcode == "copy-start":  # (destination, source, context)
        given = instruction.shape.parts[1] if len(instruction.shape.parts) > 1 else instruction.shape
        return in_hbm(given), in_hbm(instruction.result)
    if instruction.opcode == "async-start":
        return _started(module, operands, instruction)
    if instruction.opcode == "dynamic-update-slice" and len(operands) > 1:
        update = operands[1].shape
        return sum(in_hbm(one.shape) for one in operands[1:]), _padded(update) if in_hbm(instruction.shape) else 0
    if instruction.opcode in ("dynamic-slice", "gather", "slice") and operands:
        sliced = min(_padded(instruction.shape), in_hbm(operands[0].shape))
        return sliced + sum(in_hbm(one.shape) for one in operands[1:]), in_hbm(instruction.shape)
    if instruction.opcode == "fusion":
        return _fused(module, computation, instruction)
    return sum(in_hbm(one.shape) for one in operands), in_hbm(instruction.result)


def in_hbm(shape: Shape) -> int:
    """Count the bytes of the parts of a value that lie in HBM."""
    return sum(leaf.padded_bytes for leaf in shape.leaves() if leaf.memory_space == HBM)


def _padded(shape: Shape) -> int:
    return sum(leaf.padded_bytes for leaf in shape.leaves())


def _started(module: Module, operands: Iterable[Instruction], instruction: Instruction) -> tuple[int, int]:
    """Count an asynchronous call: mostly a slice that is fetched into VMEM early."""
    given = sum(in_hbm(one.shape) for one in operands)
    called = module.called(instruction)
    if called and called[0].root.opcode in _SLICES:
        given = min(given, _padded(called[0].root.shape))
    return given, in_hbm(instruction.result)


def _fused(module: Module, computation: Computation, instruction: Instruction) -> tuple[int, int]:
    """Count a fusion, looking inside for operands of which it takes only slices, and for updates in place."""
    inside = module.called(instruction)[0]
    parameters = inside.parameters
    read = 0
    updated = _updated_in_place(inside)
    taken = _Taken(module, updated)
    for number, id in enumerate(instruction.operands):
        whole = in_hbm(computation.instruction(id).shape)
        if number < len(parameters):
            whole = min(whole, taken.of(inside, parameters[number]))
        read += whole
    written = 0
    for leaf, root in zip(instruction.shape.leaves(), _roots(inside), strict=False):
        made = in_hbm(leaf)
        update = updated.get(root.id)
        written += min(made, _padded(update.shape)) if update is not None else made
    return read, written


def _roots(inside: Computation) -> tuple[Instruction, ...]:
    return inside.operands(inside.root) if inside.root.opcode == "tuple" else (inside.root,)


def _updated_in_place(inside: Computation) -> dict[int, Instruction]:
    """Find results that are an operand with a part replaced: id of the root → the new part."""
    found = {}
    for root in _roots(inside):
        item = root
        while item.opcode in _RENAMES and len(item.operands) == 1:
            item = inside.instruction(item.operands[0])
        if item.opcode == "dynamic-update-slice" and len(item.operands) > 1:
            target = inside.instruction(item.operands[0])
            while target.opcode in _RENAMES and len(target.operands) == 1:
                target = inside.instruction(target.operands[0])
            if target.opcode == "parameter":
                found[root.id] = inside.instruction(item.operands[1])
                found[item.id] = found[root.id]
    return found


class _Taken:
    """Counts what a fusion takes of its parameters: all of one, unless every use is a slice or an update.

    Args:
        module: for fusions within the fusion.
        updated: results of the outer fusion that are an operand with a part replaced.
    """

    def __init__(self, module: Module, updated: dict[int, Instruction]) -> None:
        self.module, self.updated = module, updated
        self._users: dict[int, dict[int, list[Instruction]]] = {}
        self._found: dict[tuple[int, int], int] = {}

    def of(self, inside: Computation, value: Instruction, depth: int = 0) -> int:
        """Count one value's bytes."""
        if (value.id == inside.root.id and not depth) or depth > _DEEPEST:
            return _ALL
        key = inside.id, value.id
        if key not in self._found:
            uses = (self._use(inside, value, user, depth) for user in self._users_of(inside).get(value.id, ()))
            self._found[key] = min(_ALL, sum(uses))
        return self._found[key]

    def _use(self, inside: Computation, value: Instruction, user: Instruction, depth: int) -> int:
        first_only = user.operands[0] == value.id and value.id not in user.operands[1:]
        if user.opcode in _SLICES and first_only:
            return _padded(user.shape)
        if user.opcode == "dynamic-update-slice" and first_only and user.id in self.updated and depth <= _DEEPEST:
            return 0  # what is not replaced stays where it is
        if user.opcode in _RENAMES:
            return self.of(inside, user, depth + 1)
        if user.opcode != "fusion":
            return _ALL
        called = self.module.called(user)[0]
        parameters = called.parameters
        places = [number for number, id in enumerate(user.operands) if id == value.id and number < len(parameters)]
        total = sum(self.of(called, parameters[number], depth + 1) for number in places)
        return total + (self.of(inside, user, depth + 1) if called.root.opcode in _RENAMES else 0)

    def _users_of(self, inside: Computation) -> dict[int, list[Instruction]]:
        """Turn operands around: value → what uses it."""
        if inside.id not in self._users:
            users = self._users[inside.id] = {}
            for user in inside.instructions:
                for id in dict.fromkeys(user.operands):
                    users.setdefault(id, []).append(user)
        return self._users[inside.id]
