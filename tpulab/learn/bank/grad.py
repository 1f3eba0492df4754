"""Chapter 02: grad."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...compat import is_traced
from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import attempt, expect, expect_close, is_close
from ..words import call_text, describe
from . import Chapter

chapter = Chapter(
    "02_grad",
    "grad: a function goes in, its gradient function comes out",
    reading_minutes=30,
    needs=("01_pure_functions",),
)

body_runs = Prediction(
    "grad.p1",
    "`noisy` prints a line whenever its body runs. How many lines appear when `jax.grad(noisy)` is *made*, and how "
    "many in total when what it gave is then called on 2.0 and on 3.0?",
    {"made": int, "called": int},
)
best_step = Prediction(
    "grad.p2",
    "We check a gradient in float32 by the central difference `(f(x + h) - f(x - h)) / (2 * h)`. Which of these `h` "
    "comes nearest to the truth?",
    ("1e-1", "1e-2", "1e-4", "1e-6"),
)
while_slope = Prediction(
    "grad.p3",
    "This loop runs as often as its input demands:\n\n"
    "```python\ndef past_hundred(x):\n    while x < 100:\n        x = 2 * x\n    return x\n```\n\n"
    "`past_hundred(3.0)` is 192. What is `jax.grad(past_hundred)(3.0)`?",
    float,
)
corners = Prediction(
    "grad.p4",
    "At a corner a function has no slope, and JAX answers anyway. What does `jax.grad` give at 0.0 for these three?",
    {"jax.nn.relu(x)": float, "jnp.maximum(x, 0.0)": float, "jnp.abs(x)": float},
)
where_slope = Prediction(
    "grad.p5",
    "`root(x)` is `jnp.where(x > 0, jnp.sqrt(x), 0.0)`. It gives 2 for 4.0, and 0 for 0.0 and for -1.0. What is "
    "`jax.grad(root)(-1.0)`?",
    ("-0.5", "0", "inf", "nan"),
)
products = Prediction(
    "grad.p6",
    "`chain` is four layers without relu: `x = x @ w` for each of 4 square weight matrices `w`, then a mean of squares. "
    "So it takes 4 matrix products. How many does its gradient for all 4 weights take (forward pass included; no "
    "gradient for the batch `x`)?",
    int,
)


# --- references in float64 NumPy --------------------------------------------------------------------


def _random(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _wide(tree: Any) -> Any:
    """The same containers with float64 leaves."""
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64), tree)


def _differences(loss: Callable[[Any], Any], params: Any, h: float = 1e-6) -> Any:
    """The gradient of a NumPy loss by central differences in float64, for any pytree of arrays."""
    leaves, tree = jax.tree.flatten(_wide(params))
    slopes = [np.zeros(leaf.shape) for leaf in leaves]
    for leaf, slope in zip(leaves, slopes, strict=True):
        for at in np.ndindex(leaf.shape):
            kept = leaf[at]
            leaf[at] = kept + h
            above = loss(jax.tree.unflatten(tree, leaves))
            leaf[at] = kept - h
            below = loss(jax.tree.unflatten(tree, leaves))
            leaf[at] = kept
            slope[at] = (above - below) / (2 * h)
    return jax.tree.unflatten(tree, slopes)


def _descent(loss: Callable[[Any], Any], params: Any, lr: float, steps: int) -> tuple[Any, list[float]]:
    """Gradient descent in float64 with slopes from differences; `losses` has one entry more than `steps`."""
    params, losses = _wide(params), [float(loss(params))]
    for _ in range(steps):
        params = jax.tree.map(lambda p, g: p - lr * g, params, _differences(loss, params))
        losses.append(float(loss(params)))
    return params, losses


def _equations(jaxpr: Any, repeats: int = 1) -> Iterator[tuple[Any, int]]:
    """Give each equation of a jaxpr with how often it runs, inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield equation, repeats
        times = repeats * equation.params.get("length", 1) if equation.primitive.name == "scan" else repeats
        for parameter in equation.params.values():
            for item in parameter if isinstance(parameter, (list, tuple)) else (parameter,):
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner, times)


def _recorded(function: Callable[..., Any], *args: Any, name: str) -> list[tuple[Any, int]]:
    jaxpr = attempt(lambda *values: jax.make_jaxpr(function)(*values), *args, name=name)
    return list(_equations(jaxpr.jaxpr))


def _multiply_adds(equations: list[tuple[Any, int]]) -> int:
    """Count the multiply-adds of all recorded matrix products."""
    total = 0
    for equation, repeats in equations:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += repeats * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
    return total


def _largest(equations: list[tuple[Any, int]]) -> int:
    """Give the number of elements of the largest array that is computed on the way."""
    sizes = [getattr(out.aval, "size", 0) for equation, _ in equations for out in equation.outvars]
    return max(sizes, default=0)


# --- exercises --------------------------------------------------------------------------------------


