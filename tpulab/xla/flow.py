"""What flows from launch to launch, and through which memory."""

from __future__ import annotations

from collections.abc import Iterable

from .instruction import Instruction
from .launch import Launch
from .module import Computation, Module
from .program import Edge

_SAME_VALUE = ("bitcast", "async-update", "opt-barrier", "optimization-barrier", "domain")
_FARTHEST = 256  # names between a value and the launch that made it
Maker = tuple[str, str]  # launch by name, and the label of an argument; ("", "") for what nobody makes


def edges_of(module: Module, launches: Iterable[Launch]) -> tuple[Edge, ...]:
    """Find the values that launches read and leave.

    Values are followed through everything that only renames them to the launch, argument or loop that they come from.
    """
    found: list[Edge] = []
    for launch in launches:
        target = launch.instruction.name
        for operand in launch.computation.operands(launch.instruction):
            found += _edges(module, launch.computation, operand, target)
    root = module.entry.root
    results = module.entry.operands(root) if root.opcode == "tuple" else (root,)
    for value in dict.fromkeys(results):
        found += [edge for edge in _edges(module, module.entry, value, "") if edge.source]
    return tuple(dict.fromkeys(found))


def _edges(module: Module, computation: Computation, value: Instruction, target: str) -> list[Edge]:
    if value.opcode == "constant" and not value.shape.dims:
        return []
    source, label = _maker(module, computation, value)
    if source == target:
        return []
    return [
        Edge(source, target, label, leaf.plain, leaf.padded_bytes, leaf.space)
        for leaf in value.result.leaves()
        if leaf.bits
    ]


def _maker(module: Module, computation: Computation, value: Instruction) -> Maker:
    """Follow a value back to what made it."""
    for _ in range(_FARTHEST):
        if (value.opcode in _SAME_VALUE or value.opcode.endswith("-done")) and value.operands:
            value = computation.instruction(value.operands[0])
        elif value.opcode == "get-tuple-element":
            made = computation.instruction(value.operands[0])
            if made.opcode == "tuple" and value.tuple_index < len(made.operands):
                value = computation.instruction(made.operands[value.tuple_index])
            elif made.opcode == "parameter" and computation.id != module.entry.id:
                return "", "loop state"
            else:
                value = made
        else:
            break
    if value.opcode == "parameter":
        return "", value.op_name if computation.id == module.entry.id else "loop state"
    if value.opcode in ("while", "conditional"):
        return "", f"result of the {'loop' if value.opcode == 'while' else 'branch'}"
    if value.opcode == "constant":
        return "", "constant"
    return ("", value.opcode) if value.free else (value.name, "")
