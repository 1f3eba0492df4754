"""Who is where: the codes of a class, read line by line into one table."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from . import code, store
from .bank import banks
from .exercise import CORRECT
from .report import unpack
from .words import one_line

_CODE = re.compile(r"TPULAB\d+-[\w-]+")
_MAX_NAMES, _MAX_NAME = 5, 40  # of failed checks in a row, and the characters of one
_BETWEEN = " \t,;\"'"
_HEAD = re.compile(r"\W*(name|learner|student)\W.*code", re.IGNORECASE)


@dataclass(frozen=True)
class Seat:
    """One learner.

    Args:
        name: as the list has it.
        ready: whether the machine is; None while no doctor code came.
        why_not: names of the checks that failed there.
        at: slug of the first chapter with an open core exercise, "" when there is none; None while no
            progress code came.
        chapters: chapters whose core exercises are all solved.
        correct: exercises answered correctly.
        stuck_on: of the exercises tried and not solved, the one with most attempts, or "".
        attempts: how many these are.
        seen: exercises whose solution was looked at first.
    """

    name: str
    ready: bool | None
    why_not: tuple[str, ...]
    at: str | None
    chapters: int
    correct: int
    stuck_on: str
    attempts: int
    seen: int


@dataclass(frozen=True)
class Class:
    """A class as a table.

    Args:
        seats: one a learner, in the order of the list.
        chapters: chapters that have exercises.
        exercises: exercises there are.
        problems: one line for each line of the list that could not be read.
    """

    seats: tuple[Seat, ...]
    chapters: int
    exercises: int
    problems: tuple[str, ...]

    HEAD = ("name", "machine", "at", "chapters", "exercises", "solutions seen", "stuck on")

    def rows(self) -> list[tuple[str, ...]]:
        """Give the table's cells as text, without the head."""
        return [self._row(seat) for seat in self.seats]

    def _row(self, seat: Seat) -> tuple[str, ...]:
        failed = [name[:_MAX_NAME] for name in seat.why_not[:_MAX_NAMES]]
        more = [f"and {len(seat.why_not) - _MAX_NAMES:,} more"] if len(seat.why_not) > _MAX_NAMES else []
        machine = {None: "?", True: "ready", False: f"not ready: {', '.join(failed + more)}"}[seat.ready]
        if seat.at is None:
            return (seat.name, machine, "?", "?", "?", "?", "?")
        stuck = f"{seat.stuck_on} ({seat.attempts} attempts)" if seat.stuck_on else ""
        at, chapters = seat.at or "core done", f"{seat.chapters} of {self.chapters}"
        return (seat.name, machine, at, chapters, f"{seat.correct} of {self.exercises}", str(seat.seen), stuck)


@dataclass
class _Sent:
    """What one learner has sent so far."""

    name: str
    progress: store.Record | None = None
    doctor: dict[str, Any] = field(default_factory=dict)


def read_class(lines: Iterable[str]) -> Class:
    """Read lines of NAME and CODE, parted by spaces, tabs, commas or semicolons.

    Progress and doctor codes may be mixed, one or several to a line. Several progress codes of one
    name are merged; of doctor codes the last one counts. Blank lines, a heading and lines that start
    with # are passed over.

    Args:
        lines: the list.
    """
    sent: dict[str, _Sent] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.strip().strip("\ufeff")
        if not text or text.startswith("#") or (number == 1 and _HEAD.match(text) and not _CODE.search(text)):
            continue
        try:
            _take_line(text, sent)
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    every = banks()
    with_exercises = sum(bool(one.exercises) for one in every)
    exercises = sum(len(one.exercises) for one in every)
    return Class(tuple(_seat(one) for one in sent.values()), with_exercises, exercises, tuple(problems))


def _take_line(text: str, sent: dict[str, _Sent]) -> None:
    """Add one line to what was sent; a line with one bad code is not taken at all."""
    codes = _CODE.findall(text)
    text = one_line(text)
    name = " ".join(_CODE.sub(" ", text).strip(_BETWEEN).split())
    if not codes:
        raise ValueError(f"no code in {text[:40]!r}; a code starts with TPULAB1-")
    if not name:
        raise ValueError("a code without a name")
    try:
        decoded = [code.decode(one) for one in codes]
        records = [unpack(record) for kind, record in decoded if kind == "progress"]
        reports = [_checked_report(record) for kind, record in decoded if kind == "doctor"]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if len(records) + len(reports) < len(codes):
        raise ValueError(f"{name}: neither a progress code nor a doctor code; update tpulab")
    one = sent.setdefault(name.casefold(), _Sent(name))
    for record in records:
        one.progress = one.progress or store.empty()
        store.merge(one.progress, record)
    for report in reports:
        one.doctor = report


def _checked_report(record: Any) -> dict[str, Any]:
    try:
        failed = tuple(one_line(name) for name, (ok, _) in record["c"].items() if ok is False)
        return {"ready": bool(record["ready"]), "why_not": failed}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("a doctor code that this version cannot read; update tpulab") from None


def _seat(one: _Sent) -> Seat:
    done = (one.progress or store.empty())["exercises"]
    solved = {key for key, record in done.items() if record.get("status") == CORRECT}
    every = banks()
    known = {item.id for bank in every for item in bank.exercises}
    has_open_core = [any(item.core and item.id not in solved for item in bank.exercises) for bank in every]
    at = next((bank.chapter.slug for bank, is_open in zip(every, has_open_core, strict=True) if is_open), "")
    tries = [(record.get("attempts", 0), key) for key, record in done.items() if key in known - solved]
    attempts, stuck_on = max(tries, default=(0, ""), key=lambda pair: pair[0])
    return Seat(
        name=one.name,
        ready=one.doctor.get("ready"),
        why_not=one.doctor.get("why_not", ()),
        at=None if one.progress is None else at,
        chapters=sum(bool(bank.exercises) and not is_open for bank, is_open in zip(every, has_open_core, strict=True)),
        correct=len(solved & known),
        stuck_on=stuck_on if attempts else "",
        attempts=attempts,
        seen=sum(bool(record.get("seen")) for key, record in done.items() if key in known),
    )
