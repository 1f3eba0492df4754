"""Chapter 01: pure functions."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np

from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import NotYet, attempt, expect, expect_close, is_close, primitives
from ..words import call_text, describe
from . import Chapter

chapter = Chapter(
    "01_pure_functions",
    "Pure functions: everything that goes in is an argument",
    reading_minutes=30,
    needs=("00_start",),
)

calls = Prediction(
    "pure.p1",
    "The layer counts its calls. The next cell calls its compiled form three times. What will `layer.calls` say?",
    int,
)
stale = Prediction(
    "pure.p2",
    "Now we add 100 to `layer.b` and call `compiled(x)` once more. Which bias does it use?",
    ("the old b", "the new b"),
)
leaves = Prediction(
    "pure.p3",
    "The next cell builds the tree `{'layers': [params, params], 'step': 3, 'note': None}`, where `params` holds a `w` "
    "and a `b`. How many leaves has it?",
    int,
)
same_key = Prediction(
    "pure.p4",
    "We draw three normal numbers with `jax.random.normal(key, (3,))`, and then once more with the same `key`. How do "
    "the two draws compare?",
    ("equal", "different"),
)
duplicates = Prediction(
    "pure.p5",
    "`places = [0, 0, 2]`, and both arrays start as zeros. NumPy runs `counts[places] += 1`, JAX "
    "`counts.at[places].add(1)`. What is the *first* number of each afterwards?",
    {"numpy": int, "jax": int},
)
past_the_end = Prediction(
    "pure.p6",
    "`x = jnp.array([0, 10, 20, 30, 40])` has five numbers. What is `x[10]`?",
    ("an error", "0", "40"),
)


def _pure(answer, *args, name):
    """Call the answer, and make sure that what it was given is as before."""
    given = []

    def watched(*copies):
        given.extend(copies)
        return answer(*copies)

    got = attempt(watched, *args, name=name)
    for before, after in zip(args, given, strict=True):
        if isinstance(before, (dict, list, tuple, np.ndarray)) and not is_close(after, before, rtol=0, atol=0):
            raise NotYet(
                f"{call_text(answer, args, name=name)} changed its own argument: {describe(before)} became "
                f"{describe(after)}; the caller's data are to stay as they were. Build something new and return that."
            )
    return got


@exercise("pure.1", "One step downhill", minutes=5, difficulty=2, core=True)
class step_down:
    """Write `step_down(params, grads, rate)`, which returns new parameters: `p - rate * g` for each number or array `p`
    of the tree `params` and its partner `g` at the same place of `grads`.

    The two trees have the same structure: dicts, lists and tuples, nested to any depth, and so has the answer. Dicts
    may have been filled in different orders. The arguments stay as they were.

    `step_down({"w": 1.0, "b": [2.0]}, {"w": 5.0, "b": [-5.0]}, 0.1)` gives `{"w": 0.5, "b": [2.5]}`.
    """

    hints = (
        "`jax.tree.map` takes a function and one tree, or a function of two arguments and two trees.",
        "The function gets one `p` and one `g`, and returns what stands there in the new tree.",
        "`jax.tree.map(lambda p, g: ..., params, grads)`",
    )
    why = (
        "`jax.tree.map` walks both trees at once and builds a third: no loop over names, no matter how deep they are. "
        "This is all that plain gradient descent does."
    )
    notes = (
        "After two habits: writing into the dict that came in, and a loop over the top level. Ask what the caller sees "
        "if the function writes into `params`."
    )

    @staticmethod
    def stub(params, grads, rate):
        # one line
        raise NotImplementedError

    @staticmethod
    def solution(params, grads, rate):
        return jax.tree.map(lambda p, g: p - rate * g, params, grads)

    @wrong("uphill")
    @staticmethod
    def goes_up(params, grads, rate):
        return jax.tree.map(lambda p, g: p + rate * g, params, grads)

    @wrong("forgot `rate`")
    @staticmethod
    def forgets_rate(params, grads, rate):
        return jax.tree.map(lambda p, g: p - g, params, grads)

    @wrong("changed its own argument")
    @staticmethod
    def writes_into_params(params, grads, rate):
        for name in params:
            params[name] = params[name] - rate * grads[name]
        return params

    @wrong("itself a dict")
    @staticmethod
    def top_level_only(params, grads, rate):
        return {name: params[name] - rate * grads[name] for name in params}

    @wrong("structure")
    @staticmethod
    def gives_leaves(params, grads, rate):
        return [p - rate * g for p, g in zip(jax.tree.leaves(params), jax.tree.leaves(grads), strict=True)]

    @wrong("order in which the dicts were filled")
    @staticmethod
    def pairs_in_order(params, grads, rate):
        return {name: p - rate * g for (name, p), g in zip(params.items(), grads.values(), strict=True)}

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(3)

        def draw(*shape):
            return rng.normal(size=shape).astype(np.float32)

        def tree(kind):
            if kind == "flat":
                return {"w": draw(4, 3), "b": draw(3)}
            if kind == "equal shapes":
                return {"up": draw(3), "down": draw(3), "left": draw(3)}
            if kind == "bare":
                return draw(5)
            if kind == "long":
                return tuple(draw(2) for _ in range(12))
            if kind == "numbers":
                return {"w": 1.5, "b": [int(rng.integers(1, 9)), (float(draw()), draw(2)), []]}
            inner = [{"w": draw(2, 3), "b": draw(3)}, {"w": draw(3, 1), "b": draw(1)}]
            return {"layers": inner, "scale": (draw(), draw(6)), "head": {"deep": [draw(2)]}}

        kinds = (("flat", 0.3), ("equal shapes", 0.7), ("nested", 0.05), ("bare", 2.0), ("nested", 1.5))
        for kind, rate in (*kinds, ("long", 0.2), ("numbers", 0.4)):
            params, grads = tree(kind), _refilled(tree(kind))
            pairs = list(zip(jax.tree.leaves(params), jax.tree.leaves(grads), strict=True))
            structure = jax.tree.structure(params)

            def rebuilt(change, pairs=pairs, structure=structure):
                return jax.tree.unflatten(
                    structure, [change(np.asarray(p, np.float64), np.asarray(g, np.float64)) for p, g in pairs]
                )

            try:
                got = _pure(answer, params, grads, rate, name="step_down")
                expect(
                    jax.tree.structure(got) == structure,
                    f"{call_text(answer, (params, grads, rate), name='step_down')} gave {describe(got)}; expected a "
                    "tree with the structure of `params`: the same containers with the same names.",
                )
            except NotYet as feedback:
                if kind not in ("nested", "numbers"):
                    raise
                raise NotYet(f"{feedback} Here a value of the dict is itself a dict, a list or a tuple.") from None
            crossed = _crossed(params, grads, rate) if kind in ("flat", "equal shapes") else None
            expect_close(
                got,
                rebuilt(lambda p, g, rate=rate: p - rate * g),
                call=call_text(answer, (params, grads, rate), name="step_down"),
                mistakes=[
                    (rebuilt(lambda p, g, rate=rate: p + rate * g), "You went uphill: subtract."),
                    (rebuilt(lambda p, g: p - g), "You forgot `rate`."),
                    (params, "Those are the parameters as they came."),
                    (crossed, "You paired them by the order in which the dicts were filled; the names decide."),
                ],
            )


def _refilled(tree):
    """Give the same tree, its dicts filled in the opposite order."""
    if isinstance(tree, dict):
        return {name: _refilled(tree[name]) for name in reversed(tree)}
    return type(tree)(map(_refilled, tree)) if isinstance(tree, (list, tuple)) else tree


def _crossed(params, grads, rate):
    """Give what comes out when two flat dicts are paired in the order in which they were filled."""
    return {name: p - rate * g for (name, p), g in zip(params.items(), grads.values(), strict=True)}


@exercise("pure.2", "Dropout", minutes=7, difficulty=2, core=True)
class dropout:
    """Write `dropout(key, x, rate, train)`; `x` is an array of any shape, `0 <= rate < 1`.

    - `train` true: each number of `x` is, independently of the others, set to 0 with probability `rate` and otherwise
      divided by `1 - rate`. All randomness comes from `key`.
    - `train` false: `x` comes back as it is.

    It must also work compiled, so no NumPy; `train` stays a Python bool.

    For `rate=0.5`, `[1., 2., 3., 4.]` may give `[2., 0., 0., 8.]`.
    """

    hints = (
        "`train` is a Python bool, so a Python `if` will do.",
        "`jax.random.bernoulli(key, p, shape)` gives True with probability `p`: which `p` keeps a number?",
        "`jnp.where(keep, x / (1 - rate), 0.0)`, with `keep` of the shape of `x`.",
    )
    why = (
        "The key decides which numbers are kept, so the same key gives the same mask. Dividing by `1 - rate` keeps the "
        "expected value, which is why evaluation needs no correction."
    )
    notes = (
        "After: `rate` taken as the probability of *keeping*, the forgotten division, a key made inside the function "
        "(the same mask in every step). Ask what a training loop does with the key between two steps."
    )

    @staticmethod
    def stub(key, x, rate, train):
        # about four lines
        raise NotImplementedError

    @staticmethod
    def solution(key, x, rate, train):
        if not train:
            return x
        keep = jax.random.bernoulli(key, 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), 0.0)

    @wrong("divided by `1 - rate`")
    @staticmethod
    def no_scaling(key, x, rate, train):
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x, 0.0) if train else x

    @wrong("probability `rate`")
    @staticmethod
    def keeps_with_rate(key, x, rate, train):
        return jnp.where(jax.random.bernoulli(key, rate, x.shape), x / (1 - rate), 0.0) if train else x

    @wrong("another key")
    @staticmethod
    def own_key(key, x, rate, train):
        keep = jax.random.bernoulli(jax.random.key(0), 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), 0.0) if train else x

    @wrong("`train` is false")
    @staticmethod
    def always(key, x, rate, train):
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0.0)

    @wrong("same key")
    @staticmethod
    def hidden_generator(key, x, rate, train):
        return np.where(np.random.default_rng().random(x.shape) < 1 - rate, x / (1 - rate), 0.0) if train else x

    @wrong("of its own")
    @staticmethod
    def half_a_mask_twice(key, x, rate, train):
        keep = jax.random.bernoulli(key, 1 - rate, ((x.size + 1) // 2,))
        return jnp.where(jnp.tile(keep, 2)[: x.size].reshape(x.shape), x / (1 - rate), 0.0) if train else x

    @wrong("independently")
    @staticmethod
    def whole_columns(key, x, rate, train):
        keep = jax.random.bernoulli(key, 1 - rate, x.shape[-1:])
        return jnp.where(keep, x / (1 - rate), 0.0) if train else x

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(5)
        exact = []  # cases in which precisely the expected share was dropped
        for shape, rate, seed in (((60, 70), 0.25, 1), ((5000,), 0.6, 2), ((20, 15, 12), 0.1, 3)):
            # At least 0.5 away from zero, so that a zero in the output is a dropped number.
            x = (rng.choice([-1.0, 1.0], size=shape) * (0.5 + rng.random(shape))).astype(np.float32)
            key, other = jax.random.key(seed), jax.random.key(seed + 100)
            expect_close(
                attempt(answer, key, x, rate, False, name="dropout"),
                x,
                call=call_text(answer, (key, x, rate, False), name="dropout"),
                cause="When `train` is false, `x` comes back as it is.",
            )
            call = call_text(answer, (key, x, rate, True), name="dropout")
            kept = _kept(attempt(answer, key, x, rate, True, name="dropout"), x, rate, call)
            exact.append(kept.sum() == round((1 - rate) * x.size))
        again = _kept(attempt(answer, key, x, rate, True, name="dropout"), x, rate, call)
        expect(
            np.array_equal(kept, again),
            f"{call} dropped other numbers when it was called again with the same key; expected the same ones. "
            "Is there a random generator other than `key`?",
        )
        expect(
            not np.array_equal(kept, _kept(attempt(answer, other, x, rate, True, name="dropout"), x, rate, call)),
            f"{call} drops the same numbers with another key; expected others. Does the mask come from `key`?",
        )
        expect(
            not all(exact),
            f"{call} dropped precisely the share {rate}, as in all trials; expected each number to be drawn "
            "independently, so that the share varies.",
        )
        traced = attempt(jax.jit(lambda key, x: answer(key, x, rate, True)), key, x, name="dropout")
        expect_close(
            traced,
            np.where(kept, x / (1 - rate), 0),
            call=f"{call}, compiled,",
            cause="Compiled and plain should drop the same numbers.",
        )
        expect_close(
            attempt(answer, key, x, 0.0, True, name="dropout"),
            x,
            call=call_text(answer, (key, x, 0.0, True), name="dropout"),
            cause="At rate 0 nothing is dropped.",
        )


def _kept(got, x, rate, call):
    """Say which numbers dropout kept, or leave with what is wrong about them."""
    expect(
        np.shape(got) == x.shape,
        f"{call} gave {describe(got)}; expected the shape {x.shape}. Every number of `x` keeps its place.",
    )
    got = np.asarray(got)
    expect(got.dtype.kind == "f", f"{call} gave {describe(got)}; expected floating-point numbers.")
    kept = got != 0
    share = kept.mean()
    expect(share < 1, f"{call} set no number to 0; expected a share of about {rate}. Nothing was dropped.")
    if not np.allclose(got[kept], x[kept] / (1 - rate), rtol=1e-4):
        cause = "It is neither `x` nor `x / (1 - rate)` there."
        if np.allclose(got[kept], x[kept], rtol=1e-4):
            cause = "What is kept is to be divided by `1 - rate`."
        at = tuple(np.argwhere(kept & ~np.isclose(got, x / (1 - rate), rtol=1e-4))[0].tolist())
        raise NotYet(f"{call} gave {got[at]:.6g} at index {at}, where `x` is {x[at]:.6g}. {cause}")
    for axis in range(x.ndim if x.ndim > 1 else 0):
        expect(
            (kept.any(axis) & ~kept.all(axis)).any(),
            f"{call} dropped whole slices along axis {axis}; expected each number to be drawn independently. "
            "Does the mask have the shape of `x`?",
        )
    wanted, slack = 1 - rate, 5 * math.sqrt(rate * (1 - rate) / x.size)
    if abs(share - wanted) <= slack:
        mask = (kept - share).ravel() / kept.std()
        expect(
            _echo(mask, mask) < 7,
            f"{call} drops by a pattern that comes again elsewhere in `x`, as it is, reversed or as its opposite; "
            "expected each number to be drawn independently. Has every number of `x` a draw of its own?",
        )
    else:
        cause = "You keep with probability `rate`; that is the probability to drop." if share < 0.5 else ""
        cause = cause if abs(share - rate) < slack else ""
        raise NotYet(f"{call} kept {share:.1%} of the numbers; expected about {wanted:.1%}. {cause}".rstrip())
    return kept


def _echo(a, b):
    """Say how far the largest correlation of two series stands out, at any shift, forwards or backwards.

    In standard deviations of what independent numbers give, so about 4 is usual; `a` may be `b` itself.
    """
    size = len(a) + len(b)
    ones = np.fft.rfft(np.ones(len(a)), size), np.fft.rfft(np.ones(len(b)), size)
    found = np.fft.rfft(a, size), np.fft.rfft(b, size)
    largest = 0.0
    for turn in (np.conj, np.asarray):
        overlap = np.fft.irfft(ones[0] * turn(ones[1]), size)
        match = np.abs(np.fft.irfft(found[0] * turn(found[1]), size)) / np.sqrt(np.maximum(overlap, 1000))
        if a is b and turn is np.conj:
            match[0] = 0  # each number with itself
        largest = max(largest, match.max() / (math.sqrt(2) if a is b and turn is np.asarray else 1))
    return largest


@exercise("pure.3", "A running mean", minutes=8, difficulty=3, core=True)
class center:
    """Write `center(state, x, train)`, which returns the pair `(y, new_state)`.

    `x` has the shape (batch, features); `state` is a dict: `"mean"`, an array of shape (features,), and `"steps"`, a
    whole number.

    - `train` true: `y` is `x` minus the mean of *this batch* (over axis 0). The new `"mean"` is `0.9 * old + 0.1 * batch
      mean`, in the first step too, and `"steps"` is one more.
    - `train` false: `y` is `x` minus the *running* mean `state["mean"]`, and the new state equals the old one (it may be
      the same dict).

    The arguments stay as they were. It must also work compiled, so compute with `jnp`; `train` stays a Python bool.
    """

    hints = (
        "Two branches, and each ends in `return y, some_state`.",
        "`jnp.mean(x, axis=0)` has the shape (features,).",
        'Build the new state: `{"mean": ..., "steps": state["steps"] + 1}`.',
    )
    why = (
        "What a `BatchNorm` module keeps in a buffer goes in as an argument and comes out as a result. Whoever calls it "
        "sees that it changes, and nothing changes behind their back."
    )
    notes = (
        "After: state written in place, state updated during evaluation, and the running mean used in training. Ask "
        "what would happen to a written-in-place state under `jit`: it would be written once, with a tracer."
    )

    @staticmethod
    def stub(state, x, train):
        # about five lines
        raise NotImplementedError

    @staticmethod
    def solution(state, x, train):
        if not train:
            return x - state["mean"], state
        mean = jnp.mean(x, axis=0)
        return x - mean, {"mean": 0.9 * state["mean"] + 0.1 * mean, "steps": state["steps"] + 1}

    @wrong("the running mean in training")
    @staticmethod
    def running_mean_in_training(state, x, train):
        if not train:
            return x - state["mean"], state
        mean = 0.9 * state["mean"] + 0.1 * jnp.mean(x, axis=0)
        return x - mean, {"mean": mean, "steps": state["steps"] + 1}

    @wrong("during evaluation")
    @staticmethod
    def updates_in_evaluation(state, x, train):
        mean = jnp.mean(x, axis=0)
        new = {"mean": 0.9 * state["mean"] + 0.1 * mean, "steps": state["steps"] + 1}
        return x - (mean if train else state["mean"]), new

    @wrong("changed its own argument")
    @staticmethod
    def writes_into_state(state, x, train):
        if not train:
            return x - state["mean"], state
        mean = jnp.mean(x, axis=0)
        state["mean"] = 0.9 * state["mean"] + 0.1 * mean
        state["steps"] += 1
        return x - mean, state

    @wrong("0.9 and 0.1")
    @staticmethod
    def swapped(state, x, train):
        if not train:
            return x - state["mean"], state
        mean = jnp.mean(x, axis=0)
        return x - mean, {"mean": 0.1 * state["mean"] + 0.9 * mean, "steps": state["steps"] + 1}

    @wrong("whole batch")
    @staticmethod
    def one_mean(state, x, train):
        if not train:
            return x - state["mean"], state
        mean = jnp.mean(x)
        return x - mean, {"mean": 0.9 * state["mean"] + 0.1 * mean, "steps": state["steps"] + 1}

    @wrong("pair")
    @staticmethod
    def only_y(state, x, train):
        return x - (jnp.mean(x, axis=0) if train else state["mean"])

    @wrong("no longer needed")
    @staticmethod
    def forgets_steps(state, x, train):
        if not train:
            return x - state["mean"], state
        mean = jnp.mean(x, axis=0)
        return x - mean, {"mean": 0.9 * state["mean"] + 0.1 * mean}

    @wrong("in the first step too")
    @staticmethod
    def first_batch_sets_the_mean(state, x, train):
        if not train:
            return x - state["mean"], state
        mean = jnp.mean(x, axis=0)
        old = jnp.where(state["steps"] == 0, mean, state["mean"])
        return x - mean, {"mean": 0.9 * old + 0.1 * mean, "steps": state["steps"] + 1}

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(8)
        for batch, features, steps in ((7, 3, 41), (1, 5, 1), (16, 2, 0), (3, 4, 70_000)):
            state = {"mean": rng.normal(size=features).astype(np.float32), "steps": steps}
            x = (rng.normal(size=(batch, features)) + rng.normal(size=features) * 3).astype(np.float32)
            for train in (True, False):
                call = call_text(answer, (state, x, train), name="center")
                got = _pure(answer, state, x, train, name="center")
                _center_agrees(got, state, x, train, call)
                compiled = attempt(jax.jit(lambda s, x, train=train: answer(s, x, train)), state, x, name="center")
                _center_agrees(compiled, state, x, train, f"{call}, compiled,")
        # As in a training loop: what came out goes in again.
        state = {"mean": np.zeros(3, np.float32), "steps": 0}
        for step, train in enumerate((True, True, False, True)):
            x = (2 + rng.normal(size=(5, 3))).astype(np.float32)
            got = _pure(answer, state, x, train, name="center")
            _center_agrees(
                got,
                state,
                x,
                train,
                f"Call {step + 1} in a row, {call_text(answer, (state, x, train), name='center')},",
            )
            state = got[1]


def _center_agrees(got, state, x, train, call):
    """Compare one result of `center` with NumPy's in float64."""
    expect(
        isinstance(got, (tuple, list)) and len(got) == 2,
        f"{call} gave {describe(got)}; expected the pair `(y, new_state)`: the new state is a result, too.",
    )
    y, new = got
    old, batch_mean = np.asarray(state["mean"], np.float64), x.astype(np.float64).mean(axis=0)
    mixed = 0.9 * old + 0.1 * batch_mean
    expect_close(
        y,
        x - (batch_mean if train else old),
        call=f"The `y` of {call}",
        mistakes=[
            (x - mixed, "You subtracted the running mean in training; this batch's own is wanted."),
            (x - old, "You subtracted the running mean in training; this batch's own is wanted."),
            (x - batch_mean, "You subtracted this batch's mean in evaluation; the running mean is wanted."),
            (x - x.mean(), "That is one mean of the whole batch; each feature has its own: `axis=0`."),
        ],
    )
    expect(
        isinstance(new, dict) and set(new) == {"mean", "steps"},
        f'The new state of {call} is {describe(new)}; expected a dict with "mean" and "steps". '
        "A name that is left out is gone for the next step; it is not true that it is no longer needed.",
    )
    steps = state["steps"] + bool(train)
    expect_close(
        new,
        {"mean": mixed if train else old, "steps": steps},
        call=f"The new state of {call}",
        cause="Compare it with the prompt, entry by entry.",
        mistakes=[
            ({"mean": mixed, "steps": state["steps"] + 1}, "The state is not to change during evaluation."),
            ({"mean": 0.1 * old + 0.9 * batch_mean, "steps": steps}, "You swapped 0.9 and 0.1."),
            ({"mean": old, "steps": state["steps"]}, "The state came back unchanged from a training step."),
            (
                {"mean": batch_mean, "steps": steps},
                "That is this batch's mean alone; mix it with the old one, in the first step too.",
            ),
        ],
    )


