"""A compiled program as bytes, for the cache and for results shipped with the course."""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from . import cache
from .compiled import Buffer, Compiled, Memory

_FORMAT = 1  # one more whenever what is stored means something else


def key(
    target: str, name: str, program: str, source: str, options: Mapping[str, Any], versions: Mapping[str, str]
) -> str:
    """Give the name under which a result is kept: it changes with all that the result depends on."""
    plain = sorted((option, str(value)) for option, value in options.items())
    return cache.key(_FORMAT, target, name, program, source, plain, sorted(versions.items())) + ".hlo"


def read(name: str) -> Compiled | None:
    """Find a result; a damaged one counts as none."""
    data = cache.read(name)
    try:
        return unpack(data) if data is not None else None
    except ValueError:
        return None


def write(name: str, compiled: Compiled) -> None:
    """Keep a result."""
    cache.write(name, pack(compiled))


def pack(compiled: Compiled) -> bytes:
    """Put a compiled program into bytes."""
    facts = {
        "name": compiled.name,
        "target": compiled.target,
        "chip": compiled.chip,
        "devices": compiled.devices,
        "versions": dict(compiled.versions),
        "date": compiled.date,
        "memory": asdict(compiled.memory) if compiled.memory else None,
        "lines": [[file, line, text] for (file, line), text in compiled.lines.items()],
        "options": dict(compiled.options),
        "notes": list(compiled.notes),
    }
    head = json.dumps(facts).encode()
    before = compiled.before or b""
    sizes = struct.pack("<3Q", len(head), len(before), len(compiled.after))
    return zlib.compress(sizes + head + before + compiled.after, 6)


def unpack(data: bytes) -> Compiled:
    """Take a compiled program out of bytes.

    Raises:
        ValueError: the bytes are no packed program, or a damaged one.
    """
    try:
        whole = zlib.decompress(data)
        head, before, after = struct.unpack_from("<3Q", whole)
        if 24 + head + before + after != len(whole):
            raise ValueError("its parts do not add up")
        facts = json.loads(whole[24 : 24 + head])
        facts["lines"] = {(file, line): text for file, line, text in facts["lines"]}
        facts["notes"] = tuple(facts["notes"])
        facts["memory"] = _memory(facts["memory"])
        return Compiled(
            **facts, before=whole[24 + head : 24 + head + before] or None, after=whole[24 + head + before :]
        )
    except (zlib.error, struct.error, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no packed program: {error}") from None


def _memory(facts: dict[str, Any] | None) -> Memory | None:
    if facts is None:
        return None
    return Memory(**{**facts, "buffers": tuple(Buffer(**buffer) for buffer in facts["buffers"])})
