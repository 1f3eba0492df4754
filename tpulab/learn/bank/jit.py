"""Chapter 03: jit."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...compat import is_traced
from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import NotYet, attempt, expect, expect_close, is_close, primitives
from ..words import call_text, describe
from . import Chapter

chapter = Chapter("03_jit", "jit: recorded once, run many times", reading_minutes=35, needs=("02_grad",))

noisy_lines = Prediction(
    "jit.p1",
    "The next cell calls `noisy` on 1.0, 2.0 and 3.0. How many lines does `noisy` print in all, and what is `x` in them?",
    {"lines": int, "x": ("a number", "a stand-in")},
)
frozen_scale = Prediction(
    "jit.p2",
    "`scale` is 2.0. A jitted function that returns `scale * x` is called once. Then we set `scale = 10.0`. "
    "What does the function give for 3.0?",
    float,
)
nine_calls = Prediction(
    "jit.p3",
    "One jitted function is called nine times, in this order: on `1.0`, `2.0`, `3`, `jnp.float32(4)`, `jnp.zeros(3)`, "
    "`jnp.ones(3)`, `jnp.zeros(4)`, `(1.0, 2.0)`, `[1.0, 2.0]`. How many of the calls make a recording?",
    int,
)
whole_epochs = Prediction(
    "jit.p4",
    "We cut an epoch of 1,437 rows into batches of 1, 2, 3, 8, 16, 32, 50 and 64 rows, in turn. For how many of these "
    "eight sizes does the epoch need only *one* recording?",
    int,
)
unwaited = Prediction(
    "jit.p5",
    "We time `deep(big)`, ten products of two 800 × 800 matrices, with a stopwatch around the call alone, and then "
    "until the result is there. What share of the whole time does the first reading show?",
    ("nearly all", "about half", "nearly nothing"),
)
one_product = Prediction(
    "jit.p6",
    "How many times faster does `jit` make a single product of two 1000 × 1000 matrices? (1 means: no faster.)",
    float,
    within=2.0,
)


def _counted(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[bool]]:
    """Wrap a function so that it notes each of its calls: True where an argument was a tracer."""
    log: list[bool] = []

    def f(*args: Any) -> Any:
        log.append(is_traced(args))
        return function(*args)

    return f, log


def _normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _short(value: Any) -> str:
    """Describe without the numbers in an array: "f32[3]"; a text stands for itself."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_short(item) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float):
        return repr(value)
    return describe(value).split(" ")[0] if hasattr(value, "dtype") else describe(value)


def _call(name: str, *args: Any) -> str:
    """Write a call between backticks, arrays as dtype and shape only."""
    return f"`{name}({', '.join(_short(item) for item in args)})`"


@exercise("jit.1", "Read the recording", minutes=5, difficulty=1)
class recorded:
    """Write `recorded(f, *args)`: the names of the operations that JAX records when it traces `f` on `args`, as a
    list of strings, in order, also those whose results nothing uses. Only the top level counts: where an operation
    carries a recording of its own, name the operation and do not look inside.

    `recorded(lambda x: jnp.sin(x) * 2.0, 1.0)` gives `["sin", "mul"]`.
    """

    hints = (
        "`jax.make_jaxpr(f)` is a function: called like `f`, it gives the recording.",
        "The recording's `.eqns` is a list of its lines; each line has a `.primitive`.",
        "`.primitive.name` is the text that you want.",
    )
    why = "A jaxpr is data: a list of equations, each with a primitive, its inputs and its outputs."
    notes = (
        "Only there so that nobody leaves with the idea that a jaxpr is a print-out. Ask what the list would be for "
        "a function with a Python loop of three rounds: the loop is gone, its rounds are there."
    )

    @staticmethod
    def stub(f, *args):
        # one or two lines
        raise NotImplementedError

    @staticmethod
    def solution(f, *args):
        return [equation.primitive.name for equation in jax.make_jaxpr(f)(*args).eqns]

    @wrong("names were wanted")
    @staticmethod
    def how_many(f, *args):
        return len(jax.make_jaxpr(f)(*args).eqns)

    @wrong("as often as it was recorded")
    @staticmethod
    def each_once(f, *args):
        return list(dict.fromkeys(equation.primitive.name for equation in jax.make_jaxpr(f)(*args).eqns))

    @wrong("primitive objects")
    @staticmethod
    def objects(f, *args):
        return [equation.primitive for equation in jax.make_jaxpr(f)(*args).eqns]

    @wrong("only the top level")
    @staticmethod
    def looks_inside(f, *args):
        return primitives(f, *args)

    @wrong("change of dtype")
    @staticmethod
    def casts_the_arguments(f, *args):
        args = jax.tree.map(jnp.float32, args)
        return [equation.primitive.name for equation in jax.make_jaxpr(f)(*args).eqns]

    @wrong("change of dtype")
    @staticmethod
    def leaves_casts_out(f, *args):
        names = [equation.primitive.name for equation in jax.make_jaxpr(f)(*args).eqns]
        return [name for name in names if name != "convert_element_type"]

    @wrong("last operation first")
    @staticmethod
    def backwards(f, *args):
        return [equation.primitive.name for equation in jax.make_jaxpr(f)(*args).eqns][::-1]

    @staticmethod
    def check(answer):
        # The expected names are those of the operations that we put together ourselves.
        unary = {"sin": lax.sin, "cos": lax.cos, "tanh": lax.tanh, "neg": lax.neg, "abs": lax.abs, "floor": lax.floor}
        trials: list[tuple[Any, tuple[Any, ...], list[str]]] = []
        one = np.float32(1.5)
        loops = "A loop is one operation that carries a recording; it is listed, what it carries is not."
        unused = "What nothing uses is recorded all the same; only the compiler throws it away later."
        alone = (
            "A compiled function is one operation that carries a recording, also where it stands alone: do not open it."
        )
        for seed, length in ((0, 3), (1, 5), (2, 9)):
            names = [str(name) for name in np.random.default_rng(seed).choice(list(unary), size=length)]
            trials.append((_chain([unary[name] for name in names]), (_normal(seed, 2, 3),), names))

        def f(x, y):
            return lax.dot(x, y) if x.ndim == 2 else lax.mul(lax.sin(x), y)

        inner = jax.jit(lambda x: lax.sin(lax.exp(x)))
        # "jit" today, "pjit" in older versions: so ask.
        call = jax.make_jaxpr(inner)(1.0).eqns[0].primitive.name
        trials += [
            (f, (_normal(3, 2, 3), _normal(4, 3, 5)), ["dot_general"]),
            (f, (_normal(5, 4), _normal(6, 4)), ["sin", "mul"]),
            (lambda tree: lax.neg(inner(lax.add(tree["a"], tree["b"]))), ({"a": 1.0, "b": 2.0},), ["add", call, "neg"]),
            (lambda x: x, (1.0,), []),
        ]
        trials += [
            (
                lambda x: lax.sin(lax.convert_element_type(x, np.float32)),
                (np.arange(3),),
                ["convert_element_type", "sin"],
            ),
            (lambda n, x: lax.mul(lax.convert_element_type(n, x.dtype), x), (3, one), ["convert_element_type", "mul"]),
            (lambda x: lax.neg(lax.convert_element_type(x, np.int32)), (one,), ["convert_element_type", "neg"]),
        ]
        types = "A change of dtype is an operation like others; trace `f` on `args` with the dtypes that they have."
        causes = [""] * (len(trials) - 3) + [types] * 3 + [alone, alone, loops, loops, unused, unused]
        trials += [
            (inner, (one,), [call]),
            (jax.jit(jax.jit(lax.sin)), (one,), [call]),
            (lambda m, xs: lax.scan(lambda m, x: (lax.add(m, x), lax.sin(x)), m, xs), (one, _normal(7, 4)), ["scan"]),
            (lambda x: lax.neg(lax.while_loop(lambda x: x < 9, lambda x: x + x, x)), (one,), ["while", "neg"]),
            (lambda x: (lax.exp(x), lax.sin(x), lax.exp(x))[1], (one,), ["exp", "sin", "exp"]),
            (lambda x, y: (lax.tanh(lax.neg(y)), x)[1], (one, one), ["neg", "tanh"]),
        ]
        for (f, args, names), cause in zip(trials, causes, strict=True):
            _expect_names(attempt(answer, f, *args, name="recorded"), names, _call("recorded", "f", *args), cause)


