# %% [markdown]
# # Roofline: arithmetic or memory?
#
# After this chapter you can
# - say from a program's FLOPs and bytes which ceiling it meets first on a chip, arithmetic or memory,
# - work out how many rows a layer needs before arithmetic is what limits it,
# - hold a modelled time against the compiler's own estimate, and say what each leaves out,
# - find in a compiled program the bytes that padding wastes, and get rid of them,
# - say what bfloat16 saves and what it costs,
# - tell when a faster chip will not help.

# %%
import tpulab

tpulab.setup()

from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import lax
from tpulab import chips, xla

# %% [markdown]
# ## Two ceilings
#
# A chip does so many FLOPs a second, and its memory, HBM, brings so many bytes. Every program needs time for both, and
# if the two overlap perfectly it takes the longer of the two times. That is the whole model.
#
# Here are the two rates of a v5e, with their sources, and the course's layer, counted by hand: two FLOPs for each
# multiply-add, each array crossing HBM once, two bytes a number. Sixteen rows are what a language model sees that
# writes sixteen texts at once.

# %%
v5e = chips.get("v5e")
for field in ("bf16_flops_per_s", "hbm_bytes_per_s"):
    others = [f"{other.value:.3g}" for other in v5e.alternatives(field)]
    print(f"{field:<17}{getattr(v5e, field):.3g}  source: {v5e.source(field)}", end="; ")
    print("others say", ", ".join(others) or "the same")


def layer(x, w, b):
    return jnp.maximum(x @ w + b, 0)


def by_hand(rows, width=8192):
    numbers = rows * width + width * width + width + rows * width  # x, w, b and the result
    return 2 * rows * width * width, 2 * numbers  # FLOPs, bytes


# %% [predict] roofline.p1

# %%
flops, hbm_bytes = by_hand(rows=16)
compute_s, memory_s = flops / v5e.bf16_flops_per_s, hbm_bytes / v5e.hbm_bytes_per_s
share = 100 * compute_s / max(compute_s, memory_s)
print(f"arithmetic {compute_s * 1e6:.1f} µs, memory {memory_s * 1e6:.1f} µs (modelled)")
print(f"intensity {flops / hbm_bytes:.1f} FLOPs for each byte")
print(f"ridge     {v5e.bf16_flops_per_s / v5e.hbm_bytes_per_s:.0f} FLOPs for each byte")
tpulab.reveal("roofline.p1", round(share, 1))

# %% [markdown]
# Nearly all of the time goes into fetching weights; the matrix unit waits. Two figures say it at a glance. The
# program's **intensity** is its FLOPs for each byte moved; the chip's **ridge** is how many FLOPs it can do while one
# byte arrives. Below the ridge memory binds, above it arithmetic, and intensity over ridge is the share of peak that
# you can hope for.

# %% [markdown] tags=["instructor"]
# **Plan.** 27 minutes of reading and running, 18 of core exercises (`roofline.1` to `roofline.3`). **Ask before p1** who
# has quoted a chip's peak to somebody; then let them guess. **Misconception:** *memory-bound means out of memory*. It is
# about rate, not about size. **Also:** a low share of peak is no sign of bad code; at 16 rows no code can do better.

# %% [exercise] roofline.1

# %% [exercise] roofline.2

# %% [markdown]
# ## Five places for a byte
#
# HBM is one of five places that a number can come from: registers, on-chip memory (VMEM), HBM, another chip over a link
# of the torus (ICI), a machine elsewhere over the data-centre network (DCN). Each has a rate, so each has a ridge.

# %%
fields = ("hbm_bytes_per_s", "link_oneway_bytes_per_s", "dcn_bytes_per_s_per_chip")
fig, ax = plt.subplots(figsize=(5.2, 2.0))
for index, name in enumerate(("v5e", "v5p", "v6e")):
    rates = [getattr(chips.get(name), field) for field in fields]
    ax.plot(rates, (2, 3, 4), "os^"[index], color=f"C{index}", label=name)
for row, field in enumerate(fields, start=2):
    ridge = f"{v5e.bf16_flops_per_s / getattr(v5e, field):,.0f} FLOPs per byte"
    ax.annotate(ridge, (1.02, row), xycoords=("axes fraction", "data"), va="center")
ax.annotate("no sourced figure: unknown", (3e9, 0.5), va="center", style="italic")
ax.set(yticks=range(5), yticklabels=["registers", "VMEM", "HBM", "ICI, one link", "DCN, per chip"])
ax.set(xlabel="bytes per second, one way (sourced table, log scale)", xscale="log", ylim=(4.5, -0.5))
ax.legend(frameon=False, loc="upper right")
alt = "Rates of three chips: HBM about 1e12 bytes/s, ICI nearly 1e11, DCN nearly 1e10, VMEM unknown."
tpulab.show(fig, alt=f"{alt} Right of them the ridge of a v5e at each place.")

