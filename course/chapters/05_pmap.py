# %% [markdown]
# # pmap and after: one program, many devices
#
# `pmap` is maintained, not developed: since jax 0.8 it is `jit` and `shard_map` inside. Every older text uses it, so you
# learn to read it, to mend it, and to write what took its place.
#
# After this chapter you can
# - let the members of a mapped axis talk, with `psum`, `pmean` and `axis_index`,
# - train on several devices with the result of one,
# - mend a `pmap` step copied from an old post,
# - write that step with `jit` and a sharding, and see where its arrays lie,
# - look at one device's share with `shard_map`, and say which of the three to use when.
#
# Runs anywhere, on any number of devices.

# %%
import tpulab

tpulab.setup(devices=8)

# %%
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax import lax

jax.config.update("jax_default_matmul_precision", "highest")  # a TPU would round, and we compare digits
n = jax.device_count()
print(n, "devices:", [f"{device.platform} {device.id}" for device in jax.devices()])

# %% [markdown] tags=["instructor"]
# **Timing.** 35 minutes of reading, 18 for the core exercises (`pmap.1`, `pmap.2`, `pmap.3`). In a workshop show `p3` and
# `p4` on the projector: the silent drift and the error on the decorator are what people remember.
#
# **Misconceptions.** "pmap splits my batch" (it maps over an axis you must have made); "psum gives one number" (one per
# device); "eight simulated devices are eight times faster"; "in the jit version somebody forgot the pmean".

# %% [markdown]
# Unless your machine has several chips, these devices are **simulated**: they share your processor. They run the program
# that as many chips would run, with the same results up to rounding. How fast they are says nothing about a TPU, so this
# chapter times nothing on them. All sizes come from `n`.
#
# ## An axis with a name
#
# In chapter 04 `vmap` hid the batch axis: a function of one row could not see its neighbours. Give the hidden axis a
# **name**, and it can. Inside, `x` is one number:


# %%
def member(x):
    return {
        "who am I": lax.axis_index("rows"),
        "how many": lax.axis_size("rows"),
        "sum of all": lax.psum(x, "rows"),
        "mean of all": lax.pmean(x, "rows"),
    }


for word, value in jax.vmap(member, axis_name="rows")(jnp.array([1.0, 2.0, 6.0])).items():
    print(f"{word:12}", value)

# %% [markdown]
# `psum` adds `x` over everybody who runs along the axis `"rows"`. Such a word is called a **collective**.
#
# ## The same words, on many devices
#
# `vmap` computes all members on one device. `pmap` has the same grammar and gives each member a device of its own.


# %%
def centered(x):
    return x - lax.pmean(x, "rows")


rows = np.arange(float(n), dtype=np.float32)
mapped = jax.vmap(centered, axis_name="rows")(rows)
spread = jax.pmap(centered, axis_name="rows")(rows)
print("same values:", np.allclose(mapped, spread))
print(
    "devices that hold a part:", len(mapped.sharding.device_set), "and", len(spread.sharding.device_set)
)

# %% [predict] pmap.p1

# %%
shapes = []


def look(x):
    shapes.append(x.shape)
    print("inside, x has shape", x.shape)
    return x.sum()


jax.pmap(look)(np.ones((n, 6, 3), np.float32))
tpulab.reveal("pmap.p1", {"lines": len(shapes), "axes": len(shapes[0])})

# %% [markdown]
# One line: the program is traced once, compiled once, and every device runs that same program on its own piece. And the
# leading axis is gone: it was the device. This style is called SPMD, *single program, multiple data*. What differs
# between devices is their data and their `axis_index`, nothing else.

# %% [predict] pmap.p2

# %%
total = jax.pmap(lambda x: lax.psum(x, "devices"), axis_name="devices")(rows)
print("came back:", jax.device_get(total))
print("one copy: ", jax.device_get(total)[0], "- by hand:", n * (n - 1) / 2)
tpulab.reveal("pmap.p2", "one" if total.ndim == 0 else "one per device")

# %% [markdown]
# A collective hands its result to everybody, so every device holds the sum, and `pmap` gives you all those copies behind a
# leading axis. Old code is therefore full of `out[0]`. Where that indexing leaves its result depends on the version; after
# `jax.device_get` it is a NumPy array in all of them.
#
# ## The leading axis is the device
#
# The commonest mistake is to pass a batch and hope. Here are `n + 1` rows:

# %%
with tpulab.expect_error(ValueError):
    jax.pmap(lambda x: 2 * x)(np.ones((n + 1, 3), np.float32))

# %% [markdown]
# The wording differs (jax 0.7 counts *logical devices*, later versions speak of an axis that cannot be partitioned); the
# meaning is the same: `pmap` does not split a batch, it maps over an axis that **you** made, one entry per device. A
# reshape makes it: `(rows, …)` to `(n, rows // n, …)`.

# %% [exercise] pmap.1

# %% [exercise] pmap.2

# %% [markdown]
# ## A training step on one device
#
# Our layer again, `relu(x @ w + b)`, with a readout behind it, on scikit-learn's digits: 8 × 8 pixels, ten classes. The
# number of rows is one that the devices divide. The next three cells speak of one device only: they give the reference
# that every version below has to reproduce.

# %%
from sklearn.datasets import load_digits

digits = load_digits()
size = 48 * n
images = (digits.data[:size] / 16).astype(np.float32)
labels = digits.target[:size].astype(np.int32)


def loss(params, batch):
    images, labels = batch
    hidden = jax.nn.relu(images @ params["w"] + params["b"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["out"], labels).mean()


print("images", images.shape, "labels", labels.shape)

# %%
random = np.random.default_rng(0)
params = {
    "w": 0.1 * random.normal(size=(64, 32)).astype(np.float32),
    "b": np.zeros(32, np.float32),
    "out": 0.1 * random.normal(size=(32, 10)).astype(np.float32),
}
optimizer = optax.adam(1e-2)
state = jax.device_get(optimizer.init(params))


def step(params, state, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


# %%
def train(step, params, state, batch, steps=20):
    for _ in range(steps):
        params, state, value = step(params, state, batch)
        jax.block_until_ready((params, value))  # wait for every step
    return jax.device_get(params), jax.device_get(value)


def largest_difference(tree, other):
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), tree, other)))


reference, value = train(jax.jit(step), params, state, (images, labels))
print(f"one device, {size} rows, 20 steps: loss {value:.3f}")

# %% [markdown]
# The loop waits for each step. On simulated devices that has a reason: hundreds of steps in flight at once can starve the
# collectives of threads and kill the process (`setup` guards against that too).
#
# ## The same step on every device
#
# Three things change: the batch gets a leading device axis, parameters and optimizer state one copy per device, and the
# step one line.