@exercise("pure.4", "Count without a loop", minutes=8, difficulty=3)
class histogram:
    """Write `histogram(values, bins)`, which returns an array of shape (bins,): entry `i` says how often `i` occurs in
    the vector `values` of whole numbers.

    Numbers below 0 or above `bins - 1` are not counted. It must work compiled (`bins` stays a Python integer), so no
    NumPy and no `if` on values; and no loop over `values`, which may be long, neither in Python nor of `lax` (one over
    the bins is all right).

    `histogram(jnp.array([0, 2, 2, -1, 7]), 4)` gives `[1, 0, 2, 0]`.
    """

    hints = (
        "`.at[values].add(1)` counts repeated values, and drops those beyond the end. Which does it not drop?",
        "An index of -1 means the last place. `jnp.where` can send negative values to a place that is dropped.",
        "`jnp.where(values < 0, bins, values)`: `bins` is one past the end.",
    )
    why = (
        "`.at[].add` adds once for each index, duplicates included, and drops what lies past the end; a negative index "
        "counts from the end, as in Python, so it has to be sent out of bounds by hand."
    )
    notes = (
        "Three traps in one line: duplicates (`set`), clamping (`clip`), negative indices. A comparison with "
        "`jnp.arange(bins)` and a sum is right too; ask how much memory it takes."
    )

    @staticmethod
    def stub(values, bins):
        # two lines
        raise NotImplementedError

    @staticmethod
    def solution(values, bins):
        places = jnp.where(values < 0, bins, values)
        return jnp.zeros(bins, int).at[places].add(1)

    @wrong("duplicates")
    @staticmethod
    def sets_one(values, bins):
        return jnp.zeros(bins, int).at[jnp.where(values < 0, bins, values)].set(1)

    @wrong("from the end")
    @staticmethod
    def negatives_wrap(values, bins):
        return jnp.zeros(bins, int).at[values].add(1)

    @wrong("edge")
    @staticmethod
    def clips(values, bins):
        return jnp.zeros(bins, int).at[jnp.clip(values, 0, bins - 1)].add(1)

    @wrong("first place")
    @staticmethod
    def bincount(values, bins):
        return jnp.bincount(values, length=bins)

    @wrong("NumPy was given a traced value")
    @staticmethod
    def numpy_loop(values, bins):
        counts = np.zeros(bins, int)
        for value in np.asarray(values):
            if 0 <= value < bins:
                counts[value] += 1
        return counts

    @wrong("once for each value")
    @staticmethod
    def loops_over_values(values, bins):
        counts = jnp.zeros(bins, int)
        for value in values:
            counts = counts.at[jnp.where(value < 0, bins, value)].add(1)
        return counts

    @wrong("one after another")
    @staticmethod
    def scans_the_values(values, bins):
        def count(counts, value):
            return counts.at[jnp.where(value < 0, bins, value)].add(1), None

        return jax.lax.scan(count, jnp.zeros(bins, int), values)[0]

    @wrong("one after another")
    @staticmethod
    def maps_the_values(values, bins):
        return jax.lax.map(lambda value: (value == jnp.arange(bins)).astype(int), values).sum(axis=0)

    @wrong("one after another")
    @staticmethod
    def loops_in_lax(values, bins):
        def count(i, counts):
            return counts.at[jnp.where(values[i] < 0, bins, values[i])].add(1)

        counts = jnp.zeros(bins, int)
        return jax.lax.fori_loop(0, len(values), count, counts) if len(values) else counts

    @wrong("than 8 bits hold")
    @staticmethod
    def counts_in_eight_bits(values, bins):
        return jnp.zeros(bins, jnp.int8).at[jnp.where(values < 0, bins, values)].add(1)

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(13)
        cases = [
            (rng.integers(0, 5, size=30), 5),
            (rng.integers(-4, 9, size=40), 6),
            (np.array([3, 3, 3, -1, -1, -2, 8, 4]), 4),
            (rng.integers(-9, 0, size=12), 3),
            (rng.integers(-30, 30, size=25), 11),
            (np.array([0, 1, 0, -1]), 1),
            (np.zeros(0, int), 4),
            (np.array([2**31 - 1, 1, -(2**31), 2_000_000_000, 120_000_001, 1, -(2**31) + 2]), 3),
        ]
        many = [(rng.integers(-50, 400, size=700), 300), (rng.choice([-1, 0, 1, 1, 1, 3], size=150_000), 3)]
        for numbers, bins in cases + many:
            if len(numbers) == 700:
                _does_not_unroll(answer)
            values = jnp.asarray(numbers, dtype=int)
            call = call_text(answer, (values, bins), name="histogram")
            if bins == 4 and len(numbers):
                call = f"`histogram({numbers.tolist()}, {bins})`"
            _counts_agree(attempt(answer, values, bins, name="histogram"), numbers, bins, call)
        # Recorded for one vector, run on another of the same length.
        for numbers, bins in cases[2:4]:

            def histogram(values, bins=bins):
                return answer(values, bins)

            primitives(histogram, jnp.asarray(numbers, dtype=int))
            compiled = jax.jit(histogram)
            for shifted in (numbers, numbers + 1, numbers[::-1] + 2):
                got = attempt(compiled, jnp.asarray(shifted, dtype=int), name="histogram")
                _counts_agree(got, shifted, bins, f"`histogram({shifted.tolist()}, {bins})`, compiled,")