# %% [markdown]
# From place to place the rate drops tenfold or more, and the arithmetic that a byte must feed grows by as much. The
# course's table found no maker's figure for the rate of VMEM or registers, and unknown is not zero. Sizes are known: a
# v5e has 128 MiB of VMEM and 16 GiB of HBM. The last two places are for Part 4; here we stay on one chip.
#
# ## Predict, compile, compare
#
# Three programs: the layer with few rows, the layer with many, and `normalize`, which shifts and scales each row as a
# transformer does between its layers. Three chips. Shapes are enough for the compiler.


# %%
def normalize(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)


bf16 = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
weights = bf16((8192, 8192)), bf16((8192,))
programs = {
    "few rows": (layer, bf16((16, 8192)), *weights),
    "many rows": (layer, bf16((16384, 8192)), *weights),
    "normalize": (normalize, bf16((32768, 8192))),
}

# %% [predict] roofline.p2

# %%
compiled = {}
print("program    chip       FLOPs   HBM bytes  FLOP/byte  ridge  ceiling")
for name, program in programs.items():
    for chip in ("v5e", "v5p", "v6e"):
        one = compiled[name, chip] = xla.compile_for(chip, *program)
        line = chips.roofline(one, chip)
        print(f"{name:<11}{chip:<4}{one.flops:>12.3g}{one.hbm_bytes:>12.3g}", end="")
        print(f"{line.intensity_flops_per_byte:>11.1f}{line.ridge_flops_per_byte:>7.0f}  {line.bound}")
moved = compiled["few rows", "v5e"].hbm_bytes
print(f"few rows, bytes by hand: {by_hand(16)[1]:,}, compiled: {moved:,}")
bounds = {name: chips.roofline(compiled[name, "v5e"], "v5e").bound for name in programs}
tpulab.reveal("roofline.p2", bounds)

# %% [markdown]
# FLOPs and bytes are *compiled*: counted in the program that the TPU compiler made. The layer with 16 rows moves the
# very bytes that we counted by hand, so nothing between product, sum and `maximum` reaches HBM. Now the same as a
# picture: the slope is memory, the flat part arithmetic.
#
# <!-- claim 12: holds with conditions: no intermediate of the layer reaches HBM; where a reduction must end first, as in normalize, the kernel ends and reads its input again -->


# %%
points = [chips.roofline(one, chip, name=name) for (name, chip), one in compiled.items()]
chips.plot(points)

# %% [exercise] roofline.7

# %% [markdown]
# ## Do they agree?
#
# The compiler has an opinion of its own: it estimates the cycles of each kernel. Where a chip's clock is known, cycles
# are a time, and we can put it beside the roofline's.

# %%
print("program    chip  modelled   estimated   ratio")
for (name, chip), program in compiled.items():
    modelled_us, clock = chips.roofline(program, chip).seconds * 1e6, chips.get(chip).clock_hz
    print(f"{name:<11}{chip:<5}{modelled_us:>6.0f} µs", end=" ")
    if clock is None:
        print(f"  {program.estimated_cycles:,} cycles; the clock is unknown")
    else:
        estimated_us = program.estimated_cycles / clock * 1e6
        print(f"{estimated_us:>8.0f} µs {estimated_us / modelled_us:>7.1f}")

# %% [markdown]
# The many rows agree within a seventh: the compiler adds edges, start and end. The few rows take a third to a half
# more: it reckons with less bandwidth than the data sheet. (That is no whim: in Google's own benchmarks of a v6e a copy
# reached 83 % of the data sheet, a large product 90 %.) But `normalize` is three times off, and neither figure was
# checked on a chip here. What does the compiler see that the roofline does not?
#
# <!-- claim 10: holds with conditions: the layer with many rows, as in training, is limited by arithmetic; the same layer with few rows, and elementwise work at any size, is not -->

# %% [markdown]
# ## A third ceiling
#
# The peak of the roofline is the matrix unit's. A sum or a product of numbers runs elsewhere, on the vector unit. We ask
# for its ceiling: `poly` does `count` multiply-adds for each number, in one kernel, and moves the same bytes whatever
# `count` is.


# %%
def poly(x, count):
    y = x
    for _ in range(count):
        y = y * x + 1
    return y


def poly_cycles(count, dtype):
    x = jax.ShapeDtypeStruct((8192, 8192), dtype)
    return xla.compile_for("v5e", poly, x, count, static_argnums=1).estimated_cycles


