# %% [markdown]
# # Pure functions: everything that goes in is an argument
#
# After this chapter you can
# - say what JAX does to a side effect, and why it goes wrong without a word,
# - write a layer as a pair of pure functions, its parameters a tree of arrays,
# - hand over random keys and state, and never draw the same number twice by accident,
# - change an array that cannot change,
# - expect what happens at an index that does not exist.

# %%
import tpulab

tpulab.setup()

import jax
import jax.numpy as jnp
import numpy as np

np.set_printoptions(precision=3, suppress=True)

# %% [markdown] tags=["instructor"]
# **Timing.** 30 minutes of reading, 20 for the core exercises, 40 for the stretch ones. In a workshop stop after the
# running mean; indices past the end make good homework.
#
# **Misconceptions.** "JAX refuses impure functions" (it does not notice them). "A key is used up by drawing" (it is a
# number; you use it up). "`.at[].set` changes the array."
#
# **Ask.** Before the first prediction: who has written a module that counts its own calls? After it: how would you have
# found that bug?

# %% [markdown]
# ## A layer that remembers
#
# Here is the layer of this course, `relu(x @ w + b)`, as one writes it in most libraries: an object that holds its
# numbers. For good measure it counts how often it was called.


# %%
class Layer:
    def __init__(self, n_in, n_out):
        self.w = jnp.asarray(np.random.default_rng(0).normal(size=(n_in, n_out)))
        self.b = jnp.zeros(n_out)
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return jax.nn.relu(x @ self.w + self.b)


layer = Layer(5, 3)
x = jnp.asarray(np.random.default_rng(1).normal(size=(4, 5)))
print(layer(x).shape, layer.calls)

# %% [markdown]
# It works. Now we let JAX compile it: `jax.jit(layer)` gives a fast form of the same thing. How it does that is chapter
# 03; today we only look at what it does to the counter.

# %% [predict] pure.p1

# %%
layer = Layer(5, 3)
compiled = jax.jit(layer)
for _ in range(3):
    compiled(x)

tpulab.reveal("pure.p1", layer.calls)

# %% [markdown]
# Once. At the first call JAX **recorded**: it sent a stand-in for `x` through your Python code, wrote down what was done
# to it, and compiled that. All three calls ran the record, none of them your Python. `self.calls += 1` is nothing that
# happens to `x`, so it is not in there. No error, no warning, a wrong count.

# %% [predict] pure.p2

# %%
before = compiled(x)
layer.b = layer.b + 100.0
after = compiled(x)
print("the layer itself gives", layer(x)[0], " compiled:", after[0])

tpulab.reveal("pure.p2", "the old b" if jnp.allclose(before, after) else "the new b")

# %% [markdown]
# That is the dangerous one. `self.w` and `self.b` came in by the back door, so the record holds them as constants. An
# optimizer that writes into them would train a layer that nobody runs. And what if the code stores something for later?


# %%
class Nosy(Layer):
    def __call__(self, x):
        self.last = x @ self.w
        return jax.nn.relu(self.last + self.b)


nosy = Nosy(5, 3)
jax.jit(nosy)(x)
with tpulab.expect_error(jax.errors.UnexpectedTracerError):
    nosy.last + 1

# %% [markdown]
# A stand-in escaped from its recording; at least this one complains. A function is **pure** when equal arguments give
# equal results and nothing else happens. JAX's transformations promise to be right for pure functions. For others they
# promise nothing, and do not check.
#
# <!-- claim 2: holds with conditions: impure functions run, nothing enforces purity; under a transformation their side effects happen only while recording, so results are silently stale -->
#
# ## The same layer with nothing hidden
#
# Two functions: one makes the parameters, one uses them. Neither keeps anything.


# %%
def init(key, n_in, n_out):
    w = jax.random.normal(key, (n_in, n_out)) / jnp.sqrt(n_in)
    return {"w": w, "b": jnp.zeros(n_out)}


def apply(params, x):
    return jax.nn.relu(x @ params["w"] + params["b"])


params = init(jax.random.key(0), 5, 3)
print(apply(params, x).shape)

# %% [markdown]
# `jax.random.key(0)` is where the random numbers come from; more below. Let us look at both recordings (`make_jaxpr`
# shows one without running it) and at one compiled `apply` under changing parameters.

