# %% [markdown]
# # Start here: your laptop is a TPU lab
#
# After this chapter you can
# - work through a chapter: predict, run, check, and read what *not yet* is telling you,
# - say which devices a notebook computes on, and whether they are real or simulated,
# - do by hand what `tpulab.setup` does, and say why it comes first,
# - name three habits of a JAX array that a NumPy array does not have,
# - tell a *measured* number from a *simulated*, a *modelled* and a *compiled* one.
#
# You need Python and NumPy. No TPU, no GPU, and after the installation no network.

# %%
import tpulab

tpulab.setup(devices=8)

# %% [markdown]
# That table is the first thing to read in every chapter. It says what the numbers below it are worth. If it shows a
# `note`, do what the note says before you go on.

# %% [markdown] tags=["instructor"]
# **Timing.** 20 minutes of reading, 8 of exercises. In a workshop, do the devices, the *not yet* and the map together,
# and leave the rest for the evening.
#
# **Misconceptions to listen for.** "Eight devices, so eight times as fast" (they share the same cores). "float64 is
# what floats are." "The cell returned, so it has computed."
#
# **Ask.** Which of the numbers on this page would change on your neighbour's laptop, and which could not?

# %% [markdown]
# ## How a chapter works
#
# Run the cells from top to bottom with Shift+Enter. Three kinds of cell want something of you:
#
# - **Predict.** Write your answer in place of `...` *before* you run what follows. The first answer counts, and being
#   wrong is the useful case.
# - **Exercise.** Replace the stub by your function, then run the check below it.
# - **Reveal.** It puts your prediction beside what happened.
#
# You can leave out all of it: no later cell needs your answers.

# %% [markdown]
# ## Devices, real and simulated
#
# JAX calls whatever computes a *device*: a CPU, a GPU, a TPU chip. Here is what this kernel has.

# %%
import jax
import jax.numpy as jnp

for device in jax.devices():
    print(device.platform, device.id)

# %% [markdown]
# On a laptop these are **simulated devices**: one CPU that introduces itself several times. Each has its own arrays and
# its own copy of the program, so a program for eight chips runs here: the same program, its results equal up to rounding (a
# TPU rounds matrix products more). All of them share the same cores, so their *speed* says nothing about a TPU, and no
# chapter pretends otherwise.

# %% [predict] start.p1

# %%
x = jnp.arange(1000.0)
print("x lies on device", [device.id for device in x.devices()], "of", jax.device_count())

tpulab.reveal("start.p1", len(x.devices()))

# %% [markdown]
# One. JAX does not spread an array because there is room; it puts it on the first device until you say something else.
# Saying something else is chapter 05.
#
# ## What `setup` did
#
# No magic: a handful of lines of plain JAX. They have to run before JAX looks for devices, and in this kernel it has
# already looked. So we try them in a second Python process, with three devices.

# %%
import subprocess
import sys

program = """
import os
os.environ["NPROC"] = "16"
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
print(jax.device_count(), "devices on", jax.default_backend())
"""
second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
print(second.stdout.strip())

# %% [markdown]
# Line by line: `NPROC` gives the CPU backend enough threads, since simulated devices that wait for each other on too
# few can abort the kernel. `jax_platforms` chooses the CPU; `setup` leaves that line out where it finds the real chips
# you asked for. `jax_num_cpu_devices` is the number of simulated devices. And if you run such a line too late?

# %%
with tpulab.expect_error(RuntimeError):
    jax.config.update("jax_num_cpu_devices", jax.device_count() + 1)

# %% [markdown]
# The backend starts at the first thing that needs a device, and from then on the number is fixed. The remedy is always
# the same: restart the kernel and run the first cell first. Running `setup` twice is harmless.
#
# ## Where you are
#
# | the notebook runs on | `setup()` takes | `setup(devices=8)` takes |
# |---|---|---|
# | a laptop, a hub, a Colab CPU runtime | the CPU | 8 simulated devices |
# | a Colab TPU runtime: one chip | the chip | 8 simulated devices, beside the chip |
# | a machine with two or more TPU chips | the chips | the chips, as many as there are |
#
# Chapters read the number from `jax.device_count()`, so they run on any of these.

# %% [markdown]
# ## A check that says *not yet*
#
# The first exercise asks for `double(x)`. Before you do it, let somebody get it wrong: we hand the check a function that
# squares. (`strict=False` asks for words even under an autograder, which would otherwise stop here.)

# %%
tpulab.check("start.1", lambda x: x**2, strict=False)

# %% [markdown]
# What went in, what came out, what was expected, and the likely cause. A check runs *your* function on data you have not
# seen, and answers **correct**, **not yet**, **not attempted**, or **cannot check here** when the machine lacks
# something. It does not raise, whatever you hand it. It speaks of arrays by dtype and shape: `f32[4,3]` is a float32
# array of 4 rows and 3 columns. Stuck? Hints come one at a time:

# %%
tpulab.hint("start.1")

# %% [markdown]
# `tpulab.solution("start.1")` shows a solution and why it is one. It wants to see one attempt first (the one above
# counts); `force=True` overrules it, and your progress then says *seen*. Three exercises a chapter are **core** (two in
# this one): they are the ones that everybody should do. The others are **stretch**.

# %% [exercise] start.1

# %% [markdown]
# ## A first array
#
# `jnp` looks like NumPy on purpose, and most of what you know carries over. Three habits do not. Here is the first.

# %% [predict] start.p2

# %%
import numpy as np

theirs = np.array([0.1, 0.2])
ours = jnp.asarray(theirs)
print(f"NumPy {theirs.dtype}, {theirs.nbytes} bytes; JAX {ours.dtype}, {ours.nbytes} bytes")

tpulab.reveal("start.p2", str(ours.dtype))

# %% [markdown]
# JAX keeps 32 bits unless you ask, in silence. Accelerators are built for short numbers, and half the bytes are half the
# memory traffic. `jax.config.update("jax_enable_x64", True)` as the first line of a program brings 64 bits back; this
# course stays with the default. It has a price:

# %% [predict] start.p3

# %%
big = jnp.asarray(16_777_216.0)
print(f"{big:.0f} + 1 = {big + 1:.0f}")
print(f"the next float32 is {np.spacing(np.float32(big)):.0f} further on")

tpulab.reveal("start.p3", int(big + 1))

# %% [markdown]
# A float32 has 24 bits for its digits. Beyond 2 to the power of 24 it can no longer count by ones, so a long sum in
# which you add small numbers to a large one comes to a standstill. Keep that in mind when a loss stops moving.
#
# How much memory a program needs is arithmetic with shapes. The layer that follows you through this course has a matrix
# `w` and a vector `b`:

# %%
import math

for name, shape in {"w": (784, 128), "b": (128,), "a scalar": ()}.items():
    array = jnp.zeros(shape)
    count = f"{array.size:,} numbers (the product is {math.prod(shape):,})"
    print(f"{name} {shape}: {count}, {array.nbytes:,} bytes")

# %% [exercise] start.2

# %% [markdown]
# ## An array does not change
#
# The second habit.

# %% [predict] start.p4

# %%
x = jnp.zeros(3)
try:
    x[0] = 9.0
    outcome = "changes x" if x[0] == 9.0 else "changes a copy"
except TypeError as error:
    outcome = "raises"
    print(str(error).split(". ")[0])

tpulab.reveal("start.p4", outcome)

# %%
y = x.at[0].set(9.0)
print("y =", y, " x =", x)

# %% [markdown]
# A JAX array never changes; you ask for a new one that differs. That sounds wasteful, and inside a compiled function it
# need not be: a compiler that sees that the old array is no longer wanted can write over it. Chapter 01 says what we get in
# return.

# %% [markdown]
# ## Asked is not done
#
# The third habit concerns the clock. The next cell warms up first, so that no compiling is timed.

# %% [predict] start.p5

# %% tags=["nbval-ignore-output"]
import time

m = jnp.full((1200, 1200), 1 / 1200)
(m @ m).block_until_ready()  # warm-up
start, y = time.perf_counter(), m
for _ in range(10):
    y = y @ m
asked = time.perf_counter() - start
y.block_until_ready()
done = time.perf_counter() - start
print(f"measured here: handed back after {asked * 1e3:.1f} ms, there after {done * 1e3:.0f} ms")
share = "nearly nothing" if asked < 0.3 * done else "about half" if asked < 0.7 * done else "nearly all"
tpulab.reveal("start.p5", share)

# %% [markdown]
# JAX hands you the array and computes it behind your back: *asynchronous dispatch*. Whatever needs the numbers (`print`,
# `float`, NumPy) waits for them; a clock does not. Many a published microsecond is the time of *asking*.
# `tpulab.measure` warms up, waits and repeats; chapter 03 takes it apart.

# %% [markdown]
# ## Four words for numbers
#
# | word | where the number comes from |
# |---|---|
# | **measured** | a clock or a counter, on the hardware named |
# | **simulated** | a machine that is not there was imitated: simulated devices, or the course's own simulator |
# | **modelled** | a formula |
# | **compiled** | the compiler says so; nobody has seen it on hardware |
#
# Three of them for the layer `relu(x @ w + b)`, with a batch of 32:

# %% tags=["nbval-ignore-output"]
w, b = jnp.full((784, 128), 0.01), jnp.zeros(128)
x = jnp.ones((32, 784))
layer = jax.jit(lambda x, w, b: jax.nn.relu(x @ w + b))
cost = layer.lower(x, w, b).compile().cost_analysis()

