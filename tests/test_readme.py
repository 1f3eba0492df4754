"""README.md tells the truth where a test can tell."""

import re
from pathlib import Path

import pytest
import readme

import bootstrap

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_chapter_table_is_what_the_chapters_say():
    assert readme.filled(README) == README, "run python course/readme.py"


def test_a_readme_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="has 0 places"):
        readme.filled("no marks")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / target.split("#")[0]).exists(), target


def test_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)(?:TPU_COMPILER=0 )?make ([a-z-]+)", README, re.MULTILINE))
    assert named <= targets
    assert {"lab", "setup", "test", "test-matrix", "prove", "clean", "notebooks", "check"} <= targets


def test_pythons_are_those_that_the_set_up_takes():
    low, high = bootstrap.OLDEST[1], bootstrap.NEWEST[1]
    listed = [f"3.{minor}" for minor in range(low, high + 1)]
    assert f"Python {', '.join(listed[:-1])} or {listed[-1]} with its venv module" in README