# %%
hidden = jax.make_jaxpr(layer)(x)
given = jax.make_jaxpr(apply)(params, x)
for name, record in (("hidden", hidden), ("given", given)):
    print(f"{name}: {len(record.jaxpr.invars)} inputs, {len(record.consts)} constants baked in")

compiled = jax.jit(apply)
shifted = {"w": params["w"], "b": params["b"] + 100.0}
print("bias of 100 seen:", bool((compiled(shifted, x) > compiled(params, x)).all()))

# %% [markdown]
# With parameters as arguments, one recording serves every value they take: through all of training, or for many models
# at once. It also tells JAX what may change, and so what it can differentiate, spread or overwrite. Libraries can lift
# hidden state out for you; the function underneath is then the one above.
#
# <!-- claim 3: holds with conditions: one recording of the explicit layer served all parameters, the stateful one baked its first ones in; a library may lift the state out for you, so it is the function underneath that must be pure, not your spelling -->

# %% [markdown]
# ## If you come from PyTorch
#
# ```python
# class Layer(torch.nn.Module):
#     def __init__(self, n_in, n_out):
#         super().__init__()
#         self.linear = torch.nn.Linear(n_in, n_out)   # weight is (n_out, n_in)
#
#     def forward(self, x):
#         return torch.relu(self.linear(x))
#
# # JAX: the arrays come in as an argument
# def apply(params, x):
#     return jax.nn.relu(x @ params["w"] + params["b"])  # w is (n_in, n_out)
# ```
#
# | PyTorch | JAX |
# |---|---|
# | `layer(x)` | `apply(params, x)` |
# | `layer.parameters()`, `state_dict()` | `params`, a tree |
# | `layer.train()`, `layer.eval()` | an argument `train` |
# | buffers of `BatchNorm` | state in, new state out |
# | `torch.manual_seed(0)` | `key = jax.random.key(0)`, handed over |
# | `torch.func.functional_call(layer, params, x)` | the same idea, from their side |
#
# JAX without a transformation is as eager as PyTorch: it runs line by line, and Python may branch and loop on values.
#
# <!-- notebook only -->
# The next cell compares the two layers where torch is installed (it is not needed), the one after it loops on a value.

# %% tags=["nbval-ignore-output"]
try:
    import torch
except (ImportError, OSError):
    print("torch is not installed here")
else:
    linear = torch.nn.Linear(5, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.array(params["w"]).T))
        linear.bias.copy_(torch.from_numpy(np.array(params["b"])))
        theirs = torch.relu(linear(torch.from_numpy(np.array(x)))).numpy()
    with jax.default_matmul_precision("highest"):  # a TPU rounds more by default
        ours = apply(params, x)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    print(f"largest difference {np.abs(ours - theirs).max():.0e} (measured, torch {torch.__version__})")


# %%
def collatz(n):
    steps = 0
    while n != 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


print(collatz(jnp.asarray(27)), "steps")

# %% [markdown]
# So a prototype keeps its `if`, `while` and `print`; restrictions come with the transformations. Which of the two is
# *nicer* for that, no cell can measure.
#
# <!-- claim 24: cannot be tested here: taste is not measurable; without a transformation JAX runs eagerly, branches and loops on values included -->
#
# ## Trees of arrays
#
# Real parameters are not one dict but dicts in lists in dicts. JAX calls any such nest of dicts, lists and tuples a
# **pytree**, and what is not a container is a **leaf**. JAX's transformations take trees wherever they take arrays.

# %% [predict] pure.p3

# %%
tree = {"layers": [params, params], "step": 3, "note": None}
for path, leaf in jax.tree.leaves_with_path(tree):
    print(jax.tree_util.keystr(path, simple=True, separator="/"), jnp.shape(leaf))

tpulab.reveal("pure.p3", len(jax.tree.leaves(tree)))

# %% [markdown]
# Dict keys come in sorted order, `3` counts as a leaf, and `None` is an empty container: no leaf at all. Four words do
# nearly all the work: `leaves` takes a tree apart, `map` builds a new one of the same structure, `flatten` gives the
# leaves together with a plan of the nest, and `unflatten` restores it from these.

# %%
leaves, plan = jax.tree.flatten(params)
print(plan)