@exercise("grad.1", "The tangent line", minutes=5, difficulty=1, core=True)
class tangent:
    """Write `tangent(f, x0)`, which returns a **function**: the line that touches `f` at the number `x0`.

    `tangent(f, x0)(x)` is `f(x0)` plus the slope of `f` at `x0`, times `x - x0`. `f` takes a number and
    gives a number, and may branch on it in Python; `x` may be a number or an array. Use `jax.grad`, no differences.

    Example: for `f = lambda x: x**2` and `x0 = 3.0` the line is `9 + 6 * (x - 3)`, so `tangent(f, 3.0)(4.0)` is 15.
    """

    hints = (
        "Two numbers describe the line: the value of `f` at `x0` and its slope there. Compute both first.",
        "`jax.grad(f)` is a function; call it on `x0` to get the slope. Then return a `lambda x: ...`.",
        "`value, slope = f(x0), jax.grad(f)(x0)`, then `return lambda x: value + slope * (x - x0)`.",
    )
    why = "`jax.grad(f)` is a function like any other: you call it where you need the slope, here once, at `x0`."
    notes = (
        "After it: people who write `jax.grad(f(x0))`. Ask what type `f(x0)` has, and what a number could tell `grad` "
        "about how it was computed. In PyTorch it could: the tensor carries its tape."
    )

    @staticmethod
    def stub(f, x0):
        # about 2 lines; return a function
        raise NotImplementedError

    @staticmethod
    def solution(f, x0):
        value, slope = f(x0), jax.grad(f)(x0)
        return lambda x: value + slope * (x - x0)

    @wrong("wants a function back")
    @staticmethod
    def gives_the_slope(f, x0):
        return jax.grad(f)(x0)

    @wrong("slope at `x`")
    @staticmethod
    def slope_where_asked(f, x0):
        return lambda x: f(x0) + jnp.vectorize(jax.grad(f))(x) * (x - x0)

    @wrong("x - x0")
    @staticmethod
    def forgets_the_shift(f, x0):
        return lambda x: f(x0) + jax.grad(f)(x0) * x

    @wrong("height")
    @staticmethod
    def forgets_the_height(f, x0):
        return lambda x: jax.grad(f)(x0) * (x - x0)

    @wrong("never ran under a transformation")
    @staticmethod
    def uses_differences(f, x0):
        slope = (f(x0 + 1e-2) - f(x0 - 1e-2)) / 2e-2
        return lambda x: f(x0) + slope * (x - x0)

    @wrong("only about right")
    @staticmethod
    def throws_the_gradient_away(f, x0):
        jax.grad(f)(x0)
        slope = (f(x0 + 1e-2) - f(x0 - 1e-2)) / 2e-2
        return lambda x: f(x0) + slope * (x - x0)

    @wrong("TypeError")
    @staticmethod
    def differentiates_a_number(f, x0):
        slope = jax.grad(f(x0))
        return lambda x: f(x0) + slope * (x - x0)

    @staticmethod
    def check(answer):
        lines: dict[float, tuple[float, float]] = {}  # height and slope of the line before, by its place
        cases = (
            (lambda x: x**3 - 2 * x, lambda x: 3 * x**2 - 2, 1.5),
            (lambda x: 1 / (1 + x * x), lambda x: -2 * x / (1 + x * x) ** 2, -0.75),
            (lambda x: x * jnp.sin(x), lambda x: np.sin(x) + x * np.cos(x), 2.25),
            (lambda x: x * x if x > 0 else -3 * x, lambda x: 2 * x if x > 0 else -3.0, -1.25),
            (lambda x: 5 - x * x, lambda x: -2 * x, 1.5),  # a place as before with another function,
            (lambda x: 5 - x * x, lambda x: -2 * x, -0.75),  # and as that with another one again
            # Too curved for long steps, too far from zero for short ones.
            (lambda x: 100 + jnp.sin(10 * x), lambda x: 10 * np.cos(10 * x), 1.25),
        )
        kept = []
        for f, slope, x0 in cases:
            traced = []

            def watched(x, f=f, traced=traced):
                traced.append(is_traced(x))
                return f(x)

            line = attempt(answer, watched, x0, name="tangent")
            call = call_text(answer, ("f", x0), name="tangent").replace("'", "")
            expect(callable(line), f"{call} gave {describe(line)}; the exercise wants a function back, the line.")
            slope0, value = float(slope(x0)), float(f(x0))
            earlier = lines.get(x0)
            lines[x0] = value, slope0
            kept.append((line, call, value, slope0, x0))
            for x in (x0 + 2.0, -0.5, np.array([-2.0, 0.5, 3.0], np.float32), np.ones((2, 3), np.float32)):
                got = attempt(line, x, name="tangent(f, x0)")
                everywhere = np.vectorize(lambda at, slope=slope: float(slope(at)))(x)
                expect_close(
                    got,
                    value + slope0 * (np.float64(1) * x - x0),
                    call=f"{call[:-1]}({describe(x)})`, with `f(x0)` = {value:.6g} and slope {slope0:.6g} there,",
                    cause="The line is `f(x0)` plus the slope at `x0` times `(x - x0)`.",
                    mistakes=[
                        (
                            value + everywhere * (x - x0),
                            "You took the slope at `x`; a line has one slope, that at `x0`.",
                        ),
                        (value + slope0 * x, "The slope is multiplied by `x - x0`, not by `x`."),
                        (slope0 * (x - x0), "The height is missing: add `f(x0)`."),
                        (
                            earlier and earlier[0] + earlier[1] * (x - x0),
                            "That is the line of another `f` at the same place: keep nothing between two calls.",
                        ),
                    ],
                    rtol=1e-3,  # looser than float32 needs: differences are judged below, with better words
                    atol=1e-3,
                )
            expect(
                any(traced),
                f"{call}: `f` never ran under a transformation, so the slope came from differences. They are only "
                "about right in float32; `jax.grad(f)(x0)` is exact to rounding.",
            )
        for line, call, value, slope0, x0 in kept:
            expect_close(
                attempt(line, 0.5, name="tangent(f, x0)"),
                value + slope0 * (0.5 - x0),
                call=f"{call[:-1]}(0.5)`, asked again after other lines were made,",
                cause="Each line is to keep its own height and slope.",
                rtol=1e-3,
                atol=1e-3,
            )
            expect_close(
                attempt(line, x0 + 1000, name="tangent(f, x0)"),
                value + slope0 * 1000,
                call=f"{call[:-1]}({x0 + 1000})`, far out, where a small error of the slope shows,",
                cause="The slope is only about right: take that of `jax.grad`, not one from differences.",
                rtol=4e-5,
            )


