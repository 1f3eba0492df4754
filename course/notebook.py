"""Turn a chapter into notebook cells, run them, and store them without a trace of the machine."""

import copy
import hashlib
import json
import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import nbformat
from chapter import Malformed, Source
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from pages import CLAIM, NOTEBOOK_ONLY

import tpulab
from tpulab.learn.bank import Bank
from tpulab.learn.exercise import Exercise
from tpulab.learn.prediction import Prediction
from tpulab.xla import recorded

ROOT = Path(__file__).parent.parent
VOLATILE = "nbval-ignore-output"
MAX_BYTES = 300_000
_CELL_TIMEOUT_S = 120


def repository() -> str:
    """Give the address where the course is published, set in pyproject.toml; "" while it is not."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["tpulab"]["repository"].removesuffix("/").removesuffix(".git")


def assemble(
    source: Source, bank: Bank, *, instructor: bool = False, address: str | None = None
) -> nbformat.NotebookNode:
    """Build the unexecuted notebook of one edition.

    Args:
        source: the chapter.
        bank: its exercises and predictions.
        instructor: solutions and notes instead of stubs.
        address: the course's repository; by default the one in pyproject.toml.
    """
    address = repository() if address is None else address
    exercises = {item.id: item for item in bank.exercises}
    predictions = {item.id: item for item in bank.predictions}
    cells: list[Any] = []
    for number, cell in enumerate(source.cells):
        if cell.kind == "exercise":
            cells += _exercise_cells(exercises[cell.source], instructor)
        elif cell.kind == "predict":
            cells += _prediction_cells(predictions[cell.source])
        elif cell.kind == "code":
            is_first = all(before.kind != "code" for before in source.cells[:number])
            text = cell.source.replace("import tpulab\n", _bootstrap(address), 1) if is_first else cell.source
            cells.append(new_code_cell(text, metadata={"tags": list(cell.tags)} if cell.tags else {}))
        elif instructor or "instructor" not in cell.tags:
            cells.append(new_markdown_cell(CLAIM.sub("", cell.source).replace(NOTEBOOK_ONLY, "").rstrip()))
        if number == 0:
            cells.append(new_markdown_cell(_facts(source, bank, address)))
    book = new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    _name_cells(book)
    return book


def execute(book: nbformat.NotebookNode, slug: str, compiled: Path) -> nbformat.NotebookNode:
    """Run a notebook in a kernel of this Python, with progress kept in a folder that is thrown away.

    Args:
        book: the notebook; stays as it is.
        slug: its name, for messages.
        compiled: a folder that gets what the TPU compiler made of the cells' programs.

    Raises:
        Malformed: a cell raised, wrote to stderr, or stored more than belongs in the repository.
    """
    book = copy.deepcopy(book)
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TPULAB_")}
        environment |= {"TPULAB_HOME": folder, "PYTHONHASHSEED": "0", recorded.RECORD_TO: str(compiled)}
        client = NotebookClient(
            book,
            timeout=_CELL_TIMEOUT_S,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # else each start warns of loopback without TLS
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            failed = next(
                cell for cell in book.cells if any(out.output_type == "error" for out in cell.get("outputs", ()))
            )
            raise Malformed(f"{_where(slug, failed)} raised {error.ename}: {error.evalue}") from None
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := _clean(output, cell, slug))]
    book.metadata.pop("widgets", None)
    return book


def keep_volatile(book: nbformat.NotebookNode, previous: nbformat.NotebookNode | None) -> None:
    """Take over the outputs of volatile cells whose source has not changed, so that rebuilds do not churn.

    From the first volatile cell that changed on, all are new: a figure must not show an older run than its table.
    """
    before = {cell.id: cell for cell in previous.cells} if previous else {}
    for cell in (cell for cell in book.cells if VOLATILE in cell.metadata.get("tags", ())):
        old = before.get(cell.id)
        if old is None or not old.get("execution_count"):
            return
        cell.outputs = old.outputs


def write(book: nbformat.NotebookNode, path: Path) -> None:
    """Store a notebook.

    Raises:
        Malformed: it is larger than a notebook may be.
    """
    content = text(book)
    if len(content.encode()) > MAX_BYTES:
        raise Malformed(f"{path.name}: {len(content.encode()):,} bytes; at most {MAX_BYTES:,}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", newline="\n")


def text(book: nbformat.NotebookNode) -> str:
    """Give what a notebook's file holds; an executed one gets a digest by which a later edit is found."""
    if any(cell.get("execution_count") for cell in book.cells):
        book.metadata["tpulab"] = {"digest": digest(book)}
    return nbformat.writes(book) + "\n"