def _chain(functions: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def f(x):
        for function in functions:
            x = function(x)
        return x

    return f


def _expect_names(got: Any, names: list[str], call: str, likely: str = "") -> None:
    wanted = f"expected {names!r}"
    expect(isinstance(got, (list, tuple)), f"{call} gave {describe(got)}; {wanted}. The names were wanted, in a list.")
    got = list(got)
    if got == names:
        return
    if any(hasattr(item, "name") for item in got):
        raise NotYet(f"{call} gave primitive objects; {wanted}. Take each one's `.name`.")
    shown = repr(got) if len(repr(got)) < 300 else repr(got)[:300] + "…"
    cause = likely or "Compare with the lines of `print(jax.make_jaxpr(f)(*args))`."
    if got == list(dict.fromkeys(names)):
        cause = "An operation is listed as often as it was recorded, not once."
    elif got == names[::-1]:
        cause = "That is the last operation first."
    elif len(got) > len(names):
        cause = "You list what stands inside inner recordings too; only the top level counts."
    raise NotYet(f"{call} gave {shown}; {wanted}. {cause}")


@exercise("jit.2", "A learning rate that may change", minutes=6, difficulty=2, core=True)
class make_step:
    """Write `make_step(loss)`, which returns a function `step(w, batch, rate)`, compiled as a whole. The step returns
    the new parameters, `w - rate * g`, where `g` is the gradient of `loss(w, batch)` with respect to `w` (an array).

    During training each call brings new parameters, a new batch and, as the learning rate decays, a new Python float
    `rate`. None of these may cost a new recording: on data of one shape `loss` is recorded at the first call only.
    """

    hints = (
        "What is frozen into a recording, and what comes in from outside each time?",
        "Define `step` inside `make_step`, use `jax.grad(loss)` in it, and return the jitted function.",
        "Jit it once, in `make_step`; all three of its arguments are ordinary, traced arguments.",
    )
    why = (
        "What changes from call to call is an argument; what stays, here `loss`, may be captured. One recording then "
        "serves every rate."
    )
    notes = (
        "The habit that it is after: hyperparameters that change are arguments. `static_argnames` for a float is the "
        "commonest cause of a training loop that compiles at every step of its schedule."
    )

    @staticmethod
    def stub(loss):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(loss):
        @jax.jit
        def step(w, batch, rate):
            return w - rate * jax.grad(loss)(w, batch)

        return step

    @wrong("new rate")
    @staticmethod
    def rate_is_static(loss):
        return jax.jit(lambda w, batch, rate: w - rate * jax.grad(loss)(w, batch), static_argnums=2)

    @wrong("not compiled")
    @staticmethod
    def never_compiled(loss):
        return lambda w, batch, rate: w - rate * jax.grad(loss)(w, batch)

    @wrong("as a whole")
    @staticmethod
    def compiles_the_gradient_only(loss):
        gradient = jax.jit(jax.grad(loss))
        return lambda w, batch, rate: w - rate * gradient(w, batch)

    @wrong("as a whole")
    @staticmethod
    def compiles_the_loss_only(loss):
        gradient = jax.grad(jax.jit(loss))
        return lambda w, batch, rate: w - rate * gradient(w, batch)

    @wrong("new function")
    @staticmethod
    def compiled_inside(loss):
        def step(w, batch, rate):
            return jax.jit(lambda w: w - rate * jax.grad(loss)(w, batch))(w)

        return step

    @wrong("uphill")
    @staticmethod
    def climbs(loss):
        return jax.jit(lambda w, batch, rate: w + rate * jax.grad(loss)(w, batch))

    @wrong("first call's batch")
    @staticmethod
    def keeps_first_batch(loss):
        kept = []

        def step(w, batch, rate):
            if not kept:
                kept.append(jax.jit(lambda w, rate: w - rate * jax.grad(loss)(w, batch)))
            return kept[0](w, rate)

        return step

    @wrong("first call's rate")
    @staticmethod
    def keeps_first_rate(loss):
        kept = []

        @jax.jit
        def inner(w, batch):
            return w - kept[0] * jax.grad(loss)(w, batch)

        def step(w, batch, rate):
            kept.append(rate)
            return inner(w, batch)

        return step

    @staticmethod
    def check(answer):
        for seed, rows, columns in ((0, 5, 3), (1, 4, 2)):
            loss, log = _counted(lambda w, batch: jnp.mean((batch[0] @ w - batch[1]) ** 2))
            step = attempt(answer, loss, name="make_step")
            expect(
                callable(step),
                f"`make_step(loss)` gave {describe(step)}; expected the function `step(w, batch, rate)`.",
            )
            first: Any = None
            traced = 0
            for number, rate in enumerate((0.1, 0.1, 0.02, 0.5)):
                w = _normal(seed + 20 + number, columns)
                x, y = _normal(seed + 30 + number, rows, columns), _normal(seed + 40 + number, rows)
                first = first or (w, (x, y))
                call = _call("step", w, (x, y), rate)
                got = attempt(step, w, (x, y), rate, name="step")
                _expect_step(got, w, (x, y), rate, first, call)
                expect(log, f"{call} never called `loss`, the function that `make_step` was given.")
                _expect_recorded_once(number, rate, traced, len(log), call)
                traced = len(log)
            w, x, y = (
                _normal(seed + 50, columns + 2),
                _normal(seed + 51, rows + 3, columns + 2),
                _normal(seed + 52, rows + 3),
            )
            got = attempt(step, w, (x, y), 0.3, name="step")
            _expect_step(got, w, (x, y), 0.3, (w, (x, y)), _call("step", w, (x, y), 0.3))
            _expect_compiled_whole(step, w, (x, y))


def _expect_compiled_whole(step: Any, w: Any, batch: Any) -> None:
    """Make sure that no arithmetic of a step stands outside what is compiled."""
    trace = jax.make_jaxpr(lambda w, batch: step(w, batch, 0.3))
    outer = [equation.primitive.name for equation in attempt(trace, w, batch, name="jax.make_jaxpr(step)").eqns]
    loose = [name for name in outer if name in ("mul", "sub", "add", "add_any", "neg", "div", "dot_general")]
    expect(
        not loose,
        f"`step` is right, but not compiled as a whole: {', '.join(dict.fromkeys(loose))} run one by one outside of "
        "`jax.jit`. Jit the step itself, gradient and update together.",
    )


def _step_gradient(w: Any, batch: Any) -> Any:
    x, y = batch
    return 2.0 / len(y) * x.T @ (x @ w - y)  # by hand


def _expect_step(got: Any, w: Any, batch: Any, rate: float, first: Any, call: str) -> None:
    gradient, (w_first, batch_first) = _step_gradient(w, batch), first
    stale = "is frozen into the recording; what changes must be an argument of the jitted function."
    mistakes = [
        (w - rate * _step_gradient(w, batch_first), f"It used the first call's batch, which {stale}"),
        (w - rate * _step_gradient(w_first, batch), f"It used the gradient at the first call's `w`, which {stale}"),
        (w - rate * _step_gradient(w_first, batch_first), f"It used the first call's gradient, which {stale}"),
        (w + rate * gradient, "That is a step uphill: subtract the gradient."),
        (w - 0.1 * gradient, "It used the first call's rate, 0.1: a value from outside is frozen into the recording."),
        (gradient, "That is the gradient; a step takes `rate` times it from `w`."),
        (w - gradient, "`rate` was left out."),
    ]
    expect_close(got, w - rate * gradient, call=call, mistakes=mistakes)


def _expect_recorded_once(number: int, rate: float, before: int, now: int, call: str) -> None:
    if number == 0 or before == now:
        return
    if number == 1:
        raise NotYet(
            f"{call} ran `loss` again, although shapes and rate were those of the call before. Either `step` is "
            "not compiled, or it jits a new function at each call, whose cache is empty."
        )
    raise NotYet(
        f"{call} recorded `loss` again for the new rate {rate}. A static argument costs a recording for each of its "
        "values; let `rate` be traced."
    )


@exercise("jit.3", "Count the traces", minutes=5, difficulty=2, core=True)
class count_traces:
    """Write `count_traces(f, inputs)`: how many times is `jax.jit(f)` traced when it is called on each of `inputs`, in
    that order? `f` takes one argument and has not been traced before; `inputs` is a list. Don't reason from shapes:
    observe.

    On `[jnp.zeros(3), jnp.ones(3), jnp.zeros(4)]` it gives 2.
    """

    hints = (
        "What runs at trace time and not afterwards? You saw it print.",
        "Wrap `f` in a Python function that adds one to a counter, and jit the wrapper.",
        "`nonlocal` or a one-element list will hold the counter. Define the wrapper once, outside the loop.",
    )
    why = "The wrapper's body runs only while recording, so its side effect counts recordings."
    notes = (
        "Everybody first writes a formula over shapes and dtypes. Let them: weak types, containers and NumPy's float64 "
        "then break it one after another, and observing wins. This is the one place where a side effect under "
        "`jit` is what you want."
    )

    @staticmethod
    def stub(f, inputs):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(f, inputs):
        traces = []

        def wrapper(x):
            traces.append(1)
            return f(x)

        compiled = jax.jit(wrapper)
        for x in inputs:
            compiled(x)
        return len(traces)

    @wrong("you counted 5 calls; only 3 of them were traced: same shape and dtype reuse the recording")
    @staticmethod
    def counts_calls(f, inputs):
        return len(inputs)

    @wrong("differ in dtype: float32 and int32 are recorded apart")
    @staticmethod
    def distinct_shapes(f, inputs):
        return len({jnp.shape(x) for x in inputs})

    @wrong("`1.0` and `f32[]`")
    @staticmethod
    def distinct_shapes_and_dtypes(f, inputs):
        return len({(jnp.shape(x), str(jnp.result_type(x))) for x in inputs})

    @wrong("other keys")
    @staticmethod
    def distinct_leaves(f, inputs):
        return len({tuple(str(jax.typeof(leaf)) for leaf in jax.tree.leaves(x)) for x in inputs})

    @wrong("each new function object starts with an empty cache; `jax.jit` of the same one does not")
    @staticmethod
    def wrapper_inside_the_loop(f, inputs):
        traces = []
        for x in inputs:

            def wrapper(x):
                traces.append(1)
                return f(x)

            jax.jit(wrapper)(x)
        return len(traces)

    @wrong("you counted 5 calls; only 3 of them were traced")
    @staticmethod
    def adds_one_after_the_call(f, inputs):
        compiled, calls = jax.jit(f), 0
        for x in inputs:
            compiled(x)
            calls += 1
        return calls

    @wrong("share a recording")
    @staticmethod
    def entries_of_the_cache(f, inputs):
        compiled = jax.jit(f)
        for x in inputs:
            compiled(x)
        return compiled._cache_size()  # pyright: ignore[reportAttributeAccessIssue]

    @wrong("was never called in some trials")
    @staticmethod
    def keys_by_hand(f, inputs):
        return len(
            {(str(jax.tree.structure(x)), *(str(jax.typeof(leaf)) for leaf in jax.tree.leaves(x))) for x in inputs}
        )

    @staticmethod
    def check(answer):
        reasoned = False
        for inputs, cause in _trace_trials():
            f, log = _counted(lambda x: jax.tree.map(lambda leaf: leaf * 2, x))
            got = attempt(answer, f, inputs, name="count_traces")
            _expect_traces(got, inputs, log, cause)
            reasoned = reasoned or (bool(inputs) and not log)
        expect(not reasoned, "All numbers agree, but `f` was never called in some trials: observe, don't reason.")


def _trace_trials() -> list[tuple[list[Any], str]]:
    """Give inputs, each list with what an answer by formula overlooks in it."""
    three, other, whole = jnp.array([1.5, -2.0, 3.0]), jnp.array([0.5, 4.0, -1.0]), jnp.array([3, -1, 2])
    dtypes = "The two arrays of shape (3,) differ in dtype: float32 and int32 are recorded apart."
    weak = (
        "`1.0` and `f32[]` have the same shape and dtype, but the Python number's type is weak: it gives way to the "
        "dtype that it meets, so it is recorded apart."
    )
    wide = (
        "JAX takes NumPy's arrays in as its own, float64 as float32 and int64 as int32 unless told otherwise: they "
        "share a recording."
    )
    structure = "The numbers in them are alike, but a dict with other keys is another structure."
    return [
        ([three, jnp.zeros(4), other, jnp.zeros(5), jnp.ones(4)], "A shape that was seen before makes no new recording."),
        ([three, other, whole], dtypes),
        ([jnp.zeros((2, 3)), jnp.zeros((3, 2)), jnp.ones((2, 3)), jnp.zeros(6)], "Shapes are compared as they are, in order."),
        ([1.0, 2.0, jnp.float32(3.0), 4, 5], weak),
        ([{"a": 1.0}, {"b": 1.0}, {"a": 2.0}], structure),
        ([(1.0, 2.0), [1.0, 2.0], (3.0, 4.0), (1.0, (2.0,))], "A tuple and a list are two structures, also inside."),
        ([jnp.ones(3), np.ones(3), np.ones(3, np.float32), np.arange(3), np.arange(3, dtype=np.int32)], wide),
        ([], "Nothing was called, so nothing was traced."),
        ([whole], "The first call is always traced."),
    ]  # fmt: skip


def _expect_traces(got: Any, inputs: list[Any], log: list[bool], cause: str) -> None:
    call = _call("count_traces", "f", inputs)
    f, observed = _counted(lambda x: jax.tree.map(lambda leaf: leaf * 2, x))
    compiled = jax.jit(f)
    for x in inputs:
        compiled(x)
    truth, ran = len(observed), len(log)
    is_number = isinstance(got, (int, np.integer)) and not isinstance(got, bool)
    if not is_number:
        is_array = isinstance(got, jax.Array) and got.ndim == 0 and jnp.issubdtype(got.dtype, jnp.integer)
        expect(is_array, f"{call} gave {describe(got)}; expected a whole number, {truth}.")
        got = int(got)
    happened = f"{truth} trace{'s' if truth != 1 else ''} happened"
    if got == truth:
        return
    if got == len(inputs) == ran and ran > 1:
        raise NotYet(
            f"{call} gave {got}; {happened} where one jitted function served all calls. You seem to jit a new function "
            "for each input: each new function object starts with an empty cache; `jax.jit` of the same one does not."
        )
    if got == len(inputs) > truth:
        raise NotYet(
            f"{call}: you counted {got} calls; only {truth} of them were traced: same shape and dtype reuse the recording."
        )
    raise NotYet(f"{call} gave {got}; {happened}. {cause}")


@exercise("jit.4", "A layer with any activation", minutes=6, difficulty=2)
class layer_with:
    """Write `layer_with(x, w, b, activation)`, a compiled function that returns `activation(x @ w + b)`. `activation`
    is any Python function of an array, such as `jnp.tanh`; it may also look at the whole array, as a softmax does.

    A second call with arrays of the same shapes and the same `activation` makes no new recording.
    """

    hints = (
        "Call it once without telling `jit` anything about `activation`, and read the error.",
        "A function is no array: it can only be part of what is recorded, so it is a static argument.",
        "`@partial(jax.jit, static_argnames=...)` above the `def`, with the argument's name.",
    )
    why = (
        "The function decides what is recorded, so it is static; a function is hashable and equal only to itself, so "
        "the same one finds the old recording."
    )
    notes = (
        "Ask what happens when somebody passes `lambda z: jnp.tanh(z)` at each call: a new object each time, a new "
        "recording each time, and nobody is told."
    )

    @staticmethod
    def stub(x, w, b, activation):
        # one line, and one above the def
        raise NotImplementedError

    @staticmethod
    @partial(jax.jit, static_argnames="activation")
    def solution(x, w, b, activation):
        return activation(x @ w + b)

    @wrong("not compiled")
    @staticmethod
    def never_compiled(x, w, b, activation):
        return activation(x @ w + b)

    @wrong("be told that this argument is static")
    @staticmethod
    def all_traced(x, w, b, activation):
        return jax.jit(lambda x, w, b, activation: activation(x @ w + b))(x, w, b, activation)

    @wrong("recorded again")
    @staticmethod
    def new_function_each_call(x, w, b, activation):
        return jax.jit(lambda x, w, b: activation(x @ w + b))(x, w, b)

    @wrong("by its hash")
    @staticmethod
    def all_static(x, w, b, activation):
        layer = jax.jit(lambda x, w, b, activation: activation(x @ w + b), static_argnums=(0, 1, 2, 3))
        return layer(x, w, b, activation)

    @wrong("row by row")
    @staticmethod
    def maps_the_activation(x, w, b, activation):
        return _activated_by_row(x, w, b, activation)

    @wrong("one after another")
    @staticmethod
    def only_the_activation(x, w, b, activation):
        return jax.jit(activation)(x @ w + b)

    @wrong("after the activation")
    @staticmethod
    def bias_outside(x, w, b, activation):
        return _bias_outside(x, w, b, activation)

    @staticmethod
    def check(answer):
        by_hand = {
            "tanh": (jnp.tanh, np.tanh),
            "halved": (lambda z: z / 2, lambda z: z / 2),
            "relu": (lambda z: jnp.maximum(z, 0), lambda z: np.maximum(z, 0)),
            # These look at more than one number: along each axis, and at all.
            "centred": (lambda z: z - jnp.mean(z, axis=0), lambda z: z - np.mean(z, axis=0)),
            "running": (lambda z: jnp.cumsum(z, axis=-1), lambda z: np.cumsum(z, axis=-1)),
            "shares": (lambda z: z / jnp.sum(jnp.abs(z)), lambda z: z / np.sum(np.abs(z))),
        }
        for seed, (rows, inner, columns) in ((0, (5, 3, 2)), (1, (1, 4, 6))):
            for ours, expected in by_hand.values():
                activation, log = _counted(ours)
                for again in range(2):
                    x, w, b = (
                        _normal(seed + again, rows, inner),
                        _normal(seed + 2, inner, columns),
                        _normal(seed + 3, columns),
                    )
                    _expect_layer(answer, (x, w, b, activation), expected)
                    call = _call("layer_with", x, w, b, "activation")
                    expect(log, f"{call} never called `activation`.")
                    expect(all(log), f"{call} ran `activation` on plain numbers: `layer_with` is not compiled.")
                    expect(
                        not again or len(log) == 1,
                        f"{call} was recorded again, for the same shapes and the same `activation`. "
                        "Does it jit a new function object at each call?",
                    )
        x, w, b = _normal(4, 3, 2), _normal(5, 2, 5), _normal(6, 5)
        outside = _top_level(lambda *args: answer(*args, jnp.tanh), x, w, b)
        expect(
            "dot_general" not in outside,
            f"Right numbers, but only a part of `layer_with` is compiled: {', '.join(outside)} run one after another.",
        )


def _top_level(function: Callable[..., Any], *args: Any) -> list[str]:
    """List what a function would launch: a compiled function is one operation."""
    jaxpr = attempt(lambda *values: jax.make_jaxpr(function)(*values), *args, name="layer_with")
    return [equation.primitive.name for equation in jaxpr.eqns]


@partial(jax.jit, static_argnames="activation")
def _activated_by_row(x, w, b, activation):
    return jax.vmap(activation)(x @ w + b)


@partial(jax.jit, static_argnames="activation")
def _bias_outside(x, w, b, activation):
    return activation(x @ w) + b


def _expect_layer(answer: Any, args: tuple[Any, ...], expected: Callable[[Any], Any]) -> None:
    x, w, b, _ = args
    call = _call("layer_with", x, w, b, "activation")
    try:
        got = attempt(answer, *args, name="layer_with")
    except NotYet as verdict:
        if "abstract array" in str(verdict):
            raise NotYet(
                f"{call} raised `TypeError`: the function `activation` cannot be traced. It is no array, so `jit` must "
                "be told that this argument is static."
            ) from None
        if "hash" in str(verdict):
            raise NotYet(
                f"{call} raised `ValueError`: a static argument is looked up by its hash, and an array has none. "
                "Only `activation` is static."
            ) from None
        raise
    z = x @ w + b
    mistakes = [
        (np.stack([expected(row) for row in z]), "You applied `activation` row by row; it is given the whole array."),
        (expected(x @ w) + b, "You added `b` after the activation; it belongs inside."),
        (z, "The activation is missing."),
    ]
    expect_close(got, expected(z), call=call, mistakes=mistakes)


@exercise("jit.5", "Mend the branch", minutes=6, difficulty=2, core=True)
class shrink:
    """This function shortens a vector that is too long. It works, until somebody compiles it:

    ```python
    def shrink(x, limit):
        norm = jnp.sqrt(jnp.sum(x**2))
        if norm > limit:
            return x * (limit / norm)
        return x
    ```

    Write `shrink(x, limit)` so that it gives the same under `jax.jit`, with `x` and `limit` both traced, for `x` of
    any shape (the norm is over all its numbers), an array of zeros included. `limit` is above 0. The same means down to
    rounding, for short arrays and small limits too.
    """

    hints = (
        "Compile it as it stands and read which line the error points at.",
        "Compute both outcomes and choose with `jnp.where(condition, a, b)`, or hand both to `lax.cond`.",
        "`jnp.where(norm > limit, x * (limit / norm), x)`.",
    )
    why = (
        "The condition's value is not known while recording, so both outcomes are recorded and the choice is made "
        "when it runs."
    )
    notes = (
        "`x * jnp.minimum(1, limit / norm)` and `lax.cond` are as good. Ask which of them would survive `grad` at "
        "zero (chapter 02: none without a safe norm)."
    )

    @staticmethod
    def stub(x, limit):
        # two or three lines
        raise NotImplementedError

    @staticmethod
    def solution(x, limit):
        norm = jnp.sqrt(jnp.sum(x**2))
        return jnp.where(norm > limit, x * (limit / norm), x)

    @wrong("Python `if`")
    @staticmethod
    def as_it_stands(x, limit):
        norm = jnp.sqrt(jnp.sum(x**2))
        if norm > limit:
            return x * (limit / norm)
        return x

    @wrong("short already")
    @staticmethod
    def always_scales(x, limit):
        return x * (limit / jnp.maximum(jnp.sqrt(jnp.sum(x**2)), 1e-9))

    @wrong("each number by itself")
    @staticmethod
    def clips_each_number(x, limit):
        return jnp.minimum(jnp.maximum(x, -limit), limit)

    @wrong("other way round")
    @staticmethod
    def branches_swapped(x, limit):
        norm = jnp.sqrt(jnp.sum(x**2))
        return lax.cond(norm > limit, lambda: x, lambda: x * (limit / jnp.maximum(norm, 1e-9)))

    @wrong("NumPy was given a traced value")
    @staticmethod
    def numpy_norm(x, limit):
        norm = np.linalg.norm(x)
        return jnp.where(norm > limit, x * (limit / norm), x)

    @wrong("0 by 0")
    @staticmethod
    def nan_at_zero(x, limit):
        norm = jnp.sqrt(jnp.sum(x**2))
        return x / norm * jnp.minimum(norm, limit)

    @wrong("epsilon")
    @staticmethod
    def adds_to_the_norm(x, limit):
        return x * jnp.minimum(1.0, limit / (jnp.sqrt(jnp.sum(x**2)) + 1e-6))

    @wrong("floor")
    @staticmethod
    def floors_the_limit(x, limit):
        norm, limit = jnp.sqrt(jnp.sum(x**2)), jnp.maximum(limit, 1e-4)
        return jnp.where(norm > limit, x * (limit / norm), x)

    @wrong("the square of the norm")
    @staticmethod
    def forgets_the_root(x, limit):
        square = jnp.sum(x**2)
        return jnp.where(square > limit, x * (limit / jnp.sqrt(square)), x)

    @wrong("each row by itself")
    @staticmethod
    def norm_of_each_row(x, limit):
        norm = jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True))
        return jnp.where(norm > limit, x * (limit / norm), x)

    @staticmethod
    def check(answer):
        trials = [
            (_normal(0, 5) * 3, 1.0),
            (_normal(1, 5) * 0.1, 1.0),
            (_normal(2, 2, 3) * 4, 2.5),
            (_normal(3, 2, 3), 50.0),
            (_normal(4, 3, 1, 2) * 9, 0.25),
            (np.float32(-3.0), 2.0),
            (np.zeros(4, np.float32), 1.0),
            (np.zeros((2, 2), np.float32), 1e-4),
        ]
        # Just above and just below the limit, for small and large limits.
        for seed, limit in enumerate((1e-4, 0.03, 0.4, 7.0, 3000.0, 1e-7)):
            for ratio in (1.15, 0.85):
                x = _normal(10 + seed, 7)
                trials.append((x * np.float32(ratio * limit / np.linalg.norm(x)), limit))
        for x, limit in trials:
            _expect_shrunk(answer, x, limit)


