# %% [markdown]
# # grad: a function goes in, its gradient function comes out
#
# After this chapter you can
# - turn a loss into a function that gives its gradient, for any nesting of parameters, and descend with it,
# - say what becomes of PyTorch's tape, `.grad` and `zero_grad`,
# - check a gradient by differences, with a step that does not mislead you,
# - tell what `grad` answers for loops, branches and corners, and cure a NaN that comes from behind a `where`,
# - count what a gradient costs, and choose between forward and reverse mode,
# - write a derivative of your own.

# %%
import tpulab

tpulab.setup()

# %% [markdown] tags=["instructor"]
# **Timing.** Reading 30 minutes, core exercises 20. Short of time: leave out *Two directions* and *A rule of your
# own* with their exercises; no later chapter of Part 1 needs them.
#
# **Misconceptions to listen for.** "`grad` gives numbers" (it gives a function; `grad.1`). "The gradient is worked out
# symbolically", or "by small differences" (neither: each recorded step knows its own derivative rule). "`where` protects
# the gradient" (it protects the value; `grad.5`). "It knows about the jump of a loop" (it sees one path; `grad.p3`).

# %% [markdown]
# ## A function goes in, a function comes out
#
# `f` is a bump. `jax.grad(f)` is not its slope at a point: it is the *function* that gives the slope at any point. So
# it can be handed to `grad` again.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np


def f(x):
    return 1 / (1 + x * x)


slope = jax.grad(f)
print(f"slope at 0.7: {slope(0.7):.5f}, by hand {-2 * 0.7 / (1 + 0.7**2) ** 2:.5f}")
print(f"slope of the slope there: {jax.grad(slope)(0.7):.5f}")

# %% [predict] grad.p1

# %%
runs = []


def noisy(x):
    runs.append(x)
    print("  the body runs; is x a float?", isinstance(x, float))
    return x * x


print("made:")
noisy_slope = jax.grad(noisy)
made = len(runs)
print("called:")
print(noisy_slope(2.0), noisy_slope(3.0))
tpulab.reveal("grad.p1", {"made": made, "called": len(runs)})

# %% [markdown]
# Making it runs nothing. Each call runs your Python once, with a *stand-in* for `x`: it has a value, and it notes every
# operation done to it. Each operation knows its own derivative; walking back through the notes and multiplying these
# (the chain rule) gives the slope, exact up to rounding. No algebra on your source, no small steps. The result can be
# read: `cos a` is the rule of `sin`, the rest is the product rule, and `_` marks a value that nobody needs.

# %%
print(jax.make_jaxpr(jax.grad(lambda x: jnp.sin(x) * x))(2.0))

# %% [exercise] grad.1

# %% [markdown]
# ## The layer, differentiated
#
# The layer of this course, `relu(x @ w + b)`, with its parameters in a dict, and a loss against targets. The targets
# come from a layer of the same form, whose weights we know and the model does not.
#
# `grad` differentiates the *first* argument, whatever pytree it is, and answers with the same pytree. Beside it we work
# it out by hand, in float64 NumPy: the error, cut where relu was off, carried back through the product.


# %%
def layer(params, x):
    return jax.nn.relu(x @ params["w"] + params["b"])


def loss(params, x, y):
    return jnp.mean((layer(params, x) - y) ** 2)


rng = np.random.default_rng(0)
x = rng.normal(size=(64, 3)).astype(np.float32)
y = layer({"w": rng.normal(size=(3, 2)), "b": 0.5 * np.ones(2)}, x)
params = {"w": jnp.full((3, 2), 0.1), "b": jnp.zeros(2)}

# %%
grads = jax.grad(loss)(params, x, y)
w64, b64, x64, y64 = (np.array(a, np.float64) for a in (params["w"], params["b"], x, y))
before = x64 @ w64 + b64
error = 2 * (np.maximum(before, 0) - y64) * (before > 0) / y64.size  # (64, 2)
by_hand = {"w": x64.T @ error, "b": error.sum(axis=0)}
for name, grad in grads.items():
    print(f"{name}: shape {grad.shape}, as by hand: {np.allclose(grad, by_hand[name], atol=1e-6)}")