# %% [predict] roofline.p3

# %%
counts = (1, 16, 32, 64)
cycles = {dtype: [poly_cycles(count, dtype) for count in counts] for dtype in ("float32", "bfloat16")}
fastest = 2 * counts[-1] * 8192**2 / (cycles["float32"][-1] / v5e.clock_hz)
print(f"vector unit, float32: {fastest / 1e12:.1f} TFLOP/s (from estimated cycles)", end="; ")
print(f"matrix unit: {v5e.bf16_flops_per_s / 1e12:.0f} TFLOP/s (sourced table)")
tpulab.reveal("roofline.p3", round(cycles["float32"][1] / cycles["float32"][0], 2))

# %%
fig, ax = plt.subplots(figsize=(5.6, 2.4))
for index, (dtype, values) in enumerate(cycles.items()):
    floor = 2 * 8192**2 * jnp.dtype(dtype).itemsize / v5e.hbm_bytes_per_s * v5e.clock_hz
    ax.plot(
        counts, np.array(values) / 1e6, "os"[index] + "-", color=f"C{index}", label=f"{dtype}, estimated"
    )
    ax.axhline(
        floor / 1e6, color=f"C{index}", linestyle=("--", ":")[index], label=f"{dtype}, HBM (modelled)"
    )
ax.set(xscale="log", xticks=counts, xticklabels=counts, ylim=(0, None))
ax.set(xlabel="multiply-adds for each number", ylabel="million cycles on v5e")
ax.legend(frameon=False)
alt = "Estimated cycles of poly on v5e: flat up to about 25 multiply-adds, then rising in proportion."
tpulab.show(fig, alt=alt)

# %% [markdown]
# Sixteen multiply-adds cost what one costs: they happen while the bytes arrive. Beyond some thirty the vector unit is
# the ceiling, at a fiftieth of the matrix unit's peak. And look at bfloat16: half the bytes, yet the same estimate, as
# if it followed how many numbers pass, not how many bytes. That is most of what `normalize` lost. So the roofline is a
# *lower* bound on time: a near one for large products, a distant one elsewhere.
#
# <!-- claim 15: holds with conditions: nearly all of a TPU's arithmetic is in its matrix unit, some fifty times the vector unit's by the compiler's estimate; all else runs on the vector unit, and there is one -->

# %% [markdown] tags=["instructor"]
# **Ask:** why does the estimate for bfloat16 not halve? A v5e has no bfloat16 arithmetic outside the matrix unit; the
# compiled program widens to float32 and back (`convert`, chapter 06). On a v6e, which has it, the estimate does not
# halve either. Nobody here can say whether the chip agrees; that is the point of the word *compiled*.

# %% [markdown]
# ## How many rows?
#
# More rows share one reading of the weights, so intensity grows with the batch. With the weights alone it *is* the
# batch: `2 · rows · k · n` FLOPs over `2 · k · n` bytes. Count `x` and the result as well, and the ridge moves.

# %% [predict] roofline.p4

# %%
enough = next(rows for rows in range(1, 2000) if chips.roofline(by_hand(rows), "v5e").bound == "compute")
print("weights alone:", round(v5e.bf16_flops_per_s / v5e.hbm_bytes_per_s), "rows; all traffic:", enough)
tpulab.reveal("roofline.p4", enough)

# %%
sizes = (16, 128, 256, 512, 1024)
estimated = [xla.compile_for("v5e", layer, bf16((rows, 8192)), *weights) for rows in sizes]
estimated_us = [program.estimated_cycles / v5e.clock_hz * 1e6 for program in estimated]
modelled_us = [chips.roofline(by_hand(rows), "v5e").seconds * 1e6 for rows in sizes]
fig, ax = plt.subplots(figsize=(5.6, 2.4))
ax.plot(sizes, modelled_us, "o-", label="roofline (modelled)")
ax.plot(sizes, estimated_us, "s--", label="compiler's estimate (compiled)")
ax.axvline(enough, color="0.5", marker="", linestyle=":", label=f"{enough} rows")
ax.set(xscale="log", yscale="log", xticks=sizes, xticklabels=sizes, xlabel="rows", ylabel="µs on v5e")
ax.set(yticks=(200, 400, 800), yticklabels=(200, 400, 800))
ax.minorticks_off()
ax.legend(frameon=False)
tpulab.show(fig, alt="Time of the layer: both curves are flat up to about 256 rows, then rise.")

# %% [markdown]
# Two hundred rows cost what sixteen cost. Whoever serves a model waits for rows to gather; whoever trains has thousands
# and need not think of it. Both curves bend at the same place, though they were made by different means.