def _expect_shrunk(answer: Any, x: Any, limit: float) -> None:
    got = attempt(lambda *args: jax.jit(answer)(*args), x, limit, name="jax.jit(shrink)")
    call = call_text(answer, (x, limit), name="jax.jit(shrink)")
    norm = float(np.linalg.norm(np.ravel(x)))
    rows = np.linalg.norm(np.atleast_1d(x), axis=-1, keepdims=True)
    mistakes = [
        (np.clip(x, -limit, limit), "You cut each number by itself; the whole array is scaled by one factor."),
        (x * np.minimum(1.0, limit / np.maximum(rows, 1e-30)), "You took each row by itself; the norm is over all."),
    ]
    if norm:
        both = (x * (limit / norm), "That is scaled although it is short already." if norm <= limit else "")
        swapped = (x, "It is too long and came back as it was: the branches are the other way round, or missing.")
        mistakes = [both, swapped, *mistakes]
        if (norm > limit) != (norm**2 > limit):
            of_square = x * (limit / norm) if norm**2 > limit else x
            mistakes.insert(0, (of_square, "Did you compare the square of the norm with `limit`, or forget a root?"))
        if limit < 1e-6:
            mistakes.insert(0, (x, "It is too long and came back as it was: is there a floor under norm or limit?"))
        for epsilon in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8):
            for longer in (norm + epsilon, math.sqrt(norm**2 + epsilon)):
                mistakes.append(
                    (x * min(1.0, limit / longer), f"You added an epsilon, {epsilon:g}; it is not small here.")
                )
    else:
        mistakes.append((np.full_like(x, np.nan), "NaN: something divides 0 by 0 and is not thrown away."))
    cause = "Norm and limit may be tiny: put no floor under either."
    expected = x * (limit / norm) if norm > limit else x
    expect_close(got, expected, call=call, cause=cause, mistakes=mistakes, atol=1e-5 * limit)