def _does_not_unroll(answer):
    """Make sure that a longer vector records no more operations."""
    short, long = (len(primitives(lambda values: answer(values, 4), jnp.arange(length) % 7 - 2)) for length in (5, 45))
    expect(
        long < short + 40,
        f"`histogram(values, 4)` records {short} operations for 5 values and {long} for 45: your loop runs once for each "
        "value. Hand JAX the whole vector at once.",
    )
    few, many = (
        max(_rounds(jax.make_jaxpr(lambda values: answer(values, 4))(jnp.arange(length) % 7 - 2).jaxpr), default=0)
        for length in (5, 4005)
    )
    expect(
        many < few + 100,
        f"`histogram(values, 4)` records a loop (`scan` or `while`) of {many:,} rounds for 4,005 values: it goes through "
        "them one after another. Hand JAX the whole vector at once.",
    )


def _rounds(jaxpr):
    """Give how often each recorded loop runs: a `while`, as far as numbers in it tell."""
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            yield params["length"]
        elif name == "while":
            condition = params["cond_jaxpr"]
            places = [*equation.invars, *(place for step in condition.jaxpr.eqns for place in step.invars)]
            numbers = [*condition.consts, *(place.val for place in places if hasattr(place, "val"))]
            yield from (int(number) for number in numbers if np.ndim(number) == 0)
        for parameter in params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _rounds(inner)


