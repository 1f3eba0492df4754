from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulab.learn import verdict, words
from tpulab.learn.verdict import NotAttempted, NotYet, attempt, expect_close, is_close, primitives
from tpulab.learn.words import describe, quoted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.1234567890, "0.123457"),
        (16_777_217.0, "16777217"),
        (-2_500_000.5, "-2500000.5"),
        (1e30, "1e+30"),
        ("x", "'x'"),
        (jnp.ones((2, 4), jnp.bfloat16), "bf16[2,4]"),
        (np.array(True), "bool[] (True)"),
        (np.arange(3), "i64[3] (0, 1, 2)"),
        (np.array([1.0, np.nan]), "f64[2] (1, nan)"),
        ((1,), "(1,)"),
        ([np.zeros((2, 5))], "[f64[2,5]]"),
        ({"a": (1, None)}, "{'a': (1, None)}"),
        (np.zeros((0, 3)), "f64[0,3]"),
    ],
)
def test_describe(value, text):
    assert describe(value) == text


def test_describe_keys_functions_and_long_texts():
    assert describe(jax.random.key(0)) == "key[]"
    assert describe(describe) == "describe"
    assert len(describe("x" * 500)) == 80
    assert jax.jit(lambda x: [describe(x), x][1])(1.0) == 1.0


def test_a_call_shows_large_containers_in_outline():
    small = {"w": np.zeros((4, 3)), "b": np.array([0.5, -1.5, 2.0])}
    assert words.call_text(None, [small, 0.1], name="f") == "`f({'w': f64[4,3], 'b': f64[3] (0.5, -1.5, 2)}, 0.1)`"
    wide = {"w": np.ones(6) / 7, "b": np.ones(6) / 7}
    assert words.call_text(None, [wide], name="f") == "`f({'w': f64[6], 'b': f64[6]})`"
    deep = {
        "layers": [small, small, small],
        "scale": (np.ones(()), np.ones(6)),
        "head": {"deep": [np.ones(2)], "no": []},
    }
    text = "{'layers': [{...}, {...}, {...}], 'scale': (f64[], f64[6]), 'head': {'deep': [...], 'no': []}}"
    assert words.call_text(None, kwargs={"p": deep}, name="f") == f"`f(p={text})`"
    many = [deep] * 300
    assert words.call_text(None, [many], name="f") == "`f([{...}, {...}, {...}, {...}, and 296 more])`"


def test_attempt_gives_copies():
    given = {"w": np.ones(3), "n": [1, 2]}

    def spoils(params):
        params["w"][0] = 99
        params["n"].append(3)
        return 0

    attempt(spoils, given)
    assert given["w"].tolist() == [1, 1, 1]
    assert given["n"] == [1, 2]


def test_attempt_tells_a_stub_from_an_error():
    def stub(x):
        raise NotImplementedError

    def lacks(x):
        raise NotImplementedError("differentiation of this is not implemented")

    with pytest.raises(NotAttempted):
        attempt(stub, 1)
    with pytest.raises(NotYet, match="lacks"):
        attempt(lacks, 1)


def test_attempt_says_what_went_in_and_what_happened():
    def f(x, scale):
        raise KeyError("w")

    with pytest.raises(NotYet) as caught:
        attempt(f, np.zeros((2, 3)), scale=2.0)
    assert str(caught.value).startswith("`f(f64[2,3], scale=2)` raised `KeyError`: 'w'.")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (jax.jit(lambda x: x if x > 0 else -x), "has no truth value yet"),
        (jax.jit(lambda x: np.sin(x)), "use `jnp`"),
        (lambda x: attempt_deep(x), "calls itself without an end"),
        (lambda: 0, "Compare your function's arguments"),
        (lambda x: partial(jax.pmap, axis_name="d")(), "write `@partial(jax.pmap, …)`"),  # pyright: ignore[reportCallIssue]
        (lambda x: jax.vmap(in_axes=0), "write `@partial(jax.vmap, …)`"),  # pyright: ignore[reportCallIssue]
    ],
)
def test_attempt_names_the_usual_cause(function, words):
    with pytest.raises(NotYet) as caught:
        attempt(function, 1.0, name="f")
    assert words in str(caught.value)


