"""A compiled program in lines and tables: what a notebook shows under the picture, and what a screen reader reads."""

import base64
import html
from collections.abc import Sequence

from ..units import bytes_text, count_text
from .draw import svg
from .program import Counts, Kernel, Program

LISTED = 40  # kernels; of a longer program, the ones that move most
_HEAD = ("", "kernel", "does", "runs", "reads", "writes", "FLOPs", "cycles")
Row = Sequence[str]


def headline(program: Program) -> str:
    """Say in one line what was compiled for what, and by what."""
    if program.target == "a file":
        return f"{program.name}, read from a file"
    where = "this machine's CPU" if program.target == "cpu" else program.target
    devices = "1 device" if program.devices == 1 else f"{program.devices} devices"
    versions = ", ".join(f"{name} {version}" for name, version in program.versions.items() if version)
    return f"{program.name} compiled for {where}, {devices}" + (f" ({versions})" if versions else "")


def comparison(program: Program) -> list[Row]:
    """Put the program as written beside what the compiler made of it."""
    before, after = program.before, program.counts
    whole = "before" if program.devices == 1 else "before, all devices together"
    rows: list[Row] = [("", whole, "after" if program.devices == 1 else "after, each device")]
    for label, of in (
        ("kernels", lambda counts: f"{counts.kernels:,}"),
        ("DMAs", lambda counts: f"{counts.dmas:,}"),
        (f"bytes to and from {memory_name(program)}", lambda counts: bytes_text(counts.hbm_bytes)),
        ("FLOPs", lambda counts: count_text(counts.flops)),
        ("estimated cycles", _cycles),
    ):
        rows.append((label, of(before) if before else "-", of(after)))
    rows.append(("peak memory", "-", bytes_text(program.peak_memory_bytes)))
    return rows


def launches(program: Program) -> list[Row]:
    """List what the device launches, in order; of a long program, what moves most, most first."""
    shown = program.launches
    if len(program.kernels) > LISTED:
        shown = sorted(shown, key=lambda kernel: -kernel.hbm_bytes * (kernel.times or 1))[:LISTED]
    return [_HEAD, *(_row(program, kernel) for kernel in shown)]


def collectives(program: Program) -> list[Row]:
    """List what crosses between devices."""
    if not program.collectives:
        return []
    rows: list[Row] = [("collective", "bytes", "runs", "groups", "while computing?")]
    for one in program.collectives:
        groups = f"{one.group_count} of {one.group_size}" if one.group_size else "unknown"
        runs = "unknown" if one.times is None else f"{one.times:,}"
        rows.append((one.kind, bytes_text(one.bytes), runs, groups, "yes" if one.asynchronous else "no"))
    return rows


def text(program: Program) -> str:
    """Write everything as plain lines."""
    parts = [headline(program), _aligned(comparison(program))]
    listed = launches(program)
    left_out = len(program.launches) - len(listed) + 1
    parts.append(_aligned(listed) + (f"\n… and {left_out} smaller ones" if left_out else ""))
    if crossing := collectives(program):
        parts.append(_aligned(crossing))
    parts += [f"Note: {note}" for note in _notes(program)]
    return "\n\n".join(parts)


def page(program: Program) -> str:
    """Write the picture and the tables as HTML that needs no network and no script."""
    image = base64.b64encode(svg(program).encode()).decode()
    words = html.escape(spoken(program), quote=True)
    parts = [f'<img alt="{words}" style="max-width:100%" src="data:image/svg+xml;base64,{image}">']
    parts.append(_table(comparison(program)))
    if len(program.kernels) > LISTED:
        parts.append(_table(launches(program)))
    if crossing := collectives(program):
        parts.append(_table(crossing))
    parts += [f"<p>{html.escape(note)}</p>" for note in _notes(program)]
    return "".join(parts)


def spoken(program: Program, most: int = 8) -> str:
    """Say in sentences what the picture shows."""
    counts = program.counts
    sentences = [
        f"{headline(program)}: {plural(counts.kernels, 'kernel')}, {plural(counts.dmas, 'DMA')}, "
        f"{bytes_text(counts.hbm_bytes)} to and from {memory_name(program)}."
    ]
    for kernel in program.launches[:most]:
        does = ", ".join(done_by(program, kernel))
        sentences.append(
            f"{kernel.position}: {kernel.kind}{(' ' if kernel.dma else ' does ') + does if does else ''}; "
            f"reads {bytes_text(kernel.bytes_read)}, writes {bytes_text(kernel.bytes_written)}."
        )
    if len(program.launches) > most:
        sentences.append(f"And {len(program.launches) - most} more.")
    return " ".join(sentences)


def memory_name(program: Program) -> str:
    """Name the memory that kernels read from and write to."""
    return "memory" if program.target == "cpu" else "HBM"


def plural(count: int, word: str) -> str:
    """Write a count with its noun, e.g. "1 kernel", "2 kernels"."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _notes(program: Program) -> tuple[str, ...]:
    return (*program.notes, *(f"Not counted: {what}." for what in program.counts.unknown))


def _cycles(counts: Counts) -> str:
    return "none given" if counts.estimated_cycles is None else f"{counts.estimated_cycles:,}"


def done_by(program: Program, kernel: Kernel) -> list[str]:
    """Say what a launch does: the JAX operations in it, or for a DMA what it moves and where to."""
    if not kernel.dma:
        return list(dict.fromkeys(kernel.steps or kernel.opcodes))
    given = next((edge for edge in program.edges if edge.target == kernel.name), None)
    made = next((edge for edge in program.edges if edge.source == kernel.name), None)
    position = {one.name: one.position for one in program.launches}
    what = (given.label or f"from {position.get(given.source, '?')}") if given else ""
    return [f"{what} to {made.space}".strip()] if made else [what] if what else []


def _row(program: Program, kernel: Kernel) -> Row:
    does = ", ".join(done_by(program, kernel))
    return (
        str(kernel.position),
        kernel.kind,
        does if len(does) <= 60 else f"{does[:57]}…",
        "unknown" if kernel.times is None else f"{kernel.times:,}",
        bytes_text(kernel.bytes_read),
        bytes_text(kernel.bytes_written),
        "-" if kernel.dma else count_text(kernel.flops),
        "-" if kernel.estimated_cycles is None else f"{kernel.estimated_cycles:,}",
    )


def _aligned(rows: Sequence[Row]) -> str:
    """Align columns with spaces: words to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if _is_words(rows, number) else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_words(rows: Sequence[Row], column: int) -> bool:
    return not any(row[column][:1].isdigit() for row in rows[1:])


def _table(rows: Sequence[Row]) -> str:
    head, *body = rows
    cells = "".join(f"<th style='text-align:left'>{html.escape(cell)}</th>" for cell in head)
    lines = [f"<tr>{cells}</tr>"]
    for row in body:
        tags = [
            f"<td style='text-align:{'left' if _is_words(rows, number) else 'right'}'>{html.escape(cell)}</td>"
            for number, cell in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(tags)}</tr>")
    return f"<table>{''.join(lines)}</table>"