@exercise("jit.6", "A running average", minutes=8, difficulty=3)
class running_average:
    """Write `running_average(xs, decay)`: starting from `m = 0`, for each row `x` of `xs` in order
    `m = decay * m + (1 - decay) * x`; return all the `m`, stacked, in the shape of `xs` (`(n,)` or `(n, d)`, floats).

    It runs under `jit`, and its recording is as long for a thousand rows as for four.
    `running_average(jnp.array([4.0, 8.0]), 0.5)` gives `[2, 5]`.
    """

    hints = (
        "A Python loop is unrolled: each row adds lines to the recording. Which of JAX's loops collects outputs?",
        "`lax.scan(step, start, xs)` calls `step(carry, x)`, which returns the new carry and what to collect.",
        "Carry and collected value are the same here: `return m, m`. The start has the shape of one row.",
    )
    why = "`lax.scan` records its step once; what it returns second is stacked for you."
    notes = (
        "Most first attempts return the carry only. A product with a triangular matrix of weights passes too; ask what "
        "memory it takes. Dividing by powers of `decay` does not pass: over many rows they become 0."
    )

    @staticmethod
    def stub(xs, decay):
        # about 5 lines
        raise NotImplementedError

    @staticmethod
    def solution(xs, decay):
        def step(m, x):
            m = decay * m + (1 - decay) * x
            return m, m

        return lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]

    @wrong("grows with the rows")
    @staticmethod
    def python_loop(xs, decay):
        m, collected = jnp.zeros_like(xs[0]), []
        for x in xs:
            m = decay * m + (1 - decay) * x
            collected.append(m)
        return jnp.stack(collected)

    @wrong("powers of `decay`")
    @staticmethod
    def divides_by_powers(xs, decay):
        powers = (decay ** jnp.arange(len(xs))).reshape(-1, *[1] * (xs.ndim - 1))
        return (1 - decay) * powers * jnp.cumsum(xs / powers, axis=0)

    @wrong("far back")
    @staticmethod
    def only_a_window(xs, decay):
        kernel = (1 - decay) * decay ** jnp.arange(500)
        flat = xs.reshape(len(xs), -1)
        columns = [jnp.convolve(flat[:, i], kernel)[: len(xs)] for i in range(flat.shape[1])]
        return jnp.stack(columns, axis=1).reshape(xs.shape)

    @wrong("only the last")
    @staticmethod
    def last_only(xs, decay):
        return lax.scan(lambda m, x: (decay * m + (1 - decay) * x, None), jnp.zeros_like(xs[0]), xs)[0]

    @wrong("before the row")
    @staticmethod
    def collects_old(xs, decay):
        return lax.scan(lambda m, x: (decay * m + (1 - decay) * x, m), jnp.zeros_like(xs[0]), xs)[1]

    @wrong("weights are swapped")
    @staticmethod
    def swapped(xs, decay):
        def step(m, x):
            m = (1 - decay) * m + decay * x
            return m, m

        return lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]

    @wrong("first row")
    @staticmethod
    def starts_at_first_row(xs, decay):
        def step(m, x):
            m = decay * m + (1 - decay) * x
            return m, m

        return lax.scan(step, xs[0], xs)[1]

    @staticmethod
    def check(answer):
        for seed, shape, decay in ((0, (6,), 0.5), (1, (4, 3), 0.9), (2, (9, 2), 0.2), (3, (1, 5), 0.75)):
            _expect_averages(answer, _normal(seed, *shape), decay)
        short, long = (len(primitives(answer, _normal(4, rows, 2), 0.9)) for rows in (4, 40))
        expect(
            long == short,
            f"Right numbers, but the recording grows with the rows: {short} operations for 4 rows, {long} for 40. "
            "A Python loop is unrolled while recording; give the step to one of JAX's loops.",
        )
        # Powers of the first two decays vanish long before the last row; the others remember far back.
        for seed, shape, decay in ((4, (300, 2), 0.3), (5, (1500,), 0.9), (6, (1500, 2), 0.999), (7, (2000,), 0.9995)):
            _expect_averages(answer, _normal(seed, *shape) + np.float32(3), decay)


