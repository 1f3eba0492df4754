"""The builder on the template chapter: what it makes, what it refuses, what it notices."""

import copy
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import chapter
import nbformat
import notebook
import pages
import pytest
import rules

import build
import tpulab
from tpulab.learn import bank as bank_package
from tpulab.learn.bank import Bank, Chapter, bank
from tpulab.learn.exercise import Exercise
from tpulab.learn.prediction import Prediction

COURSE = Path(chapter.__file__).parent
TEMPLATE = (COURSE / "template.py").read_text(encoding="utf-8")
SLUG = "99_template"


def load_bank() -> Bank:
    """Load the template's bank as if it had been copied into the package."""
    spec = importlib.util.spec_from_file_location("tpulab.learn.bank.template", COURSE / "template_bank.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    things = list(vars(module).values())
    return Bank(
        next(thing for thing in things if isinstance(thing, Chapter)),
        tuple(thing for thing in things if isinstance(thing, Exercise)),
        tuple(thing for thing in things if isinstance(thing, Prediction)),
    )


BANK = load_bank()


def source(text: str, folder: Path) -> chapter.Source:
    path = folder / f"{SLUG}.py"
    path.write_text(text, encoding="utf-8")
    return chapter.read(path)


@pytest.fixture
def template(tmp_path):
    return source(TEMPLATE, tmp_path)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package with the template's bank added as the author's guide says."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(Path(tpulab.__file__).parent, folder / "tpulab", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(COURSE / "template_bank.py", folder / "tpulab" / "learn" / "bank" / "template.py")
    modules = folder / "tpulab" / "learn" / "bank" / "__init__.py"
    modules.write_text(
        modules.read_text(encoding="utf-8").replace("MODULES = (", 'MODULES = ("template", '), encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def run(package, tmp_path_factory):
    """Execute a notebook in a kernel that has that package."""

    def execute(book):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(package))
            return notebook.execute(book, SLUG, tmp_path_factory.mktemp("compiled"))

    return execute


@pytest.fixture(scope="module")
def executed(tmp_path_factory, run):
    return run(notebook.assemble(source(TEMPLATE, tmp_path_factory.mktemp("template")), BANK, address=""))


def test_template_keeps_all_rules(template):
    rules.apply(template, BANK)


def test_template_exercise_proves_itself():
    (item,) = BANK.exercises
    assert item.check(item.stub).status == "not attempted"
    assert item.check(item.solution).status == "correct"
    for name, function in item.wrong_answers.items():
        assert item.must_say[name] in item.check(function).feedback


# What an author gets wrong: (what to replace in the template, by what), line, words.
LINE = {
    text: TEMPLATE[: TEMPLATE.index(text)].count("\n") + 1
    for text in (
        "# %% [exercise] template.1",
        "# %% [predict] template.p1",
        "# %% [predict] template.p2",
        "import tpulab\n\n",
        "# ## What you can do now",
        "x = jnp.array",
        "# %% [markdown]\n# # What",
        "# ## A picture",
    )
}
MISTAKES = {
    "unknown exercise": (
        ("[exercise] template.1", "[exercise] template.9"),
        LINE["# %% [exercise] template.1"],
        "the bank has no exercise 'template.9'; it has template.1",
    ),
    "unknown prediction": (
        ("[predict] template.p1", "[predict] template.p9"),
        LINE["# %% [predict] template.p1"],
        "the bank has no predict 'template.p9'",
    ),
    "exercise left out": (
        ("# %% [exercise] template.1\n", ""),
        None,
        "exercise 'template.1' of the bank does not occur",
    ),
    "exercise twice": (
        ("# %% [exercise] template.1\n", "# %% [exercise] template.1\n\n# %% [exercise] template.1\n"),
        LINE["# %% [exercise] template.1"],
        "stands twice",
    ),
    "prediction not revealed": (
        ('tpulab.reveal("template.p1", "plus" if total > 0 else "minus")', "total"),
        LINE["# %% [predict] template.p1"],
        "'template.p1' is not revealed before the next",
    ),
    "last prediction not revealed": (
        ('tpulab.reveal("template.p3", round(largest, 2))', "largest"),
        None,
        "no cell reveals 'template.p3'",
    ),
    "revealed unasked": (
        ('tpulab.reveal("template.p2", above)', 'tpulab.reveal("template.p3", above)'),
        None,
        "'template.p3' is revealed here, but was not asked just before",
    ),
    "unknown marker": (
        ("# %% [exercise] template.1", "# %% [exercize] template.1"),
        LINE["# %% [exercise] template.1"],
        "is no cell; write [markdown]",
    ),
    "text in a marker cell": (
        ("# %% [exercise] template.1\n", "# %% [exercise] template.1\nprint(1)\n"),
        LINE["# %% [exercise] template.1"],
        "stands alone",
    ),
    "text before the first cell": (
        ("# %% [markdown]\n# # What", "x = 1\n# %% [markdown]\n# # What"),
        1,
        "stands before",
    ),
    "another title": (
        ("# # What this chapter is about", "# # Something else"),
        1,
        "the first heading is the bank's title",
    ),
    "no aims": (("After this chapter you can", "This is"), 1, "After this chapter you can"),
    "no setup": (("tpulab.setup()", "print(tpulab)"), None, "the first code cell starts with"),
    "no closing": (("# ## What you can do now", "# ## The end"), None, "section `## What you can do now` is missing"),
    "no PyTorch box": (
        ("# ## If you come from PyTorch", "# ## Torch"),
        None,
        "`## If you come from PyTorch` is missing",
    ),
    "a long text cell": (("Three numbers, two", "word " * 130), None, "words in one cell; at most 120"),
    "a long code cell": (("print(x)\n", "print(x)\n" * 20), None, "lines in one code cell; at most 15"),
    "too many words": (
        (
            "# Three numbers, two of them above zero. What will their sum be?\n",
            "\n".join(f"# {'word ' * 110}\n\n# %% [markdown]" for _ in range(20)) + "\n# x\n",
        ),
        1,
        "words in the chapter; at most 2000",
    ),
    "too many cells": (
        ("# %% [exercise] template.1\n", "# %%\nprint(1)\n\n" * 40 + "# %% [exercise] template.1\n"),
        1,
        "cells without exercises and predictions; 20 to 45",
    ),
    "unknown tag": (('tags=["instructor"]', 'tags=["teacher"]'), None, "unknown tag teacher"),
    "no Python": (("total = x.sum()", "total = = x.sum()"), None, "not Python"),
    "line too wide": (
        ("print(x)\n", f"print(x)  # {'x' * 100}\n"),
        LINE["x = jnp.array"] - 1,
        "columns in a line of code; at most 105",
    ),
    "untagged widget": (
        ("print(x)\n", "widgets.IntSlider()\n"),
        LINE["x = jnp.array"] - 1,
        "a cell with a widget is tagged",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_malformed_chapter_fails_with_file_and_line(name, tmp_path):
    (old, new), line, words = MISTAKES[name]
    assert old in TEMPLATE
    with pytest.raises(chapter.Malformed) as caught:
        rules.apply(source(TEMPLATE.replace(old, new, 1), tmp_path), BANK)
    found = re.match(rf"{SLUG}\.py:(\d+): ", str(caught.value))
    assert found, caught.value
    assert words in str(caught.value)
    if line:
        assert int(found.group(1)) == line


def test_two_builds_are_the_same_bytes(template, executed, run, tmp_path):
    again = run(notebook.assemble(template, BANK, address=""))
    notebook.keep_volatile(again, executed)
    first, second = tmp_path / "first.ipynb", tmp_path / "second.ipynb"
    notebook.write(executed, first)
    notebook.write(again, second)
    assert first.read_bytes() == second.read_bytes()


def test_what_an_executed_notebook_holds(executed):
    nbformat.validate(executed)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert set(executed.metadata) <= {"kernelspec", "language_info", "tpulab"}
    assert all(set(cell.metadata) <= {"tags"} for cell in executed.cells)
    text = nbformat.writes(executed)
    assert "Not attempted" in text
    assert "You made no prediction" in text
    assert "Not measured" in text
    assert "where will the peak be" not in text, "instructor cells stay out"


def test_a_notebook_shows_what_is_for_it_alone_without_the_mark(tmp_path):
    heading = "# ## If you come from PyTorch\n"
    assert heading in TEMPLATE
    text = TEMPLATE.replace(heading, heading + "#\n# <!-- notebook only -->\n# The next cell runs it.\n", 1)
    shown = nbformat.writes(notebook.assemble(source(text, tmp_path), BANK))
    assert "The next cell runs it." in shown and "notebook only" not in shown


def test_ids_come_from_content(template):
    cells = notebook.assemble(template, BANK).cells
    assert len({cell.id for cell in cells}) == len(cells)
    assert [cell.id for cell in cells] == [cell.id for cell in notebook.assemble(template, BANK).cells]


def test_instructor_edition_has_solutions_and_notes(template):
    text = nbformat.writes(notebook.assemble(template, BANK, instructor=True))
    assert "return x - x.mean()" in text
    assert "raise NotImplementedError" not in text
    assert "Watch for those" in text and "where will the peak be" in text and "subtracts_median" in text


def test_volatile_outputs_are_kept_while_their_source_is_unchanged(executed, template):
    again = notebook.assemble(template, BANK, address="")
    notebook.keep_volatile(again, executed)
    kept = [cell for cell in again.cells if cell.get("outputs")]
    assert [cell.metadata["tags"] for cell in kept] == [["nbval-ignore-output"]]


def test_no_volatile_output_is_older_than_one_before_it():
    def book(*sources: str, outputs: list | None = None) -> nbformat.NotebookNode:
        cells = [nbformat.v4.new_code_cell(text, id=text, execution_count=1, outputs=outputs or []) for text in sources]
        for cell in cells:
            cell.metadata.tags = [notebook.VOLATILE]
        return nbformat.v4.new_notebook(cells=cells)

    old = book("clock", "times", "figure", outputs=[nbformat.v4.new_output("stream", text="old")])
    again = book("clock", "times_of_more", "figure")
    notebook.keep_volatile(again, old)
    assert [len(cell.outputs) for cell in again.cells] == [1, 0, 0]


@pytest.fixture
def published(monkeypatch, tmp_path, executed):
    """A folder of chapters and one of notebooks that agree."""
    chapters, books = tmp_path / "chapters", tmp_path / "notebooks"
    chapters.mkdir()
    (chapters / f"{SLUG}.py").write_text(TEMPLATE, encoding="utf-8")
    monkeypatch.setattr(chapter, "CHAPTERS", chapters)
    monkeypatch.setattr(build, "MODULES", ("template",))
    monkeypatch.setattr(build, "bank", lambda name: BANK)
    monkeypatch.setattr(notebook, "repository", lambda: "")
    monkeypatch.setattr(build, "NOTEBOOKS", books)
    monkeypatch.setattr(pages, "COURSE", tmp_path)
    shutil.copy(COURSE / "claims.csv", tmp_path)
    build._write_pages(build.chapters())
    notebook.write(executed, books / f"{SLUG}.ipynb")
    return books / f"{SLUG}.ipynb"


def rewrite(path: Path, change) -> None:
    book = nbformat.read(path, as_version=4)
    change(book)
    path.write_text(nbformat.writes(book) + "\n", encoding="utf-8")


def clear(book):
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def edit_output(book):
    next(cell for cell in book.cells if cell.get("outputs")).outputs[0]["text"] = "8 TPUs"


def edit_source(book):
    book.cells[-1].source += " indeed"


def swap_order(book):
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    code[0].execution_count, code[1].execution_count = 2, 1


def edit_metadata(book):
    book.metadata["mine"] = 1


def edit_language(book):
    book.metadata["language_info"]["name"] = "R"


def edit_minor(book):
    book.nbformat_minor = 6


def test_check_passes_what_was_built(published):
    assert build.problems(folder=published.parent) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (clear, "cleared"),
        (edit_output, "edited by hand"),
        (edit_source, "differs from its chapter"),
        (swap_order, "out of order"),
        (edit_metadata, "edited by hand"),
        (edit_language, "edited by hand"),
        (edit_minor, "edited by hand"),
    ],
)
def test_check_notices(published, change, words):
    rewrite(published, change)
    (line,) = build.problems(folder=published.parent)
    assert words in line and line.startswith(f"{SLUG}.ipynb: ") and f"--chapter {SLUG}" in line


@pytest.mark.parametrize("change", [(b"\n", b"\r\n"), (b"\n }", b"\n  }"), (b"\n}\n", b"\n}\n\n")])
def test_check_notices_another_layout(published, change):
    published.write_bytes(published.read_bytes().replace(*change))
    (line,) = build.problems(folder=published.parent)
    assert "edited by hand" in line


def test_check_notices_a_link(published, tmp_path):
    published.symlink_to(published.rename(tmp_path / "elsewhere.ipynb"))
    (line,) = build.problems(folder=published.parent)
    assert "edited by hand" in line


def test_check_notices_a_missing_and_a_foreign_notebook(published):
    published.rename(published.with_name("98_other.ipynb"))
    missing, foreign = build.problems(folder=published.parent)
    assert "missing" in missing and "no chapter makes it" in foreign


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff", b"", b'{"cells": [1], "nbformat": 4}'])
def test_check_notices_a_damaged_notebook(published, content):
    published.write_bytes(content)
    assert build.problems(folder=published.parent) == [f"{SLUG}.ipynb:1: damaged; rebuild with --chapter {SLUG}"]
    assert build._committed(published) is None, "a build makes it anew"


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"# %%\n\xff\n", ":2: not UTF-8"), (b"", ":1: the chapter is empty"), (b" \n\n", ":1: the chapter is empty")],
)
def test_a_chapter_that_is_no_text(tmp_path, content, says):
    path = tmp_path / f"{SLUG}.py"
    path.write_bytes(content)
    with pytest.raises(chapter.Malformed, match=f"^{SLUG}.py{says}"):
        chapter.read(path)


