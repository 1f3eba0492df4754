"""The chapters in order; each module here holds everything about one chapter's exercises."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module

from ..exercise import Exercise
from ..prediction import Prediction

# The module's name is the short name in exercise ids. Order is the order of the course.
MODULES = ("start", "pure", "grad", "jit", "vmap", "pmap", "fusion", "roofline")


@dataclass(frozen=True)
class Chapter:
    """What the course knows of a chapter outside its text.

    Args:
        slug: number and name of its notebook, e.g. "03_jit".
        title: as the notebook's first heading has it.
        reading_minutes: without exercises.
        needs: slugs of the chapters to read before.
    """

    slug: str
    title: str
    reading_minutes: int
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bank:
    """One chapter with its exercises and predictions, each in the order of its module."""

    chapter: Chapter
    exercises: tuple[Exercise, ...]
    predictions: tuple[Prediction, ...]


@cache
def bank(name: str) -> Bank:
    """Load the bank of one chapter by its short name, e.g. "jit".

    Raises:
        ValueError: there is no such chapter, or an id occurs twice in it.
    """
    if name not in MODULES:
        raise ValueError(f"no chapter is called {name!r}; there are {', '.join(MODULES)}")
    things = list(vars(import_module(f".{name}", __name__)).values())
    chapter = next(thing for thing in things if isinstance(thing, Chapter))
    exercises = tuple(thing for thing in things if isinstance(thing, Exercise))
    predictions = tuple(thing for thing in things if isinstance(thing, Prediction))
    ids = [thing.id for thing in (*exercises, *predictions)]
    if twice := {id for id in ids if ids.count(id) > 1}:
        raise ValueError(f"bank/{name}.py uses {', '.join(sorted(twice))} twice; take the next free id")
    return Bank(chapter, exercises, predictions)


def banks() -> list[Bank]:
    """Load all banks in the order of the course."""
    return [bank(name) for name in MODULES]