def _counts_agree(got, numbers, bins, call):
    def count(values):
        return np.array([np.sum(values == i) for i in range(bins)], dtype=int)

    right = count(numbers)
    wrapped = count(np.where((numbers < 0) & (numbers >= -bins), numbers + bins, numbers))
    mistakes = [
        (np.minimum(right, 1), "Duplicates are lost: `set` writes the same place again, `add` adds."),
        (wrapped, "Negative values were counted from the end, as Python indexes; they are outside."),
        (count(np.clip(numbers, 0, bins - 1)), "Values outside were moved to the edge and counted there."),
        (count(np.maximum(numbers, 0)), "Negative values were counted in the first place; they are outside."),
    ]
    for kind in (np.int8, np.uint8, np.int16, np.uint16):
        bits = 8 * np.dtype(kind).itemsize
        mistakes.append((right.astype(kind), f"There are more of a kind than {bits} bits hold; count in 32."))
    expect_close(
        got, right, call=call, mistakes=[(value, words) for value, words in mistakes if (value != right).any()]
    )


@exercise("pure.5", "Name every array", minutes=6, difficulty=3)
class named_sizes:
    """Write `named_sizes(params)`, which returns a dict: for each array of the tree `params` its path and how many
    numbers it holds. A path is made of the dict keys and list positions from the root to the array, joined by `/`.

    `named_sizes({"layers": [{"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)}]})` gives
    `{"layers/0/b": 4, "layers/0/w": 12}`. The order does not matter. The tree consists of dicts, lists and tuples, and
    is no lone array. Keys are texts: any characters but `/`.
    """

    hints = (
        "`jax.tree.leaves_with_path(params)` gives pairs of a path and an array.",
        '`jax.tree_util.keystr(path, simple=True, separator="/")` writes a path as a text.',
        "A dict comprehension over the pairs; `array.size` counts the numbers.",
    )
    why = (
        "A pytree knows where each leaf stands. Paths are how checkpoints name their arrays and how sharding rules pick "
        "them, so you will meet them again."
    )
    notes = "A recursion by hand is right, too. Ask who wants its dict in which order, and what a path is good for."

    @staticmethod
    def stub(params):
        # one or two lines
        raise NotImplementedError

    @staticmethod
    def solution(params):
        pairs = jax.tree.leaves_with_path(params)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): array.size for path, array in pairs}

    @wrong("joined by `/`")
    @staticmethod
    def long_form(params):
        return {jax.tree_util.keystr(path): array.size for path, array in jax.tree.leaves_with_path(params)}

    @wrong("whole path")
    @staticmethod
    def last_name(params):
        pairs = jax.tree.leaves_with_path(params)
        return {jax.tree_util.keystr(path[-1:], simple=True): array.size for path, array in pairs}

    @wrong("first dimension")
    @staticmethod
    def counts_rows(params):
        pairs = jax.tree.leaves_with_path(params)
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): (array.shape or (1,))[0] for path, array in pairs
        }

    @wrong("shapes")
    @staticmethod
    def gives_shapes(params):
        pairs = jax.tree.leaves_with_path(params)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): array.shape for path, array in pairs}

    @wrong("dict of path")
    @staticmethod
    def keeps_the_tree(params):
        return jax.tree.map(lambda array: array.size, params)

    @wrong("as they are")
    @staticmethod
    def cleans_the_long_form(params):
        pairs = jax.tree.leaves_with_path(params)
        return {"/".join(re.findall(r"\w+", jax.tree_util.keystr(path))): array.size for path, array in pairs}

    @wrong("not all take 4 bytes")
    @staticmethod
    def quarter_of_the_bytes(params):
        pairs = jax.tree.leaves_with_path(params)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): array.nbytes // 4 for path, array in pairs}

    @wrong("as they are")
    @staticmethod
    def tidies_the_keys(params):
        pairs = jax.tree.leaves_with_path(params)
        return {
            jax.tree_util.keystr(path, simple=True, separator="/").lower().strip(): array.size for path, array in pairs
        }

    @wrong("two digits")
    @staticmethod
    def positions_of_one_digit(params):
        def name(key):
            return str(key)[1] if isinstance(key, jax.tree_util.SequenceKey) else str(key.key)

        return {"/".join(map(name, path)): array.size for path, array in jax.tree.leaves_with_path(params)}

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(17)

        def array(*shape, dtype=jnp.float32):
            return jnp.asarray(rng.normal(size=shape), dtype=dtype)

        shared = array(3, 2)
        # Path and shape of each array, written by hand beside the tree.
        cases = [
            ({"w": array(3, 5), "b": array(5)}, {"w": (3, 5), "b": (5,)}),
            (
                {"layers": [{"w": array(4, 3), "b": array(3)}, {"w": array(3, 2), "b": array(2)}], "step": array()},
                {"layers/0/w": (4, 3), "layers/0/b": (3,), "layers/1/w": (3, 2), "layers/1/b": (2,), "step": ()},
            ),
            (
                [array(2, 2, 3), (array(7), {"deep": {"er": array(6)}})],
                {"0": (2, 2, 3), "1/0": (7,), "1/1/deep/er": (6,)},
            ),
            ({"a": (array(1, 8), array(9)), "empty": array(0, 4)}, {"a/0": (1, 8), "a/1": (9,), "empty": (0, 4)}),
            (
                {"block.1": {"conv-2 [w]": array(2), "it's": array(3), "": array(4)}, "2": [array(5)], "_x_": array(6)},
                {"block.1/conv-2 [w]": (2,), "block.1/it's": (3,), "block.1/": (4,), "2/0": (5,), "_x_": (6,)},
            ),
            (
                {"long": [array(n + 1) for n in range(12)], "pair": tuple([array(n, 2)] for n in range(11))},
                {f"long/{n}": (n + 1,) for n in range(12)} | {f"pair/{n}/0": (n, 2) for n in range(11)},
            ),
            (
                {" Dense 1 ": {"W": array(8, dtype=jnp.float16), "w": array(6, dtype=jnp.int8)}, "Step": array(2)},
                {" Dense 1 /W": (8,), " Dense 1 /w": (6,), "Step": (2,)},
            ),
            # One array at two places, equal names in different places, and containers with nothing in them.
            (
                {"w": {"w": [shared], "b": {}}, "b": {"w": shared, "b": ()}, "ww": array(2)},
                {"w/w/0": (3, 2), "b/w": (3, 2), "ww": (2,)},
            ),
        ]
        for tree, shapes in cases:
            right = {path: math.prod(shape) for path, shape in shapes.items()}
            call = call_text(answer, (tree,), name="named_sizes")
            got = attempt(answer, tree, name="named_sizes")
            expect(
                isinstance(got, dict) and not any(isinstance(item, (dict, list)) for item in got.values()),
                f"{call} gave {describe(got)}; expected a flat dict of path to number: {right}.",
            )
            if set(got) != set(right):
                cause = "A path consists of keys and positions, joined by `/`."
                if set(got) == {re.sub(r"\b(\d)\d+\b", r"\1", path) for path in right}:
                    cause = "A position from 10 on has two digits."
                elif set(got) < set(right):
                    cause = "Some are missing; an array in a tuple, of shape `()` or without numbers counts as well."
                elif set(map(str, got)) <= {path.split("/")[-1] for path in right}:
                    cause = "You kept the last name only; the whole path tells equal names apart."
                elif any(re.search(r"[^\w/]", path) for path in right):
                    cause = "Keys go into the path as they are, with every dot, space, capital and bracket."
                raise NotYet(f"{call} has the paths {sorted(map(str, got))}; expected {sorted(right)}. {cause}")
            expect(
                not any(isinstance(item, tuple) for item in got.values()),
                f"{call} gave {describe(got)}; expected {right}. Those are shapes, not how many numbers there are.",
            )
            rows = {path: (shape or (1,))[0] for path, shape in shapes.items()}
            expect_close(
                got,
                right,
                call=call,
                cause="Count all numbers of an array, whatever its dtype: not all take 4 bytes.",
                mistakes=[
                    (rows, "That is the first dimension only; an array holds the product of all."),
                    ({path: 4 * size for path, size in right.items()}, "Those are bytes; count numbers."),
                ],
                rtol=0,
                atol=0,
            )


