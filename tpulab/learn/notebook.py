"""The words that a learner uses in a notebook: check, hint, solution, predict, reveal."""

from collections.abc import Mapping
from typing import Any

from . import store
from .bank import MODULES, bank, banks
from .card import Card
from .exercise import CORRECT, NOT_YET, Exercise, Result, is_strict
from .prediction import Prediction
from .words import describe


def exercises() -> tuple[Exercise, ...]:
    """Give all exercises of the course, in its order."""
    return tuple(item for one in banks() for item in one.exercises)


def predictions() -> tuple[Prediction, ...]:
    """Give all predictions of the course, in its order."""
    return tuple(item for one in banks() for item in one.predictions)


def check(id: str, answer: Any = None, *, strict: bool | None = None) -> Result:
    """Check an answer to an exercise and remember how it went.

    Args:
        id: the exercise, e.g. "jit.3".
        answer: the learner's own function.
        strict: raise instead of answering; by default only under an autograder (NBGRADER_EXECUTION).

    Returns:
        The result, which the notebook shows.

    Raises:
        AssertionError: strict, and the answer is not correct; the same words.
        ValueError: there is no such exercise.
    """
    item = find_exercise(id)
    result = item.check(answer)
    if result.status in (CORRECT, NOT_YET):
        note = _remember_attempt(id, result.status)
        if note:
            result = Result.of(result.status, f"{result.feedback}\n\n{note}")
    if (is_strict() if strict is None else strict) and result.status in (NOT_YET, "not attempted"):
        raise AssertionError(f"{id}: {result!r}")
    return result


def hint(id: str) -> Card:
    """Give the next hint for an exercise; after the last one, all of them again.

    Raises:
        ValueError: there is no such exercise.
    """
    item = find_exercise(id)
    seen, note = 0, ""
    try:
        with store.update() as (record, note):
            done = record["exercises"].setdefault(id, {})
            seen = done["hints"] = min(done.get("hints", 0) + 1, len(item.hints) + 1)
    except OSError as error:
        seen, note = len(item.hints) + 1, _not_saved(error)
    if seen <= len(item.hints):
        text = f"**Hint {seen} of {len(item.hints)}.** {item.hints[seen - 1]}"
    else:
        listed = "\n\n".join(f"**{number}.** {text}" for number, text in enumerate(item.hints, 1))
        text = f'**No more hints.** Here they are again; `tpulab.solution("{id}")` shows a solution.\n\n{listed}'
    return Card(f"{text}\n\n{note}".rstrip())


def solution(id: str, *, force: bool = False) -> Card:
    """Show an exercise's solution and why it is one, after at least one attempt.

    Args:
        id: the exercise.
        force: show it without an attempt.

    Raises:
        ValueError: there is no such exercise.
    """
    item = find_exercise(id)
    note = ""
    try:
        with store.update() as (record, note):
            done = record["exercises"].setdefault(id, {})
            if not done.get("attempts") and not force:
                return Card(
                    f"**Try `{id}` once first**, even if it fails: run its check cell with an answer of your own. "
                    f'`tpulab.solution("{id}", force=True)` shows the solution now.'
                )
            if done.get("status") != CORRECT:
                done["seen"] = 1
    except OSError as error:
        note = _not_saved(error)
    return Card(f"**A solution of `{id}`.** {item.why}\n\n{note}".rstrip(), code=item.solution_source)


def predict(id: str, answer: Any = ...) -> Card:
    """Store a prediction; the first answer counts.

    Args:
        id: the prediction, e.g. "jit.p1".
        answer: in the form that the question asks for; `...` while there is none.

    Raises:
        ValueError: there is no such prediction.
    """
    item = find_prediction(id)
    if item.is_empty(answer):
        return Card(f"No prediction yet for `{id}`. Put your answer in place of `...`: {item.form_text}.")
    if problem := item.problem(answer):
        return Card(f"**Not stored**: for `{id}` {problem}.", tone="wait")
    try:
        with store.update() as (record, note):
            guess = _guess(item, record) or {"answer": dict(answer) if isinstance(answer, Mapping) else answer}
            record["predictions"][id] = guess
            first = guess["answer"]
    except OSError as error:
        first, note = _unsaved.setdefault(id, answer), _not_saved(error)
    kept = "stored" if first == answer else f"your first answer counts, {describe(first)}"
    return Card(f"`{id}`: {kept}. Run the next cell to see.\n\n{note}".rstrip())