doubled = jax.tree.map(lambda p: 2 * p, params)
moved = jax.tree.map(lambda p, d: p + 0.1 * d, params, doubled)
print(jax.tree.map(jnp.shape, moved))

# %% [exercise] pure.1

# %% [markdown]
# ## Randomness is an argument
#
# NumPy keeps a random generator in a corner and changes it with each draw: hidden state. JAX has no such corner. You
# make a **key**, `key = jax.random.key(6)`, and hand it over.

# %% [predict] pure.p4

# %%
key = jax.random.key(6)
one = jax.random.normal(key, (3,))
two = jax.random.normal(key, (3,))
print(one, two)

tpulab.reveal("pure.p4", "equal" if jnp.array_equal(one, two) else "different")

# %% [markdown]
# Of course: a pure function, twice the same arguments. A key is two integers (`key_data` shows them) and nothing uses it
# up; *you* do that, by not using it again. New numbers need new keys, made from old ones: `split` makes several,
# `fold_in` one for each number that you hand it (a step, a layer's index).
#
# Below, the same as a picture: 300 points whose two coordinates come from two draws.

# %%
first, second = jax.random.split(jax.random.key(2))  # fresh: `key` has been drawn from
third = jax.random.fold_in(jax.random.key(3), 7)
for k in (first, second, third):
    print("data", jax.random.key_data(k), " draws", jax.random.normal(k, (3,)))

# %%
import matplotlib.pyplot as plt

fig, axes = plt.subplots(1, 2, figsize=(7.0, 3.3), sharex=True, sharey=True)
bad, good_1, good_2 = jax.random.split(jax.random.key(4), 3)
pairs = {"one key, used twice": (bad, bad), "two keys from split": (good_1, good_2)}  # bad on purpose
for ax, (title, (k1, k2)) in zip(axes, pairs.items(), strict=True):
    horizontal, vertical = jax.random.normal(k1, (300,)), jax.random.normal(k2, (300,))
    ax.plot(horizontal, vertical, ".", alpha=0.6)
    correlation = np.corrcoef(horizontal, vertical)[0, 1]
    ax.set(title=f"{title}\ncorrelation {correlation:+.2f}", xlabel="first draw")
axes[0].set_ylabel("second draw")
alt = "Left, one key used twice: all points on the diagonal. Right, two keys: a round cloud."
tpulab.show(fig, alt=alt)

# %% [markdown]
# A model with that bug trains. Its dropout masks agree, its layers start as twins, and no test of shapes finds it. So,
# one rule: **each key is used once**, by a draw *or* by a split, and then dropped (or it serves `fold_in` alone, with
# another number each time). Here is noise that is there in
# training only; note `bernoulli`, which you will want for the exercise.


# %%
def jitter(key, x, train):
    return x + 0.1 * jax.random.normal(key, x.shape) if train else x


key, use = jax.random.split(jax.random.key(1))  # a fresh one: the old key has been drawn from
print("train:", jitter(use, jnp.ones(4), True), " evaluate:", jitter(use, jnp.ones(4), False))

key, use = jax.random.split(key)
heads = jax.random.bernoulli(use, 0.75, (8,))
print(jnp.where(heads, 1.0, 0.0), "about three quarters")

# %% [exercise] pure.2

# %% [markdown]
# ## State goes out the way it came in
#
# Some things have to be remembered: a running mean, a step count. A pure function takes the old state as an argument and
# returns the new one as a result. Whoever calls it puts the one in place of the other.


# %%
def smooth(state, value):
    return {"mean": 0.9 * state["mean"] + 0.1 * value, "steps": state["steps"] + 1}


for name, step in (("plain", smooth), ("compiled", jax.jit(smooth))):
    state = {"mean": 5.0, "steps": 0}
    for value in (4.0, 6.0, 5.5):
        state = step(state, value)
    print(f"{name}: mean {state['mean']:.4f} after {state['steps']} steps")

# %% [markdown]
# The counter that compiling broke at the start now survives it. Put together, the layer with noise and a running mean:
# what it reads stands in the brackets, what it changes comes back. A long list, and a complete one.


# %%
def forward(params, state, key, x, train):
    state = smooth(state, jnp.mean(x)) if train else state
    return apply(params, jitter(key, x - state["mean"], train)), state


