"""Every exercise proves itself: stub, solution, wrong answers, and answers that are none."""

import importlib.util
import inspect

import jax
import numpy as np
import pytest

from tpulab.learn.bank import MODULES, banks
from tpulab.learn.exercise import CANNOT_CHECK, CORRECT, NOT_ATTEMPTED, NOT_YET, Exercise
from tpulab.xla import compiler_problem

EXERCISES = [item for one in banks() for item in one.exercises]
WRONG = [pytest.param(item, name, id=f"{item.id}-{name}") for item in EXERCISES for name in item.wrong_answers]


def blind_answers():
    """Collect the wrong answers that were written without sight of the checks."""
    found = []
    for name in MODULES:
        spec = importlib.util.find_spec(f"tests.learn.blind.{name}")
        answers = importlib.import_module(spec.name).ANSWERS if spec else {}
        found += [(key, function) for key, functions in answers.items() for function in functions]
    return found


def can_check(item: Exercise) -> bool:
    return jax.device_count() >= item.needs_devices and not (item.needs_compiler and compiler_problem())


@pytest.fixture(params=EXERCISES, ids=lambda item: item.id)
def item(request):
    return request.param


def test_stub_is_not_attempted(item):
    wanted = NOT_ATTEMPTED if can_check(item) else CANNOT_CHECK
    assert item.check(item.stub).status == wanted


def test_solution_is_correct(item):
    result = item.check(item.solution)
    assert result.status == (CORRECT if can_check(item) else CANNOT_CHECK), result.feedback


@pytest.mark.parametrize(("item", "name"), WRONG)
def test_wrong_answer_is_not_yet(item, name):
    result = item.check(item.wrong_answers[name])
    if not can_check(item):
        assert result.status == CANNOT_CHECK
        return
    assert result.status == NOT_YET, result.feedback
    assert item.must_say[name].lower() in result.feedback.lower()


@pytest.mark.parametrize(
    ("key", "answer"), [pytest.param(*pair, id=f"{pair[0]}-{pair[1].__name__}") for pair in blind_answers()]
)
def test_blind_answer_does_not_pass(key, answer):
    item = next(item for item in EXERCISES if item.id == key)
    result = item.check(answer)
    assert result.status == (NOT_YET if can_check(item) else CANNOT_CHECK), result.feedback


def raises(*args, **kwargs):
    raise RuntimeError("broken\nsecond line")


def leaves(*args, **kwargs):
    raise SystemExit(1)


NO_ANSWERS = {
    "number": 3.0,
    "text": "an answer",
    "array": np.ones(3),
    "class": dict,
    "gives None": lambda *args, **kwargs: None,
    "gives one": lambda *args, **kwargs: 1,
    "gives zeros": lambda *args, **kwargs: np.zeros(3),
    "gives NaN": lambda *args, **kwargs: float("nan"),
    "gives a text": lambda *args, **kwargs: "x",
    "gives itself": lambda *args, **kwargs: raises,
    "gives its first argument": lambda *args, **kwargs: args[0] if args else None,
    "gives its last argument": lambda *args, **kwargs: args[-1] if args else None,
    "gives all arguments": lambda *args, **kwargs: args,
    "takes nothing": lambda: 1,
    "raises": raises,
    "leaves": leaves,
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_no_answer_passes_or_raises(item, name):
    result = item.check(NO_ANSWERS[name])
    assert result.status in (NOT_YET, CANNOT_CHECK), (name, result.feedback)
    assert len(result.feedback) < 1500


@pytest.mark.parametrize("value", [None, ...])
def test_nothing_is_not_attempted(item, value):
    assert item.check(value).status == NOT_ATTEMPTED


def test_form(item):
    assert item.id.startswith(item.chapter + ".")
    assert 1 <= item.difficulty <= 5
    assert 1 <= item.minutes <= 20
    assert len(item.hints) >= 2
    assert len(item.wrong_answers) >= 2
    assert set(item.wrong_answers) == set(item.must_say)
    assert all(len(words) > 3 for words in item.must_say.values())
    assert item.name in item.prompt, "the prompt names the function to write"
    assert list(inspect.signature(item.stub).parameters) == list(inspect.signature(item.solution).parameters)
    assert item.stub_source.startswith(f"def {item.name}(")
    assert f"\ndef {item.name}(" in f"\n{item.solution_source}", "it may stand under a decorator"
    assert max(map(len, (item.stub_source + item.solution_source).splitlines())) <= 105, "what a page shows"


def test_ids_are_unique_and_enough():
    ids = [item.id for item in EXERCISES]
    assert len(set(ids)) == len(ids)
    assert len(ids) >= 36


def test_predictions_have_forms_that_their_questions_name():
    predictions = [item for one in banks() for item in one.predictions]
    assert len({item.id for item in predictions}) == len(predictions)
    for one in banks():
        assert len(one.predictions) >= 3, one.chapter.slug
    for item in predictions:
        assert item.form_text and item.is_empty(eval(item.stub))
