# %% [markdown]
# # vmap: write it for one, run it for a batch
#
# After this chapter you can
# - turn a function of one example into a function of a batch, and say what was recorded,
# - say with `in_axes` and `out_axes` which axis holds the examples, in pytrees too, and read the error when sizes differ,
# - nest `vmap` and predict the shape,
# - compute one gradient per example,
# - give each example randomness of its own,
# - tell what becomes of branches and loops under `vmap`, and what a batch costs.

# %%
import tpulab

tpulab.setup()

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import lax

# %% [markdown]
# ## One example first
#
# The layer of this course, for **one** input vector: `x` has 3 numbers, the result 4. For five vectors, the rows of `batch`, you know two ways: a Python loop, or hoping that `layer` takes the whole array. Hoping works here, because `@` and `+` happen to treat an extra axis in front as a batch.


# %%
def layer(params, x):
    return jax.nn.relu(x @ params["w"] + params["b"])


w_key, x_key = jax.random.split(jax.random.key(1))
params = {"w": jax.random.normal(w_key, (3, 4)), "b": jnp.array([0.5, 0.0, -0.5, 1.0])}
batch = jax.random.normal(x_key, (5, 3))
print("one vector:", np.asarray(layer(params, batch[0])).round(2))

looped = jnp.stack([layer(params, row) for row in batch])
hoped = layer(params, batch)
print("five:", hoped.shape, "- as the loop has it:", np.allclose(looped, hoped, atol=1e-5))

# %% [markdown]
# Hope ends soon. `unit` divides the vector by its length, so every row of the result should have length 1. Given the whole array, it says nothing and gives something else. The last line says that there is a batch.


# %%
def unit(params, x):
    h = layer(params, x)
    return h / jnp.linalg.norm(h)


hoped = unit(params, batch)
mapped = jax.vmap(unit, in_axes=(None, 0))(params, batch)
print("lengths, whole array:", np.linalg.norm(hoped, axis=1).round(2))
print("lengths, vmap:       ", np.linalg.norm(mapped, axis=1).round(2))

# %% [markdown]
# `norm` had taken the length of the whole array. You could rewrite `unit` with `axis=-1` and `keepdims=True`, and so on in every function that you meet. `jax.vmap` leaves it as it is: it takes a function and gives a function. `in_axes` has an entry for each argument: `None` hands `params` over whole, `0` says that axis 0 of `batch` holds the examples.
#
# ## What is recorded
#
# How often does Python run the function?

# %% [predict] vmap.p1


# %%
def talking_layer(params, x):
    seen.append(x.ndim)
    print("hello, x has", x.ndim, "dimension(s)")
    return layer(params, x)


seen = []
many = jax.random.normal(jax.random.key(7), (1000, 3))
result = jax.vmap(talking_layer, in_axes=(None, 0))(params, many)
print("result:", result.shape)
tpulab.reveal("vmap.p1", {"lines": len(seen), "dimensions": seen[0]})

# %% [markdown]
# Once, and inside `x` is a vector. (Call it again and it prints again: `vmap` alone keeps no record.) As under `jit`, a stand-in goes through your function; this one pretends to be one example and carries the batch behind its back. Each operation done to it is replaced by one on the whole batch. The record shows how:

# %%
batched_layer = jax.vmap(layer, in_axes=(None, 0))
for name, f, x in (("one", layer, batch[0]), ("vmap", batched_layer, batch)):
    for eqn in jax.make_jaxpr(f)(params, x).eqns:
        shapes = [v.aval.shape for v in eqn.invars]
        print(f"{name:5} {eqn.primitive.name:17} {shapes} -> {eqn.outvars[0].aval.shape}")
        if eqn.primitive.name == "dot_general":
            print("      sums over axes", eqn.params["dimension_numbers"][0])
record = jax.make_jaxpr(batched_layer)(params, jnp.zeros((5000, 3)))
print("operations for 5,000 rows:", len(record.eqns))

# %% [markdown]
# Vector times matrix has become **one** matrix product, (5, 3) times (3, 4). `dot_general` now sums over axis 1 of the batch, where it was axis 0 of the vector. (`custom_jvp_call` is `relu`.) One operation more, to line up `b`, and no loop: the record is as long for 5,000 rows as for 5.

