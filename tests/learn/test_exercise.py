import time

import pytest

from tpulab.compat import is_traced
from tpulab.learn import exercise as room
from tpulab.learn.exercise import Result, exercise, wrong
from tpulab.learn.verdict import CannotCheck, attempt, expect


def make(**replace):
    parts = {
        "__doc__": "Write `triple(x)`.",
        "hints": ("one", "two"),
        "why": "Because.",
        "stub": staticmethod(stub),
        "solution": staticmethod(solution),
        "doubles": wrong("twice")(staticmethod(doubles)),
        "adds": wrong("other")(staticmethod(adds)),
        "check": staticmethod(check),
    }
    parts = {name: part for name, part in (parts | replace).items() if part is not None}
    return exercise("start.77", "Triple", minutes=1, difficulty=1)(type("triple", (), parts))


def stub(x):
    raise NotImplementedError


def solution(x):
    return 3 * x


def doubles(x):
    return 2 * x


def adds(x):
    return x + 3


def check(answer):
    got = attempt(answer, 5, name="triple")
    expect(
        got == 15, f"`triple(5)` gave {got}; expected 15. {'That is twice.' if got == 10 else 'Some other mistake.'}"
    )


def test_the_four_answers():
    item = make()
    assert item.check(solution).status == "correct"
    assert item.check(doubles).feedback == "`triple(5)` gave 10; expected 15. That is twice."
    assert item.check(stub).status == "not attempted"

    def lacks(answer):
        raise CannotCheck("No compiler here.")

    assert repr(make(check=staticmethod(lacks)).check(solution)) == "Cannot check here. No compiler here."


def test_sources_carry_the_learners_name():
    item = make()
    assert item.stub_source == "def triple(x):\n    raise NotImplementedError"
    assert item.solution_source == "def triple(x):\n    return 3 * x"


@pytest.mark.parametrize("part", ["hints", "why", "stub", "solution", "check"])
def test_a_missing_part_is_named(part):
    with pytest.raises(ValueError, match=f"exercise start.77 .triple. lacks .*{part}"):
        make(**{part: None})


def test_too_few_wrong_answers():
    with pytest.raises(ValueError, match="two wrong answers"):
        make(adds=None)


def test_a_prompt_is_needed():
    with pytest.raises(ValueError, match="prompt"):
        make(__doc__="")


def test_an_endless_answer_is_stopped(monkeypatch):
    monkeypatch.setattr(room, "TIME_LIMIT_S", 0.1)

    def endless(x):
        while True:
            x += 1

    start = time.monotonic()
    result = make().check(endless)
    assert time.monotonic() - start < 5
    assert result.status == "not yet"
    assert "still running after 0.1 seconds" in result.feedback


@pytest.mark.parametrize(
    "error", [RuntimeError("a\nb"), SystemExit(2), KeyboardInterrupt(), MemoryError(), RecursionError()]
)
def test_no_exception_reaches_the_notebook(error):
    def breaks(x):
        raise error

    result = make().check(breaks)
    assert result.status == "not yet"
    assert type(error).__name__ in result.feedback
    assert "\nb" not in result.feedback


def test_an_answer_that_breaks_the_check_itself():
    class Odd:
        def __eq__(self, other):
            raise ZeroDivisionError("odd")

        __hash__ = None  # type: ignore[assignment]

    result = make().check(lambda x: Odd())
    assert result.status == "not yet"
    assert "ZeroDivisionError" in result.feedback


class Wordless(Exception):
    """Its message is an interrupt."""

    def __str__(self):
        raise KeyboardInterrupt


class Endless(Exception):
    """Its message never ends."""

    def __str__(self):
        while True:
            pass


class Rude(BaseException):
    """Caught by nobody who names what to catch."""


def gives(value):
    def function(*args):
        if isinstance(value, BaseException):
            raise value
        return value

    return function


def loops(*args):
    while True:
        pass


