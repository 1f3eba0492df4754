"""Chapter 05: pmap and what came after."""

import re
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import NotYet, attempt, expect, expect_close, is_close, primitives
from ..words import call_text, describe, quoted
from . import Chapter

chapter = Chapter("05_pmap", "pmap and after: one program, many devices", reading_minutes=35, needs=("04_vmap",))

inside = Prediction(
    "pmap.p1",
    "The next cell calls `jax.pmap(look)` on an array of shape `(n, 6, 3)`, with `n` devices. `look` prints the shape of "
    "what it gets. How many lines appear, and how many axes does the printed shape have?",
    {"lines": int, "axes": int},
)
copies = Prediction(
    "pmap.p2",
    "The next cell adds up one number per device: `jax.pmap(lambda x: lax.psum(x, 'devices'), axis_name='devices')`. "
    "What comes back: one number, or one number per device?",
    ("one", "one per device"),
)
drift = Prediction(
    "pmap.p3",
    "The next cell leaves the `pmean` out of the training step and takes three steps. Does JAX complain?",
    bool,
)
decorator = Prediction(
    "pmap.p4",
    "The next cell only *defines* the copied `update`, decorator and all; nothing is called. Does it already fail?",
    bool,
)
all_reduce = Prediction(
    "pmap.p5",
    "The step above holds no collective. Will there be an all-reduce in the compiled program, on the devices that you "
    "have here?",
    bool,
)


# What versions call the sum over a named axis, and the other collectives that can stand for it.
_COLLECTIVES = {"psum", "psum2", "psum_invariant", "all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all"}


def _random(seed, *shape, shift=0.0):
    return (np.random.default_rng(seed).normal(size=shape) + shift).astype(np.float32)


def _members(answer, name, tree, axis, over=jax.vmap):
    """Call `answer(member, axis)` on each member of a named axis."""
    call = f"jax.{over.__name__}({name}, axis_name={axis!r})"
    return attempt(lambda rows: over(lambda row: answer(row, axis), axis_name=axis)(rows), tree, name=call)


def _members_text(name, tree, axis):
    """Say how `_members` called, with the arrays of one member."""
    size = jax.tree.leaves(tree)[0].shape[0]
    one = describe(jax.tree.map(lambda leaf: leaf[0], tree))
    return f"`{name}(x, {axis!r})` on {size} members, the first with x = {one},"


def _over_devices(name, tree):
    """Demand that every leaf lies on all devices."""
    for leaf in jax.tree.leaves(tree):
        expect(isinstance(leaf, jax.Array), f"`{name}` gave {type(leaf).__name__}; expected arrays placed by JAX.")
        used, have = len(leaf.sharding.device_set), jax.device_count()
        expect(used == have, f"The result of `{name}` lies on {used} of the {have} devices. Use all of them.")


def _sgd(params, grads, rate):
    return {key: params[key] - rate * grads[key] for key in params}


def _local_gradients(params, x, y):
    """Write out the gradient of mean((x·w + b - y)²) in NumPy, float64."""
    error = (x.astype(np.float64) * params["w"]).sum(-1) + params["b"] - y
    return {"w": 2 * (error[:, None] * x).mean(0), "b": 2 * error.mean()}


def _linear_loss(traces):
    """A loss that notes the shape of the batch each time it is traced."""

    def loss(params, batch):
        x, y = batch
        traces.append(tuple(x.shape))
        # No matrix product: a TPU would round one to bfloat16, and the check compares digits.
        return (((x * params["w"]).sum(-1) + params["b"] - y) ** 2).mean()

    return loss


