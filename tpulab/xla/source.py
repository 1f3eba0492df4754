"""The learner's source lines, as text: a notebook's cells are gone when the kernel ends."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .instruction import Instruction
    from .module import Module


def lines_of(*modules: Module) -> dict[tuple[str, int], str]:
    """Look up each source line that programs name.

    Args:
        *modules: decoded programs.

    Returns:
        Its text without indentation, by (file, line); lines whose file is not there are left out.
    """
    places = set()
    for module in modules:
        for computation in module.computations:
            for instruction in computation.instructions:
                places.add((instruction.source_file, instruction.source_line))
                places.update((frame.file, frame.line) for frame in instruction.frames)
    found = {}
    for file, line in sorted(places):
        if file and (text := linecache.getline(file, line).strip()):
            found[file, line] = text
    return found


def made_by(instruction: Instruction, lines: Mapping[tuple[str, int], str]) -> str:
    """Say which source line an instruction comes from, e.g. "y = jnp.tanh(x @ w) (layer.py:12)"."""
    if instruction.opcode == "parameter":
        return instruction.op_name
    file, line = instruction.source_file, instruction.source_line
    if not file:
        return ""
    place = f"line {line}" if "ipykernel" in file else f"{PurePath(file).name}:{line}"
    text = lines.get((file, line), "")
    return f"{text} ({place})" if text else place
