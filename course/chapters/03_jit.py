# %% [markdown]
# # jit: recorded once, run many times
#
# After this chapter you can
# - say when your Python runs, and when only its recording does,
# - predict how often a function is recorded, and find out why it was recorded again,
# - choose between a static argument, `jnp.where`, `lax.cond` and a loop that is recorded once,
# - time a compiled function without fooling yourself, and say when `jit` is no help,
# - look inside a compiled function, and compile one without running it,
# - train a small network with a compiled step.

# %%
import tpulab

tpulab.setup()

import time
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax import lax
from sklearn.datasets import load_digits

# %% [markdown]
# ## A function that talks
#
# `noisy` prints, then computes. We compile it and call it three times.

# %%
heard = []


@jax.jit
def noisy(x):
    print("hello from noisy, x is", x)
    heard.append("a number" if isinstance(x, float) else "a stand-in")
    return 2 * x + 1


# %% [markdown] tags=["instructor"]
# **Plan.** 35 minutes of reading and running, 17 of core exercises (`jit.2`, `jit.3`, `jit.5`). In a two-hour workshop
# stop after *An honest clock* and show the last section yourself. **Before p1** ask for a show of hands: one line or
# three? Whoever says three thinks that `jit` runs their Python faster; come back to that sentence at *When jit is no
# help*.

# %% [predict] jit.p1

# %%
for value in (1.0, 2.0, 3.0):
    result = noisy(value)
print("last result:", result)
tpulab.reveal("jit.p1", {"lines": heard.count("a stand-in"), "x": heard[0]})

# %% [markdown]
# One line, and `x` was no number. The first call did not *run* your function, it **recorded** it: JAX passed in a
# stand-in, a *tracer*, with a shape and a dtype but no value, wrote down each operation done to it, and compiled the
# record. Calls two and three ran the record. `print` is no operation on `x`, so it is not in it.
#
# The record is called a *jaxpr*. Here is that of the course's layer.


# %%
def layer(x, w, b):
    return jnp.maximum(x @ w + b, 0)


jaxpr = jax.make_jaxpr(layer)(jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.ones(4))
print(jaxpr)
print("first operation:", jaxpr.eqns[0].primitive.name)

# %% [markdown]
# Read it aloud: *given `a`, `b` and `c`, arrays of float32; `d` is the matrix product of `a` and `b`* … and at the end
# *give back `g`*. No Python is left in it: this is what the compiler works from, besides a few settings, and it gets
# the whole at once. Without `jit`, JAX launches these operations one after another, as any eager framework does.
#
# ## What is frozen in
#
# A recording knows its arguments as stand-ins. What about a value that comes from elsewhere?
#
# <!-- claim 1: holds with conditions: recording and compiling the whole is what jit does; without it JAX, too, launches one operation after another -->

# %% [predict] jit.p2

# %%
scale = 2.0


@jax.jit
def scaled(x):
    return scale * x


scaled(3.0)
scale = 10.0
tpulab.reveal("jit.p2", scaled(3.0))

# %% [markdown]
# `scale` was read while recording, and its value went in as a constant. Nobody watches the global afterwards. The rule:
# **what changes is an argument; what you capture must stay.**
#
# ## When is it recorded again?
#
# Compiling costs time, so JAX keeps each recording and looks for one that fits before it makes another. A stand-in has
# a shape and a dtype. But is that all that is looked at?

# %% [predict] jit.p3

# %%
new, total = [], 0
three, four = jnp.zeros(3), jnp.zeros(4)
double = jax.jit(lambda x: new.append(x) or jax.tree.map(lambda leaf: 2 * leaf, x))
for value in (1.0, 2.0, 3, jnp.float32(4), three, jnp.ones(3), four, (1.0, 2.0), [1.0, 2.0]):
    new.clear()
    double(value)
    total += len(new)
    print("recorded" if new else "       -", " ", value)

for _ in range(5):
    jax.jit(lambda x: new.append("new object") or x + 1)(1.0)
print("five new functions with the same text, recorded:", new.count("new object"))
tpulab.reveal("jit.p3", total)

# %% [markdown]
# A recording is found again by what tracing may depend on:
#
# - shape and dtype of each array, and whether its type is *weak* (the `~` in what `noisy` printed): a Python number
#   gives way to the dtype that it meets, an array does not,
# - the structure around the arrays: tuple or list, the keys of a dict,
# - the values of static arguments (below),
# - a few settings, such as the precision of matrix products, and how arrays are split between devices (chapter 05),
# - and **which function it is**. A new object starts with an empty cache, though its text be the same. So do not write
#   `jax.jit(lambda …)` inside a loop.
#
# The values in the arrays are not on the list.