@exercise("pmap.1", "One block per device", minutes=5, difficulty=2, core=True)
class shard_batch:
    """Write `shard_batch(batch, devices)`. `batch` is any pytree of arrays that all have the same number of rows;
    give back the same tree with each leaf cut into `devices` blocks of consecutive rows: `(rows, …)` becomes
    `(devices, rows // devices, …)`, and block 0 holds the first rows.

    If `devices` does not divide the rows, raise a `ValueError` that names both numbers.

    Example: `{"x": (12, 3), "y": (12,)}` for 4 devices gives `{"x": (4, 3, 3), "y": (4, 3)}`."""

    hints = (
        "`jax.tree.map` reaches every leaf; what happens to one leaf is a `reshape`.",
        "`leaf.reshape(devices, rows // devices, *leaf.shape[1:])` keeps the trailing axes as they are.",
        "Before that: `if rows % devices: raise ValueError(...)`, with `rows` and `devices` in the text.",
    )
    why = "A reshape that splits the first axis in two keeps the rows in order, so block `d` is the `d`-th run of rows."
    notes = (
        "Dropping the remainder in silence is what many loaders do; ask what that does to an evaluation. "
        "`reshape(-1, devices)` puts the wrong axis first, which is the commonest slip."
    )

    @staticmethod
    def stub(batch, devices):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(batch, devices):
        def cut(leaf):
            rows = leaf.shape[0]
            if rows % devices:
                raise ValueError(f"{devices} devices do not divide {rows} rows; pad or drop rows first")
            return leaf.reshape(devices, rows // devices, *leaf.shape[1:])

        return jax.tree.map(cut, batch)

    @wrong("dropped")
    @staticmethod
    def drops_the_rest(batch, devices):
        def cut(leaf):
            each = leaf.shape[0] // devices
            return leaf[: each * devices].reshape(devices, each, *leaf.shape[1:])

        return jax.tree.map(cut, batch)

    @wrong("devices come first")
    @staticmethod
    def devices_second(batch, devices):
        return jax.tree.map(lambda leaf: leaf.reshape(-1, devices, *leaf.shape[1:]), batch)

    @wrong("dealt")
    @staticmethod
    def deals_like_cards(batch, devices):
        return jax.tree.map(lambda leaf: leaf.reshape(-1, devices, *leaf.shape[1:]).swapaxes(0, 1), batch)

    @wrong("trailing axes")
    @staticmethod
    def flattens(batch, devices):
        return jax.tree.map(lambda leaf: leaf.reshape(devices, -1), batch)

    @wrong("names both numbers")
    @staticmethod
    def leaves_it_to_reshape(batch, devices):
        return jax.tree.map(lambda leaf: leaf.reshape(devices, leaf.shape[0] // devices, *leaf.shape[1:]), batch)

    @wrong("AssertionError")
    @staticmethod
    def asserts(batch, devices):
        def cut(leaf):
            assert leaf.shape[0] % devices == 0, f"{leaf.shape[0]} rows, {devices} devices"
            return leaf.reshape(devices, leaf.shape[0] // devices, *leaf.shape[1:])

        return jax.tree.map(cut, batch)

    @staticmethod
    def check(answer):
        def blocks(leaf, devices):
            each = leaf.shape[0] // devices
            return np.stack([leaf[d * each : (d + 1) * each] for d in range(devices)])

        labels = np.arange(30, dtype=np.int32)[::-1].copy()
        batches = [
            ({"x": _random(0, 12, 3), "y": labels[:12]}, 4),
            ((_random(1, 30, 2, 5), [labels, {"weight": _random(2, 30)}]), 5),
            (_random(3, 6, 4), 1),
            ({"x": jnp.asarray(_random(4, 7, 2)), "y": labels[:7]}, 7),
        ]
        for batch, devices in batches:
            got = attempt(answer, batch, devices, name="shard_batch")
            mistakes = [
                (
                    jax.tree.map(lambda a, n=devices: a.reshape(-1, n, *a.shape[1:]), batch),
                    "The devices come first: (devices, rows // devices, …).",
                ),
                (
                    jax.tree.map(lambda a, n=devices: a.reshape(-1, n, *a.shape[1:]).swapaxes(0, 1), batch),
                    "You dealt the rows out like cards; block 0 should hold the *first* rows, in order.",
                ),
                (
                    jax.tree.map(lambda a, n=devices: a.reshape(n, -1), batch),
                    "The trailing axes were flattened; keep them as they were.",
                ),
            ]
            expected = jax.tree.map(partial(blocks, devices=devices), batch)
            call = call_text(answer, (batch, devices), name="shard_batch")
            cause = "Every leaf is cut along its first axis, and the tree keeps its form."
            expect_close(got, expected, call=call, mistakes=mistakes, cause=cause, dtype=True)

        for rows, devices in ((10, 4), (17, 3), (3, 8)):
            batch = {"x": _random(5, rows, 6), "y": _random(6, rows, 5)}
            call = call_text(answer, (batch, devices), name="shard_batch")
            try:
                got = answer(batch, devices)
            except ValueError as error:
                named = set(re.findall(r"\d+", str(error)))
                expect(
                    {str(rows), str(devices)} <= named,
                    f"{call} raised {quoted(error)} Wanted is a text that names both numbers, {rows} and {devices}, "
                    "so that its reader knows what to change.",
                )
            except Exception as error:
                raise NotYet(
                    f"{call} raised `{type(error).__name__}`; expected a `ValueError`, since {devices} does not "
                    f"divide {rows}."
                ) from error
            else:
                raise NotYet(
                    f"{call} gave {describe(got)}; expected a `ValueError`: {devices} does not divide {rows}, so "
                    "rows were dropped or moved without a word."
                )


@contextmanager
def _refusing(module, name, why):
    """Make `module.name` raise `NotYet(why)` for a while."""
    original = getattr(module, name)

    def refuse(*_args, **_kwargs):
        raise NotYet(why)

    setattr(module, name, refuse)
    try:
        yield
    finally:
        setattr(module, name, original)


@exercise("pmap.2", "A mean from a sum", minutes=4, difficulty=2, core=True)
class my_pmean:
    """Write `my_pmean(tree, axis_name)`: what `lax.pmean` does, without calling it. It runs *inside* a function that is
    mapped with an axis name. `tree` is a pytree of this member's arrays (gradients, say); give back the same
    tree, each leaf replaced by its mean over all members of the axis.

    Example: three members that hold 1.0, 2.0 and 6.0 each get 3.0."""

    hints = (
        "A mean is a sum divided by how many there are. One word of this chapter sums over the axis, leaf by leaf.",
        "How many there are: `lax.axis_size(axis_name)`; it need not be the number of devices.",
    )
    why = "`pmean` is `psum` divided by the size of the named axis, whatever that axis is mapped over."
    notes = "Dividing by `jax.device_count()` works until the axis is a vmapped one, or a part of the devices."

    @staticmethod
    def stub(tree, axis_name):
        # about 2 lines
        raise NotImplementedError

    @staticmethod
    def solution(tree, axis_name):
        size = lax.axis_size(axis_name)
        return jax.tree.map(lambda leaf: lax.psum(leaf, axis_name) / size, tree)

    @wrong("sum over the members")
    @staticmethod
    def only_sums(tree, axis_name):
        return lax.psum(tree, axis_name)

    @wrong("divide")
    @staticmethod
    def divides_by_devices(tree, axis_name):
        return jax.tree.map(lambda leaf: lax.psum(leaf, axis_name) / jax.device_count(), tree)

    @wrong("within one member")
    @staticmethod
    def local_mean(tree, axis_name):
        return jax.tree.map(jnp.mean, tree)

    @wrong("without `lax.pmean`")
    @staticmethod
    def calls_it(tree, axis_name):
        return lax.pmean(tree, axis_name)

    @wrong("unbound axis name")
    @staticmethod
    def one_name_only(tree, axis_name):
        return jax.tree.map(lambda leaf: lax.psum(leaf, "devices") / lax.axis_size("devices"), tree)

    @wrong("whole numbers")
    @staticmethod
    def floors(tree, axis_name):
        return jax.tree.map(lambda leaf: lax.psum(leaf, axis_name) // lax.axis_size(axis_name), tree)

    @staticmethod
    def check(answer):
        trials = [
            (_random(0, 3, 4), "rows", jax.vmap),
            (np.array([1, 2, 8, -4, 7], np.int32), "i", jax.vmap),
            ({"w": _random(1, 5, 3, 2), "b": (_random(2, 5), _random(3, 5, 4))}, "batch", jax.vmap),
            ([_random(4, jax.device_count(), 2), _random(5, jax.device_count())], "devices", jax.pmap),
        ]
        for tree, axis, over in trials:
            with _refusing(lax, "pmean", "The task is to do it without `lax.pmean`."):
                got = _members(answer, "my_pmean", tree, axis, over)
            size = jax.tree.leaves(tree)[0].shape[0]
            floats = jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)
            means = jax.tree.map(lambda leaf: np.broadcast_to(leaf.mean(0), leaf.shape), floats)
            sums = jax.tree.map(lambda leaf, n=size: leaf * n, means)
            mistakes = [
                (sums, "That is the sum over the members; divide it by how many there are."),
                (
                    jax.tree.map(lambda leaf: leaf / jax.device_count(), sums),
                    f"You divided by {jax.device_count()}, which is the number of devices here; the axis {axis!r} has "
                    f"{size} members.",
                ),
                (floats, "Each member got its own value back; nothing was averaged over the axis."),
                (
                    jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1).mean(1), floats),
                    "That is the mean within one member; wanted is the mean over the members, entry by entry.",
                ),
                (jax.tree.map(np.floor, means), "A mean of whole numbers need not be whole; use `/`, not `//`."),
            ]
            cause = "Each entry becomes its sum over the members, divided by how many members there are."
            expect_close(got, means, call=_members_text("my_pmean", tree, axis), mistakes=mistakes, cause=cause)


@exercise("pmap.3", "A data-parallel step", minutes=9, difficulty=3, core=True, needs_devices=2)
class make_parallel_step:
    """Write `make_parallel_step(loss, rate)`. It gives back a function `step(params, batch)` that runs on all devices
    under `jax.pmap`:

    - every leaf of `params` and of `batch` has a leading axis of `jax.device_count()`, one entry per device; the
      copies of `params` are equal;
    - `loss(params, batch)` is the mean over the rows of *one* device;
    - the result is the new `params`, equal on all devices: `p - rate * g`, where `g` is the gradient of the mean loss
      over all rows of all devices.

    Calling `step` again must not compile it again."""

    hints = (
        "Inside, write the step for one device: gradient, one collective, update.",
        "The gradient comes first, the collective second: `lax.pmean(jax.grad(loss)(params, batch), 'devices')`.",
        "`@partial(jax.pmap, axis_name='devices')` on a function defined once, before you return it.",
    )
    why = (
        "Each device differentiates its own rows, `pmean` makes the same mean of them everywhere, and equal copies plus "
        "equal updates stay equal."
    )
    notes = (
        "Ask what happens to the learning rate when somebody writes `psum` (it grows with the number of devices), and "
        "why averaging the *loss* before `grad` does nothing here: under `pmap` the gradient of a `pmean` is each "
        "device's own. Averaging the updated parameters is right for plain SGD, and passes."
    )

    @staticmethod
    def stub(loss, rate):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(loss, rate):
        @partial(jax.pmap, axis_name="devices")
        def step(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return step

    @wrong("its own rows")
    @staticmethod
    def no_average(loss, rate):
        @partial(jax.pmap, axis_name="devices")
        def step(params, batch):
            grads = jax.grad(loss)(params, batch)
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return step

    @wrong("times too far")
    @staticmethod
    def sums(loss, rate):
        @partial(jax.pmap, axis_name="devices")
        def step(params, batch):
            grads = lax.psum(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return step

    @wrong("its own rows")
    @staticmethod
    def averages_the_loss(loss, rate):
        @partial(jax.pmap, axis_name="devices")
        def step(params, batch):
            grads = jax.grad(lambda p: lax.pmean(loss(p, batch), "devices"))(params)
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return step

    @wrong("@partial(jax.pmap, …)")
    @staticmethod
    def calls_pmap_without_a_function(loss, rate):
        @jax.pmap(axis_name="devices")  # pyright: ignore[reportCallIssue]
        def step(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return step

    @wrong("of the")
    @staticmethod
    def stays_on_one_device(loss, rate):
        def step(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return jax.jit(jax.vmap(step, axis_name="devices"))

    @wrong("uphill")
    @staticmethod
    def climbs(loss, rate):
        @partial(jax.pmap, axis_name="devices")
        def step(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p + rate * g, params, grads)

        return step

    @wrong("no `pmap`")
    @staticmethod
    def computes_on_one_and_copies(loss, rate):
        by_rows = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("devices",)), P("devices"))

        @jax.jit
        @partial(jax.vmap, axis_name="devices")
        def step(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return lambda params, batch: jax.device_put(step(params, batch), by_rows)

    @wrong("one device's rows")
    @staticmethod
    def puts_the_rows_together(loss, rate):
        by_rows = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("devices",)), P("devices"))

        @jax.jit
        def step(params, batch):
            one = jax.tree.map(lambda leaf: leaf[0], params)
            grads = jax.grad(loss)(one, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch))
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return lambda params, batch: jax.device_put(step(params, batch), by_rows)

    @wrong("traced `loss` again")
    @staticmethod
    def maps_anew_each_time(loss, rate):
        def step(params, batch):
            def one(params, batch):
                grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
                return jax.tree.map(lambda p, g: p - rate * g, params, grads)

            return jax.pmap(one, axis_name="devices")(params, batch)

        return step

    @staticmethod
    def check(answer):
        devices = jax.device_count()
        for seed, (rows, features, rate) in enumerate([(3, 2, 0.1), (2, 5, 0.03)]):
            traces = []
            step = attempt(answer, _linear_loss(traces), rate, name="make_parallel_step")
            expect(callable(step), f"`make_parallel_step(loss, {rate})` gave {describe(step)}; expected a function.")
            params = {"w": _random(seed, features), "b": np.float32(0.5)}
            x = _random(seed + 10, devices, rows, features) * np.arange(1, devices + 1)[:, None, None]
            batch = (x.astype(np.float32), _random(seed + 20, devices, rows, shift=2.0))
            stacked = jax.tree.map(lambda leaf: np.stack([leaf] * devices), params)
            for number in range(3):
                before = len(traces)
                new = attempt(step, stacked, batch, name="step")
                expect(
                    number < 2 or len(traces) == before,
                    "The third call of `step`, with the same shapes, traced `loss` again. Map the function once, outside "
                    "`step`: every call that maps a new function compiles it again.",
                )
                copies = jax.tree.map(lambda leaf: np.stack([leaf] * devices), params)
                params = _parallel_trial(new, params, copies, batch, rate)
                stacked = new
            expect(
                set(traces) == {(rows, features)},
                f"`step` called `loss` on a batch of shape {traces[-1] if traces else ()}; on each device it is one "
                f"device's rows, {(rows, features)}.",
            )
            expect(
                {"xla_pmap", "shard_map"} & set(primitives(step, stacked, batch)),  # pmap before and since jax 0.8
                "The values are right, but no `pmap` was recorded: one program computed for all and copied its result.",
            )


def _parallel_trial(new, params, stacked, batch, rate):
    """Compare one step of `pmap.3` with one over all rows, in NumPy; give the new parameters."""
    devices = jax.device_count()
    flat = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in batch]
    whole = _local_gradients(params, *flat)
    own = [_local_gradients(params, x, y) for x, y in zip(*batch, strict=True)]

    def copies_of(grads, rate):
        return jax.tree.map(lambda leaf: np.stack([leaf] * devices), _sgd(params, grads, rate))

    alone = [_sgd(params, grads, rate) for grads in own]
    mistakes = [
        (
            jax.tree.map(lambda *leaves: np.stack(leaves), *alone),
            "Each device moved by the gradient of its own rows, so the copies differ: average the *gradients*.",
        ),
        (copies_of(whole, rate * devices), f"Every step goes {devices} times too far: the gradients were summed."),
        (copies_of(whole, -rate), "The step goes uphill: subtract the gradient."),
        (stacked, "The parameters did not change."),
        (
            _sgd(params, whole, rate),
            "The values are right, without the leading device axis: give back one copy per device.",
        ),
    ]
    expected = jax.tree.map(np.float32, copies_of(whole, rate))
    call = call_text(None, (stacked, batch), name="step")
    cause = "Every leaf moves to `p - rate * g`, with `g` the mean of the devices' gradients of that leaf."
    expect_close(new, expected, call=call, mistakes=mistakes, cause=cause, rtol=1e-3, atol=1e-4)
    _over_devices("step", new)
    return _sgd(params, whole, rate)


@exercise("pmap.4", "Statistics of all rows", minutes=8, difficulty=3)
class normalize:
    """Write `normalize(x, axis_name)`, to run inside a mapped function. `x` has shape `(rows, features)`: the rows of
    this member. Give back the same rows, each feature shifted and scaled so that over **all rows of all members** its
    mean is 0 and its standard deviation is 1 (the root of the mean squared deviation; add no epsilon). The mean may be
    large beside the deviation.

    This is the statistics part of a batch normalisation that spans devices."""

    hints = (
        "Two collectives: one for the mean, one for the variance.",
        "`mean = lax.pmean(x.mean(axis=0), axis_name)`. The deviations that you then square are those from *this* mean.",
    )
    why = "The spread between members counts too, so the deviations are taken from the mean of all before averaging."
    notes = (
        "The classic error is the mean of the local variances: right only when all members have the same mean. "
        "`E[x²] - E[x]²` is refused: ask when it loses its digits (mean large against spread)."
    )

    @staticmethod
    def stub(x, axis_name):
        # about 3 lines
        raise NotImplementedError

    @staticmethod
    def solution(x, axis_name):
        mean = lax.pmean(x.mean(axis=0), axis_name)
        variance = lax.pmean(((x - mean) ** 2).mean(axis=0), axis_name)
        return (x - mean) / variance**0.5

    @wrong("its own rows")
    @staticmethod
    def local(x, axis_name):
        return (x - x.mean(axis=0)) / x.std(axis=0)

    @wrong("between the members")
    @staticmethod
    def mean_of_local_variances(x, axis_name):
        mean = lax.pmean(x.mean(axis=0), axis_name)
        return (x - mean) / jnp.sqrt(lax.pmean(x.var(axis=0), axis_name))

    @wrong("standard deviations")
    @staticmethod
    def mean_of_local_deviations(x, axis_name):
        return (x - lax.pmean(x.mean(axis=0), axis_name)) / lax.pmean(x.std(axis=0), axis_name)

    @wrong("each feature")
    @staticmethod
    def all_features_together(x, axis_name):
        mean = lax.pmean(x.mean(), axis_name)
        return (x - mean) / jnp.sqrt(lax.pmean(((x - mean) ** 2).mean(), axis_name))

    @wrong("epsilon")
    @staticmethod
    def adds_an_epsilon(x, axis_name):
        mean = lax.pmean(x.mean(axis=0), axis_name)
        return (x - mean) / jnp.sqrt(lax.pmean(((x - mean) ** 2).mean(axis=0), axis_name) + 1e-8)

    @wrong("lost its digits")
    @staticmethod
    def difference_of_squares(x, axis_name):
        mean = lax.pmean(x.mean(axis=0), axis_name)
        return (x - mean) / jnp.sqrt(lax.pmean((x**2).mean(axis=0), axis_name) - mean**2)

    @wrong("variance")
    @staticmethod
    def forgets_the_root(x, axis_name):
        mean = lax.pmean(x.mean(axis=0), axis_name)
        return (x - mean) / lax.pmean(((x - mean) ** 2).mean(axis=0), axis_name)

    @staticmethod
    def check(answer):
        trials = [
            (3, 4, 2, "rows", jax.vmap),
            (4, 3, 5, "i", jax.vmap),
            (jax.device_count(), 6, 3, "devices", jax.pmap),
            # Spreads far from 1, beside which an added epsilon is not small.
            (3, 50, 4, "rows", jax.vmap),
            (1, 5, 3, "alone", jax.vmap),
            (3, 40, 2, "far", jax.vmap),  # a mean that is large beside the spread
        ]
        for seed, (members, rows, features, axis, over) in enumerate(trials):
            centres = 3 * _random(seed + 50, members, 1, features)
            scales = np.linspace(0.5, 3.0, features, dtype=np.float32)
            unit = 1.0 if seed not in (3, 4) else np.array([1e-4, 1e-2, 1.0, 1e4][:features], np.float32)
            x = ((_random(seed, members, rows, features) * scales + centres + scales) * unit).astype(np.float32)
            x = x + np.float32(3000) * (axis == "far")
            got = _members(answer, "normalize", x, axis, over)
            _check_normalized(got, x.astype(np.float64), _members_text("normalize", x, axis))


def _check_normalized(got, x, call):
    mean, spread = x.mean((0, 1)), x.std((0, 1))
    mistakes = [
        ((x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), "Each member used the statistics of its own rows."),
        (
            (x - mean) / np.sqrt(x.var(1).mean(0)),
            "The mean of the members' own variances leaves out the spread *between the members*.",
        ),
        ((x - mean) / x.std(1).mean(0), "Standard deviations cannot be averaged; average squared deviations."),
        ((x - x.mean()) / x.std(), "Features were mixed: each feature has a mean and a deviation of its own."),
        ((x - mean) / spread**2, "You divided by the variance; the deviation is its root."),
        (x - mean, "The mean is right; the division by the standard deviation is missing."),
        (x / spread, "The scale is right; the mean was not subtracted."),
    ]
    for epsilon in (1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
        added = f"You added an epsilon, {epsilon:g}; beside a small spread it is not small."
        mistakes += [((x - mean) / np.sqrt(spread**2 + epsilon), added), ((x - mean) / (spread + epsilon), added)]
    cause = "Mean and mean squared deviation are per feature, over the rows of all members; nothing is added to them."
    if (abs(mean) > 100 * spread).all():
        cause += " Square the deviations: `E[x²] - E[x]²` of large numbers has lost its digits."
    expected = ((x - mean) / spread).astype(np.float32)
    expect_close(got, expected, call=call, mistakes=mistakes, cause=cause, rtol=2e-3, atol=2e-3)


@exercise("pmap.5", "Put it where it belongs", minutes=6, difficulty=3, needs_devices=2)
class place:
    """Write `place(params, batch)`. Both are pytrees of NumPy arrays. Give back the pair `(params, batch)` with the same
    values as JAX arrays, placed over **all** devices: every leaf of `params` whole on each device, every leaf of `batch`
    split by rows into one block per device. (The number of devices divides the rows; leaves may have one axis or more.)"""

    hints = (
        'One mesh with one axis over `jax.devices()`; then two shardings, `P()` and `P("data")`.',
        "`jax.device_put(tree, sharding)` takes a whole pytree.",
    )
    why = "A sharding says where the parts of an array lie; `device_put` moves them there and leaves the values alone."
    notes = 'A spec shorter than the array\'s rank is padded with None: `P("data")` serves 1-D labels and 4-D images.'

    @staticmethod
    def stub(params, batch):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(params, batch):
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
        whole, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
        return jax.device_put(params, whole), jax.device_put(batch, by_rows)

    @wrong("whole on every device")
    @staticmethod
    def splits_both(params, batch):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        return jax.device_put((params, batch), NamedSharding(mesh, P("data")))

    @wrong("split by rows")
    @staticmethod
    def copies_both(params, batch):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        return jax.device_put((params, batch), NamedSharding(mesh, P()))

    @wrong("split by rows")
    @staticmethod
    def splits_columns(params, batch):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        return jax.device_put(params, NamedSharding(mesh, P())), jax.device_put(
            batch, NamedSharding(mesh, P(None, "data"))
        )

    @wrong("1 of the")
    @staticmethod
    def on_the_first_device(params, batch):
        return jax.tree.map(jnp.asarray, (params, batch))

    @wrong("of the")
    @staticmethod
    def on_half_of_them(params, batch):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[: jax.device_count() // 2]), ("data",))
        return jax.device_put(params, NamedSharding(mesh, P())), jax.device_put(batch, NamedSharding(mesh, P("data")))

    @staticmethod
    def check(answer):
        n = jax.device_count()
        labels = np.arange(4 * n, dtype=np.int32)[::-1].copy()
        trials = [
            ({"w": _random(0, 2 * n, 3), "b": _random(1, n)}, {"x": _random(2, 3 * n, 2 * n)}),
            ((_random(3, 5, 7), [_random(4, 7)]), (_random(5, 4 * n, 3, 2), labels)),
        ]
        for params, batch in trials:
            got = attempt(answer, params, batch, name="place")
            call = call_text(answer, (params, batch), name="place")
            expect(
                isinstance(got, (tuple, list)) and len(got) == 2,
                f"{call} gave {describe(got)}; expected the pair `(params, batch)`.",
            )
            expect_close(tuple(got), (params, batch), call=call, cause="Placing must not change values.", dtype=True)
            _over_devices("place", got)
            for leaf in jax.tree.leaves(got[0]):
                part = leaf.sharding.shard_shape(leaf.shape)
                expect(
                    part == leaf.shape,
                    f"{call}: a leaf of `params` with shape {leaf.shape} lies on each device as {part}; expected it "
                    "whole on every device. An empty spec, `P()`, splits nothing.",
                )
            for leaf in jax.tree.leaves(got[1]):
                part, block = leaf.sharding.shard_shape(leaf.shape), (leaf.shape[0] // n, *leaf.shape[1:])
                expect(
                    part == block,
                    f"{call}: a leaf of `batch` with shape {leaf.shape} lies on each device as {part}; split by rows "
                    f"it would be {block}. The spec names the mesh axis in the place of the array's first axis.",
                )


@exercise("pmap.6", "The old step, written today", minutes=12, difficulty=4, needs_devices=2)
class make_update:
    """An old post has this:

    ```python
    params = jax.device_put_replicated(params, jax.local_devices())

    @jax.pmap(axis_name="devices")
    def update(params, batch):
        grads = jax.lax.pmean(jax.grad(loss)(params, batch), "devices")
        return jax.tree_map(lambda p, g: p - rate * g, params, grads)
    ```

    Write `make_update(loss, rate)`, which gives back `update(params, batch)` as one writes it today: with `jax.jit` and
    shardings. No leaf has a device axis: `batch` is the whole batch, `(rows, …)`; `params` is one set of parameters. Both
    may come as NumPy arrays, so `update` also sees to it that the batch is split by rows over all devices and `params`
    lie whole on each. The result is the new `params`, whole on each device. `loss` is the mean over the rows it is given."""

    hints = (
        "Which lines of the old step speak of devices? None of them is needed: write the step for one device.",
        "Then say where things lie: `jax.device_put` on the way in, *before* the jitted step is called, and "
        "`out_shardings` for what comes back.",
        "`step(jax.device_put(params, whole), jax.device_put(batch, by_rows))`, with the two shardings of one mesh. (Or "
        "leave the placing to `jax.jit(step, in_shardings=(whole, by_rows), out_shardings=whole)`.)",
    )
    why = "Under `jit` a program means what it means on one device; the shardings only say where, and XLA adds the sum."
    notes = (
        "`jax.device_put` *inside* a jitted function does not split the batch (the check sees it whole on every device); "
        "`lax.with_sharding_constraint` inside does. The step passes with `in_shardings`, constraint or placing outside."
    )

    @staticmethod
    def stub(loss, rate):
        # about 10 lines
        raise NotImplementedError

    @staticmethod
    def solution(loss, rate):
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
        whole, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

        @partial(jax.jit, out_shardings=whole)
        def step(params, batch):
            grads = jax.grad(loss)(params, batch)
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        def update(params, batch):
            return step(jax.device_put(params, whole), jax.device_put(batch, by_rows))

        return update

    @wrong("1 of the")
    @staticmethod
    def only_jit(loss, rate):
        @jax.jit
        def update(params, batch):
            return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batch))

        return update

    @wrong("same rows")
    @staticmethod
    def copies_the_batch(loss, rate):
        whole = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("data",)), P())

        @jax.jit
        def update(params, batch):
            return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batch))

        return lambda params, batch: update(*jax.device_put((params, batch), whole))

    @wrong("unbound axis name")
    @staticmethod
    def keeps_the_collective(loss, rate):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("devices",))
        whole, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("devices"))

        @partial(jax.jit, in_shardings=(whole, by_rows), out_shardings=whole)
        def update(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return update

    @wrong("not compiled")
    @staticmethod
    def forgets_jit(loss, rate):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        whole, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

        def update(params, batch):
            params, batch = jax.device_put(params, whole), jax.device_put(batch, by_rows)
            return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batch))

        return update

    @wrong("whole batch")
    @staticmethod
    def only_renames(loss, rate):
        @partial(jax.pmap, axis_name="devices")
        def update(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        def outer(params, batch):
            n = jax.device_count()
            params = jax.tree.map(lambda leaf: np.stack([leaf] * n), jax.device_get(params))
            batch = jax.tree.map(lambda leaf: leaf.reshape(n, -1, *leaf.shape[1:]), batch)
            return jax.tree.map(lambda leaf: leaf[0], jax.device_get(update(params, batch)))

        return outer

    @wrong("split between the devices")
    @staticmethod
    def splits_the_parameters(loss, rate):
        by_rows = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("data",)), P("data"))

        @jax.jit
        def update(params, batch):
            return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batch))

        def outer(params, batch):
            params = {"w": jax.device_put(params["w"], by_rows), "b": params["b"]}
            return jax.device_put(update(params, jax.device_put(batch, by_rows)), {"w": by_rows, "b": None})

        return outer

    @staticmethod
    def check(answer):
        n = jax.device_count()
        for seed, (rows, features, rate) in enumerate([(3 * n, n, 0.1), (2 * n, 2 * n, 0.05)]):
            traces, layouts = [], []
            loss = _watched(_linear_loss(traces), rows, layouts)
            update = attempt(answer, loss, rate, name="make_update")
            expect(callable(update), f"`make_update(loss, {rate})` gave {describe(update)}; expected a function.")
            params = {"w": _random(seed, features), "b": np.float32(-0.5)}
            batch = (_random(seed + 10, rows, features), _random(seed + 20, rows, shift=1.0))
            current = params
            for number in range(3):
                before = len(traces)
                new = attempt(update, current, batch, name="update")
                call = call_text(None, (params, batch), name="update")
                expect(
                    set(traces) <= {(rows, features)},
                    f"{call} called `loss` on {traces[-1] if traces else ()} of the batch's {(rows, features)}. Under "
                    "`jit` with shardings `loss` is written for the whole batch, and sees all of it.",
                )
                expect(
                    number < 2 or len(traces) == before,
                    "The third call of `update` ran `loss` in Python once more: it is not compiled, or anew each time.",
                )
                grads = _local_gradients(params, *batch)
                mistakes = [
                    (_sgd(params, grads, -rate), "The step goes uphill: subtract the gradient."),
                    (params, "The parameters did not change."),
                    (_sgd(params, grads, rate * n), f"The step goes {n} times too far."),
                ]
                params = _sgd(params, grads, rate)
                expected = jax.tree.map(np.float32, params)
                cause = "Every leaf moves to `p - rate * g`, with `g` the gradient of `loss` on the whole batch."
                expect_close(new, expected, call=call, mistakes=mistakes, cause=cause, rtol=1e-3, atol=1e-4)
                current = new
            _check_layout(current, layouts, rows // n)


def _watched(loss, rows, layouts):
    """A loss that also notes how the compiler has laid out the batch, where it sees the whole of it."""

    def watched(params, batch):
        x, _ = batch
        if len(x) == rows:
            jax.debug.inspect_array_sharding(x, callback=lambda s: layouts.append(s.shard_shape(x.shape)))
        return loss(params, batch)

    return watched


def _check_layout(params, layouts, rows_each):
    _over_devices("update", params)
    expect(
        all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(params)),
        "The new `params` are split between the devices; expected them whole on each: `out_shardings`, or place them.",
    )
    expect(
        layouts and all(part[0] == rows_each for part in layouts),
        f"The compiler laid out {layouts[-1][0] if layouts else 'no'} rows of the batch on each device; expected "
        f"{rows_each}. All devices compute on the same rows, so they share no work. (`device_put` inside a jitted "
        "function does not split an array: place it outside, or use `in_shardings`.)",
    )