def _expect_averages(answer: Any, xs: Any, decay: float) -> None:
    got = attempt(lambda *args: jax.jit(answer)(*args), xs, decay, name="jax.jit(running_average)")
    call = call_text(answer, (xs, decay), name="jax.jit(running_average)")
    exact = xs.astype(np.float64)
    right = _averages(exact, decay)
    mistakes = [
        (right[-1], "That is only the last average; all of them are wanted, stacked."),
        (
            np.concatenate([0 * right[:1], right[:-1]]),
            "Each average is from before the row that it belongs to.",
        ),
        (_averages(exact, 1 - decay), "The two weights are swapped: `decay` belongs to the old average."),
        (_averages(exact, decay, exact[0]), "You started at the first row; start at 0."),
    ]
    cause = ""
    if len(xs) > 100:
        finite = getattr(got, "shape", None) == xs.shape and np.isfinite(np.asarray(got)).all()
        cause = (
            "The first rows agree. Does it cut off what lies far back? Old rows never leave the average entirely."
            if finite
            else "Do you divide by powers of `decay`? Over many rows they become 0 in float32."
        )
    expect_close(got, right, call=call, mistakes=mistakes, cause=cause)


def _averages(xs: Any, decay: float, start: Any = 0.0) -> Any:
    m, collected = start, []
    for x in xs:
        m = decay * m + (1 - decay) * x
        collected.append(m)
    return np.stack(collected)


