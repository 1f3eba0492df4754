"""The picture of a compiled program: its launches in order, and each trip to HBM as an arrow as thick as its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from ..units import bytes_text
from .collective import KINDS
from .program import Edge, Kernel, Program

# Okabe and Ito's colours, as in `tpulab.figures`; words and direction say the same, so that nobody needs the colour.
READS, WRITES, NEUTRAL, CROSSING = "#0072B2", "#D55E00", "#555555", "#009E73"
DRAWN = 40  # launches; of a longer program, the LARGEST that move most
LARGEST = 12
WIDTH, HBM, BOX, BOX_WIDTH = 900, 96, 350, 430  # pixels: of the page; edge of the HBM bar; left edge and width of a box
ROW, GAP, TOP = 26, 16, 62
MOST_ARROWS, MOST_STEPS, THICKEST = 6, 14, 15


@dataclass(frozen=True)
class _Arrow:
    label: str
    bytes: int
    reads: bool


@dataclass(frozen=True)
class _Box:
    """One launch on the page: where it stands and what goes in and out of it."""

    kernel: Kernel
    steps: tuple[str, ...]
    arrows: tuple[_Arrow, ...]
    top: int
    height: int

    @property
    def middle(self) -> int:
        return self.top + self.height // 2


def svg(program: Program) -> str:
    """Draw a program.

    On the left stands HBM, to its right each launch in the order they start, with what is fused into it. Arrows are trips
    to HBM, their thickness in proportion to the bytes; what stays on the chip is a thin dashed line on the right.

    Returns:
        The text of an SVG file, the same for the same program; it needs no script, font or network.
    """
    from .report import headline, spoken

    drawn = _chosen(program)
    boxes = _placed(program, drawn)
    bottom = (boxes[-1].top + boxes[-1].height if boxes else TOP) + GAP
    thickest = max((arrow.bytes for box in boxes for arrow in box.arrows), default=1) or 1
    parts = [_text(16, 24, headline(program), size=15, weight="bold"), *_legend(program, len(drawn))]
    parts += _hbm_bar(program, bottom)
    for box in boxes:
        parts += _box(box, thickest)
    parts += _on_chip(program, boxes)
    parts.append(_text(16, bottom + 26, _sums(program), size=13))
    height = bottom + 44
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif"><title>{escape(headline(program))}</title>'
        f"<desc>{escape(spoken(program))}</desc>"
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>{"".join(parts)}</svg>'
    )


def _chosen(program: Program) -> tuple[Kernel, ...]:
    if len(program.launches) <= DRAWN:
        return program.launches
    largest = sorted(program.launches, key=lambda one: -one.hbm_bytes * (one.times or 1))[:LARGEST]
    return tuple(sorted(largest, key=lambda one: one.position))


def _placed(program: Program, kernels: Iterable[Kernel]) -> list[_Box]:
    """Stack the launches from top to bottom."""
    boxes, top = [], TOP
    for kernel in kernels:
        arrows, steps = _arrows(program, kernel), _steps(program, kernel)
        inside = 24 + 20 * len(_wrapped(steps)) + 16 * len(kernel.source[:2]) + 8
        height = max(inside, ROW * len(arrows) + 8)
        boxes.append(_Box(kernel, steps, arrows, top, height))
        top += height + GAP
    return boxes


def _arrows(program: Program, kernel: Kernel) -> tuple[_Arrow, ...]:
    """Give a launch's trips to HBM: each value it reads, and what it writes."""
    names = {one.name: str(one.position) for one in program.launches}
    read = [edge for edge in program.edges if edge.target == kernel.name and edge.space == "HBM" and edge.bytes]
    read.sort(key=lambda edge: -edge.bytes)
    arrows = [_Arrow(_read_label(edge, names), edge.bytes, reads=True) for edge in read[:MOST_ARROWS]]
    if rest := read[MOST_ARROWS:]:
        total = sum(edge.bytes for edge in rest)
        arrows.append(_Arrow(f"{len(rest)} more: {bytes_text(total)}", total, reads=True))
    if not read and kernel.bytes_read:
        arrows.append(_Arrow(bytes_text(kernel.bytes_read), kernel.bytes_read, reads=True))
    if kernel.bytes_written:
        arrows.append(_Arrow(_write_label(program, kernel, names), kernel.bytes_written, reads=False))
    return tuple(arrows)