# %% [markdown] tags=["instructor"]
# **Misconceptions here.** *jit looks at the values*: no, two arrays of one shape share a recording. *The cache belongs
# to `jax.jit(...)`*: it belongs to the function object, so jitting one function twice costs nothing and jitting two
# equal lambdas costs twice. **Ask:** your training slows down at the end of each epoch; what do you check first?

# %% [exercise] jit.1

# %% [exercise] jit.2

# %% [exercise] jit.3

# %% [markdown]
# ## One batch too short
#
# A training epoch calls one compiled step on batch after batch. We take scikit-learn's 1,797 handwritten digits, keep
# 360 for testing, and watch: `epoch` gives, for each call, its number of rows and whether it was recorded.

# %%
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
images, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
test_x, test_y, train_x, train_y = images[:360], labels[:360], images[360:], labels[360:]
print("train", train_x.shape, "test", test_x.shape)


def epoch(size):
    recorded, calls = [], []
    step = jax.jit(lambda batch: recorded.append(1) or jnp.sum(batch))
    for batch in np.split(train_x, range(size, len(train_x), size)):
        recorded.clear()
        step(batch)
        calls.append((len(batch), bool(recorded)))
    return calls


# %% [predict] jit.p4


# %%
def describe(size, calls):
    traces, last = sum(recorded for _, recorded in calls), calls[-1][0]
    return f"batch size {size}: {len(calls)} calls, traces: {traces}, rows in the last batch: {last}"


single = 0
for size in (1, 2, 3, 8, 16, 32, 50, 64):
    calls = epoch(size)
    single += sum(recorded for _, recorded in calls) == 1
    print(describe(size, calls))
tpulab.reveal("jit.p4", single)


# %%
def picture(size):
    # one block per call; the tall ones were recorded
    calls = epoch(size)
    rows, recorded = np.array(calls).T
    spans = np.stack([np.cumsum(rows) - rows, rows], axis=1)
    plain, tall = spans[recorded == 0], spans[recorded == 1]
    fig, ax = plt.subplots(figsize=(6.4, 1.5))
    ax.broken_barh(plain, (0, 1), facecolor="C0", edgecolor="white", linewidth=0.4)
    ax.broken_barh(tall, (0, 1.5), facecolor="C1", edgecolor="white", linewidth=0.4, hatch="///")
    ax.plot(tall[:, 0] + tall[:, 1] / 2, [1.8] * len(tall), "kv", clip_on=False)
    ax.set(title=describe(size, calls), xlabel="row of the epoch (▼ recorded)", yticks=[], ylim=(0, 2))
    return tpulab.show(fig, alt=f"An epoch as a row of blocks, one per call. {describe(size, calls)}.")


picture(50)

# %% tags=["nbval-ignore-output"]
import ipywidgets as widgets

slider = widgets.IntSlider(description="batch size", min=1, max=64, value=32)
view = widgets.HTML()


def update(change=None):
    shown = picture(slider.value)
    view.value = f"{shown._repr_html_()}<p>{shown.alt}</p>"


slider.observe(update, names="value")
update()
widgets.VBox([slider, view])

# %% [markdown]
# 1,437 is 3 × 479, so batches of 1 and of 3 come out even; every other size up to 64 leaves a short last batch, which is
# recorded and compiled like a new function. Drop it or pad it (`jit.9`), and one recording serves.
#
# ## Static arguments
#
# Some arguments decide *what* is recorded: how many layers, which activation. Make these static. Python sees their
# value, and each new value costs a recording. (`partial(jax.jit, …)` as a decorator works in every version;
# `@jax.jit(static_argnames=…)` works too, since 0.8.1.)


# %%
@partial(jax.jit, static_argnames="depth")
def tower(x, depth):
    print("recording depth", depth)
    for _ in range(depth):
        x = jnp.tanh(x)
    return x


for depth in (2, 3, 2):
    tower(1.0, depth=depth)
with tpulab.expect_error(ValueError):
    tower(1.0, depth=[2])

# %% [exercise] jit.4

# %% [markdown]
# Static values are looked up by hash and equality, so they must be hashable: a tuple, not a list. And a number that
# changes at every call, such as a learning rate, is the wrong thing to make static.
#
# ## Branches and loops
#
# A tracer has no value, so Python cannot branch on it. `jnp.where` computes both sides and picks number by number;
# `lax.cond` records both and runs one. Loops are the other way round: a Python loop over a plain number *works*, but it
# is unrolled, round after round, into the recording. JAX's own loops record one round; what a round hands to the next,
# the *carry*, keeps its shape and dtype.