# %% [markdown]
# Downhill, then. There is no optimizer object: a step makes new parameters from old ones, leaf by leaf.
# `value_and_grad` gives the loss and its gradient from one run.

# %%
losses = []
for _ in range(60):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    params = jax.tree.map(lambda p, g: p - 0.3 * g, params, grads)
    losses.append(value)
print("loss before steps 0, 20, 40:", *(f"{losses[i]:.4f}" for i in (0, 20, 40)))
print(f"loss after 60 steps: {loss(params, x, y):.4f}")

# %% [exercise] grad.2

# %% [markdown]
# Three more words for daily use. `argnums` picks another argument than the first. With `has_aux=True` the function
# returns a pair, and only its first element is differentiated; the other is a metric, or new state.
# `stop_gradient(v)` has the value of `v` and the derivative 0: for `grad` it is a constant. Below, a mean as part of
# the model and a mean held fixed: two questions, two gradients.

# %%
from jax import lax

print("gradient for x has shape", jax.grad(loss, argnums=1)(params, x, y).shape)
_, active = jax.grad(lambda p: (loss(p, x, y), jnp.mean(layer(p, x) > 0)), has_aux=True)(params)
print(f"relu lets {active:.0%} through")

v = jnp.array([1.0, 2.0, 6.0])
for center in (jnp.mean, lambda v: lax.stop_gradient(jnp.mean(v))):
    print(jax.grad(lambda v: jnp.sum((v - center(v)) ** 3))(v))

# %% [exercise] grad.3

# %% [markdown]
# ## If you come from PyTorch
#
# One training step, first there, then here:
#
# ```python
# optimizer.zero_grad()              # or this step's gradients add to the last one's
# value = loss_fn(model(x), y)       # operations on parameters write the tape
# value.backward()                   # reads it, and adds into p.grad of every parameter p
#
# value, grads = jax.value_and_grad(loss)(params, x, y)  # returned; nothing stored, nothing to reset
# ```
#
# | PyTorch | JAX |
# |---|---|
# | `p.requires_grad_(False)` | leave `p` out of the first argument, or `stop_gradient` |
# | `p.detach()` | `lax.stop_gradient(p)` |
# | `torch.no_grad()` | not needed: without `grad` nothing is noted |
# | `torch.autograd.Function` | `jax.custom_vjp` |
# | `torch.func.grad(f)` | `jax.grad(f)` |
#
# The last row limits the usual contrast (*JAX gives back a function, PyTorch fills `.grad`*): it is one of defaults.
#
# <!-- claim 4: holds with conditions: grad gives back a function and stores nothing, and PyTorch's default is the tape and .grad; but torch.func.grad gives a function too, and JAX also keeps values of the forward pass, inside the function that vjp returns -->

# %% [markdown]
# ## Trust, then check
#
# A gradient can be checked without any autodiff: step to both sides and divide. How small a step? A smaller one is
# closer to the derivative; it also subtracts two numbers that agree in ever more digits, of which float32 has seven.

# %% [predict] grad.p2

# %%
points = np.linspace(0.2, 2, 181)  # where we compare
truth = -2 * points / (1 + points**2) ** 2  # float64


def errors(h, dtype):
    at, h = points.astype(dtype), dtype(h)
    return np.median(np.abs((f(at + h) - f(at - h)) / (2 * h) - truth))


found = {h: errors(float(h), np.float32) for h in ("1e-1", "1e-2", "1e-4", "1e-6")}
print({h: f"{error:.0e}" for h, error in found.items()})
tpulab.reveal("grad.p2", min(found, key=lambda h: found[h]))

# %%
steps = 10.0 ** np.arange(-8, 0.1, 0.25)
some = zip(points[::6], truth[::6], strict=True)
own = np.median([abs(float(slope(at)) - value) for at, value in some])
fig, ax = plt.subplots()
ax.loglog(steps, [errors(h, np.float32) for h in steps], label="differences, float32")
ax.loglog(steps, [errors(h, np.float64) for h in steps], label="differences, float64")
ax.axhline(float(f"{own:.0e}"), color="black", ls="--", label="jax.grad, float32")
ax.axvline(np.finfo(np.float32).eps ** (1 / 3), color="gray", ls=":", label="cube root of float32's eps")
ax.set(xlabel="step h", ylabel="error of the slope, median", title="Too small is worse than too large")
ax.legend(fontsize=8)
alt = "Error against step, logarithmic axes: two V shapes. Float32 is lowest near h = 0.005, float64 "
alt += "near 0.000005 and far lower; the error of jax.grad lies below all of float32's."
tpulab.show(fig, alt=alt)