@exercise("pure.6", "Start a network", minutes=8, difficulty=3)
class init_mlp:
    """Write `init_mlp(key, sizes)`, which returns the parameters of a chain of layers: a list of dicts, one for each
    neighbouring pair of `sizes`.

    For the pair `n_in, n_out` the dict holds `"w"`, shape (n_in, n_out), normally distributed with mean 0 and standard
    deviation `1 / sqrt(n_in)`, and `"b"`, `n_out` zeros. All randomness comes from `key`, and no two layers share
    random numbers. `init_mlp(key, [784, 128, 10])` has two layers.
    """

    hints = (
        "How many layers do `sizes` make, and how many keys do you need?",
        "`jax.random.split(key, n)` gives `n` keys; `zip(keys, sizes[:-1], sizes[1:])` walks along all three.",
        "`jax.random.normal(k, (n_in, n_out)) / jnp.sqrt(n_in)`, with a `k` of its own for each layer.",
    )
    why = (
        "One key, split into as many as there are layers, used once each. With one key for all, layers of equal size "
        "would start as copies of each other."
    )
    notes = (
        "The reuse that people commit in practice. Ask how they would notice it in a training curve (they would not)."
    )

    @staticmethod
    def stub(key, sizes):
        # about five lines
        raise NotImplementedError

    @staticmethod
    def solution(key, sizes):
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            {"w": jax.random.normal(k, (n_in, n_out)) / jnp.sqrt(n_in), "b": jnp.zeros(n_out)}
            for k, n_in, n_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
        ]

    @wrong("same random numbers")
    @staticmethod
    def one_key(key, sizes):
        return [
            {"w": jax.random.normal(key, (m, n)) / jnp.sqrt(m), "b": jnp.zeros(n)} for m, n in itertools.pairwise(sizes)
        ]

    @wrong("share random numbers")
    @staticmethod
    def overlapping_slices(key, sizes):
        numbers, start, layers = jax.random.normal(key, (sum(m * n for m, n in itertools.pairwise(sizes)),)), 0, []
        for m, n in itertools.pairwise(sizes):
            layers.append({"w": numbers[start : start + m * n].reshape(m, n) / jnp.sqrt(m), "b": jnp.zeros(n)})
            start += n
        return layers

    @wrong("same random numbers")
    @staticmethod
    def three_keys_in_turn(key, sizes):
        return [
            {"w": jax.random.normal(jax.random.fold_in(key, i % 3), (m, n)) / jnp.sqrt(m), "b": jnp.zeros(n)}
            for i, (m, n) in enumerate(itertools.pairwise(sizes))
        ]

    @wrong("`1 / sqrt(n_in)`")
    @staticmethod
    def unscaled(key, sizes):
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            {"w": jax.random.normal(k, (m, n)), "b": jnp.zeros(n)}
            for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
        ]

    @wrong("`n_out`")
    @staticmethod
    def scaled_by_outputs(key, sizes):
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            {"w": jax.random.normal(k, (m, n)) / jnp.sqrt(n), "b": jnp.zeros(n)}
            for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
        ]

    @wrong("other parameters")
    @staticmethod
    def own_key(key, sizes):
        keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
        return [
            {"w": jax.random.normal(k, (m, n)) / jnp.sqrt(m), "b": jnp.zeros(n)}
            for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
        ]

    @wrong("(n_in, n_out)")
    @staticmethod
    def transposed(key, sizes):
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            {"w": jax.random.normal(k, (n, m)) / jnp.sqrt(m), "b": jnp.zeros(n)}
            for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
        ]

    @wrong("normally distributed")
    @staticmethod
    def uniform(key, sizes):
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            {"w": jax.random.uniform(k, (m, n), minval=-1, maxval=1) * jnp.sqrt(3 / m), "b": jnp.zeros(n)}
            for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
        ]

    @staticmethod
    def check(answer):
        for seed, sizes in ((1, [64, 96, 64]), (2, [80, 80, 80, 80, 80, 80])):
            key = jax.random.key(seed)
            call = f"`init_mlp(key, {sizes})`"
            got = attempt(answer, key, list(sizes), name="init_mlp")
            drawn = _layers(got, sizes, call)
            again = attempt(answer, key, list(sizes), name="init_mlp")
            expect(
                is_close(again, got, rtol=0, atol=0),
                f"{call} gave other parameters when it was called again with the same key; expected the same. "
                "Is there a random generator other than `key`?",
            )
            other = attempt(answer, jax.random.key(seed + 50), list(sizes), name="init_mlp")
            expect(
                not np.allclose(other[0]["w"], got[0]["w"]),
                f"{call} gave the same `w` for two different keys; expected other parameters. Is `key` used?",
            )
            for second in range(len(drawn)):
                for first in range(second):
                    n = min(drawn[first].size, drawn[second].size)
                    match = np.corrcoef(drawn[first][:n], drawn[second][:n])[0, 1]
                    expect(
                        abs(match) < 6 / math.sqrt(n),
                        f"{call}: layers {first} and {second} hold the same random numbers (correlation {match:.2f}; "
                        "expected about 0). Was one key used for both?",
                    )
                    # Rows of `second` against those of `first`, and columns against rows.
                    turned = drawn[second].reshape(sizes[second : second + 2]).T.ravel()
                    expect(
                        max(_echo(drawn[first], drawn[second]), _echo(drawn[first], turned)) < 7,
                        f"{call}: layers {first} and {second} share random numbers: some of those of one come again in "
                        "the other, shifted, reversed or negated. Draw each layer with a key of its own.",
                    )
        compiled = attempt(jax.jit(lambda key: answer(key, list(sizes))), key, name="init_mlp")
        expect_close(compiled, got, call=f"{call}, compiled,", cause="It should give what it gives uncompiled.")


