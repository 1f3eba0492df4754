"""Build the notebooks from the chapters, or check that they are what a build would give.

python course/build.py                              learner edition into notebooks/
python course/build.py --chapter 03_jit             one chapter only
python course/build.py --check                      no execution; fails if anything is out of date
python course/build.py --edition instructor OUT     solutions and notes, unexecuted, into OUT
"""

import enum
import inspect
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

try:
    import chapter
    import nbformat
    import notebook
    import pages
    import rules
    import stored
    import typer

    from tpulab.learn.bank import MODULES, Bank, bank
    from tpulab.xla import compiler_problem, recorded
except ModuleNotFoundError as missing:
    print(f"course/build.py needs what authors need ({missing.name} is missing): run `make dev`", file=sys.stderr)
    raise SystemExit(3) from None

NOTEBOOKS = notebook.ROOT / "notebooks"


class Edition(enum.StrEnum):
    """Which notebooks to build."""

    learner = "learner"
    instructor = "instructor"


def chapters(only: str = "") -> list[tuple[chapter.Source, Bank]]:
    """Read the chapters, hold them to the rules, and pair each with its bank.

    Args:
        only: a chapter's slug; "" for all.

    Raises:
        chapter.Malformed: a chapter breaks a rule, or bank and folder disagree on which chapters there are.
    """
    known = {one.chapter.slug: one for one in map(_bank, MODULES)}
    paths = sorted(chapter.CHAPTERS.glob("[0-9][0-9]_*.py"))
    slugs = [path.stem for path in paths]
    if only and only not in slugs:
        raise chapter.Malformed(f"{only}: no such chapter; there are {', '.join(slugs)}")
    for path in paths:
        if path.stem not in known:
            raise chapter.Malformed(f"{path.name}:1: no bank module has a Chapter with the slug {path.stem!r}")
    if not only and (lost := set(known) - set(slugs)):
        raise chapter.Malformed(f"{sorted(lost)[0]}.py:1: the bank has this chapter, course/chapters has not")
    pairs = [(chapter.read(path), known[path.stem]) for path in paths if not only or path.stem == only]
    for source, one in pairs:
        rules.apply(source, one)
    return pairs


def _bank(name: str) -> Bank:
    """Load a chapter's bank; one that cannot be loaded is named with the line where it breaks."""
    file = f"{name}.py"
    try:
        return bank(name)
    except Exception as error:
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = getattr(error, "lineno", None) or next((f.lineno for f in frames if Path(f.filename).name == file), 1)
        if isinstance(error, StopIteration):
            problem = "no Chapter in it"
        elif isinstance(error, ModuleNotFoundError) and str(error.name).endswith(f".bank.{name}"):
            problem = "missing, and bank/__init__.py has it in MODULES"
        else:
            problem = f"{type(error).__name__}: {error}"
        raise chapter.Malformed(f"tpulab/learn/bank/{file}:{line}: {' '.join(problem.split())}") from error


def _committed(path: Path) -> nbformat.NotebookNode | None:
    """Read a notebook that was built before; None for a missing or damaged one."""
    try:
        book = nbformat.read(path, as_version=4)
        notebook.sources(book)
    except Exception:  # nbformat promises no kind of error
        return None
    return book


def build(only: str = "", out: Path = NOTEBOOKS) -> list[Path]:
    """Build and execute the learner edition, and the pages; volatile outputs of unchanged cells are kept.

    Results of the TPU compiler are stored on the way, for machines that have none: a chapter that compiles for TPUs cannot
    be built without it.
    """
    written = []
    pairs = chapters(only)
    with tempfile.TemporaryDirectory() as folder:
        for source, one in pairs:
            if any("compile_for" in cell.source for cell in source.cells) and (problem := compiler_problem()):
                raise chapter.Malformed(f"{source.path.name}:1: building it takes the TPU compiler: {problem}")
            path = out / f"{source.slug}.ipynb"
            book = notebook.execute(notebook.assemble(source, one), source.slug, Path(folder))
            notebook.keep_volatile(book, _committed(path))
            notebook.write(book, path)
            written.append(path)
            _compile_for_checks(one, Path(folder))
        written += stored.update(recorded.STORED, Path(folder), everything=not only)
    if not only:
        written += _write_pages(pairs)
    return written