# %% [exercise] vmap.1

# %% [markdown]
# ## Which axis?
#
# Examples need not be rows. The picture numbers each entry by the example that it belongs to. Below it, the same in code: the examples in columns; the result in columns too, by `out_axes`; and, since an entry of `in_axes` may be a tree that mirrors its argument, a shared `w` with a bias for each example.


# %%
def draw(ax, shape, axis, title):
    examples = np.indices(shape)[axis] if axis is not None else np.full(shape, -1)
    ax.imshow(examples, alpha=0.45, vmin=-1, vmax=4)
    for (i, j), example in np.ndenumerate(examples):
        ax.text(j, i, example if example >= 0 else "all", ha="center", va="center", fontsize=9)
    ax.set(title=title, xticks=[], yticks=[], xlabel=f"{shape[1]} columns", ylabel=f"{shape[0]} rows")


fig, axes = plt.subplots(1, 4, figsize=(8.5, 2.6), layout="constrained")
draw(axes[0], (3, 4), None, "w\nin_axes: None")
draw(axes[1], (5, 3), 0, "x\nin_axes: 0")
draw(axes[2], (3, 5), 1, "x in columns\nin_axes: 1")
draw(axes[3], (5, 4), 0, "result\nout_axes: 0")
alt = "All of w is shared; each row of x belongs to one of examples 0 to 4, or each column."
tpulab.show(fig, alt=alt)

# %%
columns = batch.T  # one example per column
again = jax.vmap(layer, in_axes=(None, 1))(params, columns)
upright = jax.vmap(layer, in_axes=(None, 1), out_axes=1)(params, columns)
print(again.shape, "and with out_axes=1:", upright.shape)

own_bias = {"w": params["w"], "b": jnp.arange(20.0).reshape(5, 4)}
axes = ({"w": None, "b": 0}, 0)
print("a bias for each:", jax.vmap(layer, in_axes=axes)(own_bias, batch).shape)

# %% [markdown]
# Leave `in_axes` out and axis 0 of **everything** is mapped, each leaf of `params` included. The message that follows is the one that people ask about most. Each line of it is an axis that `vmap` was told to walk along; look for the two that should not be there. `w` and `b` hold no examples: they want `None`.
#
# It is a friendly error. Were all sizes equal, nothing would be said.

# %%
try:
    jax.vmap(layer)(params, batch)
except ValueError as error:
    print(error)

# %% [exercise] vmap.2

# %% [markdown]
# ## vmap in vmap
#
# `vmap` gives a function, so it can be mapped again: from the distance of two points to the table of all distances, from a product of two numbers to an outer product. Only: which axis comes first?

# %% [predict] vmap.p2


# %%
def distance(x, y):
    return jnp.sqrt(jnp.sum((x - y) ** 2))


a = jax.random.normal(jax.random.key(2), (5, 2))
b = jax.random.normal(jax.random.key(3), (3, 2))
table = jax.vmap(jax.vmap(distance, in_axes=(0, None)), in_axes=(None, 0))(a, b)
by_numpy = np.linalg.norm(np.asarray(b)[:, None] - np.asarray(a)[None], axis=-1)
print("as NumPy has it:", np.allclose(table, by_numpy, atol=1e-5))

times = jax.vmap(jax.vmap(jnp.multiply, in_axes=(None, 0)), in_axes=(0, None))
print(times(jnp.array([1, 10, 100]), jnp.array([1, 2, 3, 4])))
tpulab.reveal("vmap.p2", {"first": table.shape[0], "second": table.shape[1]})

# %% [markdown]
# The **outer** `vmap` makes the first axis of the result, and in `table` it mapped `b`. Read from outside in: "for each of `b`, for each of `a`". In `times` the outer one maps the first argument, which therefore runs down the rows.

# %% [exercise] vmap.3

# %% [markdown]
# ## A gradient for each example
#
# `grad` of a mean loss gives one gradient, in which the examples have been added up. Sometimes you want to know who pulled how hard. Write the loss of one example, take its `grad`, then `vmap`. One of these twelve targets is bad.