# %% [exercise] roofline.3

# %% [exercise] roofline.9

# %% [markdown]
# ## Tiles
#
# HBM does not hold your array as NumPy would. It holds tiles, for float32 most often 8 × 128 numbers, the size of a
# vector register, and fills up what is missing. A last axis of 3 then becomes 128: 42 times the bytes, say the
# textbooks.

# %% [predict] roofline.p5


# %%
def double(x):
    return 2 * x + 1


triples = jax.ShapeDtypeStruct((262144, 3), jnp.float32)
program = xla.compile_for("v5e", double, triples)
taken = program.hbm_bytes // 2  # read once, written once
print(program.module.entry.root.shape)
tpulab.reveal("roofline.p5", f"{taken / 1e6:.1f} MB")

# %% [markdown]
# The compiler has read the textbooks. The layout is its own choice, and it laid the array on its side: `{0,1}` says that
# axis 0 now runs along the tile, and `T(4,128)` that a tile has four rows, so 3 became 4. Waste appears where something
# *forces* the other layout. Flattening does.


# %%
def flatten(x):
    return (2 * x + 1).reshape(-1)


flat = xla.compile_for("v5e", flatten, triples)
print(f"double {program.hbm_bytes:>12,} bytes, flatten {flat.hbm_bytes:>12,} (compiled)")
for kernel in flat.kernels:
    print(f"  {kernel.kind:<14} reads {kernel.bytes_read:>12,} writes {kernel.bytes_written:>12,}")
flat

# %% [markdown]
# There are the 134 MB, written and read again: the flat order needs row after row, so the array was turned and each row
# padded to 128. Picking rows by index does the same, and so do products of many small matrices. Hold your kernels'
# bytes against your arrays' sizes; a factor of 40 is not subtle. The cure is a long last axis, or other operations.

# %% [exercise] roofline.5

# %% [exercise] roofline.6

# %% [markdown]
# ## bfloat16
#
# Two bytes for each number instead of four, and the matrix unit's full speed. Of float32's 24 bits of precision 8 are
# left. What does a product lose? The error is measured on this CPU, against float64; only the last line also *sums* in
# bfloat16, which a TPU's matrix unit does not.

# %%
random = np.random.default_rng(0)
x, w = random.normal(size=(64, 4096)), random.normal(size=(4096, 64))
half, other = jnp.array(x, jnp.bfloat16), jnp.array(w, jnp.bfloat16)
single = jnp.array(x, jnp.float32), jnp.array(w, jnp.float32)
one_by_one = partial(lax.fori_loop, 0, 4096, lambda i, total: total + jnp.outer(half[:, i], other[i]))
results = {
    "float32": jnp.dot(*single, precision="highest"),
    "bfloat16, sums in float32": jnp.dot(half, other, preferred_element_type=jnp.float32),
    "bfloat16, sums in bfloat16": one_by_one(jnp.zeros((64, 64), jnp.bfloat16)),
}
for name, result in results.items():
    error = np.sqrt(np.mean((np.asarray(result, np.float64) - x @ w) ** 2) / np.mean((x @ w) ** 2))
    print(f"{name:<27} relative error {error:.0e} (measured)")

# %% [markdown]
# Two parts in a thousand are fine for most networks; seven in a hundred are not, which is why the matrix unit sums in
# float32. Now the other way: your code is in float32. What does that cost on a TPU?


# %%
def precise(x, w, b, precision):
    return jnp.maximum(jnp.dot(x, w, precision=precision) + b, 0)


def precise_cycles(dtype, precision):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((2048, 2048), (2048, 2048), (2048,))]
    program = xla.compile_for("v5e", precise, *shapes, precision, static_argnums=3)
    return program.estimated_cycles


# %% [predict] roofline.p6

# %%
base = precise_cycles("bfloat16", "default")
for precision in ("default", "high", "highest"):
    factor = precise_cycles("float32", precision) / base
    print(f"float32, {precision:<8} {factor:.1f} × the cycles of bfloat16 (compiled)")
tpulab.reveal("roofline.p6", round(precise_cycles("float32", "default") / base, 2))

# %% [markdown]
# No slower, because it is the same product: on a TPU JAX rounds float32 inputs to bfloat16 unless you say otherwise.
# Many a result that "differs on the TPU" is this. `jax.default_matmul_precision("highest")` asks for float32 proper, put
# together from six bfloat16 products. On a CPU all three settings are the same.
#
# ## The roof over your head
#
# The model is not about TPUs. `ceilings_here` measures two rates of this machine, a large product and a large copy (on
# a CPU in float32). Then we time the layer with few and with many rows, and see how near to their roof they come.

