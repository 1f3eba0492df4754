"""Progress in full: every chapter with its exercises, the minutes they take, and where the learner stands."""

from dataclasses import dataclass

from . import report, store
from .bank import Bank, banks
from .exercise import CORRECT, Exercise


@dataclass(frozen=True)
class ExerciseState:
    """One exercise and how it stands.

    Args:
        id: e.g. "jit.3".
        title: its title.
        core: everybody does it.
        minutes: its budget.
        status: "correct", "not yet", or "open" while nothing was tried.
        attempts: checks so far.
        hints: hints taken.
        seen: the solution was looked at before it was solved.
    """

    id: str
    title: str
    core: bool
    minutes: int
    status: str
    attempts: int
    hints: int
    seen: bool

    def row(self) -> tuple[str, str, str, str]:
        """Give its line of the table."""
        tries = f" ({self.attempts} attempts)" if self.status == "not yet" and self.attempts > 1 else ""
        state = f"{self.status}{tries}" + (", solution seen" if self.seen else "")
        left = "" if self.status == CORRECT else str(self.minutes)
        return (f"  {self.id}", f"{self.title}{' (core)' if self.core else ''}", state, left)


@dataclass(frozen=True)
class Outline:
    """One chapter.

    Args:
        reading_minutes: of its text.
        progress: its sums.
        exercises: in its order.
    """

    reading_minutes: int
    progress: report.ChapterProgress
    exercises: tuple[ExerciseState, ...]

    def row(self) -> tuple[str, str, str, str]:
        """Give the chapter's line of the table."""
        sums = self.progress
        core = f", {sums.core_left} core open" if sums.core_left else ""
        return (sums.slug, sums.title, f"{sums.solved} of {sums.total}{core}", str(sums.minutes_left))

    @property
    def is_under_way(self) -> bool:
        """Whether something was done here and something is left."""
        begun = self.progress.predictions or any(item.status != "open" or item.hints for item in self.exercises)
        return bool(begun) and self.progress.solved < self.progress.total


HEAD = ("chapter", "", "exercises", "minutes left")


def outline(record: store.Record) -> tuple[Outline, ...]:
    """Lay the whole course out, as one learner's record has it."""
    sums = report.summarize(record).chapters
    return tuple(
        Outline(one.chapter.reading_minutes, progress, _states(one, record))
        for one, progress in zip(banks(), sums, strict=True)
    )


def rows(chapters: tuple[Outline, ...], *, everything: bool = False) -> list[tuple[str, str, str, str]]:
    """Give the table: every chapter, and exercises of those under way and of the first unfinished one.

    Args:
        chapters: as `outline` gives them.
        everything: exercises of every chapter.
    """
    first = next((one for one in chapters if one.progress.solved < one.progress.total), None)
    lines = []
    for one in chapters:
        lines.append(one.row())
        if everything or one is first or one.is_under_way:
            lines += [item.row() for item in one.exercises]
    total = sum(one.progress.minutes_left for one in chapters)
    return [*lines, ("all", report.READING_NOTE, f"{sum(one.progress.solved for one in chapters)} solved", str(total))]


def _states(one: Bank, record: store.Record) -> tuple[ExerciseState, ...]:
    return tuple(_state(item, record["exercises"].get(item.id, {})) for item in one.exercises)


def _state(item: Exercise, done: dict) -> ExerciseState:
    return ExerciseState(
        id=item.id,
        title=item.title,
        core=item.core,
        minutes=item.minutes,
        status=done.get("status") or "open",
        attempts=done.get("attempts", 0),
        hints=done.get("hints", 0),
        seen=bool(done.get("seen")),
    )