# %% [markdown]
# Right of the dip, the bend of the function: the error falls with h². Left of it, rounding divided by h. So compare in
# float64 where you can, and never with the smallest step.
#
# A whole layer needs one comparison, not one per weight: step along a random direction, everywhere at once.

# %%
direction = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=2)}


def loss_along(h):  # float64 NumPy, h steps along the direction
    w, b = (np.array(params[name], np.float64) + h * direction[name] for name in ("w", "b"))
    return np.mean((np.maximum(x64 @ w + b, 0) - y64) ** 2)


grads = jax.grad(loss)(params, x, y)  # anew: the last ones belong to the parameters before the last step
by_differences = (loss_along(1e-6) - loss_along(-1e-6)) / 2e-6
by_grad = sum(np.sum(direction[name] * grads[name]) for name in grads)
print(f"along the direction: by differences {by_differences:.5f}, by grad {by_grad:.5f}")

# %% [exercise] grad.4

# %% [markdown]
# ## What grad refuses
#
# A gradient is the slope of *one number* with respect to *real* inputs. Anything else is an error, at once:

# %%
with tpulab.expect_error(TypeError):
    jax.grad(layer)(params, x)
with tpulab.expect_error(TypeError):
    jax.grad(lambda n: n**2)(3)
with tpulab.expect_error(jax.errors.TracerArrayConversionError):
    jax.grad(lambda x: np.sin(x))(1.0)

# %% [markdown]
# The first gives 64 × 2 numbers: take a mean, or ask for a Jacobian (below). The second got a Python `int`: write
# `3.0`. It bites, too, when a pytree holds a step counter; keep counters out of what you differentiate. The third let
# NumPy have the stand-in, which only `jnp` can note down.
#
# ## Loops and branches
#
# The notes are taken while your Python runs, so `for`, `while` and `if` need no translation.

# %% [predict] grad.p3


# %%
def past_hundred(x):
    while x < 100:
        x = 2 * x
    return x


tpulab.reveal("grad.p3", jax.grad(past_hundred)(3.0))

# %%
starts = np.arange(1.5, 14, 0.0625)
values = np.array([past_hundred(start) for start in starts])
values[1:][np.diff(values) < 0] = np.nan  # a gap where it jumps
fig, ax = plt.subplots()
ax.plot(starts, values, marker="", lw=2, label="past_hundred(x)")
for at in (3.0, 5.0, 10.0):
    rate, near = float(jax.grad(past_hundred)(at)), at * np.array([0.8, 1, 1.35])
    ax.plot(near, past_hundred(at) + rate * (near - at), ls="--", markevery=[1], label=f"slope {rate:g}")
ax.set(xlabel="x", ylabel="past_hundred(x)", title="Right on every piece, blind to the jumps")
ax.set_ylim(90, 260)
ax.legend(ncol=2, fontsize=8)
alt = "A saw-tooth between 100 and 200 that falls back at 1.6, 3.1, 6.3 and 12.5; three dashed tangents "
alt += "follow its pieces and run on past the falls."
tpulab.show(fig, alt=alt)

# %% [markdown]
# Six doublings were noted, so the slope is 2⁶ = 64. The loop itself is not in the notes, nor is the *decision* to stop:
# from x = 3 to 4 the result falls from 200 to 100 on the way, and no gradient says so. As claimed, `grad` goes through
# Python loops and branches: along the path that this input takes. (Under `jit` there is no value to decide by, and the
# same `while` is an error: chapter 03.)
#
# <!-- claim 5: holds with conditions: the gradient is that of the path taken, jumps are not in it, and under jit a branch on a traced value is an error -->

