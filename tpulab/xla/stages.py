"""The compiler pass by pass: what the program was after each, and which pass made which fusion."""

from __future__ import annotations

import html
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import backend, compiler, pair, recorded
from .errors import CompileError, CompilerMissing
from .lowering import call_of, lower
from .module import Module, decode
from .reading import counts_of, insides
from .target import parse

if TYPE_CHECKING:
    from jax.sharding import Mesh

HERE = "here"
_DUMPED = re.compile(r"\.(\d{4,})\.([^.]+)\.(?:after_([^.]+))?\.?(?:before_([^.]+))?\.hlo\.pb$")


@dataclass(frozen=True)
class Fusion:
    """A fusion that a pass made.

    Args:
        name: of the instruction, e.g. "fusion.3".
        kind: as XLA calls it, e.g. "kLoop" or "kOutput".
        opcodes: what is computed inside, parameters left out.
    """

    name: str
    kind: str
    opcodes: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """The program as one pass left it.

    Args:
        number: of the compiler's own, rising.
        pipeline: the group of passes it belongs to, e.g. "Main_fusion".
        after: the pass that has run, e.g. "tpu_fusion"; "" where a pipeline begins with a changed program.
        operations: that would run, one kernel or DMA each.
        fusions: how many of them are fusions.
        hbm_bytes: to and from HBM if each operation reads its operands there and writes its results.
        made: fusions that were not in the stage before.
    """

    number: int
    pipeline: str
    after: str
    operations: int
    fusions: int
    hbm_bytes: int
    made: tuple[Fusion, ...]


class Stages(tuple[Stage, ...]):
    """Stages in order; shows itself as a table."""

    __slots__ = ()

    def rows(self) -> list[tuple[str, ...]]:
        """Give the table's rows, its head first."""
        rows = [("stage", "pipeline", "after", "operations", "fusions", "MB", "made")]
        for stage in self:
            made = ", ".join(f"{fusion.name} ({' '.join(fusion.opcodes[:6])})" for fusion in stage.made[:3])
            more = f" and {len(stage.made) - 3} more" if len(stage.made) > 3 else ""
            figures = (str(stage.operations), str(stage.fusions), f"{stage.hbm_bytes / 1e6:.1f}")
            rows.append((str(stage.number), stage.pipeline, stage.after or "(begins)", *figures, made + more))
        return rows

    def __repr__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True)), row[6]]).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        names = "".join(f"<th scope='col' style='text-align:left'>{name}</th>" for name in head)
        cells = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        return f"<table><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table>"


def passes(
    target: str,
    fn: Callable,
    *args: Any,
    mesh: Mapping[str, int] | Mesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    compiler_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Stages:
    """Compile a function and watch the compiler work, pass by pass.

    Args:
        target: as in `compile_for`; "here" for this machine.
        fn: as in `compile_for`, like all that follows.

    Returns:
        The stages in which the program changed, the first as it came in and the last as it went out.

    Raises:
        CompileError: as in `compile_for`.
    """
    call = call_of(fn, args, kwargs, in_shardings, out_shardings, static_argnums, static_argnames, donate_argnums)
    if target == HERE:
        lowered, _ = lower(call, None)
        return _watched(lowered, compiler_options or {}, None)
    wanted = parse(target)
    axes = compiler.axes_of(wanted, mesh)
    name = recorded.name_of(wanted.name, call, axes, compiler_options or {}, what="passes")
    try:
        pair.prepare()
    except CompilerMissing as missing:
        return _unpack(recorded.read_bytes(name, call, missing))
    lowered, _ = lower(call, compiler.mesh_over(wanted, mesh, axes))
    found = _watched(lowered, compiler_options or {}, wanted)
    recorded.write_bytes(name, call, lambda: _pack(found))
    return found


def _watched(lowered: Any, options: Mapping[str, Any], target: Any) -> Stages:
    """Compile with a file for each pass, and read them."""
    with tempfile.TemporaryDirectory(prefix="tpulab-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        backend.run(lowered, {**options, "xla_dump_hlo_pass_re": ".*"}, folder, target)
        return Stages(_changed(_dumps(folder)))


def _dumps(folder: Path) -> Iterator[tuple[str, str, Module]]:
    """Read the stages that the compiler wrote, in order: pipeline, pass, program."""
    found = []
    for path in folder.glob("*.hlo.pb"):
        if match := _DUMPED.search(path.name):
            number, pipeline, after, _ = match.groups()
            found.append((int(number), pipeline, "" if after in (None, "pipeline-start") else after, path))
    if not found:
        raise CompileError(
            "this compiler writes no program between its passes; compile_for shows the first and the last"
        )
    first = next(folder.glob("*before_optimizations.hlo.pb"), None)
    if first:
        yield "input", "", decode(first.read_bytes())
    for _, pipeline, after, path in sorted(found, key=lambda item: item[0]):
        yield pipeline, after, decode(path.read_bytes())
    last = list(folder.glob("*after_optimizations.hlo.pb"))
    if last:
        yield "output", "", decode(last[-1].read_bytes())


def _changed(dumps: Iterator[tuple[str, str, Module]]) -> Iterator[Stage]:
    """Keep the stages in which the program is another than before."""
    before: tuple[Any, ...] | None = None
    known: set[tuple[str, ...]] = set()
    count = -1
    for pipeline, after, module in dumps:
        count += 1
        fusions = _fusions(module)
        counts = counts_of(module)
        state = (counts.kernels + counts.dmas, counts.hbm_bytes, sorted(fusion.opcodes for fusion in fusions))
        if state != before:
            made = tuple(fusion for fusion in fusions if fusion.opcodes not in known)
            yield Stage(count, pipeline, after, state[0], len(fusions), counts.hbm_bytes, made)
        before = state
        known = {fusion.opcodes for fusion in fusions}


def _fusions(module: Module) -> list[Fusion]:
    """List the fusions that a program would launch."""
    inside = {
        id
        for computation in module.computations
        for item in computation.instructions
        if item.opcode == "fusion"
        for id in item.called
    }
    return [
        Fusion(item.name, item.fusion_kind, tuple(one.opcode for one in insides(module, item)))
        for computation in module.computations
        if computation.id not in inside
        for item in computation.instructions
        if item.opcode == "fusion"
    ]


def _pack(stages: Stages) -> bytes:
    return json.dumps([asdict(stage) for stage in stages]).encode()


def _unpack(data: bytes) -> Stages:
    return Stages(
        Stage(
            **{**facts, "made": tuple(Fusion(one["name"], one["kind"], tuple(one["opcodes"])) for one in facts["made"])}
        )
        for facts in json.loads(data)
    )