@exercise("grad.2", "Gradient descent, any parameters", minutes=8, difficulty=2, core=True)
class descend:
    """Write `descend(loss, params, lr, steps)`: plain gradient descent, `steps` times.

    - `loss(params)` gives a number. `params` is **any** pytree of float arrays: a dict, a list of dicts, one array.
    - One step replaces each leaf `p` by `p - lr * g`, where `g` is the gradient of the loss for that leaf.
    - Return `(params, losses)`: the parameters after the last step, in the same containers, and a list (or an array)
      with the loss **before** each step: `steps` entries, however the loss behaves. Let NaN and large gradients pass.
    - `loss` may be expensive: run it once per step. Leave the `params` that you were given as they were.

    Example: for `loss = lambda p: p**2`, `params = 4.0`, `lr = 0.25`, `steps = 2` it returns `(1.0, [16.0, 4.0])`.
    """

    hints = (
        "`jax.value_and_grad(loss)` gives value and gradient from one run of the loss.",
        "The gradient has the same containers as `params`; `jax.tree.map` takes a function and several such trees.",
        "`params = jax.tree.map(lambda p, g: p - lr * g, params, grads)` makes new parameters and changes no old ones.",
    )
    why = "`value_and_grad` runs the loss once, and `jax.tree.map` does not care how the parameters are nested."
    notes = (
        'People write `params["w"] -= ...`: it works for one dict and changes the caller\'s. Ask what happens to a '
        "colleague who starts a second run from the same initial parameters."
    )

    @staticmethod
    def stub(loss, params, lr, steps):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
            losses.append(value)
        return params, losses

    @wrong("uphill")
    @staticmethod
    def climbs(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            params = jax.tree.map(lambda p, g: p + lr * g, params, grads)
            losses.append(value)
        return params, losses

    @wrong("ran 10 times for 5 steps")
    @staticmethod
    def runs_twice(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            losses.append(loss(params))
            grads = jax.grad(loss)(params)
            params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        return params, losses

    @wrong("that you were given have changed")
    @staticmethod
    def changes_in_place(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            for name in params:
                params[name] = params[name] - lr * grads[name]
            losses.append(value)
        return params, losses

    @wrong("raised")
    @staticmethod
    def only_flat_dicts(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            params = {name: params[name] - lr * grads[name] for name in params}
            losses.append(value)
        return params, losses

    @wrong("before each step")
    @staticmethod
    def losses_afterwards(loss, params, lr, steps):
        losses = []
        for step in range(steps + 1):
            value, grads = jax.value_and_grad(loss)(params)
            losses.append(value)
            if step < steps:
                params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        return params, losses[1:]

    @wrong("gradient at the start")
    @staticmethod
    def one_gradient_for_all(loss, params, lr, steps):
        _, grads = jax.value_and_grad(loss)(params)
        losses = []
        for _ in range(steps):
            losses.append(loss(params))
            params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        return params, losses

    @wrong("all steps")
    @staticmethod
    def stops_early(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            if losses and losses[-1] - value < 1e-5:
                break
            losses.append(value)
            params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        return params, losses

    @wrong("all steps")
    @staticmethod
    def stops_at_nan(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            if jnp.isnan(value):
                break
            losses.append(value)
            params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        return params, losses

    @wrong("large or NaN")
    @staticmethod
    def hides_nan(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            params = jax.tree.map(lambda p, g: p - lr * jnp.nan_to_num(g), params, grads)
            losses.append(jnp.nan_to_num(value))
        return params, losses

    @wrong("gradient as it is")
    @staticmethod
    def clips_the_gradient(loss, params, lr, steps):
        losses = []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            params = jax.tree.map(lambda p, g: p - lr * jnp.clip(g, -100, 100), params, grads)
            losses.append(value)
        return params, losses

    @wrong("lowest loss")
    @staticmethod
    def keeps_the_best(loss, params, lr, steps):
        losses, seen = [], []
        for _ in range(steps):
            value, grads = jax.value_and_grad(loss)(params)
            losses.append(value)
            seen.append(params)
            params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        rising = losses[-1] > losses[0]
        return (seen[int(np.argmin(losses))] if rising else params), losses

    @staticmethod
    def check(answer):
        for loss_with, params, lr, steps in _descent_cases():
            before, runs = _wide(params), []

            def loss(p, loss_with=loss_with, runs=runs):
                runs.append(1)
                return loss_with(jnp, p)

            def loss64(p, loss_with=loss_with):
                return loss_with(np, p)

            call = call_text(answer, ("loss", params, lr, steps), name="descend").replace("'loss'", "loss")
            # Not copied: the check looks whether the caller's own parameters survive.
            got = attempt(lambda: answer(loss, params, lr, steps), name="descend")  # noqa: B023
            expect(
                isinstance(got, (tuple, list)) and len(got) == 2,
                f"{call} gave {describe(got)}; expected two things, `(params, losses)`.",
            )
            _expect_descent(call, got, loss64, before, lr, steps)
            expect(
                is_close(_wide(params), before, rtol=0, atol=0),
                f"{call}: the `params` that you were given have changed. Build new containers, e.g. with "
                "`jax.tree.map`, instead of assigning into the old ones.",
            )
            expect(
                len(runs) <= steps,
                f"{call}: `loss` ran {len(runs)} times for {steps} steps. `jax.value_and_grad` gives value and "
                "gradient from one run.",
            )


def _descent_cases() -> Iterator[tuple[Callable[[Any, Any], Any], Any, float, int]]:
    """Give loss (of the array module and the parameters), parameters, learning rate and steps."""
    w, b, x, y = _random(21, (3, 2), (2,), (7, 3), (7, 2))

    def layer(xp, p):
        return xp.mean((xp.maximum(x @ p["w"] + p["b"], 0.0) - y) ** 2)

    yield layer, {"w": w, "b": b}, 0.125, 5
    c, target = _random(22, (6,), (6,))
    yield lambda xp, p: xp.sum((c * p - target) ** 2), c + 1, 0.0625, 1
    w1, w2, b2, scale = _random(23, (4, 5), (5, 2), (2,), ())
    x4, y2 = _random(24, (3, 4), (3, 2))

    def nested(xp, p):
        first, (second, bias) = p["layers"]
        return xp.mean((p["scale"] * (xp.tanh(x4 @ first["w"]) @ second + bias) - y2) ** 2)

    yield nested, {"layers": [{"w": w1}, (w2, b2)], "scale": np.asarray(scale)}, 0.03125, 4
    # At the minimum after one step, climbing away from it, and a loss that is tiny from the start.
    yield lambda xp, p: (p - 1.5) ** 2, 4.0, 0.5, 4
    yield lambda xp, p: xp.sum((p["v"] - 1) ** 2) + p["u"] ** 2, {"v": c, "u": np.asarray(scale)}, 1.25, 3
    yield (
        lambda xp, p: 1e-7 * xp.sum(sum((q - n) ** 2 for n, q in enumerate(p))),
        list(_random(25, *[(2,)] * 11)),
        1e6,
        4,
    )
    yield lambda xp, p: 1e4 * xp.sum((p["v"] - 1) ** 2), {"v": c}, 2.0**-16, 3  # gradients in the thousands
    yield _root, {"v": np.asarray(4.0, np.float32)}, 20.0, 6  # NaN after one step


def _root(xp: Any, p: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return xp.sqrt(p["v"])


def _expect_descent(call: str, got: Any, loss64: Callable[[Any], Any], start: Any, lr: float, steps: int) -> None:
    params, losses = got
    expected, values = _descent(loss64, start, lr, steps)
    best, _ = _descent(loss64, start, lr, int(np.nanargmin(values)))
    slope = _differences(loss64, start)
    up, _ = _descent(loss64, start, -lr, steps)
    straight = jax.tree.map(lambda p, g: p - steps * lr * g, start, slope)
    expect(
        isinstance(losses, (list, tuple)) or hasattr(losses, "shape"),
        f"{call} gave {describe(losses)} as losses; expected a list of {steps} numbers.",
    )
    expect(
        len(losses) == steps,
        f"{call} gave {len(losses)} losses; expected {steps}, one before each step and none after the last. Take all "
        "steps, even where the loss no longer falls.",
    )
    expect_close(
        params,
        expected,
        call=f"{call}: `params`",
        cause="Each step replaces every leaf by `p - lr * g`, with the gradient as it is, large or NaN, at the current "
        "parameters.",
        mistakes=[
            (up, "You went uphill: subtract `lr` times the gradient."),
            (best, "Those are the parameters with the lowest loss; the ones after the last step are wanted."),
            (straight, "Every step used the gradient at the start; take it anew at the current parameters."),
            (start, "The parameters came back unchanged: the function must return the new ones."),
        ],
        rtol=1e-3,
    )
    expect_close(
        [np.asarray(loss) for loss in losses],
        [np.asarray(value) for value in values[:-1]],
        call=f"{call}: `losses`",
        cause="They are the losses before each step, in order and as they are, NaN too.",
        mistakes=[(values[1:], "These are the losses after each step; the list has those before each step.")],
        rtol=1e-3,
    )


@exercise("grad.3", "Freeze some parameters", minutes=5, difficulty=2)
class freeze:
    """Write `freeze(loss, names)`, which returns a function of the same arguments as `loss`: same values, but with a
    gradient of **zero** for the parameters in `names`.

    `loss(params, *batch)` gives a number; `params` is a dict whose values are arrays or further containers of arrays;
    `names` are some of its own keys (equal keys of inner dicts are not meant). All other gradients stay as they are,
    and so does the `params` that comes in.

    Example: `jax.grad(freeze(loss, ["w"]))(params, x, y)` is what `jax.grad(loss)(params, x, y)` is, with zeros for
    `"w"`.
    """

    hints = (
        "`jax.lax.stop_gradient(p)` has the value of `p` and is a constant for `grad`.",
        "Build a new dict in which the named entries went through `stop_gradient`, and give that to `loss`.",
        "`{name: lax.stop_gradient(p) if name in names else p for name, p in params.items()}`",
    )
    why = "`stop_gradient` is the identity with a derivative of zero; it works on whole pytrees."
    notes = (
        "Compare with PyTorch's `requires_grad_(False)`: there being frozen is a property of the tensor, here of one "
        "loss function. Two freezings of the same parameters can live side by side."
    )

    @staticmethod
    def stub(loss, names):
        # about 5 lines; return a function
        raise NotImplementedError

    @staticmethod
    def solution(loss, names):
        def frozen(params, *batch):
            held = {name: lax.stop_gradient(p) if name in names else p for name, p in params.items()}
            return loss(held, *batch)

        return frozen

    @wrong("stopped the gradient of everything")
    @staticmethod
    def stops_everything(loss, names):
        return lambda params, *batch: lax.stop_gradient(loss(params, *batch))

    @wrong("the other way round")
    @staticmethod
    def inverted(loss, names):
        def frozen(params, *batch):
            held = {name: p if name in names else lax.stop_gradient(p) for name, p in params.items()}
            return loss(held, *batch)

        return frozen

    @wrong("value")
    @staticmethod
    def puts_zeros(loss, names):
        def frozen(params, *batch):
            held = {name: jax.tree.map(jnp.zeros_like, p) if name in names else p for name, p in params.items()}
            return loss(held, *batch)

        return frozen

    @wrong("the loss itself")
    @staticmethod
    def gives_gradients(loss, names):
        def frozen(params, *batch):
            grads = jax.grad(loss)(params, *batch)
            return {name: jax.tree.map(jnp.zeros_like, g) if name in names else g for name, g in grads.items()}

        return frozen

    @wrong("not frozen")
    @staticmethod
    def freezes_only_the_first(loss, names):
        def frozen(params, *batch):
            held = {name: lax.stop_gradient(p) if name == [*names, ""][0] else p for name, p in params.items()}
            return loss(held, *batch)

        return frozen

    @wrong("whole name")
    @staticmethod
    def freezes_parts_of_names(loss, names):
        def frozen(params, *batch):
            held = {name: lax.stop_gradient(p) if name in "/".join(names) else p for name, p in params.items()}
            return loss(held, *batch)

        return frozen

    @wrong("inner dict")
    @staticmethod
    def freezes_inner_keys(loss, names):
        def hold(path, p):
            return lax.stop_gradient(p) if any(getattr(key, "key", None) in names for key in path) else p

        return lambda params, *batch: loss(jax.tree.map_with_path(hold, params), *batch)

    @wrong("with respect to the batch")
    @staticmethod
    def freezes_the_batch(loss, names):
        def frozen(params, *batch):
            held = {name: lax.stop_gradient(p) if name in names else p for name, p in params.items()}
            return loss(held, *lax.stop_gradient(batch))

        return frozen

    @wrong("changed the `params`")
    @staticmethod
    def writes_into_params(loss, names):
        def frozen(params, *batch):
            for name in names:
                params[name] = jax.tree.map(lax.stop_gradient, params[name])
            return loss(params, *batch)

        return frozen

    @staticmethod
    def check(answer):
        w1, b1, w2, scale, x, y = _random(41, (3, 4), (4,), (4, 2), (), (5, 3), (5, 2))
        flat = {"w1": w1, "b1": b1, "w2": w2}
        nested = {"first": {"w": w1, "b": b1}, "second": [w2, np.asarray(scale)]}

        def flat_loss(xp, p, x, y):
            return xp.mean((xp.maximum(x @ p["w1"] + p["b1"], 0.0) @ p["w2"] - y) ** 2)

        def nested_loss(xp, p, x):
            return xp.sum(xp.tanh(x @ p["first"]["w"] + p["first"]["b"]) @ p["second"][0] * p["second"][1])

        alike = {"w": w1, "w1": w2, "b": {"w": b1, "b": y[0]}, "w10": [np.asarray(scale)]}

        def alike_loss(xp, p, x, y):
            return xp.mean(((xp.tanh(x @ p["w"] + p["b"]["w"]) @ p["w1"] + p["b"]["b"]) * p["w10"][0] - y) ** 2)

        cases = (
            (flat_loss, flat, (x, y), ["w1"]),
            (flat_loss, flat, (x[:3], -y[:3]), ("w2", "b1")),
            (flat_loss, flat, (x, y), []),
            (nested_loss, nested, (x,), {"second"}),
            (nested_loss, nested, (2 * x,), ("first",)),
            (alike_loss, alike, (x, y), ["w1"]),
            (alike_loss, alike, (x, y), ["w"]),
            (alike_loss, alike, (x, y), ("w10", "b")),
        )
        for loss_with, params, batch, names in cases:

            def loss(p, *rest, loss_with=loss_with):
                return loss_with(jnp, p, *rest)

            def loss64(p, loss_with=loss_with, batch=batch):
                return loss_with(np, p, *_wide(batch))

            frozen = attempt(answer, loss, names, name="freeze")
            call = f"freeze(loss, {names!r})"
            expect(callable(frozen), f"`{call}` gave {describe(frozen)}; expected a function like `loss`.")
            expect_close(
                attempt(frozen, params, *batch, name=call),
                np.asarray(loss64(_wide(params))),
                call=f"`{call}(params, ...)`",
                cause="It must be the loss itself, with the value that it had before: only its gradient changes.",
                rtol=3e-5,
            )
            slopes = _differences(loss64, params)
            zeros = jax.tree.map(np.zeros_like, slopes)
            live = {name: zeros[name] if name in names else slope for name, slope in slopes.items()}
            inverse = {name: slope if name in names else zeros[name] for name, slope in slopes.items()}
            changed = []

            def watched(own, *rest, frozen=frozen, changed=changed):
                leaves, containers = jax.tree.flatten(own)
                value = frozen(own, *rest)
                after, now = jax.tree.flatten(own)
                changed.append(now != containers or any(a is not b for a, b in zip(leaves, after, strict=True)))
                return value

            got = attempt(jax.grad(watched), params, *batch, name=f"jax.grad({call})")
            expect(
                not any(changed),
                f"`{call}(params, ...)` changed the `params` that came in. Put the frozen ones into a new dict.",
            )
            expect(
                jax.tree.structure(got) == jax.tree.structure(params),
                f"`jax.grad({call})(params, ...)` gave {describe(got)}; expected the containers of `params`.",
            )
            paths = jax.tree.map_with_path(lambda path, _: [getattr(key, "key", None) for key in path], slopes)
            inner = jax.tree.map(
                lambda slope, keys, names=names: slope * (not any(key in names for key in keys)), slopes, paths
            )
            nothing = is_close(got, zeros, rtol=0, atol=0)
            for name in sorted(params):
                expect_close(
                    got[name],
                    live[name],
                    call=f"`jax.grad({call})(params, ...)[{name!r}]`",
                    cause=f"{name!r} is not frozen: its gradient should be zero."
                    if name in names
                    else f"{name!r} is not among the names; its gradient should be that of `loss`.",
                    mistakes=[
                        (inverse[name], "It is the other way round: the named ones get zeros.")
                        if is_close(got, inverse, rtol=1e-3)
                        else (zeros[name], "You stopped the gradient of everything, not of the named ones alone.")
                        if nothing
                        else (zeros[name], "Compare the whole name: one name may be part of another.")
                        if not isinstance(params[name], dict)
                        else (
                            inner[name],
                            "The names are keys of `params` itself; an equal key of an inner dict stays live.",
                        )
                    ],
                    rtol=1e-3,
                )
            expect_close(
                attempt(jax.grad(frozen, argnums=1), params, *batch, name=f"jax.grad({call}, argnums=1)"),
                _differences(lambda x: loss_with(np, _wide(params), x, *_wide(batch[1:])), batch[0]),  # noqa: B023
                call=f"`jax.grad({call}, argnums=1)(params, ...)`",
                cause="The gradient with respect to the batch stays as it is: only named entries of `params` are frozen.",
                rtol=1e-3,
            )


@exercise("grad.4", "A gradient without grad", minutes=6, difficulty=2)
class numerical_gradient:
    """Write `numerical_gradient(f, x, h)`: the gradient of `f` at `x` by central differences, without any of JAX's
    transformations (no `grad`, `vmap` or `jit`): `f` sees plain arrays of the shape of `x`. It is what you will check
    other people's gradients with.

    `x` is a float array of any shape, `f(x)` a number. Entry `i` of the result, which has the shape of `x`, is
    `(f(x with h added to entry i) - f(x with h subtracted from entry i)) / (2 * h)`. Leave `x` as it was.

    Example: `f = lambda v: v[0] ** 3 + v[1]`, `x = np.array([1.0, 5.0])`, `h = 0.5` gives `[3.25, 1.0]`. (The exact
    gradient is `[3, 1]`; with an `h` as large as this the difference shows.)
    """

    hints = (
        "One entry at a time: two calls of `f` for each.",
        "`np.ndindex(x.shape)` runs over the indices of an array of any shape.",
        "Make `step = np.zeros_like(x)`, set `step[i] = h`, and use `f(x + step)` and `f(x - step)`.",
    )
    why = (
        "Two evaluations per entry, nothing else: an independent witness, slow (2n calls) and only about right, "
        "which is why it checks gradients and does not replace them."
    )
    notes = "The large `h` in the check tells central from one-sided differences and both from the exact gradient."

    @staticmethod
    def stub(f, x, h):
        # about 6 lines, NumPy
        raise NotImplementedError

    @staticmethod
    def solution(f, x, h):
        gradient = np.zeros(x.shape)
        for i in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[i] = h
            gradient[i] = (f(x + step) - f(x - step)) / (2 * h)
        return gradient

    @wrong("one-sided")
    @staticmethod
    def forward_difference(f, x, h):
        gradient = np.zeros(x.shape)
        for i in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[i] = h
            gradient[i] = (f(x + step) - f(x)) / h
        return gradient

    @wrong("2 * h")
    @staticmethod
    def divides_by_h(f, x, h):
        gradient = np.zeros(x.shape)
        for i in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[i] = h
            gradient[i] = (f(x + step) - f(x - step)) / h
        return gradient

    @wrong("exact gradient")
    @staticmethod
    def uses_grad(f, x, h):
        return jax.grad(f)(x)

    @wrong("all entries at once")
    @staticmethod
    def moves_everything(f, x, h):
        return (f(x + h) - f(x - h)) / (2 * h) * np.ones_like(x)

    @wrong("put back")
    @staticmethod
    def leaves_the_step_in(f, x, h):
        gradient, moved = np.zeros(x.shape), x.copy()
        for i in np.ndindex(x.shape):
            moved[i] = x[i] + h
            above = f(moved)
            moved[i] = x[i] - h
            gradient[i] = (above - f(moved)) / (2 * h)
        return gradient

    @wrong("transformation")
    @staticmethod
    def uses_vmap(f, x, h):
        steps = h * np.eye(x.size).reshape(x.size, *x.shape)
        return ((jax.vmap(f)(x + steps) - jax.vmap(f)(x - steps)) / (2 * h)).reshape(x.shape)

    @wrong("left `x` changed")
    @staticmethod
    def changes_x(f, x, h):
        gradient, kept = np.zeros(x.shape), x.copy()
        for i in np.ndindex(x.shape):
            x[...] = kept
            x[i] = kept[i] + h
            above = f(x)
            x[i] = kept[i] - h
            gradient[i] = (above - f(x)) / (2 * h)
        return gradient

    @staticmethod
    def check(answer):
        cases = ((31, (4,), 0.5), (32, (2, 3), 0.25), (33, (5, 1, 2), 0.125), (34, (1,), 0.0625), (35, (), 0.5))
        for seed, shape, h in cases:
            c, x = (np.array(array, np.float64) for array in _random(seed, shape, shape))
            c, seen, own = c + 2.0, [], x.copy()

            def f(v, c=c, seen=seen):
                seen.append("traced" if is_traced(v) else np.shape(v))
                return (c * v**3).sum() + (v * c).sum() ** 2

            # By hand: the cube gives 3 c x^2 + c h^2, the squared sum (a second-degree polynomial) is exact.
            exact = 3 * c * x**2 + 2 * (x * c).sum() * c
            expected = exact + c * h**2
            # One-sided: h/2 times the second derivative comes on top, and of the cube h^2 once more.
            second = 6 * c * x + 2 * c**2
            one_sided = exact + h / 2 * second + c * h**2
            backward = exact - h / 2 * second + c * h**2
            together = (f(x + h) - f(x - h)) / (2 * h) * np.ones_like(x)
            seen.clear()
            call = call_text(answer, ("f", x, h), name="numerical_gradient").replace("'f'", "f")
            expect_close(
                attempt(lambda: answer(f, own, h), name="numerical_gradient"),  # noqa: B023
                expected,
                call=call,
                cause="Entry i is `(f(x + step) - f(x - step)) / (2 * h)` where `step` is `h` at entry i and 0 "
                "elsewhere; each entry must be put back before the next one moves.",
                mistakes=[
                    (exact, "That is the exact gradient; the difference quotient with this `h` was asked for."),
                    (one_sided, "That is a one-sided difference: step to both sides of `x`."),
                    (backward, "That is a one-sided difference: step to both sides of `x`."),
                    (2 * expected, "The two points are `2 * h` apart; divide by that."),
                    (together, "You moved all entries at once; move one at a time."),
                ],
                rtol=2e-3,
                atol=1e-3,
            )
            expect(
                "traced" not in seen,
                f"{call} is right, but `f` ran under a transformation of JAX, such as `vmap`; expected plain calls. A "
                "witness should depend on nothing that it is to check.",
            )
            expect(
                np.array_equal(own, x), f"{call} is right, but left `x` changed; put every entry back, or use a copy."
            )


@exercise("grad.5", "Lengths without NaN", minutes=7, difficulty=3, core=True)
class lengths:
    """Write `lengths(rows)`: the Euclidean length of each row of `rows`. Shape `(n, d)` in, shape `(n,)` out.

    It must survive rows of zeros: length exactly 0, **gradient 0**. All other rows, short or long (1e-15 to 1e15), get
    the true length and the true gradient (the row divided by its length), so no small constant may be mixed in.

    Example: `lengths(jnp.array([[3.0, 4.0], [0.0, 0.0]]))` is `[5, 0]`, and the gradient of its sum is
    `[[0.6, 0.8], [0, 0]]`. (That of `jnp.linalg.norm(rows, axis=1)` is NaN for the second row.)
    """

    hints = (
        "The square root has an infinite slope at 0, and infinity times 0 is NaN.",
        "One `where` around the root is too late. The root must never *see* the zero: put a harmless number in its "
        "place first.",
        "`squares = jnp.sum(rows**2, axis=1)`, `safe = jnp.where(squares > 0, squares, 1.0)`, and a second `where` "
        "around `jnp.sqrt(safe)`.",
    )
    why = (
        "The inner `where` keeps the zero away from the root, so the root's slope is finite; the outer one puts the "
        "0 back. The gradient runs through both and picks up no infinity."
    )
    notes = (
        "The usual first try is one `where` around the root, which mends the value and not the gradient. Ask which "
        "number the backward pass multiplies by the `where`'s 0."
    )

    @staticmethod
    def stub(rows):
        # about 3 lines
        raise NotImplementedError

    @staticmethod
    def solution(rows):
        squares = jnp.sum(rows**2, axis=1)
        safe = jnp.where(squares > 0, squares, 1.0)
        return jnp.where(squares > 0, jnp.sqrt(safe), 0.0)

    @wrong("NaN in")
    @staticmethod
    def plain(rows):
        return jnp.sqrt(jnp.sum(rows**2, axis=1))

    @wrong("before the root")
    @staticmethod
    def one_where(rows):
        squares = jnp.sum(rows**2, axis=1)
        return jnp.where(squares > 0, jnp.sqrt(squares), 0.0)

    @wrong("constant")
    @staticmethod
    def epsilon(rows):
        return jnp.sqrt(jnp.sum(rows**2, axis=1) + 1e-8)

    @wrong("constant")
    @staticmethod
    def floor(rows):
        return jnp.sqrt(jnp.maximum(jnp.sum(rows**2, axis=1), 1e-6))

    @wrong("NaN in")
    @staticmethod
    def mends_the_value(rows):
        return jnp.nan_to_num(jnp.linalg.norm(rows, axis=1))

    @wrong("each row")
    @staticmethod
    def of_the_columns(rows):
        squares = jnp.sum(rows**2, axis=0)
        safe = jnp.where(squares > 0, squares, 1.0)
        return jnp.where(squares > 0, jnp.sqrt(safe), 0.0)

    @wrong("put the 0 back")
    @staticmethod
    def inner_where_only(rows):
        squares = jnp.sum(rows**2, axis=1)
        return jnp.sqrt(jnp.where(squares > 0, squares, 1.0))

    @wrong("gradient should be")
    @staticmethod
    def no_gradient_at_all(rows):
        return lax.stop_gradient(jnp.sqrt(jnp.sum(rows**2, axis=1)))

    @wrong("constant")
    @staticmethod
    def tiny_constant(rows):
        return jnp.sqrt(jnp.sum(rows**2, axis=1) + 1e-30)

    @wrong("not zeros")
    @staticmethod
    def short_ones_are_zero(rows):
        squares = jnp.sum(rows**2, axis=1)
        return jnp.where(squares > 1e-16, jnp.sqrt(jnp.where(squares > 1e-16, squares, 1.0)), 0.0)

    @wrong("cancel")
    @staticmethod
    def zero_by_the_sum(rows):
        zero = jnp.sum(rows, axis=1) == 0
        return jnp.where(zero, 0.0, jnp.sqrt(jnp.sum(jnp.where(zero[:, None], 1.0, rows) ** 2, axis=1)))

    @wrong("single zero")
    @staticmethod
    def replaces_each_zero(rows):
        safe = jnp.where(rows == 0, 1.0, rows)
        return jnp.where(jnp.any(rows != 0, axis=1), jnp.sqrt(jnp.sum(safe**2, axis=1)), 0.0)

    @staticmethod
    def check(answer):
        # Rows that a shortcut takes for zeros: numbers that cancel, single zeros, tiny and huge ones.
        odd = [
            [2, -2, 0.5, -0.5],
            [0, 3, 0, 0],
            [1e-15, -2e-15, 0, 1e-15],
            [0] * 4,
            [-1e15, 2e14, 3e14, -5e14],
            [1e-7] * 4,
        ]
        odd += [[0, -1e-15, 0, 0], [-1, 0, 0, 1]]
        plain = ((51, (3, 2), [1]), (54, (2, 3), [0, 1]), (55, (5, 1), [2]))
        for seed, shape, empty in (*plain, (56, (8, 4), [3])):
            rows, weights = _random(seed, shape, shape[:1])
            rows[shape[0] // 2] *= 1e-3  # a short row, which a constant under the root would drown
            rows[empty] = 0.0
            if len(rows) == len(odd):
                rows = np.array(odd, np.float32)
            given = jnp.asarray(rows)
            name = "lengths"
            call = f"`lengths(rows)`, rows {describe(given)} with {len(empty)} of zeros,"
            norms = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))
            columns = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=0))
            expect_close(
                attempt(answer, given, name=name),
                norms,
                call=call,
                cause="A constant added to the squares, or a floor under them, changes short rows and zeros; "
                "replace zeros alone.",
                mistakes=[
                    (columns, "One length for each row: sum over axis 1."),
                    (norms[:, None], "The result has shape `(n,)`: keep no axis of length 1."),
                    (norms**2, "These are the squares of the lengths; the root is missing."),
                    (
                        np.where(rows.sum(axis=1) == 0, 0, norms),
                        "Numbers that cancel sum to 0, and their row is not one of zeros.",
                    ),
                    (np.where(norms < 1e-12, 0, norms), "Short rows are not zeros, and have a length."),
                    (np.where(norms < 1e-6, 0, norms), "Short rows are not zeros, and have a length."),
                    (
                        np.sqrt((np.where(rows == 0, 1, rows.astype(np.float64)) ** 2).sum(axis=1)) * (norms > 0),
                        "A single zero in a row is to stay a zero; replace whole rows, or their squares' sum.",
                    ),
                    (
                        np.where(norms > 0, norms, 1.0),
                        "Rows of zeros have the stand-in's length: put the 0 back with a second `where` after the root.",
                    ),
                ],
                atol=0,
            )
            slopes = weights[:, None] * rows / np.where(norms > 0, norms, 1.0)[:, None]
            got = attempt(
                lambda r: jax.grad(lambda r: jnp.sum(jnp.asarray(weights) * answer(r)))(r),  # noqa: B023
                given,
                name="jax.grad(lambda rows: jnp.sum(c * lengths(rows)))",
            )
            nan = int(np.isnan(np.asarray(got)).sum())
            expect(
                not nan,
                f"{call} has the right values, but NaN in {nan} of {rows.size} places of its gradient. The root still "
                "sees a zero, where its slope is infinite, and infinity times 0 is NaN: replace the zero before the "
                "root, not after it.",
            )
            expect_close(
                got,
                slopes,
                call=f"The gradient of `jnp.sum(c * lengths(rows))`, rows {describe(given)} with {len(empty)} of zeros,",
                cause="For each row the gradient should be the row divided by its length, and 0 for zeros; a constant "
                "mixed into the squares changes it.",
                rtol=1e-3,
                atol=1e-6,
            )


@exercise("grad.6", "A Jacobian, the cheaper way", minutes=7, difficulty=3)
class jacobian:
    """Write `jacobian(f, x)`: the matrix of all slopes of `f` at `x`, by the cheaper mode.

    `x` is a vector of n numbers, `f(x)` a vector of m numbers; the result has shape `(m, n)`: entry `[i, j]` says how
    output i moves with input j. Forward mode costs about one run of `f` per *input*, reverse mode one or two per
    *output*: use forward mode where there are more outputs than inputs, reverse mode where there are fewer, and either
    for m = n.

    The check counts the multiply-adds that your call records; one more plain run of `f`, to learn m, is all right.
    Example: for `f = lambda x: A @ x` it is `A`.
    """

    hints = (
        "`jax.jacfwd(f)` and `jax.jacrev(f)` are functions of `x`; they give the same matrix by the two modes.",
        "You need to know m. One run of `f` tells: `f(x).size`.",
        "`mode = jax.jacfwd if x.size <= f(x).size else jax.jacrev`, then `mode(f)(x)`.",
    )
    why = (
        "Forward mode builds the matrix column by column (one per input), reverse mode row by row (one per output); "
        "the shorter side decides."
    )
    notes = "A loss is the extreme case, m = 1: that is why training uses reverse mode. Ask for the other extreme."

    @staticmethod
    def stub(f, x):
        # about 2 lines
        raise NotImplementedError

    @staticmethod
    def solution(f, x):
        mode = jax.jacfwd if x.size <= f(x).size else jax.jacrev
        return mode(f)(x)

    @wrong("inputs than outputs")
    @staticmethod
    def always_forward(f, x):
        return jax.jacfwd(f)(x)

    @wrong("outputs than inputs")
    @staticmethod
    def always_reverse(f, x):
        return jax.jacrev(f)(x)

    @wrong("multiply-adds")
    @staticmethod
    def swapped(f, x):
        return (jax.jacrev if x.size <= f(x).size else jax.jacfwd)(f)(x)

    @wrong("scalar")
    @staticmethod
    def uses_grad(f, x):
        return jax.grad(f)(x)

    @wrong("transposed")
    @staticmethod
    def transposed(f, x):
        return (jax.jacfwd if x.size <= f(x).size else jax.jacrev)(f)(x).T

    @wrong("sum of all outputs")
    @staticmethod
    def of_the_sum(f, x):
        return jax.grad(lambda x: jnp.sum(f(x)))(x)

    @wrong("outputs than inputs")
    @staticmethod
    def decides_by_the_inputs(f, x):
        return (jax.jacfwd if x.size < 10 else jax.jacrev)(f)(x)

    @wrong("however few more")
    @staticmethod
    def forward_from_twice_as_many(f, x):
        return (jax.jacfwd if f(x).size > 2 * x.size else jax.jacrev)(f)(x)

    @wrong("however few more")
    @staticmethod
    def forward_from_half_as_many(f, x):
        return (jax.jacfwd if f(x).size > x.size // 2 else jax.jacrev)(f)(x)

    @wrong("inputs than outputs")
    @staticmethod
    def decides_by_the_outputs(f, x):
        return (jax.jacrev if f(x).size < 3 else jax.jacfwd)(f)(x)

    @staticmethod
    def check(answer):
        sizes = ((61, 64, 9, 12), (62, 3, 16, 40), (63, 6, 5, 6), (64, 14, 9, 70), (65, 9, 4, 1))
        sizes += ((66, 10, 9, 11), (67, 11, 9, 10))
        for seed, n, hidden, m in sizes:
            a, b, x = _random(seed, (hidden, n), (m, hidden), (n,))
            a /= n**0.5

            def f(v, a=a, b=b):
                # On the way back, and only there, the slice becomes a `pad`.
                return jnp.asarray(b) @ jnp.tanh(jnp.asarray(a) @ lax.slice(jnp.append(v, 0.0), (0,), v.shape))

            given = jnp.asarray(x)
            call = f"`jacobian(f, x)` with {n} inputs and {m} outputs"
            # By hand, in float64: B diag(1 - tanh^2(A x)) A.
            slope = 1 - np.tanh(a.astype(np.float64) @ x) ** 2
            expected = (b.astype(np.float64) * slope) @ a
            expect_close(
                attempt(answer, f, given, name="jacobian"),
                expected,
                call=call,
                cause="Row i holds the slopes of output i.",
                mistakes=[
                    (expected.T, "It is transposed: rows are outputs, columns are inputs."),
                    (expected.sum(axis=0), "That is the gradient of the sum of all outputs."),
                ],
                rtol=1e-3,
                atol=1e-4,
            )
            once = hidden * (n + m)
            steps = _recorded(lambda v: answer(f, v), given, name="jax.make_jaxpr(jacobian)")
            spent = _multiply_adds(steps)
            # Forward n + 1 runs, reverse m + 1 (2 m when each row runs `f` anew); a run or two more to learn the shape.
            expect(
                spent <= once * (2 * min(n, m) + 4),
                f"{call} is right, but records {spent:,} multiply-adds, {spent / once:.0f} runs of `f`. There are more "
                + ("inputs than outputs" if n > m else "outputs than inputs")
                + f": {'reverse' if n > m else 'forward'} mode needs far fewer.",
            )
            back = any(equation.primitive.name == "pad" for equation, _ in steps)
            expect(
                m == n or back == (m < n),
                f"{call} is right, but by {'reverse' if back else 'forward'} mode. There are more "
                + ("inputs than outputs" if n > m else "outputs than inputs")
                + f": {'reverse' if n > m else 'forward'} mode is the one asked for, however few more there are.",
            )


@exercise("grad.7", "A Hessian-vector product", minutes=8, difficulty=4)
class hvp:
    """Write `hvp(f, x, v)`: the Hessian of `f` at `x` (the matrix of second derivatives) times `v`, without ever
    building the Hessian.

    `f` takes an array and gives a number; `x` and `v` have the same shape, any shape; so has the result. The work must
    be a few runs of `f`, whatever the size of `x`: the check looks for arrays as large as the Hessian and counts
    multiply-adds. No finite differences: they are only about right.

    Example: for `f = lambda x: jnp.sum(x**3)` the Hessian is diagonal, and `hvp(f, x, v)` is `6 * x * v`.
    """

    hints = (
        "The Hessian times `v` says how the *gradient* changes when `x` moves along `v`.",
        "Moving along a direction is what `jax.jvp` does. Which function do you push through it?",
        "`jax.jvp(jax.grad(f), (x,), (v,))` gives a pair: the gradient, and what you want.",
    )
    why = (
        "Forward mode over reverse mode: `jax.grad(f)` is just a function, and `jvp` differentiates it along `v` in "
        "one pass. (`jax.grad` of the gradient's inner product with `v` is right too.)"
    )
    notes = "A model of 1e9 parameters has a Hessian of 1e18 entries; a product with it costs a few gradients."

    @staticmethod
    def stub(f, x, v):
        # one or two lines
        raise NotImplementedError

    @staticmethod
    def solution(f, x, v):
        _, product = jax.jvp(jax.grad(f), (x,), (v,))
        return product

    @wrong("the Hessian itself")
    @staticmethod
    def builds_it(f, x, v):
        hessian = jax.jacfwd(jax.grad(f))(x)
        return jnp.tensordot(hessian, v, axes=v.ndim)

    @wrong("first element")
    @staticmethod
    def gives_the_gradient(f, x, v):
        return jax.jvp(jax.grad(f), (x,), (v,))[0]

    @wrong("a number")
    @staticmethod
    def curvature(f, x, v):
        return jnp.sum(v * jax.jvp(jax.grad(f), (x,), (v,))[1])

    @wrong("gradient times `v`")
    @staticmethod
    def gradient_times_v(f, x, v):
        return jax.grad(f)(x) * v

    @wrong("second derivative along")
    @staticmethod
    def only_the_diagonal(f, x, v):
        ones = jnp.ones_like(x)
        return jax.jvp(jax.grad(f), (x,), (ones,))[1] * v

    @wrong("differences")
    @staticmethod
    def difference_of_gradients(f, x, v):
        return (jax.grad(f)(x + 1e-2 * v) - jax.grad(f)(x - 1e-2 * v)) / 2e-2

    @staticmethod
    def check(answer):
        for f, n_text, x, v, gradient, product, along in (*_curved(), _waves()):
            call = f"`hvp(f, x, v)`, `f(x)` = `{n_text}`, x {describe(x)},"
            wide = product(v.astype(np.float64))
            expect_close(
                attempt(answer, f, jnp.asarray(x), jnp.asarray(v), name="hvp"),
                wide,
                call=call,
                cause="Push `jax.grad(f)` through `jax.jvp` along `v`. Differences of gradients are only about right.",
                mistakes=[
                    (gradient, "That is the gradient, the first element of the pair; the product is the second."),
                    ((wide * v).sum(), "That is a number, v times H times v; the product is an array like `x`."),
                    (gradient * v, "That is the gradient times `v`, element by element; no second derivative in it."),
                    (
                        along * v,
                        "That is the second derivative along a vector of ones, times `v`: pass `v` itself as the tangent.",
                    ),
                ],
                rtol=2e-4,
                atol=2e-4,
            )
        a, x, v = _random(72, (40, 6), (40,), (40,))

        def quartic(x):
            return jnp.sum((x @ a) ** 4) / 4

        steps = _recorded(
            lambda x, v: answer(quartic, x, v), jnp.asarray(x), jnp.asarray(v), name="jax.make_jaxpr(hvp)"
        )
        largest, runs = _largest(steps), _multiply_adds(steps) / a.size
        expect(
            largest < x.size**2,
            f"`hvp(f, x, v)` is right, but for {x.size} inputs it computes an array of {largest:,} numbers on the way: "
            "the Hessian itself. Differentiate the gradient along `v` instead.",
        )
        expect(
            runs <= 12,
            f"`hvp(f, x, v)` is right, but for {x.size} inputs it does the work of {runs:.0f} runs of `f`; one pass of "
            "`jax.jvp` over `jax.grad(f)` does that of about 6.",
        )


def _waves() -> tuple[Callable[[Any], Any], str, np.ndarray, np.ndarray, Any, Callable[[Any], Any], Any]:
    """A function far from the origin, where no step is both small for the sine and large for float32."""
    c, x, v = _random(75, (6,), (6,), (6,))
    x += 1000
    wide = x.astype(np.float64)

    def waves(x):
        return jnp.sum(c * jnp.sin(x))

    def product(v):
        return -c * np.sin(wide) * v

    return waves, "sum(c * sin(x))", x, v, c * np.cos(wide), product, product(np.ones(x.shape))


def _curved() -> Iterator[tuple[Callable[[Any], Any], str, np.ndarray, np.ndarray, Any, Callable[[Any], Any], Any]]:
    """Give functions with gradient, Hessian-vector product and product with ones, all by hand in float64."""
    c, x, v = _random(71, (3, 4), (3, 4), (3, 4))
    wide, c64 = x.astype(np.float64), c.astype(np.float64)

    def cubic(x):
        return jnp.sum(c * x**3) + jnp.sum(x) ** 2

    def cubic_product(v):
        return 6 * c64 * wide * v + 2 * v.sum()

    gradient = 3 * c64 * wide**2 + 2 * wide.sum()
    yield cubic, "sum(c * x**3) + sum(x)**2", x, v, gradient, cubic_product, cubic_product(np.ones(x.shape))
    for seed, n, k in ((73, 5, 3), (74, 2, 7)):
        a, x, v = _random(seed, (n, k), (n,), (n,))
        a64, z = a.astype(np.float64), x.astype(np.float64) @ a

        def quartic(x, a=a):
            return jnp.sum((x @ a) ** 4) / 4

        def quartic_product(v, a64=a64, z=z):
            return a64 @ (3 * z**2 * (v @ a64))

        yield quartic, "sum((x @ a)**4) / 4", x, v, a64 @ z**3, quartic_product, quartic_product(np.ones(n))


@exercise("grad.8", "Clip on the way back", minutes=10, difficulty=5)
class clip_gradient:
    """Write `clip_gradient(x, limit)`: forwards it gives `x` unchanged; backwards it lets gradients through only
    between `-limit` and `limit`, element by element.

    `x` is a float array of any shape, `limit` a positive number (nobody asks for its gradient). Put into the middle of a computation, it clips the
    gradient that *arrives there*, before the steps in front of it are differentiated.

    Example: with `f = lambda x: jnp.sum(jnp.array([5.0, -0.25]) * clip_gradient(x, 1.0))`, `jax.grad(f)` is
    `[1.0, -0.25]` everywhere, and `f` itself is unchanged.
    """

    hints = (
        "No formula in `x` has this derivative: you need `jax.custom_vjp` around an identity.",
        "The forward rule returns the output and whatever the backward rule will need, here nothing. The backward rule "
        "gets the arriving gradient and returns a tuple with one entry per argument.",
        "Define the identity inside `clip_gradient`, where `limit` is in reach: `forward` returns `x, None`, `backward` "
        "returns `(jnp.clip(g, -limit, limit),)`. Then call the identity on `x`.",
    )
    why = (
        "The rule is yours: `grad` asks `backward` what to do with the arriving gradient, and it need not be the "
        "derivative of anything."
    )
    notes = (
        "The chain case of the check tells clipping what arrives from clipping what leaves. Alternative: "
        "`nondiff_argnums=(1,)` for `limit`, or `None` as its gradient."
    )

    @staticmethod
    def stub(x, limit):
        # about 10 lines
        raise NotImplementedError

    @staticmethod
    def solution(x, limit):
        @jax.custom_vjp
        def identity(x):
            return x

        def forward(x):
            return x, None

        def backward(_, g):
            return (jnp.clip(g, -limit, limit),)

        identity.defvjp(forward, backward)
        return identity(x)

    @wrong("unchanged")
    @staticmethod
    def clips_the_value(x, limit):
        return jnp.clip(x, -limit, limit)

    @wrong("was not clipped")
    @staticmethod
    def only_the_identity(x, limit):
        return x

    @wrong("dropped")
    @staticmethod
    def drops_large_ones(x, limit):
        @jax.custom_vjp
        def identity(x):
            return x

        identity.defvjp(lambda x: (x, None), lambda _, g: (jnp.where(jnp.abs(g) <= limit, g, 0.0),))
        return identity(x)

    @wrong("sign")
    @staticmethod
    def keeps_the_sign_only(x, limit):
        @jax.custom_vjp
        def identity(x):
            return x

        identity.defvjp(lambda x: (x, None), lambda _, g: (limit * jnp.sign(g),))
        return identity(x)

    @wrong("upper side")
    @staticmethod
    def one_side_only(x, limit):
        @jax.custom_vjp
        def identity(x):
            return x

        identity.defvjp(lambda x: (x, None), lambda _, g: (jnp.minimum(g, limit),))
        return identity(x)

    @wrong("forward rule clips")
    @staticmethod
    def forward_rule_clips(x, limit):
        @jax.custom_vjp
        def identity(x):
            return x

        identity.defvjp(lambda x: (jnp.clip(x, -limit, limit), None), lambda _, g: (jnp.clip(g, -limit, limit),))
        return identity(x)

    @wrong("norm")
    @staticmethod
    def scales_the_norm(x, limit):
        @jax.custom_vjp
        def identity(x):
            return x

        def backward(_, g):
            return (g * jnp.minimum(1.0, limit / jnp.sqrt(jnp.sum(g**2))),)

        identity.defvjp(lambda x: (x, None), backward)
        return identity(x)

    @wrong("of `x` was clipped")
    @staticmethod
    def gradient_of_the_clip(x, limit):
        return (
            x + jnp.clip(x, -limit, limit) - lax.stop_gradient(jnp.clip(x, -limit, limit)) - (x - lax.stop_gradient(x))
        )

    @staticmethod
    def check(answer):
        for seed, shape, limit in ((81, (5,), 0.5), (82, (3, 4), 1.25), (83, (), 0.25), (84, (2, 1, 3), 0.75)):
            x, c = _random(seed, shape, shape)
            x, c = np.asarray(2 * x, np.float32), np.asarray(2 * c, np.float32)
            given, weights = jnp.asarray(x), jnp.asarray(c)
            expect_close(
                attempt(answer, given, limit, name="clip_gradient"),
                x,
                call=call_text(answer, (given, limit), name="clip_gradient"),
                cause="Forwards, `x` comes out unchanged; only the gradient is clipped.",
            )
            clip = np.clip(c, -limit, limit)
            norm = np.sqrt((c.astype(np.float64) ** 2).sum())
            expect_close(
                attempt(_slopes(lambda x: weights * answer(x, limit)), given, name="jax.grad(...)"),  # noqa: B023
                clip,
                call=f"The gradient of `jnp.sum(c * clip_gradient(x, {limit}))` for c {describe(weights)}",
                cause=f"The gradient that arrives is `c`; it should leave between -{limit} and {limit}.",
                mistakes=[
                    (c, "The gradient was not clipped."),
                    (
                        np.where(np.abs(c) <= limit, c, 0),
                        "Large gradients were dropped; they should be cut to the limit.",
                    ),
                    (limit * np.sign(c), "Only the sign is left; a gradient within the limits passes as it is."),
                    (np.minimum(c, limit), "Only the upper side is clipped; negative gradients have a limit too."),
                    (np.maximum(c, -limit), "Only the lower side is clipped; positive gradients have a limit too."),
                    (c * min(1.0, limit / norm), "You scaled all by their norm; clip element by element."),
                    (np.where(np.abs(x) < limit, c, 0), "The gradient was cut off where the value of `x` was clipped."),
                ],
            )
            expect_close(
                attempt(_slopes(lambda x: weights * answer(x**2, limit)), given, name="jax.grad(...)"),  # noqa: B023
                clip * 2 * x,
                call=f"The gradient of `jnp.sum(c * clip_gradient(x**2, {limit}))`",
                cause="Clip the gradient that arrives, then let the chain rule go on through `x**2`.",
                mistakes=[
                    (np.clip(c * 2 * x, -limit, limit), "You clipped the gradient of the whole, not what arrives.")
                ],
            )
            expect_close(
                attempt(_slopes(lambda x: answer(x, limit) ** 3), given, name="jax.grad(...)"),  # noqa: B023
                np.clip(3 * x**2, -limit, limit),
                call=f"The gradient of `jnp.sum(clip_gradient(x, {limit})**3)`",
                cause="What arrives here is `3 * x**2`.",
                mistakes=[
                    (
                        np.clip(3 * np.clip(x, -limit, limit) ** 2, -limit, limit),
                        "Your forward rule clips the value: under `grad` it runs instead of the function itself, and "
                        "must give the same.",
                    )
                ],
                rtol=1e-3,
            )


def _slopes(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(lambda x: jnp.sum(function(x)))