# %% [markdown]
# ## Corners
#
# At 0 these three turn a corner. Any slope between the left one and the right one can be defended.

# %% [predict] grad.p4

# %%
kinks = {
    "jax.nn.relu(x)": jax.nn.relu,
    "jnp.maximum(x, 0.0)": lambda x: jnp.maximum(x, 0.0),
    "jnp.abs(x)": jnp.abs,
}
tpulab.reveal("grad.p4", {name: jax.grad(kink)(0.0) for name, kink in kinks.items()})

# %% [markdown]
# Three conventions: `relu` is flat at 0, `maximum` shares a tie equally, `abs` sides with the right (PyTorch's says 0).
# So `relu(x)` and `maximum(x, 0)` have the same values and not the same gradient. It rarely matters, until many inputs
# are *exactly* 0.
#
# ## The NaN behind the where
#
# Worse than a corner is a square root: its slope at 0 is infinite, and below 0 there is none. We guard it with a `where`.

# %% [predict] grad.p5


# %%
def root(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)


for at in (4.0, 0.0, -1.0):
    print(f"at {at:4}: value {root(at)}, slope {jax.grad(root)(at)}")
tpulab.reveal("grad.p5", f"{jax.grad(root)(-1.0):g}")

# %% [markdown]
# `where` computes *both* sides and chooses afterwards. On the way back the side not chosen gets a gradient of 0, and the
# root multiplies it by its own slope: 0 × NaN at −1, 0 × ∞ at 0. Both are NaN, and one NaN spreads to every weight.
#
# The cure is a second `where`, *in front*, so that the root never sees a bad number:


# %%
def safe_root(x):
    safe = jnp.where(x > 0, x, 1.0)  # any harmless number
    return jnp.where(x > 0, jnp.sqrt(safe), 0.0)


for at in (4.0, 0.0, -1.0):
    print(f"at {at:4}: value {safe_root(at)}, slope {jax.grad(safe_root)(at)}")

# %% [exercise] grad.5

# %% [markdown]
# ## What a gradient costs
#
# By differences, a gradient takes two runs of the loss for each parameter. And by `grad`? Nearly all the work of a
# network is in its matrix products, so we count those in the record.

# %% [predict] grad.p6


# %%
def chain(weights, x):
    for w in weights:
        x = x @ w
    return jnp.mean(x**2)


weights = [jnp.asarray(rng.normal(size=(32, 32)) / 6) for _ in range(4)]
batch = jnp.asarray(rng.normal(size=(256, 32)))
records = [str(jax.make_jaxpr(fn)(weights, batch)) for fn in (chain, jax.grad(chain))]
once, both = (record.count("dot_general") for record in records)
print("matrix products forwards:", once)
tpulab.reveal("grad.p6", both)

# %% [markdown]
# Four forwards. Backwards each layer needs two, one for its weights' gradient and one to hand the gradient down to its
# input, which the lowest layer can leave out: 4 + 4 + 3 = 11, or 3L − 1 for L layers. A training step costs about
# *three forward passes* (modelled), however many parameters there are. Chapter 11 will meet this factor again.
#
# Time is the cheap part. The way back needs what the way forward computed:

# %%
for rows in (256, 1024):
    out, pullback = jax.vjp(lambda weights: chain(weights, jnp.ones((rows, 32))), weights)
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(pullback) if isinstance(leaf, jax.Array))
    own = sum(w.nbytes for w in weights)
    print(f"batch of {rows}: {kept:,} bytes kept, for {own:,} bytes of weights")

# %% [markdown]
# `jax.vjp` runs forwards and returns the way back as a function, `pullback`; `grad` is this with 1.0 pushed in. What it
# keeps grows with the batch: this is the tape. JAX has one too. It lives in a function that you hold and can drop, not
# in the tensors; in training it is often what fills the memory.
#
# ## Two directions
#
# `jax.jvp` only goes forwards: it carries a *tangent* beside the value, and says how the output moves when the input
# moves that way. Same slopes, another price:


# %%
def outputs(x):  # 3 numbers in, 2 out
    return jnp.array([x[0] * x[1], jnp.sin(x[2])])


