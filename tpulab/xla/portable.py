"""Take the paths of the machine that compiled a program out of it, so that the result can be passed on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from .compiled import Compiled
from .wire import Malformed, read_varint

# Where an HloModuleProto holds file names. Source: openxla/xla, xla/service/hlo.proto and xla/xla_data.proto.
_FILES = {
    17: {1: "file"},  # stack_frame_index.file_names
    3: {2: {7: {3: "file"}}},  # computations.instructions.metadata.source_file
}
_Places = Mapping[int, "_Places | str"]


def without_paths(compiled: Compiled) -> Compiled:
    """Rename source files: a package's to its path below site-packages, others to their last part.

    Notebook cells, whose files are named after the kernel's process, become "cell 1", "cell 2", … in the order in which
    the program names them. The same program gives the same bytes, wherever it was compiled.
    """
    names: dict[str, str] = {}

    def renamed(name: str) -> str:
        if name not in names:
            names[name] = _short(name, sum(new.startswith("cell ") for new in names.values()))
        return names[name]

    before = _rewritten(compiled.before, _FILES, renamed) if compiled.before else None
    after = _rewritten(compiled.after, _FILES, renamed)
    lines = {(renamed(file), line): text for (file, line), text in compiled.lines.items()}
    return replace(compiled, before=before, after=after, lines=lines)


def _short(name: str, cells: int) -> str:
    """Shorten one file name.

    Example:
        >>> _short("/opt/env/lib/python3.11/site-packages/jax/_src/nn.py", 0), _short("C:\\\\work\\\\model.py", 0)
        ('jax/_src/nn.py', 'model.py')
        >>> _short("/scratch/ipykernel_4711/1234567.py", 2)
        'cell 3'
    """
    parts = re.split(r"[/\\]", name)
    if any(part.startswith("ipykernel_") for part in parts) or name.startswith("<ipython-input"):
        return f"cell {cells + 1}"
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return parts[-1]


def _rewritten(data: bytes, places: _Places, renamed: Callable[[str], str]) -> bytes:
    """Copy a protobuf message with some of its texts changed, everything else byte for byte."""
    out = bytearray()
    at = 0
    while at < len(data):
        start = at
        key, at = read_varint(data, at)
        kind, place = key & 7, places.get(key >> 3)
        if kind != 2:
            at = read_varint(data, at)[1] if kind == 0 else at + {1: 8, 5: 4}[kind]
            out += data[start:at]
            continue
        size, at = read_varint(data, at)
        value = data[at : at + size]
        if len(value) != size:
            raise Malformed("it ends in the middle of a field")
        at += size
        if place is not None:
            value = renamed(value.decode()).encode() if isinstance(place, str) else _rewritten(value, place, renamed)
        out += _varint(key) + _varint(len(value)) + value
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