# %%
def loss(params, x, y):
    return jnp.mean((layer(params, x) - y) ** 2)


true = {"w": params["w"] + 0.3, "b": params["b"]}
xs = jax.random.normal(jax.random.key(4), (12, 3))
ys = jax.vmap(layer, in_axes=(None, 0))(true, xs).at[7].add(4.0)
each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, xs, ys)
print(jax.tree.map(jnp.shape, each))

# %%
norms = jnp.sqrt(sum(jnp.sum(g.reshape(12, -1) ** 2, axis=1) for g in jax.tree.leaves(each)))
fig, ax = plt.subplots()
bars = ax.bar(range(12), norms)
bars[7].set(hatch="//", facecolor="#E69F00", edgecolor="black")
ax.text(7.6, norms[7], "bad target", va="top")
ax.set(xlabel="example", ylabel="length of its gradient", xticks=range(12))
alt = "Bars of 12 gradient lengths; that of example 7, whose target is bad, stands far above the others."
tpulab.show(fig, alt=alt)

# %% [markdown]
# The spoilt example shows itself. Two checks: the mean of the twelve must be the gradient of the mean loss, since differentiation is linear. And transformations stack: `jit` fits in anywhere, best outermost, where the compiler sees everything. One order fails: `grad` of `vmap` would be the gradient of a *vector* of twelve losses, and `grad` wants one number.

# %%
losses = jax.vmap(loss, in_axes=(None, 0, 0))
of_mean = jax.grad(lambda p: jnp.mean(losses(p, xs, ys)))(params)
mean_of = jax.tree.map(lambda g: jnp.mean(g, axis=0), each)
inside = jax.vmap(jax.jit(jax.grad(loss)), in_axes=(None, 0, 0))(params, xs, ys)
outside = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(params, xs, ys)
for one, two in ((of_mean, mean_of), (inside, outside)):
    print("equal:", jax.tree.all(jax.tree.map(lambda p, q: np.allclose(p, q, atol=1e-5), one, two)))

with tpulab.expect_error(TypeError):
    jax.grad(losses)(params, xs, ys)

# %% [exercise] vmap.4

# %% [markdown]
# ## Randomness
#
# Dropout for one vector and one key: a coin for each number. Now six rows.

# %% [predict] vmap.p3


# %%
def dropped(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0.0)


rows = jnp.ones((6, 8))
shared = jax.vmap(dropped, in_axes=(None, 0))(jax.random.key(5), rows)
print(shared.astype(int))
tpulab.reveal("vmap.p3", len(np.unique(shared, axis=0)))

# %% [markdown]
# A key is an argument like any other, and the same argument gives the same numbers (chapter 01). Nothing warns you: the network trains, with one and the same coin for the whole batch. Six rows want six keys, and an array of keys has an axis to map.

# %% [exercise] vmap.5

# %% [markdown]
# ## Where it stops
#
# "No loop and no rewriting", people say of `vmap`. First limit: a batched stand-in has no truth value, so a Python `if` on it fails, as under `jit`, and must be rewritten, with `lax.cond` (chapter 03). But what does *one* branch mean for four rows that disagree? `negative` keeps a list of the numbers that it is run on.

# %%
numbers = jnp.array([4.0, 9.0, -1.0, 16.0])
with tpulab.expect_error(jax.errors.TracerBoolConversionError):
    jax.vmap(lambda x: 0.0 if x < 0 else jnp.sqrt(x))(numbers)


def negative(x):
    jax.debug.callback(lambda value: noted.append(float(value)), x)
    return jnp.zeros_like(x)


def root(x):
    return lax.cond(x < 0, negative, jnp.sqrt, x)


# %% [predict] vmap.p4

# %%
noted = []
[root(x) for x in numbers]
jax.effects_barrier()
print("in a loop, negative ran on", noted)

noted = []
print("roots under vmap:", jax.vmap(root)(numbers))
jax.effects_barrier()
print("under vmap, negative ran on", sorted(noted))
names = {eqn.primitive.name for eqn in jax.make_jaxpr(jax.vmap(root))(numbers).eqns}
print("in the record: cond", "cond" in names, "- select_n", "select_n" in names)
tpulab.reveal("vmap.p4", len(noted))