state = {"mean": 0.0, "steps": 0}
for step in range(3):
    y, state = forward(params, state, jax.random.fold_in(key, step), x, train=True)
y, unchanged = forward(params, state, None, x, train=False)
print(f"{state['steps']} steps, mean {state['mean']:.3f}")
print(f"evaluation needs no key and leaves {unchanged['steps']} steps")

# %% [exercise] pure.3

# %% [markdown]
# Libraries hide this plumbing where you want objects. flax is one: its layer holds its arrays as PyTorch's does, and
# `split` lifts them out into a tree when JAX needs a pure function.

# %%
from flax import nnx

model = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
recipe, state = nnx.split(model)
print([leaf.shape for leaf in jax.tree.leaves(state)])

again = nnx.merge(recipe, jax.tree.map(lambda leaf: leaf + 1.0, state))
print(bool((again(jnp.ones((1, 5))) > model(jnp.ones((1, 5)))).all()))

# %% [markdown]
# ## Changing what cannot change
#
# `x[0] = 9` raises, as chapter 00 showed. `x.at[0].set(9)` gives a new array, and `add`, `multiply`, `min`, `max` work
# likewise. One difference to NumPy is worth a bet.

# %% [predict] pure.p5

# %%
places = np.array([0, 0, 2])

theirs = np.zeros(3)
theirs[places] += 1
ours = jnp.zeros(3).at[places].add(1)
print("NumPy", theirs, " JAX", ours)

tpulab.reveal("pure.p5", {"numpy": int(theirs[0]), "jax": int(ours[0])})

# %% [markdown]
# NumPy reads `counts[places]`, adds, and writes back: place 0 is written twice with the same 1. `.at[].add` adds once
# for each index (in NumPy, `np.add.at` does). Gradients of a look-up table are summed in just this way.
#
# ## An index that does not exist

# %% [predict] pure.p6

# %%
x = jnp.array([0, 10, 20, 30, 40])
print("x[10] =", x[10], "  x[-7] =", x[-7])

tpulab.reveal("pure.p6", str(x[10]))

# %% [markdown]
# It **clamps**: past the end means the last element. A compiled program on an accelerator cannot stop half-way and raise,
# so a look-up always gives *something*. Updates past the end are dropped. If you want to know, ask for a filler:

# %%
print("set past the end:", x.at[10].set(99))
print("with a filler:   ", x.at[jnp.array([1, 10, -1])].get(mode="fill", fill_value=-999))

# %% [markdown]
# Note the third: `-1` is no bad index, it counts from the end. A token number one too large, a label that should have
# been dropped: in JAX these train in silence. Check such data in NumPy, before they go in.
#
# Now five stretch exercises. The last four are instruments that you can keep: names for every array, a network's start,
# a detector of reused keys, and this chapter's first experiment as a tool.

# %% [exercise] pure.4

# %% [exercise] pure.5

# %% [exercise] pure.6

# %% [exercise] pure.7

# %% [exercise] pure.8

# %% [markdown]
# ## On a real TPU
#
# Nothing here was measured on a TPU yet. Two things to expect. Random *bits* should be the same everywhere, since a key
# is arithmetic on integers. The layer's *numbers* should not: a TPU multiplies float32 matrices in shorter numbers
# unless you ask for `"highest"`, so expect errors near 0.01 instead of 0.000001.


# %%
def errors():
    rows = jax.random.normal(jax.random.key(7), (64, 5))
    exact = np.maximum(np.asarray(rows, np.float64) @ np.asarray(params["w"], np.float64), 0)
    found = {}
    for precision in ("default", "highest"):
        with jax.default_matmul_precision(precision):
            error = np.abs(apply(params, rows) - exact).max()
            found[f"largest error, precision {precision}"] = float(error)
    return found


tpulab.on_tpu("pure", errors)

# %% [markdown]
# ## What you can do now
#
# - You saw what JAX does to side effects: it runs them while recording, and never again.
# - You wrote the layer as `init` and `apply`, with its parameters in a tree.
# - You handed over keys and state, and know what a reused key does.
# - You changed arrays that cannot change, duplicates included.
# - You know what lies beyond the end of an array: its last element.
#
# Next: `02_grad`, where the layer is differentiated.