def _layers(got, sizes, call):
    """Check shapes and distribution of each layer; give the standardized weights, flat."""
    pairs = list(itertools.pairwise(sizes))
    expect(
        isinstance(got, (list, tuple)) and len(got) == len(pairs),
        f"{call} gave {describe(got)}; expected a list of {len(pairs)} dicts, one for each pair of neighbours.",
    )
    drawn = []
    for number, (layer, (n_in, n_out)) in enumerate(zip(got, pairs, strict=True)):
        expect(
            isinstance(layer, dict) and set(layer) == {"w", "b"},
            f'{call}: layer {number} is {describe(layer)}; expected a dict with "w" and "b".',
        )
        shapes = {name: np.shape(layer[name]) for name in ("w", "b")}
        expect(
            shapes == {"w": (n_in, n_out), "b": (n_out,)},
            f"{call}: layer {number} has the shapes {shapes}; expected w (n_in, n_out) = {(n_in, n_out)}, b {(n_out,)}.",
        )
        expect(not np.any(layer["b"]), f"{call}: the `b` of layer {number} is not zero.")
        w = np.asarray(layer["w"], np.float64)
        spread, wanted, slack = w.std(), 1 / math.sqrt(n_in), 5 / math.sqrt(2 * w.size)
        if abs(spread / wanted - 1) > slack:
            cause = f"It should be `1 / sqrt(n_in)`, n_in = {n_in}."
            if abs(spread * math.sqrt(n_out) - 1) < slack:
                cause += " You divided by the square root of `n_out`."
            raise NotYet(f"{call}: the `w` of layer {number} spreads by {spread:.4f}; expected {wanted:.4f}. {cause}")
        flat = w.ravel() / wanted
        expect(
            abs(flat.mean()) < 6 / math.sqrt(flat.size), f"{call}: the `w` of layer {number} has a mean that is not 0."
        )
        expect(
            abs(np.mean(flat**4) - 3) < 0.6,
            f"{call}: the `w` of layer {number} is not normally distributed (fourth moment {np.mean(flat**4):.2f} of the "
            "standardized numbers; a normal distribution has 3).",
        )
        drawn.append(flat)
    return drawn


