"""Write the chapter table into README.md from the chapters' own figures: python course/readme.py"""

import re
from pathlib import Path

import chapter

from tpulab.learn.bank import banks

README = Path(__file__).parent.parent / "README.md"
PLANNED = 12  # the last chapter's number, as the map in chapter 00 has it
_BETWEEN = re.compile(r"(<!-- chapters -->\n).*?(<!-- end of chapters -->)", re.DOTALL)


def table() -> str:
    """Make the table: title, minutes, devices and what to read before; below it, which chapters are to come."""
    rows = ["| | chapter | reading | exercises: core + stretch | devices | after |", "|---|---|--:|--:|---|---|"]
    for one in banks():
        number = one.chapter.slug.split("_")[0]
        core = sum(item.minutes for item in one.exercises if item.core)
        rest = sum(item.minutes for item in one.exercises) - core
        after = ", ".join(slug.split("_")[0] for slug in one.chapter.needs)
        rows.append(
            f"| {number} | [{one.chapter.title}](notebooks/{one.chapter.slug}.ipynb) | {one.chapter.reading_minutes} min "
            f"| {core} + {rest} min | {_devices(one.chapter.slug)} | {after} |"
        )
    numbers = {one.chapter.slug.split("_")[0] for one in banks()}
    if missing := [f"{number:02}" for number in range(PLANNED + 1) if f"{number:02}" not in numbers]:
        rows += [
            "",
            f"Planned and not written yet: {', '.join(missing)}. The map at the end of 00 says what they are about.",
        ]
    return "\n".join(rows) + "\n"


def filled(text: str) -> str:
    """Put the table between its two marks.

    Raises:
        ValueError: the marks are not there, once each.
    """
    made, count = _BETWEEN.subn(lambda marks: marks[1] + table() + marks[2], text)
    if count != 1:
        raise ValueError(f"{README.name} has {count} places for the chapter table, not one")
    return made


def _devices(slug: str) -> str:
    text = (chapter.CHAPTERS / f"{slug}.py").read_text(encoding="utf-8")
    found = re.search(r"tpulab\.setup\((?:devices=)?(\d*)", text)
    count = int(found[1] or 1) if found else 1
    return "1" if count == 1 else f"{count}, simulated"


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
