"""The pages that are made of the chapters: syllabus, PyTorch phrase book, claims."""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chapter import Cell, Malformed, Source

from tpulab.learn.bank import Bank

Pair = tuple[Source, Bank]

COURSE = Path(__file__).parent
VERDICTS = ("holds", "holds with conditions", "does not hold", "cannot be tested here")
CLAIM = re.compile(r"^<!-- claim (\d+): ([^:]+): (.+?) -->\n?", re.MULTILINE)
NOTEBOOK_ONLY = "<!-- notebook only -->\n"  # before a paragraph that speaks of the cells around it
PYTORCH = "If you come from PyTorch"

# Who has how long, and what fits. A chapter that is not written yet is named as such and not counted.
EVENING_MINUTES = 120
WORKSHOPS = {
    2: ("00_start", "03_jit", "06_fusion"),
    4: ("00_start", "01_pure_functions", "03_jit", "06_fusion", "08_systolic"),
    8: ("00_start", "01_pure_functions", "02_grad", "03_jit", "04_vmap", "05_pmap", "06_fusion", "07_roofline",
        "08_systolic", "09_sharding"),
}  # fmt: skip
WORKSHOP_LIMIT_MINUTES = {2: 120, 4: 210, 8: 450}


@dataclass(frozen=True)
class Minutes:
    """How long one chapter takes.

    Args:
        reading: without exercises.
        core: its core exercises.
        stretch: all others.
    """

    reading: int
    core: int
    stretch: int

    @classmethod
    def of(cls, bank: Bank) -> "Minutes":
        """Add up a chapter's own figures."""
        core = sum(item.minutes for item in bank.exercises if item.core)
        return cls(bank.chapter.reading_minutes, core, sum(item.minutes for item in bank.exercises) - core)

    @property
    def in_class(self) -> int:
        """Reading and core exercises: what a workshop plans with."""
        return self.reading + self.core


def make(pairs: list[Pair]) -> dict[str, str]:
    """Make all pages: file name in course/ → text.

    Raises:
        Malformed: a claim's comment has no known number or verdict, or a workshop is longer than it may be.
    """
    return {"syllabus.md": syllabus(pairs), "from_pytorch.md": from_pytorch(pairs), "claims.md": claims(pairs)}


def syllabus(pairs: list[Pair]) -> str:
    """Plan evenings and workshops with the chapters' own minutes."""
    banks = {source.slug: bank for source, bank in pairs}
    lines = [
        "# Syllabus",
        "",
        "Built by `course/build.py` from the chapters' own figures; minutes are estimates by the authors.",
        "",
        "## The chapters",
        "",
        "| chapter | reading | core exercises | stretch exercises | builds on |",
        "|---|--:|--:|--:|---|",
    ]
    for slug, bank in banks.items():
        time = Minutes.of(bank)
        needs = ", ".join(bank.chapter.needs) or "nothing"
        lines.append(f"| {link(slug)} | {time.reading} | {time.core} | {time.stretch} | {needs} |")
    lines += [
        "",
        f"## Evenings of {EVENING_MINUTES} minutes",
        "",
        "Reading and all exercises, alone or in a group.",
        "",
    ]
    for number, (evening, total) in enumerate(evenings(banks.values()), 1):
        lines.append(f"{number}. {', '.join(link(slug) for slug in evening)}: {total} min")
    for hours, slugs in WORKSHOPS.items():
        there = [slug for slug in slugs if slug in banks]
        total = sum(Minutes.of(banks[slug]).in_class for slug in there)
        if total > WORKSHOP_LIMIT_MINUTES[hours]:
            limit = WORKSHOP_LIMIT_MINUTES[hours]
            raise Malformed(f"pages.py:1: the {hours} h workshop takes {total} minutes; at most {limit}")
        lines += ["", f"## Workshop of {hours} hours", "", "Reading and core exercises only.", ""]
        lines += [f"- {link(slug)}: {Minutes.of(banks[slug]).in_class} min" for slug in there]
        lines += [f"- {slug}: not written yet" for slug in slugs if slug not in banks]
        lines += ["", _sums(hours, total, complete=len(there) == len(slugs))]
    return "\n".join(lines) + "\n"