# %% tags=["nbval-ignore-output"]
here = chips.ceilings_here()
print(here)
w = jnp.full((1024, 1024), 0.01)
for name, count in (("few rows", 4), ("many rows", 2048)):
    flops, hbm_bytes = 2 * count * 1024**2, 4 * (2 * count * 1024 + 1024**2)
    x = jnp.full((count, 1024), 0.1)
    seconds = tpulab.measure(jax.jit(layer), x, w, w[0], budget_s=0.3).median_s
    line = chips.roofline((flops, hbm_bytes), here)
    print(f"{name:<10}{line.bound:<8} at least {line.seconds * 1e6:6.0f} µs (modelled)", end="")
    print(f", {seconds * 1e6:6.0f} µs (measured)")

# %% [markdown]
# Do not expect the two to agree well: a CPU's caches keep small weights close, so "few rows" may even beat its memory
# roof, and a ceiling measured while the machine was busy is too low. HBM in the model is main memory here, and what
# comes from a cache never crosses it. A model tells you where to look; a measurement that breaks it tells you more.
#
# ## When a faster chip does not help
#
# Your layer with few rows runs on a v5e, and somebody offers you a v6e, newer and a good deal larger on paper.

# %% [predict] roofline.p7

# %%
for new in ("v6e", "v5p"):
    facts = chips.get(new)
    print(f"v5e to {new}: peak × {facts.bf16_flops_per_s / v5e.bf16_flops_per_s:.1f}, ", end="")
    print(f"bandwidth × {facts.hbm_bytes_per_s / v5e.hbm_bytes_per_s:.1f} (sourced table)")
    for name in programs:
        old_s, new_s = (chips.roofline(compiled[name, chip], chip).seconds for chip in ("v5e", new))
        print(f"   {name:<10}{old_s / new_s:.1f} times faster (modelled)")
faster = chips.roofline(compiled["few rows", "v5e"], "v5e").seconds
faster /= chips.roofline(compiled["few rows", "v6e"], "v6e").seconds
tpulab.reveal("roofline.p7", round(faster, 1))

# %% [markdown]
# What is limited by memory gains what memory gained. The older v5p, half the peak of a v6e, is the faster chip for few
# rows. And the ridge moved: a v6e wants 560 FLOPs for each byte, so a program that was at its ridge on a v5e is now
# limited by memory. Before you ask for a faster chip, ask which ceiling you are under. Cheaper ways up: more rows, fewer
# bytes (bfloat16, int8 weights), fewer trips to HBM.

# %% [exercise] roofline.8

# %% [exercise] roofline.4

# %% [markdown]
# ## If you come from PyTorch
#
# | | PyTorch | JAX |
# |---|---|---|
# | float32 products | `torch.set_float32_matmul_precision("high")` allows less | allowed already; `"highest"` forbids it |
# | bfloat16 | `torch.autocast` casts for you | you cast; dtypes are what you wrote |
# | sums of bfloat16 products | float32, on most hardware | float32; `preferred_element_type` says what comes out |
# | layout in memory | `channels_last`, strides: yours | the compiler's; `.T` may cost nothing |
# | counted FLOPs | `torch.utils.flop_counter.FlopCounterMode` | the compiled program |
#
# The roofline itself is the same anywhere: `chips.roofline(program, "H100")` works, too.

# %% [markdown]
# ## On a real TPU
#
# The next cell times the layer with few and with many rows where there is a TPU. None was measured for the course yet.
# Expect few rows to take somewhat longer than the modelled 164 µs of a v5e, many rows somewhat longer than 11.2 ms: a
# bound is seldom met.


# %%
def figures():
    w = jnp.full((8192, 8192), 0.01, jnp.bfloat16)
    x = jnp.full((16384, 8192), 0.1, jnp.bfloat16)
    compiled_layer = jax.jit(layer)
    return {
        f"layer, {rows} rows": tpulab.measure(compiled_layer, x[:rows], w, w[0]) for rows in (16, 16384)
    }


tpulab.on_tpu("roofline", figures)

# %% [markdown]
# ## What you can do now
#
# - You said from a program's FLOPs and bytes which ceiling it meets first on a chip.
# - You worked out how many rows a layer needs before arithmetic is what limits it.
# - You held modelled times against the compiler's own estimates, and said what each leaves out.
# - You found in a compiled program the bytes that padding wastes, and got rid of them.
# - You said what bfloat16 saves and what it costs.
# - You told when a faster chip will not help.
#
# Next, the matrix unit itself: a systolic array, cycle by cycle.