def _read_label(edge: Edge, names: dict[str, str]) -> str:
    origin = f"from {names[edge.source]}" if edge.source in names else edge.label or "argument"
    return f"{_short(origin, 12)} {_short(edge.shape, 18)} {bytes_text(edge.bytes)}"


def _write_label(program: Program, kernel: Kernel, names: dict[str, str]) -> str:
    readers = [edge.target for edge in program.edges if edge.source == kernel.name and edge.space == "HBM"]
    numbers = list(dict.fromkeys(names[one] for one in readers if one in names))
    where = ["result"] if "" in readers else []
    where += [f"for {', '.join(numbers[:4])}{' …' if len(numbers) > 4 else ''}"] if numbers else []
    return f"{' and '.join(where) or 'writes'} {bytes_text(kernel.bytes_written)}"


def _legend(program: Program, drawn: int) -> list[str]:
    left_out = len(program.launches) - drawn
    note = f"the {drawn} largest of {drawn + left_out} launches" if left_out else "from top to bottom as they start"
    return [
        _text(BOX, 46, f"on the chip: {note}", size=12, color=NEUTRAL),
        _text(HBM + 14, 46, "→ reads", size=12, color=READS),
        _text(HBM + 84, 46, "← writes", size=12, color=WRITES),
    ]


def _hbm_bar(program: Program, bottom: int) -> list[str]:
    from .report import memory_name

    name = memory_name(program)
    middle = (TOP + bottom) // 2
    return [
        f'<rect x="16" y="{TOP - 8}" width="{HBM - 16}" height="{bottom - TOP + 8}" rx="6" fill="#EEEEEE" stroke="#999999"/>',
        f'<text x="56" y="{middle}" font-size="16" font-weight="bold" text-anchor="middle" fill="#222222" '
        f'transform="rotate(-90 56 {middle})">{name}</text>',
    ]


def _box(box: _Box, thickest: int) -> list[str]:
    kernel = box.kernel
    color = CROSSING if _crosses(kernel) else NEUTRAL if kernel.dma else READS
    dashes = ' stroke-dasharray="6 4"' if kernel.dma else ""
    edge = 3 if _crosses(kernel) else 1.5
    parts = [
        f'<rect x="{BOX}" y="{box.top}" width="{BOX_WIDTH}" height="{box.height}" rx="6" fill="{color}" '
        f'fill-opacity="0.08" stroke="{color}" stroke-width="{edge}"{dashes}/>',
        _text(BOX + 10, box.top + 18, _title(kernel), size=13, weight="bold"),
    ]
    if kernel.times != 1:
        runs = "runs ? times" if kernel.times is None else f"runs {kernel.times:,} times"
        parts.append(_text(BOX + BOX_WIDTH - 10, box.top + 18, runs, size=12, anchor="end"))
    y = box.top + 26
    for line in _wrapped(box.steps):
        parts += _chips(line, y)
        y += 20
    for line in kernel.source[:2]:
        y += 16
        parts.append(_text(BOX + 10, y - 3, _short(line, 62), size=11, color="#444444", mono=True))
    first = box.middle - ROW * (len(box.arrows) - 1) // 2
    for number, arrow in enumerate(box.arrows):
        parts += _drawn_arrow(arrow, first + ROW * number, thickest)
    return parts


def _title(kernel: Kernel) -> str:
    kind = f"DMA: {kernel.kind}" if kernel.dma else f"⇄ {kernel.kind}" if _crosses(kernel) else kernel.kind
    return f"{kernel.position}  {_short(kind, 40)}"


def _crosses(kernel: Kernel) -> bool:
    return kernel.kind in KINDS