at = jnp.array([2.0, 3.0, 0.0])
out, moved = jax.jvp(outputs, (at,), (jnp.array([1.0, 0.0, 0.0]),))  # nudge input 0
out, pullback = jax.vjp(outputs, at)
print("forwards, column 0:", moved, "  backwards, row 0:", *pullback(jnp.array([1.0, 0.0])))
print(jax.jacfwd(outputs)(at))
print("by the other mode the same:", bool(jnp.all(jax.jacfwd(outputs)(at) == jax.jacrev(outputs)(at))))

# %% [markdown]
# All columns, or all rows, are the Jacobian: `jacfwd` takes a forward pass for each input, `jacrev` a way back for each
# output. A loss has one output, which is why `grad` is reverse mode. The two compose: forward over reverse,
# `jax.jacfwd(jax.grad(loss))`, is the matrix of second derivatives, the Hessian.

# %% [exercise] grad.6

# %% [exercise] grad.7

# %% [markdown]
# ## A rule of your own
#
# Rounding to 8-bit integers has slope 0 almost everywhere: nothing learns through it. The *straight-through* trick
# pretends, on the way back, that it was not there. `custom_vjp` lets you say so: `forward` returns the result and what
# to keep; `backward` gets that and the arriving gradient `g`. A wrong rule raises no error: check it by differences,
# or, where it pretends as here, by reading it twice.


# %%
@jax.custom_vjp
def to_int8(x, scale):
    return jnp.clip(jnp.round(x / scale), -127, 127) * scale


def forward(x, scale):
    return to_int8(x, scale), jnp.abs(x) <= 127 * scale


def backward(inside, g):
    return g * inside, None  # one gradient for each argument; None: none for scale


to_int8.defvjp(forward, backward)

# %%
v = jnp.array([0.3, -0.7, 80.0])
print("values of 8 bits:  ", to_int8(v, 0.5))
print("slopes, plain round:", jax.grad(lambda v: jnp.sum(jnp.round(v / 0.5) * 0.5))(v))
print("slopes, our rule:   ", jax.grad(lambda v: jnp.sum(to_int8(v, 0.5)))(v))

# %% [exercise] grad.8

# %% [markdown]
# ## On a real TPU
#
# Nothing of this has been measured on a TPU yet. Expect the model's factor of about three where matrix products fill
# the time, another where memory traffic does. And expect this chapter's checks to look *worse*: by default a TPU rounds
# the inputs of a float32 product to bfloat16, so checks want `jax.default_matmul_precision("highest")`.


# %%
def forward_and_gradient():
    keys = jax.random.split(jax.random.key(0), 5)
    *wide, rows = (jax.random.normal(key, (4096, 4096), jnp.bfloat16) / 64 for key in keys)
    return {
        "4 products, 4096 x 4096, bf16": tpulab.measure(jax.jit(chain), wide, rows),
        "value and gradient": tpulab.measure(jax.jit(jax.value_and_grad(chain)), wide, rows),
    }


tpulab.on_tpu("grad", forward_and_gradient)

# %% [markdown]
# ## What you can do now
#
# - You turned a loss into a function that gives its gradient, for any nesting of parameters, and descended with it.
# - You said what becomes of PyTorch's tape, `.grad` and `zero_grad`.
# - You checked gradients by differences, with a step that does not mislead you.
# - You told what `grad` answers for loops, branches and corners, and cured a NaN that came from behind a `where`.
# - You counted what a gradient costs, and chose between forward and reverse mode.
# - You wrote a derivative of your own.
#
# Next: `jit`, which compiles what `grad` has made. More on derivatives:
# [the autodiff cookbook](https://docs.jax.dev/en/latest/notebooks/autodiff_cookbook.html).

# %% [markdown] tags=["instructor"]
# **Questions to ask.** Why does `grad` want `3.0` and not `3`? What is `grad` of `past_hundred` at 3.125, where it
# jumps? (32: five doublings reach 100 exactly.) Which of the two `where`s could you drop if the root's slope at 0 were
# finite, as at a corner? (The inner one.) If the kept values do not fit into memory, what can you trade for it? (Time:
# compute them again on the way back, with `jax.checkpoint`.)