def _compile_for_checks(one: Bank, folder: Path) -> None:
    """Run the checks that compile programs of their own, so that they can check without a compiler too."""
    os.environ[recorded.RECORD_TO] = str(folder)
    try:
        for item in one.exercises:
            if not item.needs_compiler and hasattr(inspect.getmodule(item.checker), "xla"):
                item.check(item.solution)
    finally:
        del os.environ[recorded.RECORD_TO]


def _write_pages(pairs: list[pages.Pair]) -> list[Path]:
    made = {pages.COURSE / name: text for name, text in pages.make(pairs).items()}
    for path, text in made.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(made)


def build_instructor(out: Path, only: str = "") -> list[Path]:
    """Write the instructor edition, unexecuted: its test run is the proof."""
    written = []
    for source, one in chapters(only):
        path = out / f"{source.slug}.ipynb"
        notebook.write(notebook.assemble(source, one, instructor=True), path)
        written.append(path)
    return written


def problems(only: str = "", folder: Path = NOTEBOOKS) -> list[str]:
    """Say what differs between the committed notebooks and what a build would give, a line each."""
    found = []
    pairs = chapters(only)
    for source, one in pairs:
        path = folder / f"{source.slug}.ipynb"
        if not path.exists():
            found.append(f"{path.name}: missing; run python course/build.py --chapter {source.slug}")
            continue
        book = _committed(path)
        if book is None:
            found.append(f"{path.name}:1: damaged; rebuild with --chapter {source.slug}")
            continue
        found += [
            f"{path.name}: {text}; rebuild with --chapter {source.slug}"
            for text in _stale(path, book, notebook.assemble(source, one))
        ]
    if not only:
        slugs = {source.slug for source, _ in pairs}
        found += _stale_pages(pairs)
        found += [
            f"{path.name}: no chapter makes it; delete it" for path in folder.glob("*.ipynb") if path.stem not in slugs
        ]
    return found


def _stale_pages(pairs: list[pages.Pair]) -> list[str]:
    paths = {pages.COURSE / name: text for name, text in pages.make(pairs).items()}
    return [
        f"{path.name}: differs from what the chapters say; rebuild"
        for path, text in paths.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def _stale(path: Path, book: nbformat.NotebookNode, fresh: nbformat.NotebookNode) -> list[str]:
    if notebook.sources(book) != notebook.sources(fresh):
        return ["differs from its chapter's source"]
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        return ["its outputs were cleared or its cells ran out of order"]
    # What only running gives is taken from the file: outputs, and which Python it was.
    for cell, ran in zip(fresh.cells, book.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    fresh.metadata["language_info"] = book.metadata.get("language_info", {}) | fresh.metadata["language_info"]
    if path.is_symlink() or path.read_bytes() != notebook.text(fresh).encode():
        return ["was edited by hand"]
    return []


def main(
    out: Annotated[Path | None, typer.Argument(help="Where other editions go.", show_default=False)] = None,
    edition: Annotated[Edition, typer.Option(help="Which notebooks to build.")] = Edition.learner,
    only: Annotated[str, typer.Option("--chapter", help="One chapter, e.g. 03_jit.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only say what is out of date.")] = False,
) -> None:
    """Build the course's notebooks from course/chapters."""
    try:
        if check:
            lines = problems(only)
            print("\n".join(lines) or "every notebook is what its chapter makes")
            raise typer.Exit(1 if lines else 0)
        if edition is Edition.instructor:
            if out is None:
                raise typer.BadParameter("say where the instructor edition goes: --edition instructor OUT")
            if out.resolve() == NOTEBOOKS.resolve():
                raise typer.BadParameter(f"{out} is where the learner edition lies; choose another folder")
            written = build_instructor(out, only)
        else:
            written = build(only, out or NOTEBOOKS)
    except chapter.Malformed as problem:
        typer.echo(problem, err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"{error.filename}: {error.strerror or error}; choose a folder that can be written", err=True)
        raise typer.Exit(3) from None
    for path in written:
        print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        if not hasattr(error, "format_message"):  # not typer's and click's own
            raise
        print(f"{error.format_message()} (python course/build.py --help)", file=sys.stderr)  # pyright: ignore[reportAttributeAccessIssue]
        status = 2
    sys.exit(status)