def _steps(program: Program, kernel: Kernel) -> tuple[str, ...]:
    from .report import done_by

    steps = done_by(program, kernel)
    return tuple(steps if len(steps) <= MOST_STEPS else [*steps[:MOST_STEPS], f"+ {len(steps) - MOST_STEPS}"])


def _wrapped(words: Iterable[str]) -> list[list[str]]:
    """Break words into lines that fit a box."""
    lines: list[list[str]] = []
    room = 0
    for word in words:
        width = _chip_width(word)
        if not lines or room < width:
            lines.append([])
            room = BOX_WIDTH - 20
        lines[-1].append(word)
        room -= width + 6
    return lines


def _chip_width(word: str) -> int:
    return 7 * len(_short(word, 40)) + 12


def _chips(words: list[str], y: int) -> list[str]:
    parts, x = [], BOX + 10
    for word in words:
        width = _chip_width(word)
        parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="17" rx="8" fill="white" stroke="#888888"/>')
        parts.append(_text(x + width // 2, y + 12, _short(word, 40), size=11, anchor="middle"))
        x += width + 6
    return parts


def _drawn_arrow(arrow: _Arrow, y: int, thickest: int) -> list[str]:
    """Draw one trip to HBM; the head points to where the data goes."""
    thick = max(1.0, THICKEST * arrow.bytes / thickest)
    head = max(5.0, thick * 0.8)
    color = READS if arrow.reads else WRITES
    left, right = HBM + 2, BOX - 2
    tip, back = (right, right - 9) if arrow.reads else (left, left + 9)
    start, end = (left, back) if arrow.reads else (back, right)
    line = f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="{color}" stroke-width="{thick:.1f}"'
    return [
        f'{line} stroke-opacity="0.45"/>',
        f'<polygon points="{tip},{y} {back},{y - head:.1f} {back},{y + head:.1f}" fill="{color}"/>',
        _text((left + right) // 2, y + 4, arrow.label, size=11, anchor="middle", halo=True),
    ]


def _on_chip(program: Program, boxes: list[_Box]) -> list[str]:
    """Draw what one launch leaves on the chip for another, on the right of the boxes."""
    at = {box.kernel.name: box for box in boxes}
    stays = [edge for edge in program.edges if edge.space != "HBM" and edge.source in at and edge.target in at]
    parts = []
    for number, edge in enumerate(stays[:24]):
        start, end = at[edge.source], at[edge.target]
        out = BOX + BOX_WIDTH + 24 + 14 * (number % 3)
        x = BOX + BOX_WIDTH
        a, b = start.middle + 8, end.middle - 8
        parts.append(
            f'<path d="M{x} {a} C{out} {a} {out} {b} {x + 6} {b}" fill="none" stroke="{NEUTRAL}" stroke-dasharray="3 3"/>'
            f'<polygon points="{x},{b} {x + 7},{b - 4} {x + 7},{b + 4}" fill="{NEUTRAL}"/>'
        )
        label = f"{edge.space} {bytes_text(edge.bytes)}"
        parts.append(_text(out - 2, (a + b) // 2 + 4, label, size=10, color=NEUTRAL))
    return parts


def _sums(program: Program) -> str:
    from .report import memory_name, plural

    counts = program.counts
    sums = [plural(counts.kernels, "kernel"), plural(counts.dmas, "DMA")]
    sums.append(f"{bytes_text(counts.hbm_bytes)} to and from {memory_name(program)}")
    if counts.estimated_cycles is not None:
        sums.append(f"{counts.estimated_cycles:,} cycles, the compiler's estimate")
    return " · ".join(sums)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(
    x: int,
    y: int,
    words: str,
    *,
    size: int,
    color: str = "#111111",
    weight: str = "normal",
    anchor: str = "start",
    mono: bool = False,
    halo: bool = False,
) -> str:
    family = ' font-family="Menlo, Consolas, monospace"' if mono else ""
    around = ' stroke="white" stroke-width="3" paint-order="stroke"' if halo else ""
    bold = f' font-weight="{weight}"' if weight != "normal" else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}"{bold}{where}{family}{around}>{escape(words)}</text>'
    )