@exercise("jit.7", "An honest stopwatch", minutes=8, difficulty=3)
class run_seconds:
    """Write `run_seconds(f, x, runs)`: call `f(x)` once untimed and wait for its result; then call it `runs` times
    more, and return a list of `runs` numbers: for each of these calls the seconds from just before it until its result
    is *ready*. `f` may return any pytree of arrays; the call itself may take time, too.
    """

    hints = (
        "The call returns at once; what have you got in hand then?",
        "`time.perf_counter()` before the call; wait for the result; then read the clock again.",
        "`jax.block_until_ready(result)` waits for every array in a pytree. Wait for the first, untimed call too.",
    )
    why = "The clock is read when the result exists, and the first call, which compiles, is kept out."
    notes = (
        "It is checked with results that note whether somebody waited for them, so the check knows the true times. "
        "Ask why a mean would be a poor summary of the list."
    )

    @staticmethod
    def stub(f, x, runs):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(f, x, runs):
        jax.block_until_ready(f(x))
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            jax.block_until_ready(f(x))
            seconds.append(time.perf_counter() - start)
        return seconds

    @wrong("waited")
    @staticmethod
    def never_waits(f, x, runs):
        f(x)
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            f(x)
            seconds.append(time.perf_counter() - start)
        return seconds

    @wrong("called `f` 4 times")
    @staticmethod
    def first_call_included(f, x, runs):
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            jax.block_until_ready(f(x))
            seconds.append(time.perf_counter() - start)
        return seconds

    @wrong("clock was read before")
    @staticmethod
    def waits_after_the_clock(f, x, runs):
        jax.block_until_ready(f(x))
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            result = f(x)
            seconds.append(time.perf_counter() - start)
            jax.block_until_ready(result)
        return seconds

    @wrong("expected a list")
    @staticmethod
    def one_number(f, x, runs):
        jax.block_until_ready(f(x))
        start = time.perf_counter()
        for _ in range(runs):
            jax.block_until_ready(f(x))
        return (time.perf_counter() - start) / runs

    @wrong("started after the call")
    @staticmethod
    def waiting_only(f, x, runs):
        jax.block_until_ready(f(x))
        seconds = []
        for _ in range(runs):
            result = f(x)
            start = time.perf_counter()
            jax.block_until_ready(result)
            seconds.append(time.perf_counter() - start)
        return seconds

    @wrong("pytree")
    @staticmethod
    def arrays_only(f, x, runs):
        f(x).block_until_ready()
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            f(x).block_until_ready()
            seconds.append(time.perf_counter() - start)
        return seconds

    @wrong("result of the untimed call")
    @staticmethod
    def first_call_unawaited(f, x, runs):
        f(x)
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            jax.block_until_ready(f(x))
            seconds.append(time.perf_counter() - start)
        return seconds

    @staticmethod
    def check(answer):
        for runs, wrap in (
            (4, lambda result, other: result),
            (3, lambda result, other: (result, {"b": other})),
        ):
            problem = ""
            for _ in range(5):  # another program may take the processor away in the middle of a run
                problem = _stopwatch_problem(answer, runs, wrap)
                if not problem:
                    break
            expect(not problem, problem)


class _Pending:
    """Stands for an array that is still being computed; notes when somebody has waited for it."""

    def __init__(self, called: float, seconds: float) -> None:
        self.called = called
        self.due = self.called + seconds
        self.ready = 0.0

    def block_until_ready(self) -> "_Pending":
        time.sleep(max(0.0, self.due - time.perf_counter()))
        self.ready = self.ready or time.perf_counter()
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.block_until_ready()
        return np.zeros(1, dtype)


def _stopwatch_problem(answer: Any, runs: int, wrap: Callable[[Any, Any], Any]) -> str:
    """Run the answer once on results that are ready late; "" where its times are the true ones."""
    late = (0.012, 0.03, 0.02, 0.016)
    busy = (0.0, 0.01, 0.02, 0.0)  # the part of it that the call itself takes: some of it, all, nothing
    given: list[list[_Pending]] = []

    def f(x):
        called, turn = time.perf_counter(), len(given) % 4
        pending = [_Pending(called, seconds if given else 0.08) for seconds in (late[turn], 0.004)]
        given.append(pending)
        time.sleep(busy[turn])
        return wrap(*pending)

    call = f"`run_seconds(f, x, {runs})`"
    got = _attempt_stopwatch(answer, f, runs, call)
    expect(isinstance(got, (list, tuple)), f"{call} gave {describe(got)}; expected a list of {runs} numbers.")
    expect(len(got) == runs, f"{call} gave {len(got)} numbers; expected {runs}.")
    numbers = all(isinstance(item, (int, float, np.number)) for item in got)
    expect(numbers, f"{call} gave {describe(got)}; expected a list of plain numbers.")
    expect(
        len(given) == runs + 1,
        f"{call} called `f` {len(given)} times; expected {runs + 1}: one untimed, which compiles, then {runs} timed.",
    )
    used = [[item for item in results if item in jax.tree.leaves(wrap(*results))] for results in given]
    for number, results in enumerate(used[1:], 1):
        expect(
            all(item.ready for item in results),
            f"{call}: nobody waited for the result of timed call {number}, so the clock saw only the asking.",
        )
    expect(
        all(item.ready for item in used[0]) and max(item.ready for item in used[0]) <= used[1][0].called,
        f"{call}: nobody waited for the result of the untimed call before the first timed one, which then queues "
        "behind it.",
    )
    for number, (mine, results) in enumerate(zip(got, used[1:], strict=True), 1):
        true = max(item.ready for item in results) - results[0].called
        shown = f"{call}: timed call {number} took {true * 1e3:.1f} ms until its result was ready; you give {float(mine) * 1e3:.1f} ms."
        if mine < true - 1e-3:
            return f"{shown} The clock was read before the result was ready, or started after the call."
        if mine > true + 8e-3:
            return f"{shown} Only that call and its waiting belong in its time."
    return ""


