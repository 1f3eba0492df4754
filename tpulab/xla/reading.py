"""From a decoded program to the words of the course: kernels, bytes, FLOPs, cycles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from .collective import find, kind_of
from .compiled import Compiled
from .flow import edges_of
from .instruction import Instruction
from .launch import Launch, launches
from .module import Module, decode
from .program import Counts, Kernel, Program
from .text import load
from .traffic import bytes_moved, is_dma
from .work import Counter, Work

_PLUMBING = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
_DEEPEST = 16
Lines = Mapping[tuple[str, int], str]


def read(source: str | bytes | Path) -> Program:
    """Read an HLO program from a file, its bytes, or pasted text.

    Args:
        source: a path, the bytes of an HloModuleProto or HloProto, or HLO text.

    Raises:
        Malformed: it is no HLO program, or a damaged one.
        OSError: the file cannot be read.
    """
    module = load(source)
    return program_of(module, name=re.sub(r"^jit_+", "", module.name), target="a file")


def from_compiled(compiled: Compiled) -> Program:
    """Count everything in a program that the compiler gave back."""
    module = decode(compiled.after)
    before = counts_of(decode(compiled.before)) if compiled.before else None
    made = program_of(
        module,
        name=compiled.name,
        target=compiled.target,
        chip=compiled.chip,
        devices=compiled.devices,
        before=before,
        lines=compiled.lines,
    )
    facts = {name: getattr(compiled, name) for name in ("memory", "versions", "date", "options", "recorded")}
    return replace(made, notes=(*compiled.notes, *made.notes), **facts)


def program_of(
    module: Module,
    *,
    name: str,
    target: str,
    chip: str | None = None,
    devices: int | None = None,
    before: Counts | None = None,
    lines: Lines | None = None,
) -> Program:
    """Count everything in a decoded program.

    Args:
        module: after optimisation.
        name: of the function.
        target: what it was compiled for.
        chip: the chip's short name.
        devices: how many run it; by default as many as the program says.
        before: counts of the program before optimisation; they stand in for FLOPs that the optimised one hides.
        lines: the text of source lines.
    """
    lines = dict(lines or {})
    costs = _costs(module)
    listed = [cost.launch for cost in costs]
    read = [_kernel(module, cost, number, lines) for number, cost in enumerate(costs, 1)]
    counts, notes = _settled(_sums(costs), before, devices or module.devices or 1)
    return Program(
        name=name,
        target=target,
        chip=chip,
        devices=devices or module.devices or 1,
        counts=counts,
        kernels=tuple(one for one in read if not one.dma),
        dmas=tuple(one for one in read if one.dma),
        edges=edges_of(module, listed),
        collectives=find(module, listed, lines),
        before=before,
        memory=None,
        module=module,
        versions={},
        date="",
        options={},
        notes=notes,
        recorded=False,
    )


def counts_of(module: Module) -> Counts:
    """Count a program as if each operation that is launched were a kernel."""
    return _sums(_costs(module))


@dataclass(frozen=True, slots=True)
class _Cost:
    """What one launch costs, once."""

    launch: Launch
    work: Work
    bytes_read: int
    bytes_written: int
    cycles: int | None


def _costs(module: Module) -> list[_Cost]:
    counter = Counter(module)
    found = []
    for launch in launches(module):
        item, computation = launch.instruction, launch.computation
        moved = bytes_moved(module, computation, item)
        found.append(_Cost(launch, counter.of(computation, item), *moved, _cycles(item)))
    return found


def _kernel(module: Module, cost: _Cost, position: int, lines: dict[tuple[str, int], str]) -> Kernel:
    item = cost.launch.instruction
    inside = list(insides(module, item))
    return Kernel(
        name=item.name,
        kind=_kind(module, item, inside),
        opcode=item.opcode,
        opcodes=tuple(one.opcode for one in inside),
        times=cost.launch.times,
        flops=None if cost.work.unknown else cost.work.flops,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        estimated_cycles=cost.cycles,
        steps=tuple(dict.fromkeys(filter(None, map(_step, inside)))),
        source=tuple(dict.fromkeys(filter(None, (_line(one, lines) for one in inside)))),
        dma=is_dma(item),
        position=position,
    )


def insides(module: Module, item: Instruction, depth: int = 0) -> Iterator[Instruction]:
    """Give what a launch computes: itself, or what is fused into it."""
    if item.opcode in ("fusion", "async-start") and depth < _DEEPEST:
        for called in module.called(item):
            for one in called.instructions:
                yield from insides(module, one, depth + 1)
    elif item.opcode not in _PLUMBING:
        yield item


def _kind(module: Module, item: Instruction, inside: list[Instruction]) -> str:
    """Say in plain words what a launch is."""
    opcodes = {one.opcode for one in inside}
    if item.opcode == "copy-start":
        return "copy"
    if item.opcode == "async-start":
        return next(iter(opcodes), "asynchronous call")
    if item.opcode == "custom-call":
        return f"custom call {item.custom_call_target}"
    if item.opcode != "fusion":
        return kind_of(item) or _products(item.opcode, inside) or item.opcode
    if product := _products("", inside):
        return f"{product} fusion"
    if crossing := next((kind_of(one) for one in inside if kind_of(one)), ""):
        return "reduce-scatter" if "all-reduce-scatter" in item.name else crossing
    for opcode in ("scatter", "sort", "gather"):
        if opcode in opcodes:
            return f"{opcode} fusion"
    return "reduce fusion" if opcodes & {"reduce", "reduce-window"} else "loop fusion"


def _products(opcode: str, inside: list[Instruction]) -> str:
    """Tell matrix products from convolutions: a TPU's program calls both convolution."""
    if opcode not in ("", "dot", "convolution"):
        return ""
    found = [one for one in inside if one.opcode in ("dot", "convolution")]
    if not found:
        return ""
    return "convolution" if any("conv_general_dilated" in one.op_name for one in found) else "matmul"