# %%
def slope(x):
    return 1.0 if x > 0 else 0.1


with tpulab.expect_error(jax.errors.TracerBoolConversionError):
    jax.jit(slope)(2.0)

chosen = jax.jit(lambda x: jnp.where(x > 0, 1.0, 0.1))
branched = jax.jit(lambda x: lax.cond(x > 0, lambda: 1.0, lambda: 0.1))
for f in (chosen, branched):
    print(f"{f(2.0):.1f} {f(-2.0):.1f}")


# %% tags=["nbval-ignore-output"]
def unrolled(x):
    for _ in range(200):
        x = jnp.tanh(1.1 * x)
    return x


looped = partial(lax.fori_loop, 0, 200, lambda i, x: jnp.tanh(1.1 * x))
for name, f in (("unrolled", unrolled), ("looped", looped)):
    count = len(jax.make_jaxpr(f)(1.0).eqns)
    start = time.perf_counter()
    jax.block_until_ready(jax.jit(f)(1.0))
    ms = 1e3 * (time.perf_counter() - start)
    print(f"{name:<8} operations: {count:>3}, first call {ms:.0f} ms (measured)")


# %%
# while_loop: until a condition on the carry fails. Newton's way to the square root of 2:
root, rounds = lax.while_loop(
    lambda carry: jnp.abs(carry[0] ** 2 - 2) > 1e-5,
    lambda carry: ((carry[0] + 2 / carry[0]) / 2, carry[1] + 1),
    (1.0, 0),
)
print(f"root {root:.4f} after {rounds} rounds; jnp.sqrt gives {jnp.sqrt(2.0):.4f}")

# scan: step(carry, x) gives the new carry and something to collect
xs = jnp.array([1.0, 2.0, 4.0])
carry, collected = lax.scan(lambda total, x: (total + x, total + x), jnp.zeros_like(xs[0]), xs)
print("last carry", carry, "| collected", collected)

# %% [exercise] jit.5

# %% [exercise] jit.6

# %% [markdown]
# ## An honest clock
#
# Compiled or not, JAX hands out a result *before* it is computed, and your Python runs on. Convenient, except for
# whoever holds a stopwatch. Looking at a number in the result waits until it is there; `jax.block_until_ready` waits
# without looking.

# %% [predict] jit.p5

# %% tags=["nbval-ignore-output"]
deep = jax.jit(lambda x: lax.fori_loop(0, 10, lambda i, x: jnp.tanh(x @ x), x))
big = jnp.array(np.random.default_rng(0).normal(size=(800, 800)) / 30, jnp.float32)
jax.block_until_ready(deep(big))  # compiles
shares = []
for _ in range(9):
    start = time.perf_counter()
    result = deep(big)
    asked = time.perf_counter() - start
    jax.block_until_ready(result)
    shares.append(asked / (time.perf_counter() - start))
share = min(shares)
print(f"the call took {share:.1%} of the time until the result was there (measured)")
word = "nearly nothing" if share < 0.3 else "about half" if share < 0.7 else "nearly all"
tpulab.reveal("jit.p5", word)

# %% [markdown]
# That clock timed the *asking*. (It is the smallest of nine shares: a busy machine can keep your Python waiting
# between two looks at the clock, which is no part of the question.)
#
# An honest measurement warms up, since the first call compiles; waits for each result; repeats; and gives a middle
# value, since one run may be the day's worst.

# %% [markdown] tags=["instructor"]
# **Ask** who has published a time taken without waiting. The smallest share stays small on a busy machine, too. The
# exercise comes before the cell that opens `measure`, so hide that cell if you project the notebook.

# %% [exercise] jit.7