@exercise("pmap.7", "Partial sums", minutes=9, difficulty=4, needs_devices=2)
class column_sums:
    """Write `column_sums(x)` with `jax.shard_map` over all devices. `x` has shape `(rows, features)`; the number of devices
    divides the rows. Each device sums the columns of its own block of rows, then a collective adds these up. Give back
    the pair

    - `partials`, shape `(devices, features)`: row `d` is what device `d` found, and stays on that device;
    - `total`, shape `(features,)`: the sum over all rows, the same on all devices."""

    hints = (
        'One mesh axis, `in_specs=P("data")`; two results, so `out_specs` is a pair.',
        "The results of the devices are put one after the other along a split axis: a partial of shape `(1, features)` "
        "becomes `(devices, features)`.",
        'Inside: `part = block.sum(axis=0)`, then give back `part[None], lax.psum(part, "data")`, with '
        '`out_specs=(P("data"), P())`.',
    )
    why = (
        'Inside, shapes are those of one device; `P("data")` in `out_specs` joins the blocks, and `P()` promises equal '
        "values everywhere, which `psum` provides and `shard_map` verifies."
    )
    notes = "Without the `psum`, `out_specs=P()` is refused: `shard_map` checks what varies between devices."

    @staticmethod
    def stub(x):
        # about 7 lines
        raise NotImplementedError

    @staticmethod
    def solution(x):
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))

        def sums(block):
            part = block.sum(axis=0)
            return part[None], lax.psum(part, "data")

        return jax.shard_map(sums, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P()))(x)

    @wrong("`shard_map`")
    @staticmethod
    def reshapes(x):
        partials = x.reshape(jax.device_count(), -1, x.shape[1]).sum(axis=1)
        return partials, partials.sum(axis=0)

    @wrong("collective")
    @staticmethod
    def adds_outside(x):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        sums = jax.shard_map(
            lambda block: block.sum(axis=0, keepdims=True), mesh=mesh, in_specs=P("data"), out_specs=P("data")
        )
        partials = sums(x)
        return partials, partials.sum(axis=0)

    @wrong("ValueError")
    @staticmethod
    def forgets_the_sum(x):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))

        def sums(block):
            part = block.sum(axis=0)
            return part[None], part

        return jax.shard_map(sums, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P()))(x)

    @wrong("one behind the other")
    @staticmethod
    def joins_end_to_end(x):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))

        def sums(block):
            part = block.sum(axis=0)
            return part, lax.psum(part, "data")

        return jax.shard_map(sums, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P()))(x)

    @wrong("one copy per device")
    @staticmethod
    def repeats_the_total(x):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))

        def sums(block):
            part = block.sum(axis=0)
            return part[None], lax.psum(part, "data")

        return jax.shard_map(sums, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P("data")))(x)

    @wrong("mean")
    @staticmethod
    def averages(x):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))

        def sums(block):
            part = block.sum(axis=0)
            return part[None], lax.pmean(part, "data")

        return jax.shard_map(sums, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P()))(x)

    @staticmethod
    def check(answer):
        n = jax.device_count()
        for seed, (rows, features) in enumerate([(3, 2), (1, 5), (4, 3)]):
            x = _random(seed, n * rows, features, shift=1.0)
            got = attempt(answer, x, name="column_sums")
            call = call_text(answer, (x,), name="column_sums")
            parts = x.reshape(n, rows, features).sum(1)
            total = x.sum(0)
            mistakes = [
                (
                    (parts.ravel(), total),
                    "The partial sums were laid one behind the other: give each a first axis of 1.",
                ),
                (
                    (parts, np.tile(total, n)),
                    "The total came once per device, one copy per device: its spec is `P()`, not split.",
                ),
                ((parts, total / n), "The second part is the mean over the devices; add, don't average."),
                ((total, parts), "The order is partials first, then the total."),
                ((parts, parts[0]), "The total is the first device's part alone: the collective is missing."),
                (total, "Two results are wanted, `partials` and `total`."),
            ]
            got = tuple(got) if isinstance(got, list) else got
            cause = "Row `d` of the partials sums the columns of device `d`'s rows; the total sums those of all rows."
            expect_close(got, (parts, total), call=call, mistakes=mistakes, cause=cause)
            names = primitives(answer, x)
            expect("shard_map" in names, f"{call} is right, but there is no `shard_map` in what was recorded.")
            expect(
                _COLLECTIVES & set(names),
                f"{call} is right, but no collective was recorded: the total was added up outside `shard_map`.",
            )
            _over_devices("column_sums", got)
            part = got[0].sharding.shard_shape(got[0].shape)
            expect(
                part == (1, features),
                f"{call}: each device holds {part} of the partials; expected its own row, {(1, features)}. Their "
                "spec is split along the first axis.",
            )