# %% tags=["nbval-ignore-output"]
@partial(jax.pmap, axis_name="devices")
def parallel_step(params, state, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    value, grads = lax.pmean((value, grads), "devices")  # the new line
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


shards = images.reshape(n, -1, 64), labels.reshape(n, -1)
copies = jax.tree.map(lambda leaf: np.stack([leaf] * n), (params, state))
parallel, value = train(parallel_step, *copies, shards)
difference = largest_difference(jax.tree.map(lambda leaf: leaf[0], parallel), reference)
print(f"{n} devices, {size // n} rows each, 20 steps: loss {value[0]:.3f}")
print(f"largest difference of any parameter from one device: {difference:.0e}")
assert difference < 1e-4

# %% [markdown]
# Equal to float tolerance: the sums were only added in another order. Why it works: every device has *equally many* rows,
# so the mean of the devices' mean gradients is the mean over all rows. Equal copies that take equal steps stay equal. With
# unequal shares `pmean` would weight the rows wrongly.
#
# <!-- claim 17: holds with conditions: one pmean averages the gradients and training equals one device's; shares must be equal, and link speed is not seen on simulated devices -->

# %% [predict] pmap.p3

# %%
try:
    drifted, _ = train(jax.pmap(step), *copies, shards, steps=3)  # one device's step: no pmean in it
    complained = False
except Exception:
    complained = True
for name, tree in (("without pmean, 3 steps", drifted), ("with pmean, 20 steps", parallel)):
    gap = max(np.abs(leaf - leaf[0]).max() for leaf in jax.tree.leaves(tree))
    print(f"{name:23} copies differ: {gap > 1e-3}")
tpulab.reveal("pmap.p3", complained)

# %% [markdown]
# No error. You trained one small model per device, each on its own rows, and `[0]` shows you the first of them. (With one
# device there is nothing to drift.) When a parallel run learns worse than it should, compare the copies
# before anything else.

# %% [exercise] pmap.3

# %% [exercise] pmap.4

# %% [markdown]
# ## The step that everybody copied
#
# Here is a training step as articles and answers have passed it on for years, with our `loss` filled in. First the
# definition, as it stands.

# %% [predict] pmap.p4

# %%
rate, failed = 0.1, True
with tpulab.expect_error(TypeError):

    @jax.pmap(axis_name="devices")
    def update(params, batch):
        grads = jax.grad(loss)(params, batch)
        grads = jax.lax.pmean(grads, "devices")
        return jax.tree_map(lambda p, g: p - rate * g, params, grads)

    failed = False
tpulab.reveal("pmap.p4", failed)

# %% [markdown]
# Read the message: `fun` is missing. `@jax.pmap(axis_name=…)` calls `pmap` *before* there is a function, and `pmap` wants
# one first. Age is no excuse: `fun` comes first in every release that we know of, so this decorator never worked as
# printed. `functools.partial` fills in the name and waits. Mend that and run on, with the line that copied the parameters:


# %%
@partial(jax.pmap, axis_name="devices")
def update(params, batch):
    grads = jax.grad(loss)(params, batch)
    grads = jax.lax.pmean(grads, "devices")
    return jax.tree_map(lambda p, g: p - rate * g, params, grads)


with tpulab.expect_error(AttributeError):
    replicated = jax.device_put_replicated(params, jax.local_devices())
    update(replicated, shards)

# %% [markdown]
# `device_put_replicated` was deprecated in 0.8.1 and is gone. (Jax 0.7 still has it, and goes straight to the next error.)
# It made a stack of `n` copies, so stack them. Then meet `jax.tree_map`, which left with 0.6 and lives on as `jax.tree.map`:

# %%
replicated = jax.tree.map(lambda leaf: np.stack([leaf] * n), params)
with tpulab.expect_error(AttributeError):
    update(replicated, shards)


@partial(jax.pmap, axis_name="devices")
def mended(params, batch):
    grads = jax.lax.pmean(jax.grad(loss)(params, batch), "devices")
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


after = jax.tree.map(lambda leaf: leaf[0], jax.device_get(mended(replicated, shards)))
alone = jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, (images, labels)))
print("mended, and equal to one device:", largest_difference(after, alone) < 1e-5)

# %% [markdown]
# One decorator that never worked, two names that are gone; and the idea was sound: mended, it is right. And *data
# parallelism by one call*? One call did spread the step. Reshaping, copying and the `pmean` stayed with you, and
# forgetting the last raised nothing. Thousands of cores cannot be tried here.
#
# <!-- claim 8: holds with conditions: one call spreads the step exactly; reshape, copies and pmean stay with you; thousands of cores cannot be tested here -->
# <!-- claim 9: does not hold: the decorator call never worked, device_put_replicated (after 0.8) and jax.tree_map (since 0.6) are gone; three repairs make it right -->

# %% [markdown] tags=["instructor"]
# **Ask** before going on: *who notices when the `pmean` is missing?* (Under `pmap` nobody; under `shard_map` the check of
# `out_specs`; under `jit` there is none to miss.) *What if the last batch has 50 rows on 8 devices?* (All three refuse: pad
# and mask, or drop rows, and say so.) If time is short, skip `ppermute` and `pmap.8`; chapter 10 comes back to the ring.

# %% [markdown]
# ## The same step, written today
#
# Today you do not say what each device *does*. You say where arrays *lie*, and the compiler works out the rest. A **mesh**
# gives the devices axes with names; a **sharding** says which axis of an array is split along which of them: entry by
# entry, `P` names a mesh axis, and `None`, or nothing, means not split. (`Auto` leaves the layout of everything in between
# to the compiler; the other kind waits for chapter 09.)