print(f"modelled: {2 * 32 * 784 * 128:,} operations, two for each product of x @ w")
print(f"compiled: {cost['flops']:,.0f} operations, says the compiler")
print(f"measured: {tpulab.measure(layer, x, w, b, runs=20)}")

# %% [markdown]
# The formula counts the matrix product alone; the compiler adds what comes after it. Neither is a time. Part 2 is about
# when you may conclude one from the other.
#
# ## Your progress
#
# It is one small file on this machine, and nothing is sent anywhere. It lies in the folder `TPULAB_HOME` if you set
# that, in Colab on your Drive if it is mounted, else where your system keeps programs' data.

# %%
tpulab.progress()

# %% [markdown]
# To go on elsewhere, take a code with you: `tpulab.progress().code` gives it, and so does `tpulab progress --code` in a
# terminal. It holds how your answers fared and nothing about you or your machine. `tpulab.progress(restore="…")`, with
# the code in the quotes, takes it in over there; what is already done there stays done.
#
# ## One layer, all the way
#
# The course follows one line of code, `relu(x @ w + b)`, from a function on your laptop down to the chip and out to a
# pod of chips. Each chapter does one thing to it.

# %%
import matplotlib.pyplot as plt

steps = {
    "Part 1: functions": ["01 written", "02 differentiated", "03 compiled", "04 batched", "05 spread"],
    "Part 2: compiler": ["06 fused", "07 on the roofline"],
    "Part 3: chip": ["08 through the array"],
    "Part 4: pod": ["09 sharded", "10 priced"],
    "Part 5: training": ["11 in a transformer", "12 trained"],
}
written = {chapter.slug[:2] for chapter in tpulab.progress().chapters}
missing = [label for part in steps.values() for label in part if label[:2] not in written]
alt = "A line descends through five parts, a mark for each chapter. "
alt += " ".join(f"{part}: {', '.join(chapters)}." for part, chapters in steps.items())
if missing:
    alt += f" Hollow marks, not written yet: {', '.join(missing)}."

# %%
fig, ax = plt.subplots(figsize=(9.0, 3.8))
rows = [row for row, part in enumerate(steps.values()) for _ in part]
ax.plot(range(1, len(rows) + 1), rows, color="0.75", linewidth=3, marker="", zorder=1)
for row, part in enumerate(steps.values()):
    for at, label in enumerate(part, -len(part)):
        dot = (int(label[:2]), row)
        inside = "white" if label in missing else f"C{row}"
        ax.plot(*dot, markersize=9, color=f"C{row}", marker="osD^v"[row], markerfacecolor=inside)
        spot, side = ((-6, 8), "left") if at % 2 else ((6, -18), "right")  # above, below
        ax.annotate(label, dot, spot, textcoords="offset points", ha=side)
ax.set(xticks=[], yticks=range(len(steps)), yticklabels=list(steps), ylim=(4.5, -0.5))
ax.set(xmargin=0.1, frame_on=False)
ax.tick_params(left=False)
ax.text(12, 0, "hollow: not written yet" if missing else "", ha="right")
tpulab.show(fig, alt=alt)

# %% [markdown]
# ## If you come from PyTorch
#
# | | PyTorch | JAX |
# |---|---|---|
# | floats from Python | `float32` | `float32` |
# | floats from NumPy | stay `float64` | become `float32` |
# | `x[0] = 9.0` | changes `x` | raises; `x.at[0].set(9.0)` gives a new array |
# | moving to a device | `x.to("cuda")` | `jax.device_put(x, device)`; new arrays go to the first device |
# | asynchronous | on GPUs; `torch.cuda.synchronize()` | everywhere; `y.block_until_ready()` |
# | random numbers | one hidden generator | a key that you hand over (chapter 01) |

# %% [markdown]
# ## On a real TPU
#
# Nothing in this chapter has been run on a TPU yet. What to expect there: with two chips or more, the first
# table names them; a single one stays out of it, since this chapter asks for eight devices, and shows up in the next
# cell. The habits above hold unchanged, and so does every exercise. Is there a chip within reach of this kernel?

# %%
try:
    chips = jax.devices("tpu")
except RuntimeError:  # JAX knows no such backend here
    chips = []
print(f"TPU chips within reach: {len(chips)}")

# %% [markdown]
# With none, sections of this name show a stored measurement with its chip, versions and date, or say *Not measured*. You
# will read that often at first. It is the honest state of affairs, and whoever has a TPU can change it with
# `tpulab record`.

# %% [markdown]
# ## What you can do now
#
# - You have worked through a chapter: predicted, run, checked, and read a *not yet*.
# - You said which devices this notebook computes on, and whether they are real.
# - You did by hand what `tpulab.setup` does, and saw what happens when it comes too late.
# - You met three habits of JAX arrays: 32 bits by default, never changed in place, computed behind your back.
# - You can tell *measured*, *simulated*, *modelled* and *compiled* apart.
#
# Next: `01_pure_functions`, where the layer is written.