# %% [markdown]
# All four. There is one program for all rows, so **both** branches run on every row and `select_n` picks afterwards; the record has no `cond` left. A branch that was there to save work saves nothing in a batch. (Only if all rows share the condition, `in_axes=None`, does it stay a `cond`.)
#
# A `while_loop` has the same trouble in time:


# %%
def halve(state):
    jax.debug.callback(lambda value: noted.append(float(value)), state[0])
    return state[0] / 2, state[1] + 1


def halvings(x):  # how often x can be halved before it is at most 1
    return lax.while_loop(lambda state: state[0] > 1, halve, (x, jnp.int32(0)))[1]


noted = []
counts = jax.vmap(halvings)(jnp.array([1.0, 8.0, 1e6]))
jax.effects_barrier()
print("halvings needed:", counts, "- together", counts.sum(), "- halvings done:", len(noted))

# %% [markdown]
# The loop went on until the last row was done, for all three rows. What came out for finished rows was thrown away: right numbers, wasted work.
#
# So the claim ("no loop, no rewriting") holds with conditions. One recording serves the batch and the function stays as it is, unless it branches in Python on the batch; branches and loops then do the work of all rows; and side effects such as `print` happen once per recording.
#
# <!-- claim 7: holds with conditions: the function stays as written, unless Python branches on the batch; cond then runs both branches on every row, while_loop as long as the slowest row -->

# %% [exercise] vmap.6

# %% [markdown]
# ## What a batch costs
#
# Five ways through the layer, now from 64 numbers to 64. What is the last one worth?

# %%
big = {"w": jax.random.normal(jax.random.key(8), (64, 64)), "b": jnp.zeros(64)}
fast = jax.jit(layer)
ways = {
    "Python loop": lambda xs: [layer(big, x) for x in xs],
    "loop of jit": lambda xs: [fast(big, x) for x in xs],
    "jit(lax.map)": jax.jit(lambda xs: lax.map(lambda x: layer(big, x), xs)),
    "vmap": lambda xs: jax.vmap(layer, in_axes=(None, 0))(big, xs),
    "jit(vmap)": jax.jit(lambda xs: jax.vmap(layer, in_axes=(None, 0))(big, xs)),
}

# %% [predict] vmap.p5

# %% tags=["nbval-ignore-output"]
sizes = [1, 4, 16, 64, 256]
seconds = {name: [] for name in ways}
for n in sizes:
    inputs = np.ones((n, 64), np.float32)
    for name, way in ways.items():
        seconds[name].append(tpulab.measure(way, inputs, budget_s=0.03).median_s)

ratio = seconds["Python loop"][-1] / seconds["jit(vmap)"][-1]
print(f"batch of {sizes[-1]}: jit(vmap) is {ratio:,.0f} times faster than the loop (measured here)")
tpulab.reveal("vmap.p5", float(f"{ratio:.2g}"))

# %% tags=["nbval-ignore-output"]
fig, ax = plt.subplots()
for name, values in seconds.items():
    ax.plot(sizes, np.array(values) * 1e6, label=name)
ax.set(xscale="log", yscale="log")
ax.set(xlabel="examples in the batch", ylabel="time in microseconds (measured)")
ax.set_xticks(sizes, sizes, minor=False)
ax.minorticks_off()
ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
alt = "Time against batch size, log axes: Python loops rise with the batch; "
alt += "vmap and jit(vmap) stay nearly flat."
tpulab.show(fig, alt=alt)

# %% [markdown]
# A Python loop pays for asking at every row, compiled or not. `vmap` pays once a call, but not little: without `jit` each operation is replaced anew every time, and for one example that costs more than it saves. `jit` outside removes the price.
#
# `lax.map` is one program too, but takes its rows one at a time: for batches whose intermediates don't fit into memory. With a layer that keeps the machine busy for milliseconds all this matters less.
#
# ## Many models at once
#
# Nothing says that the data must be what is mapped. Map the parameters and you have an ensemble: four models, four starts, one program. Each line printed has a loss per model.


# %%
def init(key):
    return {"w": jax.random.normal(key, (3, 4)), "b": jnp.zeros(4)}


