"""The committed notebooks: run, compared, and free of what does not belong in them."""

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import notebook
import pytest
import rules
from bs4 import BeautifulSoup

import build
from tpulab.xla import compiler_problem

PAIRS = build.chapters()
SLUGS = [source.slug for source, _ in PAIRS]
ROOT = notebook.ROOT


def run_nbval(path: Path, home: Path, *options: str, **environment: str) -> None:
    """Run one notebook under nbval, in this Python, with a dead kernel noticed in minutes."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "NPROC", "PYTEST_", "MPL"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--nbval-current-env"]
    command += ["--nbval-cell-timeout=120", "--nbval-kernel-startup-timeout=120", *options, str(path)]
    environment = kept | {"TPULAB_HOME": str(home)} | environment
    done = subprocess.run(command, env=environment, cwd=path.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout), done.stdout


@pytest.mark.parametrize("slug", SLUGS)
def test_learner_edition_gives_what_it_stores(slug, home):
    if os.environ.get("TPULAB_DEVICES"):
        pytest.skip("outputs are stored for the devices that each chapter asks for")
    run_nbval(ROOT / "notebooks" / f"{slug}.ipynb", home, "--nbval" if can_compare(slug) else "--nbval-lax")


def can_compare(slug: str) -> bool:
    """Say whether outputs are to be the same: without a compiler, stored results say of themselves that they are."""
    source = next(source for source, _ in PAIRS if source.slug == slug)
    return not (any("xla.compile_for" in cell.source for cell in source.cells) and compiler_problem())


@pytest.mark.parametrize("slug", SLUGS)
def test_every_check_of_the_instructor_edition_is_correct(slug, home, tmp_path):
    (path,) = build.build_instructor(tmp_path, slug)
    run_nbval(path, home, "--nbval-lax", NBGRADER_EXECUTION="1")


def test_notebooks_are_what_their_chapters_make():
    assert build.problems() == []


@pytest.fixture(params=SLUGS)
def book(request) -> Any:
    return nbformat.read(ROOT / "notebooks" / f"{request.param}.ipynb", as_version=4)


def outputs(book: Any) -> list[Any]:
    return [output for cell in book.cells for output in cell.get("outputs", [])]


def texts(book: Any) -> list[str]:
    """Give all stored text, the bytes of pictures left out."""
    found = [output.get("text", "") for output in outputs(book)]
    for output in outputs(book):
        for value in output.get("data", {}).values():
            found.append(re.sub(r"base64,[A-Za-z0-9+/=]+", "", value if isinstance(value, str) else str(value)))
    return found


def test_cells_ran_in_order(book):
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_small(book):
    assert len(nbformat.writes(book).encode()) < notebook.MAX_BYTES


def test_no_errors_and_no_stderr(book):
    for output in outputs(book):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"


def test_every_picture_has_words(book):
    pages = [output["data"]["text/html"] for output in outputs(book) if "text/html" in output.get("data", {})]
    images = [image for page in pages for image in BeautifulSoup(page, "html.parser").find_all("img")]
    assert images, "a chapter has a figure worth having"
    for image in images:
        assert len(str(image.get("alt", "")).split()) >= 5
    for output in outputs(book):
        assert "image/png" not in output.get("data", {}), "a figure goes through tpulab.show, which keeps its words"
    for cell in book.cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"!\[\s*\]", cell.source)


def test_nothing_of_the_machine(book):
    host = socket.gethostname()
    for text in texts(book):
        found = re.search(r"/home/|/root/|/tmp/|/Users/|[A-Z]:\\|site-packages|ipykernel_\d", text)
        assert not found, text[:300]
        assert len(host) < 4 or host not in text


def test_links_resolve(book):
    headings = {re.sub(r"\s+", "-", line.lstrip("# ").strip()) for cell in book.cells if cell.cell_type == "markdown"
                for line in cell.source.splitlines() if line.startswith("#")}  # fmt: skip
    for cell in book.cells:
        if cell.cell_type != "markdown":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", cell.source):
            if target.startswith("#"):
                assert target[1:] in headings, target
            elif target.startswith("https://"):
                assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[\w./#%=?&@~+:-]*)?", target), target
            else:
                file = target.split("#")[0]
                assert (ROOT / "notebooks" / file).exists(), target


def test_chapters_use_no_number_of_devices():
    """Sizes come from jax.device_count(); only setup() names a number."""
    for source, _ in PAIRS:
        for cell in source.cells:
            if cell.kind == "code" and "device" in cell.source:
                text = re.sub(r"tpulab\.setup\([^)]*\)", "", cell.source)
                assert not re.search(r"devices?\(?\)?(\[:8\]| == 8)|reshape\(8,", text), f"{source.slug}:{cell.line}"


# Taught before asked: each name in a solution was seen in a cell.

_ROOTS = ("jax", "flax", "optax")


def names_used(text: str, aliases: dict[str, str]) -> set[str]:
    """Give the dotted jax, flax and optax names in Python text, aliases written out; learns new imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            aliases |= {item.asname or item.name.split(".")[0]: item.name if item.asname else item.name.split(".")[0]
                        for item in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    tree = ast.parse(text)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in aliases:
            name = ".".join([aliases[node.id], *reversed(parts)])
            if name.split(".")[0] in _ROOTS and (parts or "." in aliases[node.id]):
                found.add(name)
    return found


def test_every_name_in_a_solution_was_taught():
    aliases: dict[str, str] = {}
    taught: set[str] = set()
    for source, bank in PAIRS:
        for cell in source.cells:
            if cell.kind == "code":
                taught |= names_used(cell.source, aliases)
        for item in bank.exercises:
            unknown = names_used(item.solution_source, dict(aliases)) - taught
            assert not unknown, f"{item.id} uses {', '.join(sorted(unknown))}, which no cell up to its chapter shows"


def test_names_used_sees_through_aliases():
    aliases: dict[str, str] = {}
    text = "import jax.numpy as jnp\nfrom jax import lax\nimport jax\njnp.ones(3); lax.cond; jax.tree.map; x.at[0]"
    assert names_used(text, aliases) == {"jax.numpy.ones", "jax.lax.cond", "jax.tree.map"}


@pytest.mark.parametrize(("source", "bank"), PAIRS, ids=SLUGS)
def test_exercises_per_chapter(source, bank):
    wanted = range(2, 11) if source.slug == "00_start" else range(5, 11)
    assert len(bank.exercises) in wanted
    difficulties = [item.difficulty for item in bank.exercises]
    second_half = difficulties[len(difficulties) // 2 :]
    assert difficulties[0] <= 2 and max(difficulties) in second_half, difficulties


def test_words_counts_what_is_read():
    assert rules.words("Two words and [a link](https://example.org/x).\n```python\nnot these\n```") == 5