@exercise("pure.7", "Catch a reused key", minutes=8, difficulty=4)
class count_reuse:
    """Write `count_reuse(draw, key)`, which finds out how often `draw` uses a key again.

    `draw(key, sample)` is somebody's code. It derives keys from `key` and calls `sample(k)` once for each number that it
    wants; the `sample` that you hand it must return a number, such as `jax.random.normal(k)`. Return how many of these
    calls came with a key that an earlier call of this run had used. Don't read the code: watch it.

    With `def draw(key, sample): return sample(key) + sample(key)` the answer is 1; for three calls with the same key it
    is 2.
    """

    hints = (
        "Write a `sample` of your own inside `count_reuse`. What does it have to remember?",
        "Two keys are the same if their data are: `jax.random.key_data(k)` gives an array, and "
        "`tuple(map(int, data))` something that a Python set can hold.",
        "Keep a set of what was seen and a counter (`nonlocal`), both made afresh in each call of `count_reuse`.",
    )
    why = (
        "A key is data, so equal keys are equal arrays, whichever object carries them. The watcher is impure on purpose, "
        "and never compiled: it takes notes while plain Python runs."
    )
    notes = (
        "Comparing objects (`is`, `id`) misses `fold_in(key, 3)` computed twice; counting pairs counts three calls as "
        "three. A comparison of the drawn numbers finds the same answer by way of the symptom."
    )

    @staticmethod
    def stub(draw, key):
        # about ten lines
        raise NotImplementedError

    @staticmethod
    def solution(draw, key):
        seen, reused = set(), 0

        def sample(k):
            nonlocal reused
            data = tuple(map(int, jax.random.key_data(k)))
            reused += data in seen
            seen.add(data)
            return jax.random.normal(k)

        draw(key, sample)
        return reused

    @wrong("other objects")
    @staticmethod
    def compares_objects(draw, key):
        seen = []
        draw(key, lambda k: seen.append(k) or jax.random.normal(k))
        return sum(any(k is other for other in seen[:i]) for i, k in enumerate(seen))

    @wrong("pairs")
    @staticmethod
    def counts_pairs(draw, key):
        seen = []
        draw(key, lambda k: seen.append(tuple(map(int, jax.random.key_data(k)))) or jax.random.normal(k))
        return sum(a == b for i, a in enumerate(seen) for b in seen[:i])

    @wrong("calls of `sample`")
    @staticmethod
    def counts_calls(draw, key):
        seen = []
        draw(key, lambda k: seen.append(k) or jax.random.normal(k))
        return len(seen) - 1

    @wrong("yes or no")
    @staticmethod
    def says_whether(draw, key):
        seen = []
        draw(key, lambda k: seen.append(tuple(map(int, jax.random.key_data(k)))) or jax.random.normal(k))
        return len(set(seen)) < len(seen)

    @wrong("returned None")
    @staticmethod
    def sample_gives_nothing(draw, key):
        seen = []
        draw(key, lambda k: seen.append(tuple(map(int, jax.random.key_data(k)))))
        return len(seen) - len(set(seen))

    @wrong("different keys")
    @staticmethod
    def counts_distinct(draw, key):
        seen = []
        draw(key, lambda k: seen.append(tuple(map(int, jax.random.key_data(k)))) or jax.random.normal(k))
        return len(set(seen))

    @wrong("all of it")
    @staticmethod
    def compares_one_word(draw, key):
        seen = []
        draw(key, lambda k: seen.append(int(jax.random.key_data(k)[-1])) or jax.random.normal(k))
        return len(seen) - len(set(seen))

    @wrong("not the numbers drawn")
    @staticmethod
    def compares_rounded_numbers(draw, key):
        seen = []

        def sample(k):
            seen.append(float(jax.random.normal(k)))
            return seen[-1]

        draw(key, sample)
        return len(seen) - len({round(number, 2) for number in seen})

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(19)
        # Which of its keys a program uses, in order: reuse is what is not new in the list.
        plans = [[0, 0], [0, 1, 0, 0, 0], [0, 1, 2], [3], [], [2, 2, 2, 2]]
        plans += [rng.integers(0, 4, size=9).tolist(), rng.permutation(6).tolist()]
        first = (plans[3], plans[0], plans[6])  # once more, with the same keys: nothing may be left of the first time
        many = [*range(80), 3, 77, *range(80, 90), 3]
        alike = [0, 1, 2, 3, 4, 1, 5, 0]
        makers = [_derived_anew if number % 2 else _split for number in range(len(plans))]
        trials = [(plan, maker, 100 + number) for number, (plan, maker) in enumerate(zip(plans, makers, strict=True))]
        trials += [(plan, makers[plans.index(plan)], 100 + plans.index(plan)) for plan in first]
        trials += [(alike, _alike, 7), (many, _split, 8)]
        for number, (plan, maker, seed) in enumerate(trials):
            key, notes = jax.random.key(seed), []
            draw = _program(plan, maker, notes)
            got = attempt(answer, draw, key, name="count_reuse")
            call = f"`count_reuse(draw, key)` for a `draw` that uses its keys number {plan}, in this order,"
            cause = "Start with nothing seen and nothing counted in each call of `count_reuse`." if number else ""
            if plan is many:
                call = f"`count_reuse(draw, key)` for a `draw` with {len(plan)} samples"
            if plan is many or plan is alike:
                cause = "Are different keys taken for equal? Compare a key's data, all of it, not the numbers drawn."
            if None in notes:
                raise NotYet(f"{call} failed: your `sample` returned None; `draw` goes on computing with its number.")
            expect(
                len(notes) == len(plan),
                f"{call} gave {describe(got)}, but `draw` ran {len(notes)} of its {len(plan)} samples; expected "
                "that you call `draw(key, sample)` once.",
            )
            right, distinct = len(plan) - len(set(plan)), len(set(plan))
            if isinstance(got, (bool, np.bool_)):
                raise NotYet(f"{call} gave {got}; expected {right}: how often, not yes or no.")
            mistakes = [
                (sum(a == b for i, a in enumerate(plan) for b in plan[:i]), "You counted pairs; count calls."),
                (distinct, "You counted the different keys."),
                (len(plan) - 1, "You counted the calls of `sample`."),
                (len(plan), "You counted the calls of `sample`."),
                (0, "Equal keys may be other objects: compare their data."),
            ]
            expect_close(
                got,
                right,
                call=call,
                cause=cause,
                mistakes=[item for item in mistakes if item[0] != right],
                rtol=0,
                atol=0,
            )


def _derived_anew(key, count):
    """Derive a key anew whenever it is used."""
    return lambda number: jax.random.fold_in(key, number)


def _split(key, count):
    return list(jax.random.split(key, count)).__getitem__


def _alike(key, count):
    """Give keys that share some of their words, or have the same ones in another order."""
    a, b = np.asarray(jax.random.key_data(key)), np.asarray(jax.random.key_data(jax.random.fold_in(key, 1)))
    data = [a, np.append(a[:-1], b[-1:]), np.append(b[:-1], a[-1:]), b, a[::-1], np.append(b[-1:], a[:-1])]
    keys = [jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(key)) for words in data]
    return keys.__getitem__


def _program(plan, maker, notes):
    """Make a `draw` that uses the keys of `plan`, as `maker` makes them."""

    def draw(key, sample):
        key_number = maker(key, max(plan, default=0) + 1)
        total = 0.0
        for number in plan:
            value = sample(key_number(number))
            notes.append(value)
            if value is not None:
                total = total + value
        return total

    return draw


