"""Read a chapter's source: a py:percent file whose cells keep the line they start on."""

import re
from dataclasses import dataclass
from pathlib import Path

import jupytext

CHAPTERS = Path(__file__).parent / "chapters"
_MARKER = re.compile(r"^\[(exercise|predict)\]\s+(\S+)$")


class Malformed(Exception):
    """A chapter breaks a rule of the course; the message starts with file and line."""


@dataclass(frozen=True)
class Cell:
    """One cell of a chapter's source.

    Args:
        kind: "markdown", "code", "exercise" or "predict".
        source: its text; for the last two the id that stands in the marker line.
        tags: its tags, e.g. ("nbval-ignore-output",).
        line: where it starts in the file, counted from 1.
    """

    kind: str
    source: str
    tags: tuple[str, ...]
    line: int

    @property
    def heading(self) -> str:
        """The first heading in a markdown cell without its hashes, or ""."""
        found = re.search(r"^#+ (.+)$", self.source, re.MULTILINE) if self.kind == "markdown" else None
        return found.group(1).strip() if found else ""


@dataclass(frozen=True)
class Source:
    """A chapter as its author wrote it.

    Args:
        path: the file.
        cells: in order.
    """

    path: Path
    cells: tuple[Cell, ...]

    @property
    def slug(self) -> str:
        """Number and name, e.g. "03_jit"."""
        return self.path.stem

    def error(self, cell: Cell, problem: str) -> Malformed:
        """Make an error that names the file and the cell's line."""
        return Malformed(f"{self.path.name}:{cell.line}: {problem}")


def read(path: Path) -> Source:
    """Read one chapter.

    Raises:
        Malformed: a marker that is neither a known kind of cell nor Python, no cell at all, or no UTF-8.
    """
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise Malformed(f"{path.name}:{line}: not UTF-8: {error.reason}") from None
    if not text.strip():
        raise Malformed(f"{path.name}:1: the chapter is empty; copy course/template.py")
    # jupytext says what a cell is; where it stands, only the file says.
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"# %%( |$)", line)]
    cells = jupytext.reads(text, fmt="py:percent").cells
    if len(cells) != len(lines):
        raise Malformed(f"{path.name}:1: text stands before the first `# %%` marker, or a marker is inside a string")
    return Source(path, tuple(_cell(path, cell, line) for cell, line in zip(cells, lines, strict=True)))


def _cell(path: Path, cell: dict, line: int) -> Cell:
    tags = tuple(cell["metadata"].get("tags", ()))
    title = cell["metadata"].get("title", "")
    if cell["cell_type"] == "markdown" and not title:
        return Cell("markdown", cell["source"], tags, line)
    if cell["cell_type"] == "code" and not title:
        return Cell("code", cell["source"], tags, line)
    marker = _MARKER.match(title)
    if not marker:
        raise Malformed(
            f"{path.name}:{line}: `# %% {title or cell['cell_type']}` is no cell; write [markdown], "
            "[exercise] ID, [predict] ID or nothing"
        )
    if cell["source"].strip():
        raise Malformed(f"{path.name}:{line}: an {marker.group(1)} marker stands alone; its text is in the bank")
    return Cell(marker.group(1), marker.group(2), tags, line)