@exercise("pmap.8", "Once around the ring", minutes=15, difficulty=5, needs_devices=4)
class ring_sum:
    """Write `ring_sum(x, axis_name)`, which gives every member of the axis the sum of `x` over all members, as `lax.psum`
    does, using no collective but `lax.ppermute`, and that only to a next neighbour in the ring: from `i` to `i + 1` or
    `i - 1`, modulo the axis' size. It runs under `jax.pmap`; the axis may have any size, also 1.

    Example: four members that hold 1, 2, 3 and 10 each get 16."""

    hints = (
        "Every member passes something on, again and again. What must travel: the running sum, or the piece that came?",
        "The *piece* travels. After k handovers you hold the piece of the member k places back; add it to your sum.",
        "`n = lax.axis_size(axis_name)`, so n − 1 handovers with `perm=[(i, (i + 1) % n) for i in range(n)]`.",
    )
    why = "After n − 1 handovers every piece has passed every member once, and each has added each piece once."
    notes = (
        "Passing the running total on counts pieces several times (2, 4, 8 … with each round). Chapter 10 prices this "
        "ring, and cuts it in two: reduce-scatter, then all-gather."
    )

    @staticmethod
    def stub(x, axis_name):
        # about 7 lines
        raise NotImplementedError

    @staticmethod
    def solution(x, axis_name):
        n = lax.axis_size(axis_name)
        to_the_next = [(i, (i + 1) % n) for i in range(n)]
        total = piece = x
        for _ in range(n - 1):
            piece = lax.ppermute(piece, axis_name, to_the_next)
            total = total + piece
        return total

    @wrong("running total")
    @staticmethod
    def passes_the_total(x, axis_name):
        n = lax.axis_size(axis_name)
        total = x
        for _ in range(n - 1):
            total = total + lax.ppermute(total, axis_name, [(i, (i + 1) % n) for i in range(n)])
        return total

    @wrong("its own piece twice")
    @staticmethod
    def once_too_often(x, axis_name):
        n = lax.axis_size(axis_name)
        total = piece = x
        for _ in range(n):
            piece = lax.ppermute(piece, axis_name, [(i, (i + 1) % n) for i in range(n)])
            total = total + piece
        return total

    @wrong("last hands to nobody")
    @staticmethod
    def open_line(x, axis_name):
        n = lax.axis_size(axis_name)
        total = piece = x
        for _ in range(n - 1):
            piece = lax.ppermute(piece, axis_name, [(i, i + 1) for i in range(n - 1)])
            total = total + piece
        return total

    @wrong("`lax.ppermute` alone")
    @staticmethod
    def asks_psum(x, axis_name):
        return lax.psum(x, axis_name)

    @wrong("next neighbour")
    @staticmethod
    def straight_to_each(x, axis_name):
        n = lax.axis_size(axis_name)
        total = x
        for distance in range(1, n):
            total = total + lax.ppermute(x, axis_name, [(i, (i + distance) % n) for i in range(n)])
        return total

    @wrong("one handover")
    @staticmethod
    def one_neighbour(x, axis_name):
        n = lax.axis_size(axis_name)
        return x + lax.ppermute(x, axis_name, [(i, (i + 1) % n) for i in range(n)])

    @staticmethod
    def check(answer):
        n = jax.device_count()
        trials = [
            (_random(0, 3), "ring"),
            (_random(1, n, 2, 3), "i"),
            (np.array([4, -1, 7, 100], np.int32), "chips"),
            (_random(2, 1, 3), "alone"),
        ]
        for x, axis in trials:
            got = _members(answer, "ring_sum", x, axis, jax.pmap)
            _check_ring(got, x, _members_text("ring_sum", x, axis))

        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ring",))
        inside = jax.shard_map(
            lambda x: answer(x, "ring"), mesh=mesh, in_specs=P("ring"), out_specs=P("ring"), check_vma=False
        )
        others = _COLLECTIVES & set(primitives(inside, _random(4, 2 * n)))
        others |= {"pmax", "pmin", "pbroadcast"} & set(primitives(inside, _random(4, 2 * n)))
        expect(
            not others,
            f"The sums are right, but `{', '.join(sorted(others))}` was recorded; the task is `lax.ppermute` alone.",
        )
        for giver, taker in _handovers(jax.make_jaxpr(inside)(_random(4, 2 * n)).jaxpr):
            expect(
                (taker - giver) % n in (0, 1, n - 1),
                f"The sums are right, but on a ring of {n} member {giver} handed something to member {taker}, which is "
                "no next neighbour: links lead from `i` to `i + 1` and `i - 1` only.",
            )