def _sums(hours: int, total: int, *, complete: bool) -> str:
    """Say what a workshop's hours are spent on."""
    limit = WORKSHOP_LIMIT_MINUTES[hours]
    breaks = f" ({hours} hours less {60 * hours - limit} minutes of breaks)" if limit < 60 * hours else ""
    lacking = "" if complete else ", without what is not written yet"
    rest = "questions and stretch exercises"
    return f"Together {total} of {limit} minutes{breaks}{lacking}; the other {limit - total} are for {rest}."


def evenings(banks: Iterable[Bank]) -> list[tuple[list[str], int]]:
    """Fill evenings with whole chapters in order; one that is longer than an evening has it alone."""
    plan: list[tuple[list[str], int]] = []
    for bank in banks:
        time = Minutes.of(bank)
        total = time.in_class + time.stretch
        if plan and plan[-1][1] + total <= EVENING_MINUTES:
            plan[-1] = ([*plan[-1][0], bank.chapter.slug], plan[-1][1] + total)
        else:
            plan.append(([bank.chapter.slug], total))
    return plan


def from_pytorch(pairs: list[Pair]) -> str:
    """Gather the texts of the chapters' PyTorch boxes; what can be run stays with the names that it needs."""
    lines = [
        "# From PyTorch to JAX",
        "",
        "Built by `course/build.py` from the boxes of the chapters. Names such as `loss`, `params` and `step` stand for "
        "your own.",
    ]
    for source, bank in pairs:
        lines += ["", f"## {bank.chapter.title}", "", f"From {link(source.slug)}."]
        for cell in _section(source, PYTORCH):
            text = CLAIM.sub("", cell.source).replace(f"## {PYTORCH}", "").strip()
            paragraphs = [part for part in text.split("\n\n") if not part.startswith(NOTEBOOK_ONLY)]
            lines += ["", "\n\n".join(paragraphs)] if paragraphs and cell.kind == "markdown" else []
    return "\n".join(lines) + "\n"


def _section(source: Source, heading: str) -> list[Cell]:
    """Give the cells from a heading to the next one, instructor's cells left out."""
    start = next(number for number, cell in enumerate(source.cells) if cell.heading == heading)
    found = [source.cells[start]]
    for cell in source.cells[start + 1 :]:
        if cell.heading or cell.kind in ("exercise", "predict"):
            break
        if "instructor" not in cell.tags:
            found.append(cell)
    return found


def claims(pairs: list[Pair]) -> str:
    """Answer each claim with the chapters that test it and a verdict in one line."""
    with (COURSE / "claims.csv").open(encoding="utf-8", newline="") as stream:
        known = list(csv.DictReader(stream))
    answers = _answers(pairs, {row["number"] for row in known})
    lines = [
        "# Claims put to the test",
        "",
        "What widely read articles say of JAX and TPUs, in our own words, and what the course found when it tried.",
        "Built by `course/build.py` from the chapters.",
        "",
        "| # | claim | verdict |",
        "|--:|---|---|",
    ]
    for row in known:
        verdict = "<br>".join(answers.get(row["number"], [])) or _unexamined(row["chapters"])
        lines.append(f"| {row['number']} | {row['claim']} | {verdict} |")
    return "\n".join(lines) + "\n"


def _unexamined(chapters: str) -> str:
    """Say which chapters are meant to test a claim, as `claims.csv` names them: "06, 07", or "" for none."""
    numbers = chapters.split(", ") if chapters else []
    if not numbers:
        return "not examined yet, and no chapter is planned for it"
    return f"not examined yet; planned for chapter{'s' * (len(numbers) > 1)} {' and '.join(numbers)}"


def _answers(pairs: list[Pair], known: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for source, _ in pairs:
        section = ""
        for cell in source.cells:
            headings = re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE) if cell.kind == "markdown" else []
            if headings and cell.source.startswith("#"):  # otherwise the cell begins by closing the section before
                section = headings[0]
            for number, verdict, reason in CLAIM.findall(cell.source):
                if number not in known or verdict not in VERDICTS:
                    wanted = f"a known number and one of {', '.join(VERDICTS)}"
                    raise source.error(cell, f"claim {number}: {verdict!r}; wanted {wanted}")
                text = f"**{verdict}** ({link(source.slug)}, *{section}*): {reason}"
                found.setdefault(number, []).append(text)
            section = headings[-1] if headings else section
    return found


def link(slug: str) -> str:
    """Link a chapter's notebook from a page in course/."""
    return f"[{slug}](../notebooks/{slug}.ipynb)"