# %%
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((n,), ("data",), axis_types=(AxisType.Auto,))
whole = NamedSharding(mesh, P())  # nothing is split: a copy everywhere
by_rows = NamedSharding(mesh, P("data"))  # the array's first axis is split

placed = jax.device_put(images, by_rows)
print("shape", placed.shape, "- on each device", placed.sharding.shard_shape(placed.shape))


# %%
def draw(ax, spec, title):
    array = jax.device_put(np.zeros((2 * n, 2 * n)), NamedSharding(mesh, spec))
    owners = {}
    for shard in array.addressable_shards:
        corner = [part.indices(2 * n)[:2] for part in shard.index]
        owners.setdefault(str(corner), (corner, []))[1].append(shard.device.id)
    for ((top, bottom), (left, right)), ids in owners.values():
        shade = plt.get_cmap("cividis")(0.55 + 0.45 * ids[0] / n)
        ax.add_patch(plt.Rectangle((left, top), right - left, bottom - top, fc=shade, ec="black"))
        label = f"{ids[0]}" if len(ids) == 1 else f"devices {min(ids)} to {max(ids)}"
        ax.text((left + right) / 2, (top + bottom) / 2, label, ha="center", va="center")
    share = array.addressable_shards[0].data.size
    ax.set(title=f"{title}\n{share} of {array.size} numbers on a device", xlabel="column", ylabel="row")


# %%
fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.4), layout="constrained")
draw(axes[0], P("data"), 'P("data")')
draw(axes[1], P(None, "data"), 'P(None, "data")')
draw(axes[2], P(), "P()")
for ax in axes:
    ax.set(xlim=(0, 2 * n), ylim=(2 * n, 0), aspect="equal")
tpulab.show(
    fig,
    alt="Three squares, each an array with the numbers of the devices that hold its parts: "
    'P("data") cuts it into horizontal bands, one per device; P(None, "data") into vertical bands; '
    "P() leaves it whole, held by every device.",
)

# %% [markdown]
# The picture asked the arrays themselves who holds what. For training: rows of the batch along `"data"`, parameters and
# state whole. The step is `step`, **the one for one device**, jitted. No device axis, no collective.

# %% [predict] pmap.p5

# %%
data = jax.device_put((images, labels), by_rows)
everywhere = jax.device_put((params, state), whole)
sharded_step = jax.jit(step, out_shardings=whole)  # results whole on each device, too

compiled = sharded_step.lower(*everywhere, data).compile()
lines = compiled.as_text().splitlines()
reduces = [line for line in lines if " all-reduce(" in line or " all-reduce-start(" in line]
print("all-reduces in the compiled step:", len(reduces))

today, value = train(sharded_step, *everywhere, data)
print(f"loss {value:.3f}; equal to one device:", largest_difference(today, reference) < 1e-4)
tpulab.reveal("pmap.p5", len(reduces) > 0)

# %% [markdown]
# Nobody wrote it, and there it is (on more than one device). `loss` takes a mean over *all* rows; the rows lie on `n`
# devices; so the compiler had to add up across them: an **all-reduce**, `psum` by its other name. This is *compiled*: read
# from the program, not timed.
#
# A forgotten `pmean` is impossible here: a sharding changes where a program runs, not what it means. What *can* go wrong is
# the layout: split nothing, and every device does all the work, correctly.

# %% [exercise] pmap.5

# %% [exercise] pmap.6

# %% [markdown]
# ## What each device does: `shard_map`
#
# Sometimes you do want the view from one device: to see its share, or to decide yourself who sends what. `jax.shard_map`
# takes the whole array, hands each device its block, and joins the results.


# %%
def brightness(block):
    print("inside, the block has shape", block.shape)
    mine = block.mean()
    return mine[None], lax.pmean(mine, "data")


each, overall = jax.shard_map(brightness, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P()))(
    images
)
print("one per device:", ", ".join(f"{value:.3f}" for value in each))
print(f"all: {overall:.4f}, NumPy says {images.mean():.4f}")

with tpulab.expect_error(ValueError):
    jax.shard_map(lambda block: block.mean(), mesh=mesh, in_specs=P("data"), out_specs=P())(images)

