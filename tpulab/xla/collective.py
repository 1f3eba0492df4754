"""What crosses between devices: collectives, wherever the compiler put them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .instruction import Instruction
from .launch import Launch
from .module import Computation, Module
from .shape import Shape

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
_DEEPEST = 16


@dataclass(frozen=True)
class Collective:
    """One exchange between devices, from the view of one of them.

    Args:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", …
        bytes: of the whole array on its larger side: what an all-gather gives, what a reduce-scatter takes.
        group_count: how many groups exchange at the same time, each within itself.
        group_size: devices in a group.
        groups: the devices of each group; () when all of them form one.
        asynchronous: it was started early, so that it can run while something is computed.
        times: how often in one run; None when a loop's count is unknown.
        source: the learner's source line, "" when unknown.
        name: of the HLO instruction.
    """

    kind: str
    bytes: int
    group_count: int
    group_size: int
    groups: tuple[tuple[int, ...], ...]
    asynchronous: bool
    times: int | None
    source: str
    name: str


def find(module: Module, launches: Iterable[Launch], lines: dict[tuple[str, int], str]) -> tuple[Collective, ...]:
    """Find the collectives of a program, those inside of fusions too, each once.

    A collective that overlaps with a product appears in the fusions that start it, compute beside it and end it; these
    have one channel, by which it counts once. A loop that starts the next round's early has a first one outside.
    """
    found: dict[object, Collective] = {}
    for launch in launches:
        for home, item, scattered in _inside(module, launch.computation, launch.instruction, 0):
            fused = home.id != launch.computation.id and item.channel_id
            key = (launch.computation.id, kind_of(item), item.channel_id if fused else item.name)
            one = _read(module, home, item, launch, scattered, lines)
            if key not in found or (one.asynchronous and not found[key].asynchronous):
                found[key] = one
    return tuple(found.values())


def kind_of(instruction: Instruction) -> str:
    """Name the kind of a collective; "" for what is none."""
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in KINDS else ""


def _inside(
    module: Module, computation: Computation, item: Instruction, depth: int
) -> Iterator[tuple[Computation, Instruction, bool]]:
    """Give collectives in a launch, where they stand, and whether only a part of the result is kept.

    Then it is a reduce-scatter by another name.
    """
    if kind_of(item):
        yield computation, item, False
    if depth < _DEEPEST and item.opcode in ("fusion", "async-start", "call"):
        for called in module.called(item):
            scattered = called.name.startswith("all-reduce-scatter") or item.name.startswith("all-reduce-scatter")
            for inner in called.instructions:
                for home, one, already in _inside(module, called, inner, depth + 1):
                    yield home, one, already or scattered


def _read(
    module: Module,
    home: Computation,
    item: Instruction,
    launch: Launch,
    scattered: bool,
    lines: dict[tuple[str, int], str],
) -> Collective:
    kind = kind_of(item)
    if kind == "all-reduce" and scattered:
        kind = "reduce-scatter"
    groups = item.replica_groups
    devices = module.devices or 0
    size = len(groups[0]) if groups else devices
    if item.source_target_pairs:
        size = _ring(item.source_target_pairs)
    count = len(groups) or max(1, devices // size if size else 1)
    started = launch.instruction.opcode.endswith("-start") or item.opcode.endswith("-start")
    started = started or bool(re.match(r"async-collective", launch.instruction.name))
    file_line = (item.source_file, item.source_line)
    return Collective(
        kind=kind,
        bytes=_whole(kind, home, item),
        group_count=count,
        group_size=size,
        groups=groups,
        asynchronous=started,
        times=launch.times,
        source=lines.get(file_line, ""),
        name=item.name,
    )


def _whole(kind: str, home: Computation, item: Instruction) -> int:
    """Count the bytes of the larger side."""
    made = _bytes(item.result)
    given = sum(_bytes(operand.shape) for operand in home.operands(item))
    return max(made, given) if kind in ("all-gather", "reduce-scatter") else made


def _bytes(shape: Shape) -> int:
    return sum(leaf.logical_bytes for leaf in shape.leaves())


def _ring(pairs: tuple[tuple[int, int], ...]) -> int:
    """Say how many devices hand on to each other in one ring or chain."""
    follows = dict(pairs)
    longest = 0
    seen: set[int] = set()
    for start in follows:
        length, at = 0, start
        while at in follows and at not in seen:
            seen.add(at)
            at = follows[at]
            length += 1
        longest = max(longest, length if at == start else length + 1)
    return longest