def _attempt_stopwatch(answer: Any, f: Callable[..., Any], runs: int, call: str) -> Any:
    try:
        return attempt(answer, f, 1.0, runs, name="run_seconds")
    except NotYet as verdict:
        if "'block_until_ready'" in str(verdict):
            raise NotYet(
                f"{call} raised `AttributeError`: `f` returned a pytree of arrays here, which has no "
                "`.block_until_ready()`. `jax.block_until_ready(result)` takes any pytree."
            ) from None
        raise


@exercise("jit.8", "How large would it be?", minutes=6, difficulty=3)
class result_bytes:
    """Write `result_bytes(f, *specs)`: how many bytes the results of `f` would take in memory, without computing
    anything. Each of `specs` is a `jax.ShapeDtypeStruct`, the shape and dtype of one argument; `f` returns any
    pytree of arrays; each leaf counts, like ones too. It must work where the results would not fit into any machine.
    """

    hints = (
        "Tracing needs shapes and dtypes only. Which function traces and gives back those of the results?",
        "`jax.eval_shape(f, *specs)` gives the pytree of results with shapes and dtypes in place of arrays.",
        "Sum `leaf.size * leaf.dtype.itemsize` over `jax.tree.leaves` of it.",
    )
    why = "Shapes and dtypes are known from tracing alone, so the memory is known before a byte of it is taken."
    notes = "The same trick answers *will this model fit?* in Part 5, where nobody has the machine at hand."

    @staticmethod
    def stub(f, *specs):
        # two lines
        raise NotImplementedError

    @staticmethod
    def solution(f, *specs):
        results = jax.eval_shape(f, *specs)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(results))

    @wrong("ran `f` on real arrays")
    @staticmethod
    def computes(f, *specs):
        results = f(*(jnp.zeros(spec.shape, spec.dtype) for spec in specs))
        return sum(leaf.nbytes for leaf in jax.tree.leaves(results))

    @wrong("4 bytes")
    @staticmethod
    def always_four(f, *specs):
        return sum(leaf.size * 4 for leaf in jax.tree.leaves(jax.eval_shape(f, *specs)))

    @wrong("number of elements")
    @staticmethod
    def elements(f, *specs):
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(f, *specs)))

    @wrong("arguments")
    @staticmethod
    def of_the_arguments(f, *specs):
        return sum(spec.size * spec.dtype.itemsize for spec in specs)

    @wrong("each leaf counts")
    @staticmethod
    def like_ones_once(f, *specs):
        leaves = {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(f, *specs))}
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in leaves)

    @wrong("first of its results")
    @staticmethod
    def first_result(f, *specs):
        first = jax.tree.leaves(jax.eval_shape(f, *specs))[0]
        return first.size * first.dtype.itemsize

    @staticmethod
    def check(answer):
        for function, specs, leaves in _size_trials():
            f, log = _counted(function)
            got = attempt(answer, f, *specs, name="result_bytes")
            shown = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)
            call = f"`result_bytes(f, {shown})`"
            expect(all(log), f"{call} ran `f` on real arrays; trace it instead, that needs no memory for them.")
            sizes = [math.prod(shape) for shape, _ in leaves]
            parts = [size * width for size, (_, width) in zip(sizes, leaves, strict=True)]
            mistakes = [
                (sum(sizes) * 4, "You took every element for 4 bytes; the dtype says how many."),
                (sum(sizes), "That is the number of elements; each takes `dtype.itemsize` bytes."),
                (sum(spec.size * spec.dtype.itemsize for spec in specs), "That is the size of the arguments."),
                (sum(parts[:1]), "That is the first of its results; `f` returns several."),
                (
                    sum(math.prod(shape) * width for shape, width in set(leaves)),
                    "Results of one shape and dtype were taken for one: each leaf counts.",
                ),
                (
                    sum(part for part, (shape, _) in zip(parts, leaves, strict=True) if shape),
                    "A scalar takes bytes, too.",
                ),
            ]
            if isinstance(got, bool) or not is_close(got, sum(parts), rtol=0, atol=0):
                expect_close(
                    got, sum(parts), call=call, mistakes=mistakes, rtol=0, atol=0, cause="Sum over all leaves."
                )
                raise NotYet(f"{call} gave {got!r}; expected {sum(parts)}.")


def _size_trials() -> list[tuple[Callable[..., Any], tuple[Any, ...], list[tuple[tuple[int, ...], int]]]]:
    """Give functions, their arguments, and by hand the shapes of their results and bytes per element."""
    spec = jax.ShapeDtypeStruct
    return [
        (
            lambda x, w: {"out": x @ w, "mean": jnp.mean(x)},
            (spec((5, 3), jnp.float32), spec((3, 7), jnp.float32)),
            [((), 4), ((5, 7), 4)],
        ),
        (lambda x: (x > 0, x.astype(jnp.int8), -x), (spec((4, 6), jnp.float32),), [((4, 6), 1), ((4, 6), 1), ((4, 6), 4)]),
        (lambda x: jnp.outer(x, x), (spec((9,), jnp.bfloat16),), [((9, 9), 2)]),
        (
            lambda x, y: [x + 1, {"a": -x, "b": (x * y, y > x)}],
            (spec((6,), jnp.int32), spec((6,), jnp.int32)),
            [((6,), 4), ((6,), 4), ((6,), 4), ((6,), 1)],
        ),
        (
            lambda x, y: (x[:0], x[0, 0], lax.complex(x, x), jnp.mean(x)),
            (spec((3, 2), jnp.float32), spec((50,), jnp.int8)),
            [((0, 2), 4), ((), 4), ((3, 2), 8), ((), 4)],
        ),
        (lambda x: {"none": None, "empty": ()}, (spec((8,), jnp.float16),), []),
        # Nothing below this line would fit into any machine.
        (
            lambda x: [jnp.outer(x, x), jnp.sum(x)],
            (spec((3_000_000,), jnp.bfloat16),),
            [((3_000_000, 3_000_000), 2), ((), 2)],
        ),
    ]  # fmt: skip