def test_a_bank_that_cannot_be_loaded(published, monkeypatch, package):
    monkeypatch.setattr(build, "bank", bank.__wrapped__)
    monkeypatch.setattr(bank_package, "MODULES", ("nosuch", "broken", "bare"))
    folder = package / "tpulab" / "learn" / "bank"
    monkeypatch.setattr(bank_package, "__path__", [str(folder)])
    (folder / "broken.py").write_text("x = 1\n\n1 / 0\n")
    (folder / "bare.py").write_text("x = 1\n")
    for name, says in {
        "nosuch": ":1: missing, and bank/__init__.py",
        "broken": ":3: ZeroDivisionError: division by zero",
        "bare": ":1: no Chapter in it",
    }.items():
        monkeypatch.setattr(build, "MODULES", (name,))
        with pytest.raises(chapter.Malformed, match=f"^tpulab/learn/bank/{name}.py{says}"):
            build.chapters()


@pytest.mark.parametrize(
    ("before", "words", "status", "says"),
    [
        ("", ["--edition", "instructor", "/dev/null/x"], 3, "/dev/null/x"),
        ("", ["--edition", "instructor"], 2, "OUT"),
        ("", ["--edition", "instructor", str(build.NOTEBOOKS)], 2, "where the learner edition lies"),
        ("", ["--nonsense"], 2, "--nonsense"),
        ("", ["--chapter", "98_other"], 1, "no such chapter"),
        ("sys.modules['jupytext'] = None; ", [], 3, "jupytext is missing): run `make dev`"),
    ],
)
def test_what_stops_the_builder_is_said_without_a_traceback(before, words, status, says):
    file = str(COURSE / "build.py")
    source = f"import sys, runpy; {before}sys.argv[0] = {file!r}; sys.path.insert(0, {str(COURSE)!r}); "
    source += f"runpy.run_path({file!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", source, *words], capture_output=True, text=True)
    assert done.returncode == status and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_check_notices_an_edited_page(published, tmp_path):
    page = tmp_path / "syllabus.md"
    page.write_text(page.read_text(encoding="utf-8") + "and more\n", encoding="utf-8")
    (line,) = build.problems(folder=published.parent)
    assert line == "syllabus.md: differs from what the chapters say; rebuild"