# %% tags=["nbval-ignore-output"]
# What tpulab.measure does, in plain JAX
def middle_seconds(fn, *args, runs=9):
    jax.block_until_ready(fn(*args))
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(fn(*args))
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[runs // 2]


print(f"{middle_seconds(deep, big) * 1e3:.1f} ms (measured)")
tpulab.measure(deep, big, runs=9)

# %% [markdown]
# ## When jit is no help
#
# Now that we can measure: four functions, each as it stands and jitted. What does `jit` make of a function that is a
# single large operation?

# %% [predict] jit.p6

# %% tags=["nbval-ignore-output"]
wide = jnp.full((1000, 1000), 0.01)
works = {
    "one product, 1000 × 1000": (lambda x: x @ x, wide),
    "one tanh, 1000 × 1000": (jnp.tanh, wide),
    "9 operations, 1000 × 1000": (lambda x: 0.5 * x * (1 + jnp.tanh(x + 0.05 * x * x * x)), wide),
    "400 operations, one number": (unrolled, 1.0),
}
times = {}
for name, (f, x) in works.items():
    timings = [tpulab.measure(fn, x, budget_s=0.3) for fn in (f, jax.jit(f))]
    plain, jitted = times[name] = [1e3 * timing.median_s for timing in timings]
    print(f"{name:<27} {plain:7.3f} ms, jitted {jitted:7.3f} ms: {plain / jitted:.1f} times faster")
plain, jitted = times["one product, 1000 × 1000"]
tpulab.reveal("jit.p6", round(plain / jitted, 1))

# %% tags=["nbval-ignore-output"]
fig, ax = plt.subplots(figsize=(6.4, 2.4))
for row, (plain, jitted) in enumerate(times.values()):
    ax.plot([plain, jitted], [row, row], color="0.7", marker="", zorder=1)
    ax.annotate(f"{plain / jitted:.1f}×", (1.02, row), xycoords=("axes fraction", "data"), va="center")
for column, (label, size) in enumerate((("as it stands", 9), ("jitted", 5))):
    points = [pair[column] for pair in times.values()]
    ax.plot(points, range(len(times)), "os"[column], color=f"C{column}", markersize=size, label=label)
ax.set(xscale="log", xlabel="ms per call (measured, log scale); right: times faster")
ax.set(yticks=range(len(times)), yticklabels=list(times), ylim=(len(times) - 0.5, -0.5))
ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
words = "; ".join(f"{name} {plain:.3f} and {jitted:.3f} ms" for name, (plain, jitted) in times.items())
tpulab.show(fig, alt=f"Time of a call as it stands and jitted: {words}.")

# %% [markdown]
# A single operation was compiled already: nothing to gain. `jit` saves the launches between many small operations and
# the memory traffic between elementwise ones (Part 2 follows it there). It does not make Python fast; it takes
# Python out of the way. And the compilation must be earned back: a function that runs once is better left alone.
#
# <!-- claim 6: holds with conditions: many operations gain much, one large operation gains nothing, and the first call pays for compiling -->
#
# ## Giving memory away
#
# Explicit parameters allow something more: the caller may **donate** an argument, whose memory the result takes over.


# %%
def donated():
    step = jax.jit(lambda w, g: w - 0.1 * g, donate_argnums=0)
    w, g = jnp.ones(1000), jnp.ones(1000)
    compiled = step.lower(w, g).compile()
    new = step(w, g)
    print(
        "bytes written over an argument:", compiled.memory_analysis().alias_size_in_bytes, "(compiled)"
    )
    print("w is gone:", w.is_deleted(), "| new parameters:", new[:2])
    return w


with tpulab.expect_error(RuntimeError):
    donated() + 1

# %% [markdown]
# Donate inside a function that makes its own arrays, as here; a cell that donates a global works once. Where no
# result has the donated shape and dtype, JAX warns that it could not use the gift. Code that hides its parameters in
# objects cannot say who still needs them.
#
# <!-- claim 3: holds with conditions: donation needs parameters that are arguments; stateful code can be compiled too, once somebody makes its state explicit -->
#
# ## Looking inside
#
# `print` spoke while recording. `jax.debug.print` goes *into* the recording and speaks each time it runs.


# %%
@jax.jit
def watched(x):
    y = jnp.log(x)
    jax.debug.print("x = {x:.1f}, log x = {y:.3f}", x=x, y=y)
    return y


for value in (1.0, 2.0):
    jax.block_until_ready(watched(value))
jax.effects_barrier()  # wait for printing, too

# %%
# debug_nans (or the flag jax_debug_nans) looks at each result. On a NaN it announces another run, piece
# by piece ("de-optimized"), and names the operation that made it. It is slow.
with jax.debug_nans(True), tpulab.expect_error(FloatingPointError):
    jax.jit(lambda x: jnp.log(x) - 1)(-1.0)

# disable_jit runs plain Python, with real values, each time: for print and pdb
with jax.disable_jit():
    noisy(5.0)
    noisy(6.0)

# %%
# log_compiles writes to the logger "jax"; here its lines on what is compiled, sent to this page
import logging
import sys

handler, logger = logging.StreamHandler(sys.stdout), logging.getLogger("jax")
handler.addFilter(lambda record: record.getMessage().startswith("Compiling"))
others, logger.handlers, logger.propagate = logger.handlers, [handler], False
cube = jax.jit(lambda x: x**3)
with jax.log_compiles():
    for value in (three, three, four):
        cube(value)
logger.handlers, logger.propagate = others, True

# %% [markdown]
# Two shapes, two compilations. If such a line comes at every step of your training, `jax_explain_cache_misses` is the
# flag to set next: it says what differed from the recordings at hand.
#
# ## Without running
#
# Recording needs shapes only, no array. `jax.eval_shape` stops there; `.lower()` goes on to the program that XLA is
# given, `.compile()` to what XLA makes of it. Behind that door lies Part 2: what is fused, what travels to memory, and
# how that looks for a TPU.

# %% tags=["nbval-ignore-output"]
m, k, n = 64, 256, 128
specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((m, k), (k, n), (n,))]
print(jax.eval_shape(layer, *specs))

