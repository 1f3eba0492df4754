"""The pages add up and say where they come from."""

import re

import chapter
import pages
import pytest

from build import chapters
from tpulab.learn.bank import Bank, Chapter

PAIRS = chapters()


def small(text: str, tmp_path, slug: str = "01_pure_functions") -> list[pages.Pair]:
    path = tmp_path / f"{slug}.py"
    path.write_text(text, encoding="utf-8")
    return [(chapter.read(path), Bank(Chapter(slug, "A title", reading_minutes=30), (), ()))]


BOX = """# %% [markdown]
# ## Before

# %% [markdown]
# ## If you come from PyTorch
#
# The box.

# %% [markdown]
# More of it.
#
# <!-- notebook only -->
# The next cell runs it.

# %%
print(params)

# %% [markdown]
# ## After
#
# Not of it.
"""


def test_phrase_book_takes_the_box_and_nothing_else(tmp_path):
    text = pages.from_pytorch(small(BOX, tmp_path))
    assert "The box." in text and "More of it." in text and "Not of it." not in text
    assert "next cell" not in text and "print(params)" not in text and "<!--" not in text
    assert "[01_pure_functions](../notebooks/01_pure_functions.ipynb)" in text


def test_claims_name_chapter_section_and_verdict(tmp_path):
    text = pages.claims(small("# %% [markdown]\n# ## Here\n# x\n# <!-- claim 2: holds: it does -->\n", tmp_path))
    (line,) = [line for line in text.splitlines() if line.startswith("| 2 |")]
    assert "**holds** ([01_pure_functions](../notebooks/01_pure_functions.ipynb), *Here*): it does" in line
    assert "not examined yet; planned for chapter 10 |" in text
    assert "not examined yet; planned for chapters 06 and 07 |" in text
    assert "not examined yet, and no chapter is planned for it |" in text


def test_phrase_book_speaks_of_no_cells():
    assert not re.search(r"\bcells?\b", pages.from_pytorch(PAIRS))


@pytest.mark.parametrize("comment", ["claim 99: holds: x", "claim 2: perhaps: x"])
def test_a_claim_that_is_none(comment, tmp_path):
    with pytest.raises(chapter.Malformed, match=r"01_pure_functions.py:1: claim \d+: .*; wanted a known number"):
        pages.claims(small(f"# %% [markdown]\n# x\n# <!-- {comment} -->\n", tmp_path))


def test_evenings_hold_every_chapter_once_in_order():
    plan = pages.evenings(bank for _, bank in PAIRS)
    assert [slug for evening, _ in plan for slug in evening] == [source.slug for source, _ in PAIRS]
    assert len(plan) <= 10
    for evening, total in plan:
        assert total <= pages.EVENING_MINUTES or len(evening) == 1


def test_workshops_add_up():
    banks = {source.slug: bank for source, bank in PAIRS}
    text = pages.syllabus(PAIRS)
    for hours, slugs in pages.WORKSHOPS.items():
        part = text.split(f"## Workshop of {hours} hours")[1].split("## ")[0]
        minutes = [int(found) for found in re.findall(r"\): (\d+) min", part)]
        assert minutes == [pages.Minutes.of(banks[slug]).in_class for slug in slugs if slug in banks]
        limit, total = pages.WORKSHOP_LIMIT_MINUTES[hours], sum(minutes)
        breaks = 60 * hours - limit
        assert f"Together {total} of {limit} minutes" in part and f"the other {limit - total} are for" in part
        assert (f"({hours} hours less {breaks} minutes of breaks)" in part) == (breaks > 0)
        assert ("without what is not written yet" in part) == any(slug not in banks for slug in slugs)


def test_a_workshop_that_is_too_long_fails(monkeypatch):
    monkeypatch.setattr(pages, "WORKSHOP_LIMIT_MINUTES", {2: 10, 4: 10, 8: 10})
    with pytest.raises(chapter.Malformed, match="the 2 h workshop takes"):
        pages.syllabus(PAIRS)


def test_every_claim_of_a_written_chapter_is_examined():
    text = pages.claims(PAIRS)
    written = {source.slug[:2] for source, _ in PAIRS}
    for line in text.splitlines():
        if found := re.search(r"\| not examined yet; planned for (.*) \|$", line):
            assert not written & set(re.findall(r"\d\d", found.group(1))), line