def _handovers(jaxpr):
    """Give each pair (giver, taker) of each `ppermute` in a jaxpr, inner ones included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "ppermute":
            yield from equation.params["perm"]
        for parameter in equation.params.values():
            for item in parameter if isinstance(parameter, (list, tuple)) else (parameter,):
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from _handovers(inner)


def _check_ring(got, x, call):
    size = len(x)
    pieces = np.stack([np.roll(x, k, axis=0) for k in range(size)]).astype(np.float64)
    doubled = x.astype(np.float64)
    for _ in range(size - 1):
        doubled = doubled + np.roll(doubled, 1, axis=0)
    sums = np.broadcast_to(x.astype(np.float64).sum(0), x.shape).astype(x.dtype)
    mistakes = [
        (doubled, "You passed the running total on, so pieces were counted again: pass on the piece that came."),
        (sums + x, "One handover too many: each member counted its own piece twice."),
        (np.cumsum(x.astype(np.float64), 0), "The last hands to nobody: close the ring with `(i + 1) % n`."),
        (pieces[:2].sum(0), "That is one handover; n − 1 of them bring every piece to every member."),
        (pieces[[0, -1]].sum(0), "That is one handover; n − 1 of them bring every piece to every member."),
        (x, "Each member got its own piece back."),
        *(
            (x + (size - 1) * np.roll(x, k, axis=0), "The same piece came each time: pass on the piece that just came.")
            for k in (1, -1)
        ),
    ]
    if is_close(got, sums):
        expect(getattr(got, "dtype", None) == x.dtype, f"{call} gave {describe(got)}; expected dtype {x.dtype}.")
    cause = "Each member starts with its own piece, and adds each of the n − 1 others once, as they come by."
    expect_close(got, sums, call=call, mistakes=mistakes, cause=cause)