_unsaved: dict[str, Any] = {}  # predictions of a session that cannot write progress


def reveal(id: str, actual: Any) -> Card:
    """Put what happened beside what was predicted.

    Args:
        id: the prediction.
        actual: what the cell computed.

    Raises:
        ValueError: there is no such prediction.
    """
    item = find_prediction(id)
    actual, note = _plain(actual), ""
    try:
        with store.update() as (record, note):
            guess = _guess(item, record)
            if guess is not None:
                guess["right"] = item.is_right(guess["answer"], actual)
    except OSError as error:
        guess, note = ({"answer": _unsaved[id]} if id in _unsaved else None), _not_saved(error)
    if guess is None:
        return Card(f"It was **{describe(actual)}**. (You made no prediction for `{id}`.)\n\n{note}".rstrip())
    right = item.is_right(guess["answer"], actual)
    answer, actual = (_in_order(item, value) for value in (guess["answer"], actual))
    words = "as you predicted" if right else "not as predicted: worth a second look at why"
    return Card(
        f"You predicted **{describe(answer)}**; it was **{describe(actual)}**: {words}.\n\n{note}".rstrip(),
        tone="good" if right else "wait",
    )


def _guess(item: Prediction, record: store.Record) -> dict[str, Any] | None:
    """Give what was predicted; None if nothing was, or in a form that the question no longer has."""
    guess = record["predictions"].get(item.id)
    return None if guess is None or item.problem(guess["answer"]) else guess


def _in_order(item: Prediction, value: Any) -> Any:
    """Put a dict's entries in the order of the question."""
    if isinstance(item.form, dict) and isinstance(value, dict):
        return {name: value[name] for name in item.form if name in value}
    return value


def _plain(value: Any) -> Any:
    """Turn array scalars into Python numbers, which read and compare plainly."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    try:
        return value.item() if getattr(value, "ndim", 1) == 0 else value
    except Exception:  # a donated array, or no array at all
        return value


def find_exercise(id: str) -> Exercise:
    """Give the exercise with this id; a wrong id is answered with the right ones."""
    return _find(id, "exercise", "exercises")


def find_prediction(id: str) -> Prediction:
    """Give the prediction with this id; a wrong id is answered with the right ones."""
    return _find(id, "prediction", "predictions")


def _find(id: str, noun: str, plural: str) -> Any:
    name = str(id).split(".")[0]
    if name not in MODULES:
        raise ValueError(f"no {noun} is called {id!r}; an id starts with one of {', '.join(MODULES)}")
    items = getattr(bank(name), plural)
    for item in items:
        if item.id == id:
            return item
    raise ValueError(f"no {noun} is called {id!r}; this chapter has {', '.join(item.id for item in items)}")


def _remember_attempt(id: str, status: str) -> str:
    try:
        with store.update() as (record, note):
            done = record["exercises"].setdefault(id, {})
            done["attempts"] = min(done.get("attempts", 0) + 1, store.MAX_COUNT - 1)
            if done.get("status") != CORRECT:
                done["status"] = status
        return note
    except OSError as error:
        return _not_saved(error)


def _not_saved(error: OSError) -> str:
    where = f" in `{error.filename}`" if error.filename else ""
    reason = error.strerror or str(error)
    remedy = "" if "TPULAB_HOME" in reason else "; set TPULAB_HOME to a folder of yours"
    return f"Progress could not be saved{where} ({reason}){remedy}."
