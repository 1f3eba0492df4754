"""What learners and strange objects do to the words of the course: they answer, always."""

import json

import jax.numpy as jnp
import pytest

import tpulab
from tpulab.learn import code, store
from tpulab.learn.words import describe

ID = tpulab.learn.exercises()[0].id


class Hostile:
    """Raises whatever is asked of it."""

    def __repr__(self):
        raise KeyboardInterrupt

    def __getattr__(self, name):
        raise RuntimeError(name)


class Unspeakable(BaseException):
    """An error without words."""

    def __str__(self):
        raise RuntimeError


def holds_itself():
    things: list = []
    things.append(things)
    return things


def deleted():
    array = jnp.ones(3)
    array.delete()
    return array


THINGS = {
    "a huge number": lambda: 10**5000,
    "a list in itself": holds_itself,
    "a deleted array": deleted,
    "hostile": Hostile,
    "hostile inside": lambda: {"a": [Hostile()]},
    "a long list": lambda: list(range(10**6)),
    "a long text": lambda: "x" * 10**6,
    "a class with a wrong shape": lambda: type("Odd", (), {"shape": 3, "dtype": 4})(),
}


@pytest.mark.parametrize("name", THINGS)
def test_any_object_gets_short_words(name):
    thing = THINGS[name]()
    assert len(describe(thing)) < 400
    for answer in (thing, lambda *args: thing):
        result = tpulab.check(ID, answer)
        assert result.status == "not yet"
        assert len(result.feedback) < 2100


def test_an_error_without_words():
    def raises(*args):
        raise Unspeakable

    result = tpulab.check(ID, raises)
    assert result.status == "not yet"
    assert "Unspeakable" in result.feedback


@pytest.mark.parametrize("record", [{"hints": -100}, {"attempts": 10**300}, {"status": "maybe"}], ids=str)
def test_a_count_out_of_range_is_a_damaged_file(record):
    with store.update() as (kept, _):
        kept["exercises"][ID] = {}
    store.path().write_text(json.dumps(store.empty() | {"exercises": {ID: record}}))
    assert "damaged" in tpulab.hint(ID).text
    with pytest.raises(ValueError, match="update tpulab"):
        packed = {"e": {ID: [0, 10**7, 0, 0]}, "p": {}}
        tpulab.progress(restore=code.encode("progress", packed))


@pytest.mark.parametrize("item", tpulab.learn.predictions(), ids=lambda item: item.id)
@pytest.mark.parametrize("answer", ["strange", [1], 3, {"a": 1}, None])
def test_a_restored_answer_of_another_form_breaks_no_cell(item, answer):
    packed = {"e": {}, "p": {item.id: [answer, None]}}
    tpulab.progress(restore=code.encode("progress", packed))
    tpulab.predict(item.id)
    tpulab.reveal(item.id, 1.0)


@pytest.mark.parametrize(
    "answer",
    [10**5000, -(10**400), float("inf"), float("nan"), Hostile()],
    ids=["huge", "very negative", "infinite", "NaN", "hostile"],
)
@pytest.mark.parametrize("item", tpulab.learn.predictions(), ids=lambda item: item.id)
def test_a_prediction_that_cannot_be_kept_is_refused(item, answer):
    assert "Not stored" in tpulab.predict(item.id, answer).text or isinstance(item.form, str)


def test_no_such_home(monkeypatch):
    monkeypatch.setenv("TPULAB_HOME", "~nobody-here/x")
    assert "TPULAB_HOME" in tpulab.check(ID, lambda *args: 1).text
