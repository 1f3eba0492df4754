"""The learner's words, with one small exercise and prediction of the course's own."""

import json

import pytest

import tpulab
from tpulab.learn import notebook, store

RIGHT = tpulab.learn.exercises()[0].solution
ID = tpulab.learn.exercises()[0].id
GUESS = next(item for item in tpulab.learn.predictions() if item.form is int and item.within == 1)


def record():
    return store.read()[0]


def test_check_remembers_attempts_and_the_best_status():
    tpulab.check(ID, lambda *args: 1)
    tpulab.check(ID, RIGHT)
    tpulab.check(ID, lambda *args: 1)
    assert record()["exercises"][ID] == {"attempts": 3, "status": "correct"}


def test_not_attempted_is_no_attempt():
    tpulab.check(ID)
    assert record()["exercises"] == {}


@pytest.mark.parametrize("answer", [None, lambda *args: 1])
def test_strict_raises_with_the_same_words(answer, monkeypatch):
    words = repr(tpulab.check(ID, answer))
    with pytest.raises(AssertionError) as caught:
        tpulab.check(ID, answer, strict=True)
    assert str(caught.value) == f"{ID}: {words}"
    monkeypatch.setenv("NBGRADER_EXECUTION", "1")
    with pytest.raises(AssertionError):
        tpulab.check(ID, answer)
    assert tpulab.check(ID, RIGHT).status == "correct"
    assert tpulab.check(ID, answer, strict=False).status != "correct"


@pytest.mark.parametrize("id", ["nowhere.1", "", "start", "start.999", 3, None])
def test_an_unknown_id_names_the_known_ones(id):
    for word in (tpulab.check, tpulab.hint, tpulab.solution):
        with pytest.raises(ValueError, match="no exercise is called"):
            word(id)
    for word in (tpulab.predict, lambda id: tpulab.reveal(id, 1)):
        with pytest.raises(ValueError, match="no prediction is called"):
            word(id)


def test_hints_come_in_order_and_then_all_again():
    hints = notebook.find_exercise(ID).hints
    for number, text in enumerate(hints, 1):
        shown = tpulab.hint(ID)
        assert f"Hint {number} of {len(hints)}" in shown.text and text in shown.text
    for _ in range(2):
        last = tpulab.hint(ID).text
        assert "No more hints" in last and all(text in last for text in hints)


def test_solution_asks_for_a_try_first():
    assert "Try" in tpulab.solution(ID).text
    assert tpulab.solution(ID).code == ""
    tpulab.check(ID, lambda *args: 1)
    shown = tpulab.solution(ID)
    assert shown.code == notebook.find_exercise(ID).solution_source
    assert record()["exercises"][ID]["seen"] == 1


def test_solution_by_force_is_remembered_as_seen():
    assert tpulab.solution(ID, force=True).code
    assert record()["exercises"][ID]["seen"] == 1


def test_solution_after_solving_is_not_seen():
    tpulab.check(ID, RIGHT)
    tpulab.solution(ID)
    assert "seen" not in record()["exercises"][ID]


def test_first_prediction_counts():
    assert "No prediction yet" in tpulab.predict(GUESS.id).text
    assert "stored" in tpulab.predict(GUESS.id, 7).text
    assert "your first answer counts, 7" in tpulab.predict(GUESS.id, 8).text
    shown = tpulab.reveal(GUESS.id, 7).text
    assert "You predicted **7**; it was **7**: as you predicted" in shown
    assert record()["predictions"][GUESS.id] == {"answer": 7, "right": True}


def test_a_wrong_prediction_and_none():
    assert "You made no prediction" in tpulab.reveal(GUESS.id, 3).text
    tpulab.predict(GUESS.id, 2)
    assert "not as predicted" in tpulab.reveal(GUESS.id, 3).text
    assert record()["predictions"][GUESS.id]["right"] is False


def test_a_prediction_of_another_form_is_not_stored():
    assert "Not stored" in tpulab.predict(GUESS.id, "many").text
    assert record()["predictions"] == {}


def test_a_large_prediction_is_shown_in_full():
    assert "stored" in tpulab.predict("start.p3", 16_777_217.0).text
    assert "your first answer counts, 16777217" in tpulab.predict("start.p3", 16_777_216).text
    assert "You predicted **16777217**; it was **16777216**" in tpulab.reveal("start.p3", 16_777_216).text
    assert "got 16777216.5" in tpulab.predict("start.p3", 16_777_216.5).text


def test_reveal_takes_array_scalars():
    import jax.numpy as jnp

    tpulab.predict(GUESS.id, 3)
    assert "it was **3**" in tpulab.reveal(GUESS.id, jnp.asarray(3)).text


@pytest.fixture
def unwritable(monkeypatch, tmp_path):
    """A progress folder that cannot be made, also for root: a file is in the way."""
    block = tmp_path / "block"
    block.write_text("")
    monkeypatch.setenv("TPULAB_HOME", str(block / "inside"))


@pytest.mark.usefixtures("unwritable")
def test_without_a_place_for_progress_everything_still_answers():
    note = "Progress could not be saved"
    assert tpulab.check(ID, RIGHT).status == "correct"
    assert note in tpulab.check(ID, RIGHT).text and "TPULAB_HOME" in tpulab.check(ID, RIGHT).text
    assert note in tpulab.hint(ID).text
    assert note in tpulab.solution(ID, force=True).text
    assert note in tpulab.predict(GUESS.id, 7).text
    assert "You predicted **7**" in tpulab.reveal(GUESS.id, 7).text
    assert tpulab.progress().chapters


def test_a_damaged_file_is_kept_aside_and_said(home):
    tpulab.check(ID, RIGHT)
    store.path().write_text("{ not json")
    shown = tpulab.check(ID, RIGHT).text
    assert "damaged" in shown and "progress.damaged-1.json" in shown
    assert (home / "progress.damaged-1.json").read_text() == "{ not json"
    assert json.loads(store.path().read_text())["exercises"][ID]["status"] == "correct"