lowered = jax.jit(layer).lower(*specs)
for line in lowered.as_text().splitlines():
    if "stablehlo." in line:
        print("  ", line.strip().split(" : ")[0])

flops = lowered.compile().cost_analysis()["flops"]
print(f"{flops:,.0f} FLOPs (compiled); by hand 2mkn + 2mn = {2 * m * k * n + 2 * m * n:,}")

# %% [exercise] jit.8

# %% [markdown]
# ## The layer learns
#
# Two of our layers, the digits, and optax: `optimizer.update` turns gradients into updates, and its state is a pytree
# that goes in and comes out like the parameters. `has_aux` lets the loss give its logits, too. The arrays that a step
# takes are donated; the cell that trains makes them itself, so it can run twice.

# %%
optimizer = optax.adam(3e-3)


def loss(params, x, y):
    (w1, b1), (w2, b2) = params
    logits = layer(x, w1, b1) @ w2 + b2
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, x, y):
    (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(params, x, y)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value


# %% tags=["nbval-ignore-output"]
random, losses, sizes = np.random.default_rng(0), [], ((64, 64), (64, 10))
params = [(jnp.array(random.normal(size=s) / 8, jnp.float32), jnp.zeros(s[1])) for s in sizes]
state = optimizer.init(params)
for _ in range(300):
    rows = random.choice(len(train_x), 128, replace=False)
    params, state, value = train_step(params, state, train_x[rows], train_y[rows])
    losses.append(float(value))  # waits for the step
accuracy = float((jnp.argmax(loss(params, test_x, test_y)[1], axis=1) == test_y).mean())
fig, ax = plt.subplots(figsize=(6.4, 2.6))
ax.plot(losses, marker="")
ax.set(yscale="log", xlabel="step", ylabel="loss (cross-entropy, nats)")
ax.set_title(f"{accuracy:.1%} of {len(test_y)} test digits right (measured)")
alt = f"In {len(losses)} steps the loss falls from {losses[0]:.1f} to {losses[-1]:.2f} nats."
tpulab.show(fig, alt=alt)

# %% [exercise] jit.9

# %% [markdown]
# ## If you come from PyTorch
#
# | | `torch.compile(f)` (2.1 on) | `jax.jit(f)` |
# |---|---|---|
# | looks at | your Python bytecode | the operations done to tracers |
# | cannot follow | breaks the graph, runs that part eagerly | raises an error |
# | new shape | recompiles; then with dynamic sizes | a new recording each time |
# | changed global | a guard notices, recompiles | frozen, unnoticed |
# | in place | `w.add_(…)` | donate `w` |
# | before reading the clock | `torch.cuda.synchronize()` | `jax.block_until_ready(y)` |

# %% [markdown]
# ## On a real TPU
#
# The cell times thirty of our layers in a row, as they stand and jitted, on this machine; then on a TPU, where there
# is one. No TPU was measured yet. Expect a larger gain there: a launch costs the host about the same, while the chip is
# done with a small layer sooner.


# %% tags=["nbval-ignore-output"]
def stack(x):
    w = jnp.full((256, 256), 0.01)
    for _ in range(30):
        x = layer(x, w, 0.1)
    return x


def figures():
    x = jnp.full((128, 256), 0.1)
    return {"eager": tpulab.measure(stack, x), "jitted": tpulab.measure(jax.jit(stack), x)}


eager, jitted = figures().values()
print(f"here, jitted is {eager.median_s / jitted.median_s:.1f} times faster (measured)")
tpulab.on_tpu("jit", figures)

# %% [markdown]
# ## What you can do now
#
# - You said when your Python ran, and when only its recording did.
# - You predicted how often a function is recorded, and found out why it was recorded again.
# - You chose between a static argument, `jnp.where`, `lax.cond` and loops that are recorded once.
# - You timed compiled functions without fooling yourself, and saw when `jit` is no help.
# - You looked inside a compiled function, and compiled one without running it.
# - You trained a small network with a compiled step.
#
# Next, `vmap`: from one example to a batch.