@exercise("jit.9", "The short last batch", minutes=12, difficulty=4)
class mean_over:
    """Write `mean_over(f, rows, size)`: the mean of `f` over all rows of `rows`, a NumPy array of shape `(n, d)`,
    n ≥ 1. `f` takes exactly `size` rows, `(size, d)`, and gives one number for each, `(size,)`. `n` need not be a
    multiple of `size`, and may be smaller.

    `f` arrives untraced and not jitted; compile it (a loop of `lax` does, too), so that it is traced **once** in all. What it gives for a row of
    padding, a number or NaN, must not reach the mean; a NaN that it gives for one of `rows` must.
    """

    hints = (
        "What makes a second recording, and what could you add to the last batch so that it does not?",
        "Pad the last batch to `size` rows, call the compiled `f`, and keep only the numbers of the real rows.",
        "Slice the padding off: NaN times 0 is still NaN. Divide by the number of real rows.",
    )
    why = (
        "Every batch has one shape, so one recording serves; what the padding gave is sliced off, not multiplied by 0."
    )
    notes = (
        "The mean of the batches' means is the classic slip: the last batch then weighs too much. Padding to a few "
        "fixed sizes is how serving systems keep the number of compilations down."
    )

    @staticmethod
    def stub(f, rows, size):
        # about 8 lines
        raise NotImplementedError

    @staticmethod
    def solution(f, rows, size):
        compiled = jax.jit(f)
        total = 0.0
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            padded = np.zeros((size, rows.shape[1]), rows.dtype)
            padded[: len(part)] = part
            total += np.asarray(compiled(padded))[: len(part)].sum()
        return total / len(rows)

    @wrong("was given 1 row")
    @staticmethod
    def unpadded(f, rows, size):
        compiled, total = jax.jit(f), 0.0
        for start in range(0, len(rows), size):
            total += float(compiled(rows[start : start + size]).sum())
        return total / len(rows)

    @wrong("padding")
    @staticmethod
    def padding_counted(f, rows, size):
        compiled = jax.jit(f)
        padded = np.pad(rows, ((0, -len(rows) % size), (0, 0)))
        parts = [compiled(padded[start : start + size]) for start in range(0, len(padded), size)]
        return np.mean(np.concatenate(parts))

    @wrong("left out")
    @staticmethod
    def last_batch_dropped(f, rows, size):
        compiled = jax.jit(f)
        parts = [compiled(rows[start : start + size]) for start in range(0, len(rows) - size + 1, size)]
        return np.mean(np.concatenate(parts)) if parts else 0.0

    @wrong("weighs")
    @staticmethod
    def mean_of_means(f, rows, size):
        compiled, means = jax.jit(f), []
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            padded = np.pad(part, ((0, size - len(part)), (0, 0)))
            means.append(float(compiled(padded)[: len(part)].mean()))
        return sum(means) / len(means)

    @wrong("NaN from the padding")
    @staticmethod
    def mask_by_multiplying(f, rows, size):
        compiled, total = jax.jit(f), 0.0
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            padded = np.pad(part, ((0, size - len(part)), (0, 0)))
            total += float((compiled(padded) * np.where(np.arange(size) < len(part), 1.0, 0.0)).sum())
        return total / len(rows)

    @wrong("NaN from one of `rows`")
    @staticmethod
    def skips_every_nan(f, rows, size):
        compiled = jax.jit(f)
        total, count = 0.0, 0
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            values = np.asarray(compiled(np.pad(part, ((0, size - len(part)), (0, 0)))))[: len(part)]
            total, count = total + np.nansum(values), count + np.sum(~np.isnan(values))
        return total / max(count, 1)

    @wrong("padding reach the mean")
    @staticmethod
    def marks_padding_with_nan(f, rows, size):
        compiled = jax.jit(f)
        padded = np.pad(rows, ((0, -len(rows) % size), (0, 0)), constant_values=np.nan)
        values = np.concatenate([compiled(padded[start : start + size]) for start in range(0, len(padded), size)])
        return values.mean() if np.isnan(values[: len(rows)]).any() else np.nanmean(values)

    @wrong("`jax.vmap` alone")
    @staticmethod
    def vmap_without_jit(f, rows, size):
        padded = np.pad(rows, ((0, -len(rows) % size), (0, 0)))
        return jax.vmap(f)(padded.reshape(-1, size, rows.shape[1])).ravel()[: len(rows)].mean()

    @wrong("plain numbers")
    @staticmethod
    def never_compiled(f, rows, size):
        total = 0.0
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            padded = np.pad(part, ((0, size - len(part)), (0, 0)))
            total += float(f(padded)[: len(part)].sum())
        return total / len(rows)

    @staticmethod
    def check(answer):
        sizes = ((7, 3, 3), (6, 2, 3), (10, 4, 4), (2, 3, 5), (23, 2, 8), (5, 2, 1), (301, 3, 32), (1, 3, 4))
        for seed, (n, d, size) in enumerate(sizes):
            rows = _normal(seed, n, d)
            _expect_mean(answer, rows, size, lambda x: jnp.sum(x * x, axis=1), np.sum(rows * rows, axis=1))
            # 0/0 on a row of zeros
            ratio = rows[:, 0] ** 2 / np.sum(rows * rows, axis=1)
            _expect_mean(answer, rows, size, lambda x: x[:, 0] ** 2 / jnp.sum(x * x, axis=1), ratio)
            if n % size:  # a number for whatever padding, NaN included
                cosines = np.cos(rows[:, -1])
                _expect_mean(
                    answer, rows, size, lambda x: jnp.where(jnp.isnan(x[:, -1]), 5.0, jnp.cos(x[:, -1])), cosines
                )
        for seed, (n, size, at) in enumerate(((7, 3, 6), (8, 4, 0))):
            rows = _normal(seed + 20, n, 2)
            rows[at] = -1.0, 2.0
            logs = np.where(np.arange(n) == at, np.nan, np.log(np.abs(rows[:, 0])))
            log_or_nan = lambda x: jnp.where(x[:, 1] == 2, jnp.log(x[:, 0]), jnp.log(jnp.abs(x[:, 0])))  # noqa: E731
            _expect_mean(answer, rows, size, log_or_nan, logs)


def _expect_mean(answer: Any, rows: Any, size: int, function: Callable[[Any], Any], values: Any) -> None:
    shapes: list[tuple[int, ...]] = []
    compiled: list[bool] = []

    def noted(x):
        shapes.append(tuple(jnp.shape(x)))
        compiled.append(is_traced(jnp.zeros(())))  # under `vmap` alone what does not depend on `x` is computed at once
        return function(x)

    f, log = _counted(noted)
    call = _call("mean_over", "f", rows, size)
    got = attempt(answer, f, rows, size, name="mean_over")
    expect(log, f"{call} never called `f`.")
    for shape in shapes:
        given = f"{shape[0] if shape else 'no'} row{'' if shape and shape[0] == 1 else 's'}"
        fits = shape == (size, rows.shape[1])
        expect(fits, f"{call}: `f` was given {given}, shape {shape}; expected always {size}. Pad the short batch.")
    expect(all(log), f"{call}: `f` ran on plain numbers; it is not compiled.")
    expect(all(compiled), f"{call}: `f` is not compiled; `jax.vmap` alone runs it operation by operation. Jit it.")
    expect(len(log) == 1, f"{call}: `f` was traced {len(log)} times; expected once. Jit it once, outside the loop.")
    n = len(rows)
    batches = [values[start : start + size] for start in range(0, n, size)]
    whole = values[: n // size * size]
    mistakes = [
        (
            np.nanmean(values),
            "It skipped a NaN from one of `rows`, and the mean looks sound: only what the padding gave is left out.",
        ),
        (np.sum(values) / (len(batches) * size), "You divided by the rows with padding; only the real ones count."),
        (
            np.mean([batch.mean() for batch in batches]),
            "The mean of the batches' means: a short batch weighs too much.",
        ),
        (np.mean(whole) if len(whole) else 0.0, "The rows of the short last batch are left out."),
        (np.nan, "NaN from the padding reached the mean: 0 times NaN is NaN. Slice the padding off."),
    ]
    cause = "Does what `f` gives for the padding reach the mean?"
    expect_close(got, np.mean(values), call=call, mistakes=mistakes, cause=cause)