def test_chapters_and_banks_must_agree(published, monkeypatch):
    with pytest.raises(chapter.Malformed, match="no such chapter; there are 99_template"):
        build.chapters("98_other")
    monkeypatch.setattr(build, "MODULES", ())
    with pytest.raises(chapter.Malformed, match="no bank module has a Chapter with the slug '99_template'"):
        build.chapters()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; print('x', file=sys.stderr)", "writes to stderr"),
        ("object()", "shows an object's address"),
        ("1 / 0", "the cell that starts .1 / 0. raised ZeroDivisionError"),
    ],
)
def test_a_cell_that_does_not_belong_in_a_built_notebook(template, code, words, tmp_path):
    book = notebook.assemble(template, BANK)
    book.cells = [nbformat.v4.new_code_cell(code)]
    with pytest.raises(chapter.Malformed, match=words):
        notebook.execute(book, SLUG, tmp_path)


def test_a_large_notebook_is_refused(executed, tmp_path):
    big = copy.deepcopy(executed)
    big.cells.append(nbformat.v4.new_markdown_cell("x" * 300_000))
    with pytest.raises(chapter.Malformed, match="at most 300,000"):
        notebook.write(big, tmp_path / "big.ipynb")


def test_colab_badge_and_first_cell_follow_the_address(template):
    without = nbformat.writes(notebook.assemble(template, BANK, address=""))
    assert "colab.research" not in without
    assert "repository" in without and "make lab" in without
    with_address = notebook.assemble(template, BANK, address="https://github.com/someone/course")
    first_code = next(cell for cell in with_address.cells if cell.cell_type == "code")
    assert f'"tpulab @ git+https://github.com/someone/course@v{tpulab.__version__}"' in first_code.source
    badge = f"https://colab.research.google.com/github/someone/course/blob/v{tpulab.__version__}/notebooks/{SLUG}.ipynb"
    assert badge in with_address.cells[1].source