def train_step(params):
    value, grads = jax.value_and_grad(lambda p: jnp.mean(losses(p, xs, ys)))(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


models = jax.vmap(init)(jax.random.split(jax.random.key(6), 4))
step_all = jax.jit(jax.vmap(train_step))
for step in range(201):
    now, models = step_all(models)
    if step % 100 == 0:
        print(step, np.asarray(now).round(2))

# %% [exercise] vmap.7

# %% [markdown]
# ## A name for the batch
#
# So far no example could see another. Give the mapped axis a name, and a **collective** reaches across it: `lax.pmean` gives every example the mean over all. Written for one example, this is batch normalisation. Here `pmean` is a sum over an array axis; in the next chapter the same word, unchanged, reaches across **devices**.


# %%
def standardize(x):
    mean = lax.pmean(x, "batch")
    variance = lax.pmean((x - mean) ** 2, "batch")
    return (x - mean) / jnp.sqrt(jnp.maximum(variance, 1e-6))


out = jax.vmap(standardize, axis_name="batch")(batch)
print("mean 0:", np.allclose(out.mean(axis=0), 0, atol=1e-5))
print("spread 1:", np.allclose(out.std(axis=0), 1, atol=1e-4))

# %% [exercise] vmap.8

# %% [markdown]
# ## If you come from PyTorch
#
# | | PyTorch 2 | JAX |
# |---|---|---|
# | habit | layers take batches; extra axes in front broadcast | write for one, map |
# | the map | `torch.func.vmap(f, in_dims=(None, 0), out_dims=0)` | `jax.vmap(f, in_axes=(None, 0), out_axes=0)` |
# | gradient per example | `torch.func.vmap(torch.func.grad(loss), …)`, the model through `torch.func.functional_call` | `jax.vmap(jax.grad(loss), …)` |
# | random numbers inside | error, unless `randomness="different"` or `"same"` | the keys decide |
# | `if` on a batched value | error | error; `lax.cond` becomes a selection |
# | in pieces, to save memory | `chunk_size=` | `lax.map(…, batch_size=)` |

# %% [markdown]
# ## On a real TPU
#
# Nothing was measured on a TPU yet. Expect the gap to widen: the chip multiplies tiles of 128 or 256 numbers a side (chapter 08), so one vector leaves most of a tile empty, and `w` has to be fetched all the same. A batch of 256 should take little longer than one example.


# %%
def figures():
    wide = {"w": jnp.ones((2048, 2048)), "b": jnp.zeros(2048)}
    batched = jax.jit(jax.vmap(layer, in_axes=(None, 0)))
    sizes = (1, 16, 256, 4096)
    return {f"batch of {n}": tpulab.measure(batched, wide, jnp.ones((n, 2048))) for n in sizes}


tpulab.on_tpu("vmap", figures)

# %% [markdown] tags=["instructor"]
# **Timing.** Reading 28 minutes; core exercises `vmap.1`, `vmap.2`, `vmap.4` 19 minutes. In a short session leave out *Many models at once*, and *A name for the batch* unless chapter 05 follows.
#
# **Misconceptions to listen for.** "`vmap` runs in parallel": it writes a batched program; whether that runs in parallel is the machine's affair. "`vmap` compiles": it does not, and without `jit` Python runs at every call. "`in_axes` is the number of axes." "`cond` saves work in a batch."
#
# **Questions to ask.** What does `jax.vmap(f, in_axes=None)` do? (An error: nothing to map.) Why is the gradient of a mean the mean of gradients, and when does that fail? (When examples see each other, as in `standardize`.) Which rows of a `while_loop` pay for the slowest?

# %% [markdown]
# ## What you can do now
#
# You have
# - turned a function of one example into a function of a batch, and seen in the record that its products became one larger product,
# - said with `in_axes` and `out_axes` where the examples are, in pytrees too, and read the error when sizes differ,
# - nested `vmap` and predicted the shape: the outer one makes the first axis,
# - computed one gradient per example and found the bad one,
# - seen what one key does to a batch, and given each example randomness of its own,
# - watched both branches of a `cond` run and a loop wait for its slowest row, and measured what a batch costs.
#
# Next: the same function on several devices at once.