# %% [markdown]
# No reshape: the block keeps its row axis, and the specs say how things are cut and joined. `P("data")` in
# `out_specs` lays the blocks end to end. `P()` is a promise that all devices hold the same, and it is checked: without the
# `pmean` you get an error where `pmap` kept silent.
#
# One warning: do not carry `pmean(grad(…))` over from `pmap`. Inside `shard_map` the gradient of a parameter that all
# devices share is *already summed*, so you get `n` times too much. Put `grad` outside: differentiate a loss that calls
# `shard_map`, or take `jit` and a sharding.
#
# Last, a collective that hands values to neighbours: `lax.ppermute`, with pairs *from, to*. A torus of chips is made
# for it.


# %%
def from_the_left(block):
    k = lax.axis_size("data")
    return lax.ppermute(block, "data", [(i, (i + 1) % k) for i in range(k)])


shift = jax.shard_map(from_the_left, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
print("before:", rows)
print("after: ", shift(rows))

# %% [exercise] pmap.7

# %% [exercise] pmap.8

# %% [markdown]
# ## Which one when
#
# | | you write the program of | the batch | collectives | take it |
# |---|---|---|---|---|
# | `jit` + `NamedSharding` | the whole batch | placed, as it is | the compiler's | by default, for training above all |
# | `shard_map` | one device, on its block | cut by `in_specs` | yours, checked | when you must say who sends what |
# | `pmap` | one device, on its entry | reshaped, device axis first | yours, unchecked | to read and mend older code |
# | `vmap`, named axis | one member | stays on one device | yours | to try a collective without devices |
#
# New code: the first row; the second inside it where you need it.

# %% [markdown]
# ## If you come from PyTorch
#
# `DistributedDataParallel` is `pmap`'s idea with one *process* per device: a launcher starts them, each loads its own
# rows, hooks average the gradients during `backward`. In JAX one process drives all its devices, and the batch size is
# the global one.
#
# ```python
# # PyTorch, started as: torchrun --nproc-per-node=8 train.py
# dist.init_process_group("nccl")
# rank = int(os.environ["LOCAL_RANK"])
# model = DistributedDataParallel(Net().to(rank), device_ids=[rank])
# loader = DataLoader(rows, batch_size=48, sampler=DistributedSampler(rows))  # 48 per process
# for x, y in loader:
#     optimizer.zero_grad()
#     loss_fn(model(x.to(rank)), y.to(rank)).backward()  # averages the gradients
#     optimizer.step()
#
# # JAX, started as: python train.py; `step` is written for one device
# mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
# whole, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
# step = jax.jit(step, out_shardings=whole)
# params, state = jax.device_put((params, state), whole)
# for batch in loader:  # 8 * 48 rows
#     params, state, value = step(params, state, jax.device_put(batch, by_rows))
# ```

# %% [markdown]
# ## On a real TPU
#
# It takes at least two chips; one chip alone gets simulated devices here. Expect `pmap` and `jit` to be alike, since both
# end in the same all-reduce, and expect `n` chips with their rows each to take longer than one chip with its share: the
# model is so small that waiting for one another outweighs the arithmetic. Nothing of this has been measured yet.


# %%
def step_times():
    share = jax.device_put((images[: size // n], labels[: size // n]), jax.devices()[0])
    alone = jax.device_put((params, state), jax.devices()[0])
    spread = jax.pmap(lambda *tree: tree)(*copies, shards)
    return {
        f"one chip, {size // n} rows": tpulab.measure(jax.jit(step), *alone, share),
        f"{n} chips, {size} rows, pmap": tpulab.measure(parallel_step, *spread),
        f"{n} chips, {size} rows, jit": tpulab.measure(sharded_step, *everywhere, data),
    }


tpulab.on_tpu("pmap", step_times)

# %% [markdown]
# ## What you can do now
#
# - You let the members of a mapped axis talk, with `psum`, `pmean` and `axis_index`.
# - You trained on several devices with the result of one.
# - You mended a `pmap` step copied from an old post.
# - You wrote that step with `jit` and a sharding, and saw where its arrays lie.
# - You looked at one device's share with `shard_map`, and can say which of the three to use when.
#
# Part 1 ends here: pure functions, differentiated, compiled, batched, spread. Part 2 opens the compiler, chapter 06
# first; the README lists the chapters that are there.