def digest(book: nbformat.NotebookNode) -> str:
    """Hash everything that a reader sees, outputs included."""
    return hashlib.sha256(json.dumps(book.cells, sort_keys=True).encode()).hexdigest()[:16]


def sources(book: nbformat.NotebookNode) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Give what a build decides without running anything: kind, id, source and tags of each cell."""
    return [(cell.cell_type, cell.id, cell.source, tuple(cell.metadata.get("tags", ()))) for cell in book.cells]


def _facts(source: Source, bank: Bank, address: str) -> str:
    core = sum(item.minutes for item in bank.exercises if item.core)
    stretch = sum(item.minutes for item in bank.exercises if not item.core)
    text = f"*Reading {bank.chapter.reading_minutes} min · core exercises {core} min"
    text += f" · stretch exercises {stretch} min" if stretch else ""
    text += f" · builds on {', '.join(bank.chapter.needs)}*" if bank.chapter.needs else "*"
    if address:
        place = address.removeprefix("https://github.com/")
        link = (
            f"https://colab.research.google.com/github/{place}/blob/v{tpulab.__version__}/notebooks/{source.slug}.ipynb"
        )
        text += f"\n\n[Open in Colab]({link})"
    return text


def _bootstrap(address: str) -> str:
    if address:
        remedy = f'    %pip install -q "tpulab @ git+{address}@v{tpulab.__version__}"\n    import tpulab\n'
        return f"try:\n    import tpulab\nexcept ModuleNotFoundError:  # on Colab\n{remedy}"
    remedy = (
        "    raise SystemExit(\n"
        '        "This kernel lacks the package tpulab. Open the course with `make lab`, or choose the\\n"\n'
        '        "kernel .venv of its folder. On Colab this cell installs it, once the course is\\n"\n'
        '        "published (`repository` in pyproject.toml)."\n'
        "    ) from None\n"
    )
    return f"try:\n    import tpulab\nexcept ModuleNotFoundError:\n{remedy}"


def _exercise_cells(item: Exercise, instructor: bool) -> list[Any]:
    dots = "●" * item.difficulty + "○" * (5 - item.difficulty)
    head = (
        f"### Exercise `{item.id}`: {item.title}\n\n"
        f"*{'core' if item.core else 'stretch'} · {item.minutes} min · difficulty {item.difficulty} of 5 {dots}*"
    )
    help_line = f'Stuck? `tpulab.hint("{item.id}")`, and after a try `tpulab.solution("{item.id}")`.'
    cells = [
        new_markdown_cell(f"{head}\n\n{item.prompt}\n\n{help_line}"),
        new_code_cell(item.solution_source if instructor else item.stub_source),
        new_code_cell(f'tpulab.check("{item.id}", {item.name})'),
    ]
    if instructor:
        wrongs = "\n".join(f"- `{name}`: the feedback says “{item.must_say[name]}”" for name in item.wrong_answers)
        notes = "\n\n".join(filter(None, [f"**Why it is right.** {item.why}", item.notes]))
        cells.append(
            new_markdown_cell(
                f"**Instructor notes for `{item.id}`**\n\n{notes}\n\nWrong answers that people give:\n\n{wrongs}"
            )
        )
    return cells


def _prediction_cells(item: Prediction) -> list[Any]:
    return [
        new_markdown_cell(f"**Predict** (`{item.id}`). {item.question}\n\n*Answer with {item.form_text}.*"),
        new_code_cell(f'tpulab.predict("{item.id}", {item.stub})'),
    ]


def _name_cells(book: nbformat.NotebookNode) -> None:
    """Give each cell an id made of its content, so that the same source makes the same file."""
    seen: dict[str, int] = {}
    for cell in book.cells:
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[name] = seen.get(name, 0) + 1
        cell.id = name if seen[name] == 1 else f"{name}-{seen[name]}"


def _where(slug: str, cell: Any) -> str:
    return f"{slug}: the cell that starts {cell.source.splitlines()[0]!r}"


_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def _clean(output: Any, cell: Any, slug: str) -> Any:
    """Drop what belongs to one run only; None drops the output."""
    where = _where(slug, cell)
    if output.output_type == "stream" and output.name == "stderr":
        raise Malformed(f"{where} writes to stderr: {output.text[:300]}")
    data = output.get("data", {})
    if "application/vnd.jupyter.widget-view+json" in data:
        return None  # lives in a kernel only; what it shows stands beside it as text and picture
    text = output.get("text", "") + "".join(
        value for value in data.values() if isinstance(value, str) and len(value) < 50_000
    )
    if VOLATILE not in cell.metadata.get("tags", ()) and (found := _ADDRESS.search(text)):
        raise Malformed(f"{where} shows an object's address ({found.group()}), which differs each time")
    return output