def _step(item: Instruction) -> str:
    """Give the JAX operation behind an instruction: "dot_general" of "jit(layer)/dot_general"."""
    last = re.split(r"/(?![^(]*\))", item.op_name[-200:])[-1]
    last = re.sub(r"\[.*", "", last)
    return "" if "(" in last or not last else last


def _line(item: Instruction, lines: Lines) -> str:
    """Give the learner's source line, as text where it is known, else as file and number."""
    for file, line in ((item.source_file, item.source_line), *((one.file, one.line) for one in item.frames)):
        if text := lines.get((file, line)):
            return text
    return f"{PurePath(item.source_file).name}:{item.source_line}" if item.source_file else ""


def _cycles(item: Instruction) -> int | None:
    window = item.config.get("window_config")
    stated = window.get("estimated_cycles") if isinstance(window, dict) else None
    return int(stated) if isinstance(stated, str) and stated.isdecimal() else None


def _sums(costs: list[_Cost]) -> Counts:
    """Add up: each launch as often as it runs; what cannot be known is named."""
    total, unknown, hbm_bytes = Work(), [], 0
    cycles: int | None = None
    for cost in costs:
        times = 1 if cost.launch.times is None else cost.launch.times
        total += cost.work.times(times)
        hbm_bytes += (cost.bytes_read + cost.bytes_written) * times
        if cost.cycles is not None:
            cycles = (cycles or 0) + cost.cycles * times
    if any(cost.launch.times is None for cost in costs):
        unknown.append("how often a loop runs depends on data; its body counts once")
    if any(not cost.launch.certain for cost in costs):
        unknown.append("which branch is taken depends on data; all of them count")
    dmas = sum(is_dma(cost.launch.instruction) for cost in costs)
    return Counts(
        kernels=len(costs) - dmas,
        dmas=dmas,
        hbm_bytes=hbm_bytes,
        flops=None if total.unknown else total.flops,
        transcendentals=None if total.unknown else total.transcendentals,
        estimated_cycles=cycles,
        unknown=(*total.unknown, *unknown),
    )


def _settled(counts: Counts, before: Counts | None, devices: int) -> tuple[Counts, tuple[str, ...]]:
    """Where the optimised program hides arithmetic in a custom call, take the FLOPs of the program before."""
    if counts.flops is not None or before is None or before.flops is None or before.transcendentals is None:
        return counts, ()
    hidden = "; ".join(what for what in counts.unknown if what.startswith("FLOPs"))
    share = f", one {devices}th of them" if devices > 1 else ""
    note = f"{hidden} are not stated, so FLOPs are those of the program before optimisation{share}"
    settled = replace(
        counts,
        flops=before.flops // devices,
        transcendentals=before.transcendentals // devices,
        unknown=tuple(what for what in counts.unknown if not what.startswith("FLOPs")),
    )
    return settled, (note,)