HOSTILE = {
    "a message that interrupts": lambda: gives(Wordless()),
    "a message without an end": lambda: gives(Endless()),
    "words without an end": lambda: type("Odd", (), {"__repr__": loops})(),
    "attributes without an end": lambda: type("Odd", (), {"__getattr__": loops})(),
    "a class without an end": lambda: type("Odd", (), {"__class__": property(loops)})(),
    "words that break out": lambda: type("Odd", (), {"__repr__": gives(Rude())})(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_words_of_its_own_keep_no_check(name, monkeypatch):
    monkeypatch.setattr(room, "TIME_LIMIT_S", 0.3)
    result = make().check(HOSTILE[name]())
    assert result.status == "not yet"
    assert len(repr(result).splitlines()) == 1


def test_a_jax_that_does_not_start_is_said(monkeypatch):
    import jax

    def fails():
        raise RuntimeError("unknown backend")

    monkeypatch.setattr(jax, "device_count", fails)
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    result = make().check(solution)
    assert result.status == "cannot check here"
    assert "unknown backend" in result.feedback and "JAX_PLATFORMS is 'nonsense': unset it" in result.feedback


def nested(depth):
    things: list = []
    for _ in range(depth):
        things = [things]
    return things


def holds_itself():
    things: dict = {}
    things["all"] = [things]
    return things


def compiles(answer):
    """Check with a transformation, which takes results apart."""
    import jax

    expect(jax.tree.leaves(jax.jit(answer)(5))[0] == 15, "twice, other")


@pytest.mark.parametrize("things", [nested(100_000), holds_itself()], ids=["deep", "in itself"])
def test_results_without_an_end_leave_the_kernel_whole(things):
    item = make(check=staticmethod(compiles))
    assert "holds itself" in item.check(lambda x: things).feedback
    assert item.check(solution).status == "correct"
    assert item.check(lambda x: nested(50) and [[[{"a": 3 * x}]]]).status == "correct"


def test_functions_that_an_answer_returns_are_looked_at_too():
    item = make(check=staticmethod(lambda answer: compiles(answer())))
    assert "`triple(…)` returned a container that holds itself" in item.check(lambda: lambda x: holds_itself()).feedback
    assert item.check(lambda: solution).status == "correct"


def test_a_function_that_jax_cannot_remember():
    import numpy as np

    result = make(check=staticmethod(compiles)).check(np.negative)
    assert result.status == "not yet"
    assert "TracerArrayConversionError" in result.feedback


def test_what_is_compiled_keeps_its_attributes_and_a_function_its_signature():
    import inspect

    import jax

    def looks(answer):
        expect(list(inspect.signature(answer).parameters) == ["x"], "no signature")
        expect(not compiled or answer.lower(1), "no lowering")

    for compiled in (False, True):
        result = make(check=staticmethod(looks)).check(jax.jit(solution) if compiled else solution)
        assert result.status == "correct", result


def test_flags_of_the_learner_refuse_no_right_answer():
    import jax
    import jax.numpy as jnp

    def recorded(answer):
        seen = []
        jax.jit(lambda x: seen.append(is_traced(x)) or x)(1)
        zeros = jnp.log(jnp.zeros(2)) * 0
        expect(seen == [True] and (jnp.ones((2, 2)) + zeros).shape == (2, 2), "not compiled")

    with jax.disable_jit(), jax.debug_nans(True), jax.numpy_rank_promotion("raise"):
        assert make(check=staticmethod(recorded)).check(solution).status == "correct"


def test_too_few_devices(monkeypatch):
    import jax

    item = exercise("start.78", "T", minutes=1, difficulty=1, needs_devices=2)(type("triple", (), dict(vars(_Body))))
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    result = item.check(solution)
    assert result.status == "cannot check here"
    assert "needs at least 2 devices" in result.feedback and "tpulab.setup" in result.feedback
    assert item.check(None).status == "not attempted"


class _Body:
    """Write `triple(x)`."""

    hints = ("one", "two")
    why = "Because."
    stub = staticmethod(stub)
    solution = staticmethod(solution)
    check = staticmethod(check)
    doubles = wrong("twice")(staticmethod(doubles))
    adds = wrong("other")(staticmethod(adds))


def test_a_result_reads_well_as_html_and_text():
    result = Result.of("not yet", "`f(<x>)` gave **1**.\n\nSecond.")
    assert repr(result) == "Not yet. f(<x>) gave 1.\n\nSecond."
    page = result._repr_html_()
    assert "<code>f(&lt;x&gt;)</code>" in page
    assert "<strong>Not yet.</strong>" in page
    assert page.count("<p") == 2
    assert "color:" not in page.replace("border", ""), "text takes the page's colour, so it reads in a dark theme"
