"""Chapter 04: vmap."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import NotYet, attempt, expect, expect_close, is_close, primitives
from ..words import call_text, describe
from . import Chapter

chapter = Chapter("04_vmap", "vmap: write it for one, run it for a batch", reading_minutes=28, needs=("03_jit",))

one_call = Prediction(
    "vmap.p1",
    "`talking_layer` prints a line each time Python runs it. Under `jax.vmap` it gets a batch of 1,000 vectors. "
    "How many lines will it print, and how many dimensions will it say that `x` has?",
    {"lines": int, "dimensions": int},
)
nested_shape = Prediction(
    "vmap.p2",
    "`distance` takes two vectors and gives a number. The inner `vmap` maps its first argument, the outer one its "
    "second: `jax.vmap(jax.vmap(distance, in_axes=(0, None)), in_axes=(None, 0))(a, b)`. With `a` of shape (5, 2) "
    "and `b` of shape (3, 2), what is the shape of the result?",
    {"first": int, "second": int},
)
same_noise = Prediction(
    "vmap.p3",
    "`dropped` zeroes about half of a vector's numbers, chosen by a key. Six equal rows go through it with "
    "`in_axes=(None, 0)`: one key for all. How many different rows come out?",
    int,
)
both_branches = Prediction(
    "vmap.p4",
    "`root` takes the branch `negative` for numbers below zero only, and `negative` notes each number it is run on. "
    "Four numbers, one of them below zero, go in under `jax.vmap`. How many will `negative` have noted?",
    int,
)
speed = Prediction(
    "vmap.p5",
    "A batch of 256 vectors, a layer from 64 to 64 numbers, on the machine you are at. How many times faster than "
    "the Python loop over `layer` is `jax.jit(jax.vmap(layer))`? (A quarter to four times of what is measured counts as right.)",
    float,
    within=4.0,
)


class _ForOne:
    """A function of one example that refuses a batch and counts how often Python calls it."""

    def __init__(self, name: str, function: Callable[..., Any], ranks: tuple[Any, ...], length: int | None = None):
        self.__name__ = name
        self.function = function
        self.ranks = ranks  # of its arguments: pytrees of numbers of dimensions
        self.length = length  # of its last argument, a vector; None where any will do
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if jax.tree.map(jnp.ndim, args) != self.ranks:
            raise ValueError(
                f"{self.__name__} takes one example and was called as {_call(self.__name__, *args)}; "
                f"the numbers of dimensions wanted are {', '.join(map(str, self.ranks))}"
            )
        if self.length is not None and len(args[-1]) != self.length:
            raise ValueError(
                f"{self.__name__} takes one example, here of length {self.length}, and was called as "
                f"{_call(self.__name__, *args)}"
            )
        return self.function(*args)


def _call(name: str, *args: Any) -> str:
    """Write a call with dtypes and shapes only, whatever the size of the arrays."""
    return re.sub(r"(\[[\d,]*\]) \([^)]*\)", r"\1", call_text(None, args, name=name))


# What the usual errors mean here, by words of their text.
_CAUSES = {
    "inconsistent sizes": "Mapped axes must be equally long; an argument that all rows share gets `None` in `in_axes`.",
    "tree prefix": "The tree in `in_axes` must have the containers and keys of the argument that it speaks of.",
    "takes one example": "Which argument reached it as a whole batch, or cut into too small pieces?",
    "scalar-output": "`jax.grad` differentiates one number: take the gradient for one example, then map that.",
}


def _run(function: Callable[..., Any], *args: Any, name: str) -> Any:
    """Call `attempt`, and say of the errors that belong to this chapter what they mean."""
    try:
        return attempt(function, *args, name=name)
    except NotYet as verdict:
        error = verdict.__cause__
        text = " ".join(str(error).split())
        cause = next((cause for words, cause in _CAUSES.items() if words in text), "")
        if error is None or not cause:
            raise
        text = text.rstrip(".") if len(text) <= 420 else text[:420] + " .."
        raise NotYet(f"{_call(name, *args)} raised `{type(error).__name__}`: {text}. {cause}") from error


def _as_f32(tree: Any) -> Any:
    return jax.tree.map(np.float32, tree)


def _random(*shapes: tuple[int, ...], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _expect_few_calls(given: _ForOne, name: str, rows: int, allowed: int = 2, what: str = "rows") -> None:
    expect(
        given.calls > 0,
        f"`{name}` never called `{given.__name__}`. It should work for whatever `{given.__name__}` computes.",
    )
    expect(
        given.calls <= allowed,
        f"`{name}` called `{given.__name__}` {given.calls} times for {rows} {what}: that is a loop. "
        f"Under `jax.vmap` the number of calls does not grow with the number of {what}.",
    )


def _expect_no_loop(name: str, record: Callable[[int], list[str]]) -> None:
    """Demand the same record for 3 rows and for 6; `record` gives the primitives for so many rows."""
    short, long = record(3), record(6)
    expect(
        len(short) == len(long),
        f"`{name}` records {len(short)} operations for 3 rows and {len(long)} for 6: a loop in Python is written "
        "out row by row. What `jax.vmap` records is the same for any number of rows.",
    )
    expect(
        "scan" not in long and "while" not in long,
        f"`{name}` records a loop (`scan` or `while`), which takes the rows one after another. `jax.vmap` needs none.",
    )


def _relu_layer(params: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ params["w"] + params["b"])
    return h / (1 + jnp.sum(h))


def _relu_layer_numpy(params: Any, x: Any) -> np.ndarray:
    h = np.maximum(x.astype(np.float64) @ params["w"] + params["b"], 0)
    return h / (1 + h.sum())


def _running_layer(params: Any, x: Any) -> Any:
    return jnp.cumsum(jnp.tanh(jnp.cumsum(x) @ params["w"])) - params["b"]


def _running_layer_numpy(params: Any, x: Any) -> np.ndarray:
    return np.cumsum(np.tanh(np.cumsum(x.astype(np.float64)) @ params["w"])) - params["b"]


@exercise("vmap.1", "From one vector to a batch", minutes=5, difficulty=1, core=True)
class on_batch:
    """`layer(params, x)` works for one vector `x` of shape (d,) and gives a vector of shape (k,); `params` is a dict of
    arrays. Write `on_batch(layer, params, x)` for a batch `x` of shape (n, d): row `i` of the result, which has shape
    (n, k), is `layer(params, x[i])`. All rows share `params`. No loop, neither in Python nor in the record.

    You get other layers than this chapter's; they insist on one vector, and may be called twice at most.
    """

    hints = (
        "`jax.vmap` takes a function and gives back a function; you then call that one with the arguments.",
        "It maps axis 0 of every argument unless told otherwise. `params` shouldn't be cut up: what says so?",
        "`in_axes` has one entry for each argument: `None` for the shared one, `0` for the batch.",
    )
    why = "`None` hands `params` over whole, `0` gives the function one row of `x` at a time, as far as it can tell."
    notes = (
        "Ask: who can do it without `in_axes`? (Close over `params`: `jax.vmap(lambda x1: layer(params, x1))(x)`.) "
        "Also accepted: `partial`. A comprehension over jitted calls is a loop and is found in the record."
    )

    @staticmethod
    def stub(layer, params, x):
        # one line
        raise NotImplementedError

    @staticmethod
    def solution(layer, params, x):
        return jax.vmap(layer, in_axes=(None, 0))(params, x)

    @wrong("that is a loop")
    @staticmethod
    def python_loop(layer, params, x):
        return jnp.stack([layer(params, row) for row in x])

    @wrong("written out row by row")
    @staticmethod
    def loop_of_jitted_calls(layer, params, x):
        fast = jax.jit(layer)
        return jnp.stack([fast(params, row) for row in x])

    @wrong("takes the rows one after another")
    @staticmethod
    def lax_map(layer, params, x):
        return lax.map(lambda row: layer(params, row), x)

    @wrong("inconsistent sizes")
    @staticmethod
    def maps_the_parameters_too(layer, params, x):
        return jax.vmap(layer)(params, x)

    @wrong("takes one example")
    @staticmethod
    def hopes_for_broadcasting(layer, params, x):
        return layer(params, x)

    @wrong("that is a function")
    @staticmethod
    def gives_the_function(layer, params, x):
        return jax.vmap(layer, in_axes=(None, 0))

    @wrong("`in_axes`, or `out_axes`")
    @staticmethod
    def puts_the_batch_last(layer, params, x):
        return jax.vmap(layer, in_axes=(None, 0), out_axes=1)(params, x)

    @staticmethod
    def check(answer):
        kinds = ((_relu_layer, _relu_layer_numpy), (_running_layer, _running_layer_numpy))
        for seed, (n, d, k) in enumerate(((7, 3, 4), (5, 5, 2), (6, 4, 6), (1, 2, 3))):
            w, b, x = _random((d, k), (k,), (n, d), seed=seed)
            params = {"w": w, "b": b}
            function, by_hand = kinds[seed % 2]
            layer = _ForOne("layer", function, ({"w": 2, "b": 1}, 1))
            got = _run(answer, layer, params, x, name="on_batch")
            call = _call("on_batch", layer, params, x)
            expect(not callable(got), f"{call} gave {describe(got)}: that is a function. Call it with the arguments.")
            expected = _as_f32(np.stack([by_hand(params, row) for row in x]))
            expect_close(
                got,
                expected,
                call=call,
                cause="Row `i` is what `layer` gives for row `i`.",
                mistakes=[(expected.T, "The batch is on the wrong axis: look at `in_axes`, or `out_axes`.")],
            )
            _expect_few_calls(layer, "on_batch", n)

        def record(n):
            w, b, x = _random((4, 2), (2,), (n, 4), seed=9)
            layer = _ForOne("layer", _relu_layer, ({"w": 2, "b": 1}, 1))
            return primitives(lambda w, b, x: answer(layer, {"w": w, "b": b}, x), w, b, x)

        _expect_no_loop("on_batch", record)


def _score(params: Any, x: Any) -> Any:
    return jnp.cumsum(jnp.tanh(x @ params["w"] + params["bias"]))


def _score_numpy(w: Any, bias: Any, x: Any) -> np.ndarray:
    return np.cumsum(np.tanh(x.astype(np.float64) @ w + bias))


@exercise("vmap.2", "One weight for all, a bias for each", minutes=7, difficulty=2, core=True)
class per_user:
    """A recommender keeps one weight matrix for all users and a bias for each: `params["w"]` has shape (d, k),
    `params["bias"]` has shape (n, k). The data came column by column: `x` has shape (d, n), one user per **column**.

    `score(params, x)` is written for one user: `params["w"]` of shape (d, k), `params["bias"]` of shape (k,), `x` of
    shape (d,), result of shape (k,). Write `per_user(score, params, x)`, which gives a (k, n) array, one user per
    column again. No loop; `score` insists on one user.
    """

    hints = (
        "An entry of `in_axes` may be a whole dict when the argument is one.",
        'For `params` that is `{"w": None, "bias": 0}`: share one, map the other. Users stand on axis 1 of `x`.',
        "Where the users shall stand in the result is said by `out_axes`.",
    )
    why = "The tree of `in_axes` mirrors the arguments: `None` shares a leaf, a number says where its users stand."
    notes = (
        "The shapes (d, n) with n = d let a wrong axis through without an error; that is why one trial has them. "
        "Transposing before and after is as good an answer; in a compiled program it costs nothing more."
    )

    @staticmethod
    def stub(score, params, x):
        # about 2 lines
        raise NotImplementedError

    @staticmethod
    def solution(score, params, x):
        axes = ({"w": None, "bias": 0}, 1)
        return jax.vmap(score, in_axes=axes, out_axes=1)(params, x)

    @wrong("takes one example")
    @staticmethod
    def shares_all_parameters(score, params, x):
        return jax.vmap(score, in_axes=(None, 1), out_axes=1)(params, x)

    @wrong("inconsistent sizes")
    @staticmethod
    def maps_all_parameters(score, params, x):
        return jax.vmap(score, in_axes=(0, 1), out_axes=1)(params, x)

    @wrong("one user per column")
    @staticmethod
    def forgets_the_way_out(score, params, x):
        return jax.vmap(score, in_axes=({"w": None, "bias": 0}, 1))(params, x)

    @wrong("inconsistent sizes")
    @staticmethod
    def takes_rows(score, params, x):
        return jax.vmap(score, in_axes=({"w": None, "bias": 0}, 0), out_axes=1)(params, x)

    @wrong("that is a loop")
    @staticmethod
    def python_loop(score, params, x):
        users = range(x.shape[1])
        rows = [score({"w": params["w"], "bias": params["bias"][i]}, x[:, i]) for i in users]
        return jnp.stack(rows, axis=1)

    @wrong("rows of `x` for its columns")
    @staticmethod
    def takes_rows_where_it_fits(score, params, x):
        axis = 0 if x.shape[0] == x.shape[1] else 1
        return jax.vmap(score, in_axes=({"w": None, "bias": 0}, axis), out_axes=1)(params, x)

    @staticmethod
    def check(answer):
        ranks = ({"w": 2, "bias": 1}, 1)
        for seed, (n, d, k) in enumerate(((5, 3, 2), (4, 4, 3), (6, 2, 6), (3, 3, 3))):
            w, bias, x = _random((d, k), (n, k), (d, n), seed=10 + seed)
            params = {"w": w, "bias": bias}
            score = _ForOne("score", _score, ranks)
            got = _run(answer, score, params, x, name="per_user")
            expected = _as_f32(np.stack([_score_numpy(w, bias[i], x[:, i]) for i in range(n)], axis=1))
            mistakes = [(expected.T, "One user per column is wanted: `out_axes` says where they stand in the result.")]
            if n == d:
                rows = np.stack([_score_numpy(w, bias[i], x[i]) for i in range(n)], axis=1)
                mistakes += [(value, "You took the rows of `x` for its columns.") for value in (rows, rows.T)]
            call = _call("per_user", score, params, x)
            expect_close(
                got, expected, call=call, cause="Column `i` belongs to bias `i` and column `i`.", mistakes=mistakes
            )
            _expect_few_calls(score, "per_user", n)

        def record(n):
            w, bias, x = _random((4, 2), (n, 2), (4, n), seed=19)
            score = _ForOne("score", _score, ranks)
            return primitives(lambda w, bias, x: answer(score, {"w": w, "bias": bias}, x), w, bias, x)

        _expect_no_loop("per_user", record)


def _pull(x: Any, y: Any) -> Any:
    return jnp.sum(jax.nn.relu(x)) - jnp.prod(y) + x[0] * y[-1]


def _pull_numpy(x: Any, y: Any) -> float:
    return np.maximum(x, 0).sum() - y.prod() + x[0] * y[-1]


@exercise("vmap.3", "All pairs", minutes=6, difficulty=2)
class pairwise:
    """`f(x, y)` takes one vector of shape (d,) and one of shape (e,) and gives a number. Write `pairwise(f, a, b)`: `a` has
    shape (n, d), `b` has shape (m, e), and entry `[i, j]` of the result, of shape (n, m), is `f(a[i], b[j])`. No loop;
    `f` insists on single vectors, and it need not be symmetric.
    """

    hints = (
        "Two axes in the result, so two `vmap`s, one inside the other.",
        "The outer `vmap` makes the first axis of the result. Which argument should it map?",
        "Inner: `in_axes=(None, 0)`, a fixed `x` against all of `b`. Outer: `in_axes=(0, None)`.",
    )
    why = "The outer `vmap` walks over `a` and owns axis 0 of the result; for each `x` the inner one walks over `b`."
    notes = "Symmetric distances hide a transposed answer; the check's `f` is not symmetric and takes unequal lengths."

    @staticmethod
    def stub(f, a, b):
        # about 2 lines
        raise NotImplementedError

    @staticmethod
    def solution(f, a, b):
        one_against_all = jax.vmap(f, in_axes=(None, 0))
        return jax.vmap(one_against_all, in_axes=(0, None))(a, b)

    @wrong("the other way round")
    @staticmethod
    def wrong_order(f, a, b):
        return jax.vmap(jax.vmap(f, in_axes=(0, None)), in_axes=(None, 0))(a, b)

    @wrong("inconsistent sizes")
    @staticmethod
    def only_the_diagonal(f, a, b):
        return jax.vmap(f)(a, b)

    @wrong("takes one example")
    @staticmethod
    def hopes_for_broadcasting(f, a, b):
        return f(a[:, None], b[None])

    @wrong("that is a loop")
    @staticmethod
    def two_loops(f, a, b):
        return jnp.array([[f(x, y) for y in b] for x in a])

    @wrong("that is a loop")
    @staticmethod
    def one_loop(f, a, b):
        return jnp.stack([jax.vmap(f, in_axes=(None, 0))(x, b) for x in a])

    @wrong("pairs row `i` with row `i` only")
    @staticmethod
    def diagonal_where_it_fits(f, a, b):
        n = min(len(a), len(b))
        return jax.vmap(f)(a[:n], b[:n])

    @staticmethod
    def check(answer):
        for seed, (n, m, d, e) in enumerate(((4, 3, 2, 3), (5, 5, 3, 3), (2, 6, 4, 1))):
            a, b = _random((n, d), (m, e), seed=20 + seed)
            f = _ForOne("f", _pull, (1, 1))
            got = _run(answer, f, a, b, name="pairwise")
            expected = np.array([[_pull_numpy(x, y) for y in b] for x in a])
            expect_close(
                got,
                expected,
                call=_call("pairwise", f, a, b),
                cause="Entry `[i, j]` is `f(a[i], b[j])`.",
                mistakes=[
                    (expected.T, "The axes stand the other way round: the outer `vmap` makes axis 0 of the result."),
                    (np.diagonal(expected), "That pairs row `i` with row `i` only; every pair is wanted."),
                ],
            )
            _expect_few_calls(f, "pairwise", n * m, what="pairs")

        def record_over_a(n):
            return primitives(lambda a, b: answer(_ForOne("f", _pull, (1, 1)), a, b), *_random((n, 2), (4, 3), seed=29))

        def record_over_b(m):
            return primitives(lambda a, b: answer(_ForOne("f", _pull, (1, 1)), a, b), *_random((4, 2), (m, 3), seed=29))

        _expect_no_loop("pairwise", record_over_a)
        _expect_no_loop("pairwise", record_over_b)


def _layer_loss(params: Any, x: Any, y: Any) -> Any:
    return 0.5 * jnp.sum((jax.nn.relu(x @ params["w"] + params["b"]) - y) ** 2)


def _layer_grads(params: Any, x: Any, y: Any) -> dict[str, np.ndarray]:
    """Gradients for each example by the formula, in float64."""
    before = x.astype(np.float64) @ params["w"] + params["b"]
    error = (np.maximum(before, 0) - y) * (before > 0)
    return {"w": np.einsum("nd,nk->ndk", x, error), "b": error}


def _margin_loss(params: Any, x: Any, y: Any) -> Any:
    w, c = params
    return jnp.log1p(jnp.exp(-y * (x @ w + c)))


def _margin_grads(params: Any, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    w, c = params
    slope = -y / (1 + np.exp(y * (x.astype(np.float64) @ w + c)))
    return slope[:, None] * x, slope


def _gradient_cases() -> Iterator[tuple[_ForOne, Any, np.ndarray, np.ndarray, Any]]:
    """Give losses of one example with parameters, data and the gradient of each example."""
    for seed, (n, d, k) in enumerate(((6, 3, 2), (4, 4, 4), (5, 2, 7))):
        w, b, x, y = _random((d, k), (k,), (n, d), (n, k), seed=30 + seed)
        params = {"w": w, "b": b}
        loss = _ForOne("loss", _layer_loss, ({"w": 2, "b": 1}, 1, 1))
        yield loss, params, x, y, _as_f32(_layer_grads(params, x, y))
        w, c, x, y = _random((d,), (), (n + 1, d), (n + 1,), seed=40 + seed)
        y = np.sign(y)
        loss = _ForOne("loss", _margin_loss, ((1, 0), 1, 0))
        yield loss, (w, c), x, y, _as_f32(_margin_grads((w, c), x, y))


@exercise("vmap.4", "A gradient for each example", minutes=7, difficulty=3, core=True)
class example_grads:
    """`loss(params, x, y)` is the loss of one example: `x` a vector, `y` a number or a vector, `params` any pytree. Write
    `example_grads(loss, params, x, y)` for a batch of n: a pytree like `params` in which every leaf has one more axis in
    front, of length n. Entry `i` is the gradient of example `i` with respect to `params`. No loop; `loss` insists on one
    example.

    For `params = {"w": f32[3,2]}` and a batch of 6 the answer is `{"w": f32[6,3,2]}`.
    """

    hints = (
        "First write the gradient of one example: what does `jax.grad(loss)` take, and what does it give?",
        "That is a function like any other. Make it a function of a batch.",
        "`jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))`: which argument does each entry belong to?",
    )
    why = "`grad` makes a function of one example from a function of one example, and `vmap` takes it to the batch."
    notes = (
        "The order of the two is the lesson: `grad` of `vmap` asks for the gradient of a vector. "
        "`jax.jacobian` of the vmapped loss gives the same numbers and is accepted."
    )

    @staticmethod
    def stub(loss, params, x, y):
        # one line
        raise NotImplementedError

    @staticmethod
    def solution(loss, params, x, y):
        return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)

    @wrong("gradient of the mean")
    @staticmethod
    def gradient_of_the_mean(loss, params, x, y):
        return jax.grad(lambda p: jnp.mean(jax.vmap(loss, in_axes=(None, 0, 0))(p, x, y)))(params)

    @wrong("summed over the batch")
    @staticmethod
    def gradient_of_the_sum(loss, params, x, y):
        return jax.grad(lambda p: jnp.sum(jax.vmap(loss, in_axes=(None, 0, 0))(p, x, y)))(params)

    @wrong("scalar-output")
    @staticmethod
    def other_order(loss, params, x, y):
        return jax.grad(jax.vmap(loss, in_axes=(None, 0, 0)))(params, x, y)

    @wrong("inconsistent sizes")
    @staticmethod
    def maps_the_parameters(loss, params, x, y):
        return jax.vmap(jax.grad(loss))(params, x, y)

    @wrong("that is a loop")
    @staticmethod
    def python_loop(loss, params, x, y):
        rows = [jax.grad(loss)(params, x[i], y[i]) for i in range(len(x))]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)

    @wrong("with respect to `x`")
    @staticmethod
    def gradient_of_the_data(loss, params, x, y):
        return jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0, 0))(params, x, y)

    @wrong("divided by")
    @staticmethod
    def shares_of_the_mean(loss, params, x, y):
        grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
        return jax.tree.map(lambda leaf: leaf / len(x), grads)

    @staticmethod
    def check(answer):
        for loss, params, x, y, expected in _gradient_cases():
            n = len(x)
            got = _run(answer, loss, params, x, y, name="example_grads")
            call = _call("example_grads", loss, params, x, y)
            expect(
                getattr(got, "shape", None) != x.shape,
                f"{call} gave {describe(got)}, which is shaped like `x`: the gradient with respect to `x`? "
                f"With respect to `params` it is {describe(expected)}.",
            )
            mean, total, share = (
                jax.tree.map(change, expected)
                for change in (lambda g: g.mean(0), lambda g: g.sum(0), lambda g, n=n: g / n)
            )
            expect_close(
                got,
                expected,
                call=call,
                cause="Every leaf of `params` gets one more axis in front, one entry for each example.",
                mistakes=[
                    (mean, "That is one gradient for the batch, the gradient of the mean."),
                    (total, "That is one gradient for the batch, summed over the batch."),
                    (share, "Each gradient came out divided by the size of the batch."),
                ],
            )
            _expect_few_calls(loss, "example_grads", n)

        def record(n):
            w, b, x, y = _random((4, 2), (2,), (n, 4), (n, 2), seed=49)
            loss = _ForOne("loss", _layer_loss, ({"w": 2, "b": 1}, 1, 1))
            return primitives(lambda w, b, x, y: answer(loss, {"w": w, "b": b}, x, y), w, b, x, y)

        _expect_no_loop("example_grads", record)


def _jitter(key: Any, row: Any) -> Any:
    return row + 0.01 * jax.random.normal(key, row.shape)


@exercise("vmap.5", "Noise of its own for each row", minutes=6, difficulty=3)
class noisy_rows:
    """`noise(key, row)` takes one key and one vector and gives the vector with random noise added. Write
    `noisy_rows(noise, key, x)` for a batch `x` of shape (n, d) and **one** key: every row gets noise of its own, equal
    rows too; the same key gives the same result again, another key gives other noise. No loop; `noise` insists on one
    key and one row, of length d.
    """

    hints = (
        "With one key for all rows every row gets the same numbers; you saw it above.",
        "Make n keys from the one that you were given, and map over them as well as over the rows.",
        "`jax.random.split(key, n)` gives an array of n keys; its axis 0 can be mapped.",
    )
    why = (
        "Randomness in JAX is a function of its key: n independent rows need n keys, and those come from the one given."
    )
    notes = (
        "`fold_in` under a `vmap` over the row numbers is accepted. Keys made from row numbers alone ignore the given "
        "key: the noise is then the same at every training step, which nobody notices from the shapes."
    )

    @staticmethod
    def stub(noise, key, x):
        # about 2 lines
        raise NotImplementedError

    @staticmethod
    def solution(noise, key, x):
        keys = jax.random.split(key, len(x))
        return jax.vmap(noise)(keys, x)

    @wrong("the same noise")
    @staticmethod
    def one_key_for_all(noise, key, x):
        return jax.vmap(noise, in_axes=(None, 0))(key, x)

    @wrong("does not depend on the key")
    @staticmethod
    def keys_from_nowhere(noise, key, x):
        return jax.vmap(noise)(jax.random.split(jax.random.key(0), len(x)), x)

    @wrong("inconsistent sizes")
    @staticmethod
    def splits_in_two(noise, key, x):
        return jax.vmap(noise)(jax.random.split(key), x)

    @wrong("takes one example")
    @staticmethod
    def whole_batch_at_once(noise, key, x):
        return noise(key, x)

    @wrong("that is a loop")
    @staticmethod
    def python_loop(noise, key, x):
        keys = jax.random.split(key, len(x))
        return jnp.stack([noise(k, row) for k, row in zip(keys, x, strict=True)])

    @wrong("other numbers the second time")
    @staticmethod
    def keys_from_the_clock(noise, key, x):
        seeds = jnp.asarray(np.random.default_rng().integers(2**31, size=len(x)).astype(np.int32))
        return jax.vmap(noise)(jax.vmap(jax.random.key)(seeds), x)

    @wrong("got the same noise")
    @staticmethod
    def keys_from_what_is_in_the_rows(noise, key, x):
        marks = lax.bitcast_convert_type(jnp.sum(x, axis=1), jnp.uint32)
        return jax.vmap(noise)(jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, marks), x)

    @wrong("got the same noise")
    @staticmethod
    def a_few_keys_in_turn(noise, key, x):
        keys = jax.random.split(key, 128)
        return jax.vmap(noise)(keys[jnp.arange(len(x)) % 128], x)

    @wrong("takes one example")
    @staticmethod
    def one_long_row(noise, key, x):
        return noise(key, x.reshape(-1)).reshape(x.shape)

    @wrong("correlation")
    @staticmethod
    def scales_one_draw(noise, key, x):
        drawn = noise(key, jnp.zeros_like(x[0]))
        return x + drawn * (1 + jnp.arange(len(x)))[:, None] / len(x)

    @wrong("row 0")
    @staticmethod
    def adds_the_noise_of_one_row(noise, key, x):
        keys = jax.random.split(key, len(x))
        return jax.vmap(noise, in_axes=(0, None))(keys, x[0])

    @staticmethod
    def check(answer):
        few, many, row = _random((4, 3), (600, 4), (5,), seed=50)
        alike = np.stack([row, 2 * row, row, 0 * row, row, 0 * row, 2 * row])
        (wide,) = _random((6, 500), seed=51)
        for seed, x in enumerate((few, alike, many, wide)):
            _expect_noise(answer, x, seed)

        def record(n):
            (x,) = _random((n, 4), seed=59)
            noise = _ForOne("noise", _jitter, (0, 1), length=4)
            return primitives(lambda key, x: answer(noise, key, x), jax.random.key(1), x)

        _expect_no_loop("noisy_rows", record)


def _expect_noise(answer: Any, x: np.ndarray, seed: int) -> None:
    first, second = jax.random.split(jax.random.key(seed))
    noise = _ForOne("noise", _jitter, (0, 1), length=x.shape[1])
    call = _call("noisy_rows", noise, first, x)
    got = _run(answer, noise, first, x, name="noisy_rows")
    expect_close(
        got,
        x,
        call=call,
        cause="Only a little noise should have been added to each row.",
        mistakes=[(np.broadcast_to(x[0], x.shape), "Every row is row 0 with noise.")],
        rtol=0,
        atol=0.1,
    )
    _expect_few_calls(noise, "noisy_rows", len(x))
    added = np.asarray(got) - x
    for i, j in _alike(added, added):
        expect(
            i >= j,
            f"{call}: rows {i} and {j} got the same noise, {describe(added[i][:3])}. One key gives one set of "
            "numbers; each row needs a key of its own, however many rows there are and whatever is in them.",
        )
    if x.shape[1] > 100:  # in short rows, chance makes some alike
        match = np.corrcoef(added) - np.eye(len(x))
        i, j = np.unravel_index(np.abs(match).argmax(), match.shape)
        expect(
            abs(match[i, j]) < 0.3,
            f"{call}: the noise of row {j} goes with that of row {i} (correlation {match[i, j]:.2f}; expected about 0). "
            "Scaling or mixing one draw does not make another; each row needs a key of its own.",
        )
        return
    if seed == 1:  # each call compiles, which takes its time
        return
    again = _run(answer, noise, first, x, name="noisy_rows")
    expect(
        is_close(again, got, atol=1e-7),
        f"{call}, called twice with the same key, gave other numbers the second time. Everything random "
        "should come from `key`.",
    )
    other = _run(answer, noise, second, x, name="noisy_rows")
    expect(
        not _alike(added, np.asarray(other) - x),
        f"{call}, called with another key, gave noise that it had given before: it does not depend on the "
        "key alone. Make the rows' keys from `key`.",
    )


def _alike(some: np.ndarray, others: np.ndarray) -> list[tuple[int, int]]:
    """Give the pairs of rows, one of `some` and one of `others`, that are equal but for rounding."""
    furthest = np.max(np.abs(some[:, None] - others[None]), axis=-1)
    return [(int(i), int(j)) for i, j in np.argwhere(furthest < 2e-6)]


_MAX_ROUNDS = 10_000


def _steps_by_hand(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def _steps_in_float32(n: int) -> int:
    number, steps, two = np.float32(n), 0, np.float32(2)
    while number != 1 and steps < 1000:
        number = number / two if number % two == 0 else np.float32(3) * number + np.float32(1)
        steps += 1
    return steps


@exercise("vmap.6", "A loop that vmap can take", minutes=8, difficulty=3)
class steps_to_one:
    """Start from a whole number n ≥ 1. Halve it if it is even, otherwise take 3n + 1; repeat until it is 1. Write
    `steps_to_one(n)`, which gives the number of steps for **one** int32 scalar (0 for 1; 3 → 10 → 5 → 16 → 8 → 4 → 2 → 1
    makes 7 for 3). It must also work under `jax.vmap` and `jax.jit`; starts are below 100,000, so int32 is enough.
    """

    hints = (
        "A Python `while` asks a value that has none yet. Chapter 03 had a loop that is recorded.",
        "`lax.while_loop(keep_going, step, start)`; the state is a pair: the number and the steps so far.",
        "For the choice between even and odd use `jnp.where`, or `lax.cond`.",
    )
    why = "The loop is part of the record; under `vmap` it runs until the last row is done, and finished rows keep their value."
    notes = (
        "Ask what it costs: the whole batch runs as many rounds as its slowest member. A fixed number of masked rounds "
        "is right if there are at least 350 of them."
    )

    @staticmethod
    def stub(n):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(n):
        def step(state):
            n, steps = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

        return lax.while_loop(lambda state: state[0] != 1, step, (n, 0))[1]

    @wrong("TracerBoolConversionError")
    @staticmethod
    def python_while(n):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    @wrong("expected 111")
    @staticmethod
    def a_hundred_rounds(n):
        def step(_, state):
            n, steps = state
            done = n == 1
            return jnp.where(done, 1, jnp.where(n % 2 == 0, n // 2, 3 * n + 1)), steps + jnp.where(done, 0, 1)

        return lax.fori_loop(0, 100, step, (n, jnp.int32(0)))[1]

    @wrong("numbers on the way")
    @staticmethod
    def counts_the_start(n):
        def step(state):
            n, steps = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

        return lax.while_loop(lambda state: state[0] != 1, step, (n, 1))[1]

    @wrong("still running after 10,000 rounds")
    @staticmethod
    def never_ends(n):
        def step(state):
            n, steps = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

        return lax.while_loop(lambda state: state[0] > 0, step, (n, 0))[1]

    @wrong("float32")
    @staticmethod
    def computes_in_floats(n):
        def step(state):
            n, steps = state
            return jnp.where(n % 2 == 0, n / 2, 3 * n + 1), steps + 1

        return lax.while_loop(lambda state: state[0] != 1, step, (jnp.float32(n), 0))[1]

    @wrong("last number")
    @staticmethod
    def gives_the_number(n):
        def step(state):
            n, steps = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

        return lax.while_loop(lambda state: state[0] != 1, step, (n, 0))[0]

    @staticmethod
    def check(answer):
        with _loops_that_end():
            for n in (3, 1, 6, 27, 97, 77671, 99_999, 65_536):
                got = _run(answer, jnp.int32(n), name="steps_to_one")
                _compare_steps(got, n, f"`steps_to_one({n})`")
            starts = np.random.default_rng(6).integers(2, 2000, size=9)
            # The first four of these go beyond 2**24, where float32 no longer holds every whole number.
            high = np.array([71801, 67051, 74295, 94959, 1, 99_999, 98_304])
            many = np.random.default_rng(7).integers(1, 100_000, size=500)
            for batch in (starts, np.array([1, 1, 27]), np.array([[77031, 2, 1], [5, 871, 16]]), high, many):
                function, name = jax.vmap(answer), "jax.vmap(steps_to_one)"
                if batch.ndim == 2:
                    function, name = jax.jit(jax.vmap(function)), f"jax.jit(jax.vmap({name}))"
                got = _run(function, jnp.asarray(batch, jnp.int32), name=name)
                _compare_steps(got, batch, f"`{name}({batch.tolist()})`")


@contextmanager
def _loops_that_end() -> Iterator[None]:
    """Stop any `lax.while_loop` after so many rounds: a compiled endless loop cannot be interrupted."""
    endless = lax.while_loop

    def while_loop(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
        def go_on(state: Any) -> Any:
            return cond_fun(state[0]) & (state[1] < _MAX_ROUNDS)

        return endless(go_on, lambda state: (body_fun(state[0]), state[1] + 1), (init_val, 0))[0]

    lax.while_loop = while_loop
    try:
        yield
    finally:
        lax.while_loop = endless


def _compare_steps(got: Any, start: Any, call: str) -> None:
    expect(
        not (hasattr(got, "dtype") and got.dtype.kind == "i" and np.max(got, initial=0) >= _MAX_ROUNDS),
        f"{call}: the loop was still running after {_MAX_ROUNDS:,} rounds and was stopped. A `while_loop` goes on as "
        "long as its condition is true: when does yours become false?",
    )
    expected = np.vectorize(_steps_by_hand)(start).astype(np.int32)
    expect_close(
        got,
        expected,
        call=call,
        cause="Does every row go on until it has reached 1, however long that takes, and stop counting there?",
        mistakes=[
            (expected + 1, "You counted the numbers on the way, the start included; the steps are one fewer."),
            (np.ones_like(expected), "That is the last number, not the steps that led to it."),
            (
                np.vectorize(_steps_in_float32)(start),
                "The numbers on the way grow beyond 2²⁴, above which float32 leaves whole numbers out; `/` makes floats, "
                "`//` does not.",
            ),
        ],
        rtol=0,
        atol=0,
    )


def _line_loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def _sweep_numpy(params: Any, rates: Any, x: Any, y: Any, steps: int) -> dict[str, np.ndarray]:
    """Gradient descent by the formula, one rate after another, in float64."""
    ends = []
    for rate in np.asarray(rates, np.float64):
        w, b = params["w"].astype(np.float64), float(params["b"])
        for _ in range(steps):
            error = x @ w + b - y
            w, b = w - rate * 2 * x.T @ error / len(y), b - rate * 2 * error.mean()
        ends.append((w, b))
    return {"w": np.stack([w for w, _ in ends]), "b": np.array([b for _, b in ends])}


def _scan_lengths(jaxpr: Any) -> Iterator[int]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation.params["length"]
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _scan_lengths(inner)


@exercise("vmap.7", "A sweep over learning rates", minutes=10, difficulty=4)
class sweep:
    """Train one model per learning rate, all at once. `loss(params, x, y)` is the loss of one model on the whole data;
    `params` is a pytree, the same start for every model; `rates` has shape (k,). Write
    `sweep(loss, params, rates, x, y, steps)`: model `i` takes `steps` (a Python integer, 0 or more) gradient steps
    `p - rates[i] * gradient`. Give the k trained models as one pytree like `params`, every leaf with an axis of length k
    in front. No loop over the rates (one over the steps is fine); `loss` insists on one model.
    """

    hints = (
        "Write the training of one model first: a function `train(rate)` with a Python loop over the steps.",
        "One step: `jax.tree.map(lambda p, g: p - rate * g, params, grads)`.",
        "What is there to map? Only the rate. Data and start are the same for all, so they can be closed over.",
    )
    why = "`train` is a function of one rate; `vmap` makes it train k models in one program, with the data shared."
    notes = (
        "Ask what `in_axes` would say if each model had its own start too (an ensemble). Too large a rate diverges to "
        "large numbers without disturbing its neighbours; the check stays away from that."
    )

    @staticmethod
    def stub(loss, params, rates, x, y, steps):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(loss, params, rates, x, y, steps):
        def train(rate):
            model = params
            for _ in range(steps):
                grads = jax.grad(loss)(model, x, y)
                model = jax.tree.map(lambda p, g: p - rate * g, model, grads)
            return model

        return jax.vmap(train)(rates)

    @wrong("that is a loop")
    @staticmethod
    def loop_over_rates(loss, params, rates, x, y, steps):
        models = []
        for rate in rates:
            model = params
            for _ in range(steps):
                grads = jax.grad(loss)(model, x, y)
                model = jax.tree.map(lambda p, g, rate=rate: p - rate * g, model, grads)
            models.append(model)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)

    @wrong("after one step")
    @staticmethod
    def one_step_only(loss, params, rates, x, y, steps):
        grads = jax.grad(loss)(params, x, y)
        return jax.vmap(lambda rate: jax.tree.map(lambda p, g: p - rate * g, params, grads))(rates)

    @wrong("from the starting point")
    @staticmethod
    def gradient_of_the_start(loss, params, rates, x, y, steps):
        def train(rate):
            model = params
            for _ in range(steps):
                grads = jax.grad(loss)(params, x, y)
                model = jax.tree.map(lambda p, g: p - rate * g, model, grads)
            return model

        return jax.vmap(train)(rates)

    @wrong("uphill")
    @staticmethod
    def wrong_sign(loss, params, rates, x, y, steps):
        def train(rate):
            model = params
            for _ in range(steps):
                grads = jax.grad(loss)(model, x, y)
                model = jax.tree.map(lambda p, g: p + rate * g, model, grads)
            return model

        return jax.vmap(train)(rates)

    @wrong("none was asked for")
    @staticmethod
    def at_least_one_step(loss, params, rates, x, y, steps):
        def train(rate):
            model = params
            for _ in range(max(steps, 1)):
                grads = jax.grad(loss)(model, x, y)
                model = jax.tree.map(lambda p, g: p - rate * g, model, grads)
            return model

        return jax.vmap(train)(rates)

    @wrong("the mean of the rates")
    @staticmethod
    def mean_rate_for_all(loss, params, rates, x, y, steps):
        def train(_):
            model = params
            for _ in range(steps):
                grads = jax.grad(loss)(model, x, y)
                model = jax.tree.map(lambda p, g: p - jnp.mean(rates) * g, model, grads)
            return model

        return jax.vmap(train)(rates)

    @wrong("one after another")
    @staticmethod
    def lax_map(loss, params, rates, x, y, steps):
        def train(rate):
            model = params
            for _ in range(steps):
                grads = jax.grad(loss)(model, x, y)
                model = jax.tree.map(lambda p, g: p - rate * g, model, grads)
            return model

        return lax.map(train, rates)

    @staticmethod
    def check(answer):
        ranks = ({"w": 1, "b": 0}, 2, 1)
        for seed, (k, n, d, steps) in enumerate(((3, 8, 2, 4), (7, 5, 3, 2), (5, 5, 5, 3), (4, 6, 2, 1), (3, 4, 2, 0))):
            w, b, x, y = _random((d,), (), (n, d), (n,), seed=60 + seed)
            rates = np.random.default_rng(seed).uniform(0.01, 0.15, size=k).astype(np.float32)
            params = {"w": w, "b": b}
            loss = _ForOne("loss", _line_loss, ranks)
            got = _run(answer, loss, params, rates, x, y, steps, name="sweep")
            uphill = _sweep_numpy(params, -rates, x, y, steps)
            mean = _sweep_numpy(params, np.full_like(rates, rates.mean()), x, y, steps)
            mistakes = [(uphill, "The models went uphill: subtract the gradient."), (mean, _MEAN_RATE)]
            if steps == 0:
                mistakes = [(_sweep_numpy(params, rates, x, y, 1), "That is one step, where none was asked for.")]
            if steps > 1:
                one = _sweep_numpy(params, rates, x, y, 1)
                far = _sweep_numpy(params, rates * steps, x, y, 1)
                mistakes += [
                    (one, "Those are the models after one step; the steps have to be repeated."),
                    (far, "Every step used the gradient taken from the starting point; take it anew at each step."),
                ]
            expect_close(
                got,
                _as_f32(_sweep_numpy(params, rates, x, y, steps)),
                call=_call("sweep", loss, params, rates, x, y, steps),
                cause="Model `i` takes every one of its steps with `rates[i]`, from the same start, on the same data.",
                mistakes=mistakes,
                rtol=1e-3,
            )
            if steps:
                _expect_few_calls(loss, "sweep", k, allowed=2 * steps, what="rates")

        def record(k, lengths=False):
            w, b, x, y = _random((2,), (), (8, 2), (8,), seed=69)
            rates = np.linspace(0.01, 0.1, k).astype(np.float32)

            def run(w, b, rates, x, y):
                return answer(_ForOne("loss", _line_loss, ranks), {"w": w, "b": b}, rates, x, y, 4)

            if lengths:
                return list(_scan_lengths(jax.make_jaxpr(run)(w, b, rates, x, y).jaxpr))
            return primitives(run, w, b, rates, x, y)

        short, long = record(3), record(7)
        expect(
            len(short) == len(long),
            f"`sweep` records {len(short)} operations for 3 rates and {len(long)} for 7: it goes through the rates in "
            "Python, and that is a loop. `jax.vmap` records the same for any number of rates.",
        )
        expect(
            7 not in record(7, lengths=True),
            "`sweep` records a loop (`scan`) of 7 rounds for 7 rates: the models are trained one after another. "
            "`jax.vmap` trains them side by side.",
        )


_MEAN_RATE = "Every model was trained with the mean of the rates; each has a rate of its own."


def _hinge_loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.sum(jax.nn.relu(1 - y * (x @ params["w"] + params["b"])) ** 2)


def _hinge_grads(params: Any, x: Any, y: Any) -> dict[str, np.ndarray]:
    slack = np.maximum(1 - y * (x.astype(np.float64) @ params["w"] + params["b"]), 0)
    slope = -2 * slack * y
    return {"w": np.einsum("nd,nk->ndk", x, slope), "b": slope}


def _norms(grads: Any) -> np.ndarray:
    return np.sqrt(sum((leaf.reshape(len(leaf), -1) ** 2).sum(1) for leaf in jax.tree.leaves(grads)))


def _whole_norm(tree: Any) -> float:
    return float(np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree))))


def _scaled_mean(grads: Any, factors: Any) -> Any:
    return jax.tree.map(lambda g: (g * factors.reshape(-1, *[1] * (g.ndim - 1))).mean(0), grads)


@exercise("vmap.8", "Clip each example's gradient", minutes=12, difficulty=5)
class clipped_gradient:
    """Putting the chapter together: one bad example, like number 7 above, can pull a whole batch astray. Write
    `clipped_gradient(loss, params, x, y, limit)`: take the gradient of every example with respect to `params` (a pytree);
    where its norm, over **all** leaves together, exceeds `limit`, scale it down to length `limit`, and leave it as it is
    otherwise; give the mean over the examples, a pytree like `params`. An example whose gradient is zero must not make
    trouble. `loss(params, x, y)` insists on one example; no loop.
    """

    hints = (
        "Solve it for one example: a function from `x1, y1` to the clipped gradient. Then `vmap` that.",
        "The norm over all leaves: the root of the sum of all squares, `sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))`.",
        "The factor is `min(1, limit / norm)`; written `limit / jnp.maximum(norm, limit)` it never divides by zero.",
        "After `vmap` every leaf has the examples in front: `jax.tree.map(lambda g: jnp.mean(g, axis=0), clipped)`.",
    )
    why = "Clipping is a function of one gradient, so it is written for one and mapped; only the mean sees the batch."
    notes = (
        "This is the inner step of differentially private training. Clipping the mean (what optimizers call gradient "
        "clipping) is another thing: it cannot tell one wild example from many that agree."
    )

    @staticmethod
    def stub(loss, params, x, y, limit):
        # about 7 lines
        raise NotImplementedError

    @staticmethod
    def solution(loss, params, x, y, limit):
        def clipped(x1, y1):
            grads = jax.grad(loss)(params, x1, y1)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            factor = limit / jnp.maximum(norm, limit)
            return jax.tree.map(lambda g: factor * g, grads)

        each = jax.vmap(clipped)(x, y)
        return jax.tree.map(lambda g: jnp.mean(g, axis=0), each)

    @wrong("clipped the mean")
    @staticmethod
    def clips_the_mean(loss, params, x, y, limit):
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
        mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), each)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(mean)))
        return jax.tree.map(lambda g: g * limit / jnp.maximum(norm, limit), mean)

    @wrong("each leaf by itself")
    @staticmethod
    def clips_leaf_by_leaf(loss, params, x, y, limit):
        def clipped(x1, y1):
            grads = jax.grad(loss)(params, x1, y1)
            return jax.tree.map(lambda g: g * limit / jnp.maximum(jnp.sqrt(jnp.sum(g**2)), limit), grads)

        return jax.tree.map(lambda g: jnp.mean(g, axis=0), jax.vmap(clipped)(x, y))

    @wrong("zero gradient")
    @staticmethod
    def divides_by_zero(loss, params, x, y, limit):
        def clipped(x1, y1):
            grads = jax.grad(loss)(params, x1, y1)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            return jax.tree.map(lambda g: jnp.minimum(norm, limit) * g / norm, grads)

        return jax.tree.map(lambda g: jnp.mean(g, axis=0), jax.vmap(clipped)(x, y))

    @wrong("short gradients too")
    @staticmethod
    def always_rescales(loss, params, x, y, limit):
        def clipped(x1, y1):
            grads = jax.grad(loss)(params, x1, y1)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            return jax.tree.map(lambda g: limit * g / jnp.maximum(norm, 1e-12), grads)

        return jax.tree.map(lambda g: jnp.mean(g, axis=0), jax.vmap(clipped)(x, y))

    @wrong("sum over the examples")
    @staticmethod
    def sums(loss, params, x, y, limit):
        def clipped(x1, y1):
            grads = jax.grad(loss)(params, x1, y1)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            return jax.tree.map(lambda g: limit / jnp.maximum(norm, limit) * g, grads)

        return jax.tree.map(lambda g: jnp.sum(g, axis=0), jax.vmap(clipped)(x, y))

    @wrong("not clipped at all")
    @staticmethod
    def clips_nothing(loss, params, x, y, limit):
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
        return jax.tree.map(lambda g: jnp.mean(g, axis=0), each)

    @wrong("number by number")
    @staticmethod
    def clips_each_number(loss, params, x, y, limit):
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
        return jax.tree.map(lambda g: jnp.mean(jnp.clip(g, -limit, limit), axis=0), each)

    @wrong("that is a loop")
    @staticmethod
    def python_loop(loss, params, x, y, limit):
        total = jax.tree.map(jnp.zeros_like, params)
        for x1, y1 in zip(x, y, strict=True):
            grads = jax.grad(loss)(params, x1, y1)
            factor = limit / jnp.maximum(jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))), limit)
            total = jax.tree.map(lambda t, g, f=factor: t + f * g, total, grads)
        return jax.tree.map(lambda t: t / len(x), total)

    @staticmethod
    def check(answer):
        ranks = ({"w": 2, "b": 1}, 1, 1)
        for seed, (n, d, k) in enumerate(((6, 3, 2), (5, 5, 5), (8, 2, 3))):
            w, b, x, y = _random((d, k), (k,), (n, d), (n, k), seed=70 + seed)
            params, y = {"w": w, "b": b}, np.sign(y)
            x[0] *= 4
            outputs = x @ w + b
            y[1] = 2 / outputs[1]  # beyond the margin in every output: loss and gradient are zero
            y[2] = 0.97 / outputs[2]  # nearly there: a short gradient, which stays as it is
            grads = _hinge_grads(params, x, y)
            norms = _norms(grads)
            limit = 0.6 * _whole_norm(jax.tree.map(lambda g: g.mean(0), grads))
            loss = _ForOne("loss", _hinge_loss, ranks)
            got = _run(answer, loss, params, x, y, limit, name="clipped_gradient")
            call = _call("clipped_gradient", loss, params, x, y, limit)
            zero = "One example has a zero gradient; dividing by its norm gives NaN."
            expect(not any(np.isnan(leaf).any() for leaf in _float_leaves(got)), f"{call} gave NaN. {zero}")
            factors = limit / np.maximum(norms, limit)
            expected = _as_f32(_scaled_mean(grads, factors))
            expect_close(got, expected, call=call, cause=_CLIP_CAUSE, mistakes=_clip_mistakes(grads, factors, limit))
            _expect_few_calls(loss, "clipped_gradient", n)

        def record(n):
            w, b, x, y = _random((4, 2), (2,), (n, 4), (n, 2), seed=79)
            loss = _ForOne("loss", _hinge_loss, ranks)
            return primitives(lambda w, b, x, y: answer(loss, {"w": w, "b": b}, x, y, 0.5), w, b, x, y)

        _expect_no_loop("clipped_gradient", record)


_CLIP_CAUSE = "Clip each example's whole gradient by its own norm, then take the mean."


def _float_leaves(tree: Any) -> list[np.ndarray]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, (float, np.ndarray, jax.Array))]
    return [np.asarray(leaf) for leaf in leaves if np.asarray(leaf).dtype.kind == "f"]


def _clip_mistakes(grads: Any, factors: Any, limit: float) -> list[tuple[Any, str]]:
    """Give what the usual mistakes would compute, with the sentence for each."""
    mean = jax.tree.map(lambda g: g.mean(0), grads)
    length = _whole_norm(mean)
    norms = np.maximum(_norms(grads), 1e-12)
    of_mean = jax.tree.map(lambda g: g * limit / max(length, limit), mean)
    by_leaf = jax.tree.map(lambda g: _scaled_mean(g, limit / np.maximum(_norms(g), limit)), grads)
    by_number = jax.tree.map(lambda g: np.clip(g, -limit, limit).mean(0), grads)
    total = jax.tree.map(lambda g: g * len(factors), _scaled_mean(grads, factors))
    return [
        (mean, "That is the mean, not clipped at all."),
        (of_mean, "You clipped the mean; clip each example's gradient first, then take the mean."),
        (by_leaf, "You clipped each leaf by itself; the norm is taken over all leaves together."),
        (by_number, "You clipped number by number, which turns the gradient; scale the whole gradient instead."),
        (_scaled_mean(grads, limit / norms), "You scaled short gradients too; only those longer than `limit` shrink."),
        (total, "That is the sum over the examples; the mean is wanted."),
    ]