@exercise("pure.8", "Does it survive compiling?", minutes=10, difficulty=4)
class differs_under_jit:
    """Write `differs_under_jit(make, inputs)`, which runs a function plain and compiled and tells where they part.

    `make()` gives a fresh function of one array; it may keep hidden state, and each fresh one starts anew. Call one plain
    on each of `inputs`, in order. Call another one's `jax.jit` on the same inputs, in the same order. Return the list of
    positions at which the results differ by more than rounding: where `jnp.allclose(a, b)`, as it stands, is false (so
    it is for NaN, even on both sides).

    For a pure function that is `[]`. For a counter that returns `x` times the number of its calls so far, on three
    inputs of one shape, it is `[1, 2]`.
    """

    hints = (
        "How often should `make` be called? What happens to the counter if plain and compiled share one function?",
        "`plain, compiled = make(), jax.jit(make())`, both before the loop.",
        "`jnp.allclose(a, b)` compares two results; `enumerate` gives the positions.",
    )
    why = (
        "Two fresh functions, one of them compiled once: what differs is what the recording has frozen. Sharing one "
        "function mixes its calls up, and compiling anew for each input hides the very thing you are looking for."
    )
    notes = (
        "The experiment of the chapter's first section, made general. Shapes change within some of the inputs: a new "
        "shape is a new recording, which advances the hidden state once more. Ask for a pure function that differs "
        "(none, up to rounding)."
    )

    @staticmethod
    def stub(make, inputs):
        # about three lines
        raise NotImplementedError

    @staticmethod
    def solution(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if not jnp.allclose(plain(x), compiled(x))]

    @wrong("one and the same function")
    @staticmethod
    def shares_one(make, inputs):
        function = make()
        compiled = jax.jit(function)
        return [i for i, x in enumerate(inputs) if not jnp.allclose(function(x), compiled(x))]

    @wrong("afresh for each input")
    @staticmethod
    def fresh_each_time(make, inputs):
        return [i for i, x in enumerate(inputs) if not jnp.allclose(make()(x), jax.jit(make())(x))]

    @wrong("compiled anew")
    @staticmethod
    def compiles_each_time(make, inputs):
        plain = make()
        return [i for i, x in enumerate(inputs) if not jnp.allclose(plain(x), jax.jit(make())(x))]

    @wrong("list of positions")
    @staticmethod
    def says_whether(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return any(not jnp.allclose(plain(x), compiled(x)) for x in inputs)

    @wrong("only the first")
    @staticmethod
    def first_only(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if not jnp.allclose(plain(x), compiled(x))][:1]

    @wrong("round differently")
    @staticmethod
    def exactly_equal(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if not jnp.array_equal(plain(x), compiled(x))]

    @wrong("agree")
    @staticmethod
    def the_other_way_round(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if jnp.allclose(plain(x), compiled(x))]

    @wrong("taken for equal")
    @staticmethod
    def takes_nan_for_equal(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if not jnp.allclose(plain(x), compiled(x), equal_nan=True)]

    @wrong("too wide")
    @staticmethod
    def wide_tolerance(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if not jnp.allclose(plain(x), compiled(x), rtol=1e-2)]

    @wrong("sums")
    @staticmethod
    def compares_sums(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if not jnp.allclose(jnp.sum(plain(x)), jnp.sum(compiled(x)))]

    @wrong("relative")
    @staticmethod
    def misses_small_numbers(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if not jnp.allclose(plain(x), compiled(x), atol=1e-3)]

    @wrong("relative")
    @staticmethod
    def absolute_difference(make, inputs):
        plain, compiled = make(), jax.jit(make())
        return [i for i, x in enumerate(inputs) if jnp.max(jnp.abs(plain(x) - compiled(x))) > 1e-5]

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(23)

        def arrays(*lengths):
            return [np.float32(1 + rng.random(length)) for length in lengths]

        # Positions by hand: the plain function sees its calls, the compiled one its recordings, one a shape.
        cases = [
            ("a counter", _counter, arrays(3, 3, 3), [1, 2]),
            ("a pure function", _square, arrays(4, 4, 2, 4), []),
            ("a sign that flips with each call", _flipper, arrays(5, 5, 5, 5, 5), [1, 3]),
            ("a counter, shapes changing", _counter, arrays(2, 2, 3, 2, 3), [1, 2, 3, 4]),
            ("a function that tires after three calls", _tiring, arrays(3, 3, 3, 3, 3, 3), [3, 4, 5]),
            ("a counter, each shape new", _counter, arrays(1, 2, 3), []),
            ("a sign that flips, shapes changing", _flipper, arrays(2, 3, 3, 2, 3), [2, 3, 4]),
            ("a function whose last digits drift", _drifting, arrays(4, 4, 4), []),
            ("a counter with nothing to do", _counter, [], []),
            ("a function that turns its numbers round", _rolling, arrays(3, 3, 3, 3, 3), [1, 2, 4]),
            ("a function whose last number alone counts", _last, arrays(4, 4, 4), [1, 2]),
            ("a counter of tiny numbers", _counter, [1e-6 * x for x in arrays(3, 3)], [1]),
            ("a function of large numbers whose last digits drift", _drifting, [1e6 * x for x in arrays(3, 3, 3)], []),
            ("a function that drifts in the fifth digit", lambda: _drifting(4e-5), arrays(4, 4, 4), [1, 2]),
            ("a pure function that gives NaN", _root_of_negative, arrays(3, 3), [0, 1]),
            ("a counter, many times", _counter, arrays(*[2] * 13), list(range(1, 13))),
        ]
        for what, make, inputs, right in cases:
            call = f"`differs_under_jit(make, {describe([x.shape for x in inputs])})` for {what}"
            got = attempt(answer, make, inputs, name="differs_under_jit")
            expect(
                isinstance(got, (list, tuple, np.ndarray))
                and not any(isinstance(item, (bool, np.bool_)) for item in got),
                f"{call} gave {describe(got)}; expected a list of positions: {right}.",
            )
            got = [int(item) for item in got]
            if got != right:
                raise NotYet(f"{call} gave {got}; expected {right}. {_parting(make, inputs, got, right)}".rstrip())


def _parting(make, inputs, got, right):
    """Name the experiment that gives these positions, if it is a known one."""
    shared, plain, other, compiled = make(), make(), make(), jax.jit(make())
    together = jax.jit(shared)
    pairs = [(other(x), compiled(x)) for x in inputs]

    def where(pairs, same=np.allclose):
        return [i for i, (a, b) in enumerate(pairs) if not same(a, b)]

    if got == where(pairs, np.array_equal):
        return "Compiled arithmetic may round differently; compare with `jnp.allclose`."
    if got == where(pairs, lambda a, b: np.allclose(np.sum(a), np.sum(b))):
        return "The sums agree there, and the numbers do not: compare each number."
    if got in [where(pairs, functools.partial(np.allclose, rtol=slack)) for slack in (1e-4, 1e-3, 1e-2)]:
        return "That tolerance is too wide: `jnp.allclose` as it stands has one of 1e-5, relative."
    coarse = [functools.partial(np.allclose, rtol=0, atol=slack) for slack in (1e-5, 1e-4, 1e-3, 1e-2)]
    coarse += [functools.partial(np.allclose, atol=slack) for slack in (1e-5, 1e-4, 1e-3, 1e-2)]
    if got in [where(pairs, same) for same in coarse]:
        return (
            "Rounding is relative: tiny numbers need a tiny tolerance and large ones a large one; see `jnp.allclose`."
        )
    if got == where(pairs, functools.partial(np.allclose, equal_nan=True)):
        return "NaN was taken for equal to NaN; `jnp.allclose` as it stands does not."
    if right and got == right[:1]:
        return "You gave only the first of them."
    if sorted(got + right) == list(range(len(inputs))):
        return "Those are the positions where the two agree."
    if got == where((shared(x), together(x)) for x in inputs):
        return "Plain and compiled share one and the same function, and its hidden state; `make` a second one."
    if got == where((make()(x), jax.jit(make())(x)) for x in inputs):
        return "You made both functions afresh for each input, so each is only ever at its first call."
    if got == where((plain(x), jax.jit(make())(x)) for x in inputs):
        return "You compiled anew for each input; `jax.jit` one function once, before the loop."
    return "Call one plain function and one compiled one on all inputs, in order."


def _counter():
    calls = 0

    def count(x):
        nonlocal calls
        calls += 1
        return x * calls

    return count


def _flipper():
    sign = -1

    def flip(x):
        nonlocal sign
        sign = -sign
        return x * sign

    return flip


def _tiring():
    energy = [3]

    def tire(x):
        energy[0] -= 1
        return x * 2 if energy[0] >= 0 else x

    return tire


def _drifting(share=1e-6):
    """Drift by this share of the number in each call; the default stands in for rounding, which differs by machine."""
    calls = 0

    def drift(x):
        nonlocal calls
        calls += 1
        return x * (1 + share * calls)

    return drift


def _root_of_negative():
    return lambda x: jnp.sqrt(-jnp.asarray(x))


def _rolling():
    """Move the numbers on by one more place in each call: none gets lost, so their sum stays."""
    calls = 0

    def roll(x):
        nonlocal calls
        calls += 1
        return jnp.roll(x, calls)

    return roll


def _last():
    calls = 0

    def last(x):
        nonlocal calls
        calls += 1
        return jnp.asarray(x).at[-1].add(calls)

    return last


def _square():
    return lambda x: x * x - 1
