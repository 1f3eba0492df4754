"""One prediction: a question asked before the cell that answers it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .words import describe


@dataclass(frozen=True)
class Prediction:
    """A question, the form of its answer, and how near counts as right.

    Args:
        id: chapter's short name, "p" and number, e.g. "jit.p1"; never reused.
        question: Markdown; asks for something that the next cell reveals.
        form: what an answer looks like: a type (`int`, `float`, `bool`, `str`), a tuple of allowed
            words, or a dict of names to these.
        within: for numbers, how far off still counts as right, as a factor: 1 demands equality, 2
            accepts half to double.

    Example:
        >>> p = Prediction("jit.p9", "How many lines?", int)
        >>> p.problem("three")
        "an answer is a whole number; got 'three'"
        >>> p.is_right(3, 3), p.is_right(2, 3)
        (True, False)
    """

    id: str
    question: str
    form: Any
    within: float = 1.0

    @property
    def chapter(self) -> str:
        """The chapter's short name: "jit" for "jit.p1"."""
        return self.id.split(".")[0]

    @property
    def form_text(self) -> str:
        """The accepted form in words, e.g. "a whole number"."""
        return _form_text(self.form)

    @property
    def stub(self) -> str:
        """What stands in the notebook until the learner answers: `...`, or a dict of them."""
        if isinstance(self.form, Mapping):
            return "{" + ", ".join(f'"{name}": ...' for name in self.form) + "}"
        return "..."

    def is_empty(self, answer: Any) -> bool:
        """Say whether nothing was answered yet."""
        if isinstance(answer, Mapping):
            return any(self.is_empty(item) for item in answer.values()) or not answer
        return answer is ... or answer is None

    def problem(self, answer: Any) -> str:
        """Say what is wrong with an answer's form, or "" when it is accepted."""
        return "" if _fits(answer, self.form) else f"an answer is {self.form_text}; got {describe(answer)}"

    def is_right(self, answer: Any, actual: Any) -> bool:
        """Say whether an answer of the accepted form agrees with what happened."""
        if isinstance(self.form, Mapping):
            return isinstance(actual, Mapping) and all(
                name in actual and _agrees(answer[name], actual[name], self.within) for name in self.form
            )
        return _agrees(answer, actual, self.within)


_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def _form_text(form: Any) -> str:
    if isinstance(form, Mapping):
        return "; ".join(f"`{name}`: {_form_text(item)}" for name, item in form.items())
    if isinstance(form, tuple):
        return " or ".join(repr(word) for word in form)
    return _WORDS[form]


_HUGE = 1e300  # no answer is as large; infinity and NaN are not below it either


def _fits(answer: Any, form: Any) -> bool:
    if isinstance(form, Mapping):
        return (
            isinstance(answer, Mapping)
            and set(answer) == set(form)
            and all(_fits(answer[name], item) for name, item in form.items())
        )
    if isinstance(form, tuple):
        if isinstance(answer, int) and abs(answer) < _HUGE:
            answer = str(answer)  # where the word is "0", 0 is as good
        return (
            isinstance(answer, str) and len(answer) < 100 and answer.strip().lower() in {word.lower() for word in form}
        )
    if form is float:
        return isinstance(answer, (int, float)) and not isinstance(answer, bool) and abs(answer) < _HUGE
    if form is int:
        whole = isinstance(answer, int) or (isinstance(answer, float) and answer.is_integer())
        return whole and not isinstance(answer, bool) and abs(answer) < _HUGE
    return isinstance(answer, form)


def _agrees(answer: Any, actual: Any, within: float) -> bool:
    if isinstance(actual, str):  # also for an answer 0 where the word is "0"
        return str(answer).strip().lower() == actual.strip().lower()
    if isinstance(actual, bool) or within == 1.0:
        return bool(answer == actual)
    low, high = sorted((abs(answer), abs(actual)))
    return answer == actual or (answer * actual > 0 and high <= low * within)
