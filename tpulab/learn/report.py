"""Where a learner stands: the table, what is next, and the code that carries it elsewhere."""

import html
from dataclasses import dataclass

from . import code, store
from .bank import Bank, banks
from .card import Card
from .exercise import CORRECT, Exercise

READING_NOTE = "reading counts until a chapter is begun"  # in the sum of minutes left


@dataclass(frozen=True)
class ChapterProgress:
    """How far a learner is in one chapter.

    Args:
        slug: the notebook's name.
        title: its title.
        solved: exercises answered correctly.
        total: exercises there are.
        core_left: core exercises still open.
        seen: exercises whose solution was looked at before they were solved.
        predictions: predictions made.
        right: of these, how many came true.
        minutes_left: reading, if nothing was done yet, and open exercises.
    """

    slug: str
    title: str
    solved: int
    total: int
    core_left: int
    seen: int
    predictions: int
    right: int
    minutes_left: int


@dataclass(frozen=True, repr=False)
class Progress:
    """A learner's whole progress, as a notebook or a terminal shows it.

    Args:
        chapters: one row each, in the order of the course.
        next_step: what to do now, in one line.
        code: a short text that restores this progress on another machine.
        note: a sentence about a damaged or unwritable file, or "".
    """

    chapters: tuple[ChapterProgress, ...]
    next_step: str
    code: str
    note: str = ""

    HEAD = ("chapter", "exercises", "core left", "solutions seen", "predictions right", "minutes left")

    def rows(self) -> list[tuple[str, ...]]:
        """Give the table's cells as text, without the head."""
        return [
            (
                row.slug,
                f"{row.solved} of {row.total}",
                str(row.core_left),
                str(row.seen),
                f"{row.right} of {row.predictions}",
                str(row.minutes_left),
            )
            for row in self.chapters
        ]

    def __repr__(self) -> str:
        table = [self.HEAD, *self.rows()]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.HEAD))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        notes = [f"Minutes left: {READING_NOTE}.", f"Next: {self.next_step}", *([self.note] if self.note else [])]
        return "\n".join([*lines, "", *notes])

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{cell}</th>" for cell in self.HEAD)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        notes = (f"Minutes left: {READING_NOTE}.", f"**Next:** {self.next_step}", self.note)
        below = Card("\n\n".join(filter(None, notes)))._repr_html_()
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def progress(*, restore: str = "") -> Progress:
    """Show how far you are, or take in progress from another machine.

    Args:
        restore: the code that `progress().code` or `tpulab progress --code` gave there. What is done
            here stays done.

    Raises:
        ValueError: the code is none of ours or not whole.
        OSError: with `restore`, progress cannot be written.
    """
    if restore:
        kind, packed = code.decode(restore)
        if kind != "progress":
            raise ValueError(
                f"this is {'a doctor' if kind == 'doctor' else 'another'} code; a progress code was wanted"
            )
        other = unpack(packed)
        with store.update() as (record, _):
            store.merge(record, other)
    try:
        record, note = store.read()
    except OSError as error:
        record, note = store.empty(), f"Progress cannot be read: {error}"
    return summarize(record, note)


def summarize(record: store.Record, note: str = "") -> Progress:
    """Compute the table and the next step from a record."""
    return Progress(
        chapters=tuple(_chapter(one, record) for one in banks()),
        next_step=_next_step(record),
        code=code.encode("progress", pack(record)),
        note=note,
    )


_STATUS = {"": 0, "not yet": 1, "correct": 2}


def pack(record: store.Record) -> dict[str, dict[str, list]]:
    """Shorten a record for a code: status, attempts, hints, seen; answers of predictions."""
    exercises = {
        key: [_STATUS[done.get("status", "")], done.get("attempts", 0), done.get("hints", 0), done.get("seen", 0)]
        for key, done in record["exercises"].items()
    }
    guesses = {key: [guess.get("answer"), guess.get("right")] for key, guess in record["predictions"].items()}
    return {"e": exercises, "p": guesses}


def unpack(packed: dict[str, dict[str, list]]) -> store.Record:
    """Undo `pack`; exercises and answers that this version has no place for are left out.

    Raises:
        ValueError: the code was made by something else.
    """
    record = store.empty()
    words = list(_STATUS)
    exercises = {item.id for one in banks() for item in one.exercises}
    predictions = {item.id: item for one in banks() for item in one.predictions}
    try:
        for key, (status, attempts, hints, seen) in packed["e"].items():
            done = {"status": words[max(0, status)], "attempts": int(attempts), "hints": int(hints), "seen": int(seen)}
            if key in exercises:
                record["exercises"][key] = {name: value for name, value in done.items() if value}
        for key, (answer, right) in packed["p"].items():
            if key in predictions and not predictions[key].problem(answer):
                record["predictions"][key] = {"answer": answer} | ({} if right is None else {"right": bool(right)})
        return store.checked(record)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError):
        raise ValueError("the code holds no progress that this version can read; update tpulab") from None


def _is_solved(item: Exercise, record: store.Record) -> bool:
    return record["exercises"].get(item.id, {}).get("status") == CORRECT


def _chapter(one: Bank, record: store.Record) -> ChapterProgress:
    solved = [item for item in one.exercises if _is_solved(item, record)]
    guesses = [record["predictions"][item.id] for item in one.predictions if item.id in record["predictions"]]
    begun = solved or guesses or any(item.id in record["exercises"] for item in one.exercises)
    open_minutes = sum(item.minutes for item in one.exercises if item not in solved)
    return ChapterProgress(
        slug=one.chapter.slug,
        title=one.chapter.title,
        solved=len(solved),
        total=len(one.exercises),
        core_left=sum(item.core for item in one.exercises if item not in solved),
        seen=sum(bool(record["exercises"].get(item.id, {}).get("seen")) for item in one.exercises),
        predictions=len(guesses),
        right=sum(bool(guess.get("right")) for guess in guesses),
        minutes_left=open_minutes + (0 if begun else one.chapter.reading_minutes),
    )


def _next_step(record: store.Record) -> str:
    """The first open core exercise, then the first open stretch exercise, in the course's order."""
    every = [(one, item) for one in banks() for item in one.exercises if not _is_solved(item, record)]
    if not every:
        return "all exercises are solved."
    one, item = next(((one, item) for one, item in every if item.core), every[0])
    kind = "core" if item.core else "stretch"
    return f"`{one.chapter.slug}`, exercise `{item.id}`, {item.title} ({kind}, {item.minutes} minutes)."
