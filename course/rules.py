"""What every chapter keeps to; each rule fails with file and line."""

import ast
import re

from chapter import Cell, Malformed, Source

from tpulab.learn.bank import Bank

MAX_WORDS, MAX_CELL_WORDS, MAX_CELL_LINES = 2000, 120, 15
MAX_COLUMNS = 105  # what a laptop's JupyterLab shows of a cell beside the list of files
CELLS = range(20, 46)
READING_MINUTES = range(15, 36)
CORE, CORE_MINUTES = 3, 20
SECTIONS = ("If you come from PyTorch", "On a real TPU", "What you can do now")
CAN_DO = "After this chapter you can"
TAGS = {"instructor", "nbval-ignore-output", "nbval-skip"}


def apply(source: Source, bank: Bank) -> None:
    """Hold one chapter to all rules.

    Raises:
        Malformed: the first rule it breaks.
    """
    for rule in (_opening, _sections, _budgets, _markers, _pairs, _core, _tags, _widgets):
        rule(source, bank)


def words(text: str) -> int:
    """Count a text's words; links count by what is read, code fences and pictures do not."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"\w[\w'’.-]*", text))


def lesson_cells(source: Source) -> list[Cell]:
    """Give the cells that count: what learners read and run, without exercises and predictions."""
    return [cell for cell in source.cells if cell.kind in ("markdown", "code") and "instructor" not in cell.tags]


def _opening(source: Source, bank: Bank) -> None:
    first, *rest = source.cells
    if first.heading != bank.chapter.title:
        raise source.error(
            first, f"the first heading is the bank's title, {bank.chapter.title!r}; got {first.heading!r}"
        )
    if CAN_DO not in first.source:
        raise source.error(first, f"the first cell says what you will be able to do: {CAN_DO!r} and a list")
    code = next((cell for cell in rest if cell.kind == "code"), first)
    if not re.match(r"import tpulab\n\ntpulab\.setup\(", code.source):
        raise source.error(code, "the first code cell starts with `import tpulab`, a blank line, `tpulab.setup(`")


def _sections(source: Source, bank: Bank) -> None:
    headings = [cell.heading for cell in source.cells]
    for wanted in SECTIONS:
        if wanted not in headings:
            raise source.error(source.cells[-1], f"the section `## {wanted}` is missing")
    if bank.chapter.reading_minutes not in READING_MINUTES:
        raise source.error(
            source.cells[0],
            f"reading takes {READING_MINUTES.start} to {READING_MINUTES.stop - 1} minutes; "
            f"the bank says {bank.chapter.reading_minutes}",
        )


def _budgets(source: Source, _bank: Bank) -> None:
    counted = lesson_cells(source)
    for cell in counted:
        if cell.kind == "markdown" and words(cell.source) > MAX_CELL_WORDS:
            raise source.error(cell, f"{words(cell.source)} words in one cell; at most {MAX_CELL_WORDS}, split it")
        lines = len(cell.source.splitlines())
        if cell.kind == "code" and lines > MAX_CELL_LINES:
            raise source.error(cell, f"{lines} lines in one code cell; at most {MAX_CELL_LINES}, split it")
        columns = max(map(len, cell.source.splitlines()), default=0)
        if cell.kind == "code" and columns > MAX_COLUMNS:
            raise source.error(cell, f"{columns} columns in a line of code; at most {MAX_COLUMNS}")
    total = sum(words(cell.source) for cell in counted if cell.kind == "markdown")
    if total > MAX_WORDS:
        raise source.error(source.cells[0], f"{total} words in the chapter; at most {MAX_WORDS}")
    if len(counted) not in CELLS:
        raise source.error(
            source.cells[0],
            f"{len(counted)} cells without exercises and predictions; {CELLS.start} to {CELLS.stop - 1} are wanted",
        )


def _markers(source: Source, bank: Bank) -> None:
    for kind, items in (("exercise", bank.exercises), ("predict", bank.predictions)):
        known = [item.id for item in items]
        used = [cell for cell in source.cells if cell.kind == kind]
        for cell in used:
            if cell.source not in known:
                raise source.error(cell, f"the bank has no {kind} {cell.source!r}; it has {', '.join(known)}")
            if sum(other.source == cell.source for other in used) > 1:
                raise source.error(cell, f"{kind} {cell.source!r} stands twice in this chapter")
        for item in items:
            if item.id not in {cell.source for cell in used}:
                raise source.error(source.cells[-1], f"{kind} {item.id!r} of the bank does not occur in this chapter")


def _pairs(source: Source, bank: Bank) -> None:
    """Each prediction is followed by the cell that reveals it, and nothing is revealed unasked."""
    open_id, asked_at = "", source.cells[0]
    for cell in source.cells:
        if cell.kind == "predict":
            if open_id:
                raise source.error(asked_at, f"{open_id!r} is not revealed before the next prediction")
            open_id, asked_at = cell.source, cell
        for revealed in re.findall(r'tpulab\.reveal\("([^"]+)"', cell.source) if cell.kind == "code" else ():
            if revealed != open_id:
                raise source.error(cell, f"{revealed!r} is revealed here, but was not asked just before")
            open_id = ""
    if open_id:
        raise source.error(asked_at, f"no cell reveals {open_id!r} with tpulab.reveal(...)")
    if len(bank.predictions) < 3:
        raise source.error(source.cells[0], f"{len(bank.predictions)} predictions; at least 3 are wanted")


def _core(source: Source, bank: Bank) -> None:
    core = [item for item in bank.exercises if item.core]
    wanted = min(CORE, len(bank.exercises))
    if len(core) != wanted:
        raise source.error(source.cells[0], f"{len(core)} core exercises; {wanted} are wanted")
    if (minutes := sum(item.minutes for item in core)) > CORE_MINUTES:
        raise source.error(source.cells[0], f"the core exercises take {minutes} minutes; at most {CORE_MINUTES}")


def _tags(source: Source, _bank: Bank) -> None:
    for cell in source.cells:
        if unknown := set(cell.tags) - TAGS:
            raise source.error(cell, f"unknown tag {', '.join(sorted(unknown))}; there are {', '.join(sorted(TAGS))}")


def _widgets(source: Source, _bank: Bank) -> None:
    """Code is Python, and a cell that shows a widget says that its output cannot be compared."""
    for cell in source.cells:
        if cell.kind != "code":
            continue
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            raise Malformed(f"{source.path.name}:{cell.line + (error.lineno or 1)}: not Python: {error.msg}") from None
        if "widgets." in cell.source and "nbval-ignore-output" not in cell.tags:
            raise source.error(cell, 'a cell with a widget is tagged ["nbval-ignore-output"]')
