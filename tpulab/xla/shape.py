"""Shapes of HLO values, and how many bytes they take in a TPU's memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .wire import Malformed, Message

# Source: openxla/xla, xla/xla_data.proto, PrimitiveType, read 2026-11-30. Number: (name, bits).
_TYPES = {
    1: ("pred", 8),
    2: ("s8", 8),
    3: ("s16", 16),
    4: ("s32", 32),
    5: ("s64", 64),
    6: ("u8", 8),
    7: ("u16", 16),
    8: ("u32", 32),
    9: ("u64", 64),
    10: ("f16", 16),
    11: ("f32", 32),
    12: ("f64", 64),
    13: ("tuple", 0),
    14: ("opaque", 0),
    15: ("c64", 64),
    16: ("bf16", 16),
    17: ("token", 0),
    18: ("c128", 128),
    19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8),
    21: ("s4", 4),
    22: ("u4", 4),
    23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8),
    26: ("s2", 2),
    27: ("u2", 2),
    28: ("f8e4m3", 8),
    29: ("f8e3m4", 8),
    30: ("s1", 1),
    31: ("u1", 1),
    32: ("f4e2m1fn", 4),
    33: ("f8e8m0fnu", 8),
}
_BITS = dict(_TYPES.values())
_DEEPEST = 32  # tuples within tuples
_SPACES = {0: "HBM", 1: "VMEM"}


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array lies in memory.

    Args:
        minor_to_major: dimensions, the one that runs fastest first.
        tiles: sizes of the blocks that are padded to, the first as (8, 128) rows and lanes.
        memory_space: 0 is HBM (a CPU's memory), 1 a TPU's VMEM; others have no public name.
        element_bits: of one element where it differs from the type's, else 0.
    """

    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    memory_space: int = 0
    element_bits: int = 0

    def __str__(self) -> str:
        tiles = "".join(f"({','.join('*' if size < 0 else str(size) for size in tile)})" for tile in self.tiles)
        tail = f"T{tiles}" if tiles else ""
        tail += f"E({self.element_bits})" if self.element_bits else ""
        tail += f"S({self.memory_space})" if self.memory_space else ""
        order = ",".join(map(str, self.minor_to_major))
        return f"{{{order}:{tail}}}" if tail else f"{{{order}}}"


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of one value: an array, or a tuple of shapes.

    Args:
        dtype: as HLO writes it, e.g. "bf16"; "tuple" and "token" for what is no array.
        dims: sizes, outermost first.
        layout: how it lies in memory; None where the program does not say.
        parts: of a tuple.

    Example:
        >>> x = Shape("bf16", (1000, 3), Layout((0, 1), ((4, 128), (2, 1))))
        >>> x.logical_bytes, x.padded_bytes, str(x)
        (6000, 8192, 'bf16[1000,3]{0,1:T(4,128)(2,1)}')
    """

    dtype: str
    dims: tuple[int, ...] = ()
    layout: Layout | None = None
    parts: tuple[Shape, ...] = ()

    def leaves(self) -> tuple[Shape, ...]:
        """Give the arrays in it: itself, or those of the tuple, in order."""
        if self.dtype != "tuple":
            return (self,)
        return tuple(leaf for part in self.parts for leaf in part.leaves())

    @property
    def size(self) -> int:
        """How many elements; of a tuple the sum."""
        if self.dtype == "tuple":
            return sum(part.size for part in self.parts)
        return math.prod(self.dims) if _BITS.get(self.dtype) else 0

    @property
    def bits(self) -> int:
        """Bits that one element takes."""
        return (self.layout.element_bits if self.layout else 0) or _BITS.get(self.dtype, 0)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the elements alone."""
        if self.dtype == "tuple":
            return sum(part.logical_bytes for part in self.parts)
        return -(-self.size * self.bits // 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes that it takes in memory: the innermost dimensions rounded up to the tile."""
        if self.dtype == "tuple":
            return sum(part.padded_bytes for part in self.parts)
        if self.layout is None or not self.layout.tiles or not self.bits or not self.size:
            return self.logical_bytes
        order = self.layout.minor_to_major or tuple(reversed(range(len(self.dims))))
        tile = self.layout.tiles[0]
        lying = [1] * (len(tile) - len(self.dims)) + [self.dims[d] for d in reversed(order)]
        for back, step in enumerate(reversed(tile), 1):
            lying[-back] = -(-lying[-back] // max(step, 1)) * max(step, 1)
        return -(-math.prod(lying) * self.bits // 8)

    @property
    def memory_space(self) -> int:
        """Where it lies: 0 is HBM; a tuple has its parts' spaces, see `leaves`."""
        return self.layout.memory_space if self.layout else 0

    @property
    def space(self) -> str:
        """Where it lies in words: "HBM", "VMEM", or "space N"."""
        return _SPACES.get(self.memory_space, f"space {self.memory_space}")

    @property
    def plain(self) -> str:
        """The text without layouts, e.g. "bf16[8,128]"."""
        if self.dtype == "tuple":
            return f"({', '.join(part.plain for part in self.parts)})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    def __str__(self) -> str:
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.parts))})"
        shown = self.layout is not None and (self.dims or str(self.layout) != "{}")
        return f"{self.plain}{self.layout if shown else ''}"


def read_shape(message: Message, depth: int = 0) -> Shape:
    """Read a ShapeProto.

    Raises:
        Malformed: it is none, or its layout does not fit its dimensions.
    """
    number = message.integer(2)
    if number not in _TYPES:
        raise Malformed(f"element type {number} is unknown here")
    if depth > _DEEPEST:
        raise Malformed(f"tuples lie more than {_DEEPEST} deep")
    dims = message.integers(3)
    if any(size < 0 for size in dims):
        raise Malformed("a dimension is below zero")
    parts = tuple(read_shape(part, depth + 1) for part in message.messages(4))
    layout = _layout(message.message(5), len(dims)) if 5 in message else None
    return Shape(_TYPES[number][0], dims, layout, parts)


def _layout(message: Message, rank: int) -> Layout:
    order = message.integers(1)
    if sorted(order) != list(range(rank)):
        raise Malformed(f"a layout orders {len(order)} of {rank} dimensions, or one twice")
    tiles = tuple(tile.integers(1) for tile in message.messages(6))
    if any(size == 0 for tile in tiles for size in tile):
        raise Malformed("a tile has size 0")
    return Layout(order, tiles, message.integer(8), message.integer(7))