def attempt_deep(x):
    return attempt_deep(x)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1.0, 2.0),
        (np.ones(3), np.ones(4)),
        (np.ones((3, 1)), np.ones(3)),
        ([1, 2], (1, 2)),
        ({"a": 1}, {"b": 1}),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0])),
        (np.arange(20.0), np.arange(20.0) + (np.arange(20) == 13)),
        (None, 1),
        ("yes", 1),
        (1, "yes"),
        (True, False),
        (object(), 1.0),
        (1 + 1j, 1.0),
        (float("inf"), 1.0),
    ],
)
def test_differences_are_found_and_told(got, expected):
    with pytest.raises(NotYet) as caught:
        expect_close(got, expected, call="`f(x)`", cause="Because.")
    assert str(caught.value).startswith("`f(x)` gave ")
    assert str(caught.value).endswith("Because.")
    assert not is_close(got, expected)


@pytest.mark.parametrize(
    "value", [1, 1.5, np.arange(6.0).reshape(2, 3), {"a": [jnp.ones(2), 3]}, "x", True, float("nan")]
)
def test_equal_passes(value):
    expect_close(value, value, call="f")


def test_dtype_counts_where_asked():
    got, expected = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.float32)
    expect_close(got, expected, call="f")
    with pytest.raises(NotYet, match="bf16"):
        expect_close(got, expected, call="f", dtype=True)


def test_a_known_mistake_is_named():
    mistakes = [(4.0, "You squared."), (3.0, "You added.")]
    with pytest.raises(NotYet, match="You added"):
        expect_close(3.0, 6.0, call="f", cause="Who knows.", mistakes=mistakes)
    with pytest.raises(NotYet, match="Who knows"):
        expect_close(5.0, 6.0, call="f", cause="Who knows.", mistakes=mistakes)


def test_a_large_array_names_the_first_place():
    got = np.zeros((3, 4))
    got[1, 2] = 5
    with pytest.raises(NotYet, match=r"gave 5 at index \(1, 2\); expected 0"):
        expect_close(got, np.zeros((3, 4)), call="f")


def test_a_leaked_tracer_is_named():
    leaked = []
    jax.jit(lambda x: leaked.append(x) or x)(1.0)
    with pytest.raises(NotYet, match="escaped"):
        expect_close(leaked[0], 1.0, call="f")


def test_primitives_look_inside():
    def f(x):
        return jax.lax.cond(x > 0, lambda y: jnp.sin(y), lambda y: jax.jit(jnp.cos)(y), x)

    assert {"cond", "sin", "cos"} <= set(primitives(f, 1.0))


def test_primitives_of_numpy_code_is_feedback():
    with pytest.raises(NotYet, match="use `jnp`"):
        primitives(lambda x: np.sin(x), 1.0)


def test_cannot_check_passes_through():
    def lacks(x):
        raise verdict.CannotCheck("no compiler here")

    with pytest.raises(verdict.CannotCheck):
        attempt(lacks, 1)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("It ends. ", "`ValueError`: It ends."),
        ("it does not", "`ValueError`: it does not."),
        ("why?", "`ValueError`: why?"),
        ("", "`ValueError`."),
        ("x" * 300, f"`ValueError`: {'x' * 200}…"),
    ],
)
def test_a_quoted_exception_ends_with_one_full_stop(message, text):
    assert quoted(ValueError(message)) == text


def test_no_feedback_has_two_full_stops():
    with pytest.raises(NotYet) as caught:
        attempt(jax.jit(lambda x: x if x > 0 else -x), 1.0, name="f")
    assert ". A Python `if`" in str(caught.value) and ".." not in str(caught.value)
