# %% [markdown]
# # Fusion: what the chip launches
#
# After this chapter you can
# - follow a function from its recording to the program that a TPU runs, and compile it for a TPU that you do not have,
# - say what a kernel is, and count the bytes that each one moves to and from the chip's memory,
# - predict what becomes one kernel, and what that saves,
# - find what breaks a fusion, and write it in another way,
# - tell when fewer kernels save nothing.

# %%
import tpulab

tpulab.setup()

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from tpulab import chips, xla

# %% [markdown]
# ## One layer, and what becomes of it
#
# The course's layer, followed by dropout: a mask of truth values says which numbers stay. Everything is bfloat16, and
# only shapes are needed: nothing here will run.


# %%
def layer(x, w, b):
    return jnp.maximum(x @ w + b, 0)


def with_dropout(x, w, b, keep):
    return jnp.where(keep, layer(x, w, b) / 0.9, 0)


bf16 = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
shapes = bf16((16384, 4096)), bf16((4096, 8192)), bf16((8192,))
mask = jax.ShapeDtypeStruct((16384, 8192), jnp.bool_)
jaxpr = jax.make_jaxpr(with_dropout)(*shapes, mask)
print([equation.primitive.name for equation in jaxpr.eqns])

# %% [markdown]
# The last line is the recording of `jnp.where`, one only stretches `b`. An eager framework launches them one after
# another, each a **kernel**: a piece of code that the chip starts, that reads its inputs from memory, computes, and
# writes its outputs back. XLA gets the whole recording and may do otherwise.

# %% [predict] fusion.p1

# %%
fused = xla.compile_for("v5e:1x1", with_dropout, *shapes, mask)
print("kernels:", [kernel.kind for kernel in fused.kernels])
print("inside: ", *fused.kernels[0].opcodes)
tpulab.reveal("fusion.p1", len(fused.kernels))

# %% [markdown]
# One. That was the real TPU compiler: `libtpu` runs on any Linux PC, and where it is missing you see its stored answer.
# The chip's matrix unit knows a product only as a `convolution`; bias, maximum, division and mask are done to the
# numbers as they come out of it, in float32, since a v5e's vector unit has no bfloat16 arithmetic (`convert`).
# Here is the program as a picture; the thicker an arrow, the more bytes.

# %%
fused

# %% [markdown]
# **HBM** is the chip's main memory. Fetching from it is slow: in the time in which a v5e fetches one bfloat16 number,
# it can do some 480 operations. Next to the kernel stands a **DMA**, a copy in the background: `w` is brought into
# **VMEM**, fast memory on the chip, before the kernel needs it.
#
# ## The way there
#
# Between your function and this program lie four stages; the picture counts what each holds. Passes simplify, turn `dot`
# into `convolution`, choose layouts, fuse, schedule. How `compile_for` asks for it, in plain JAX, is in the cell
# below the picture. Each line of what that prints is an **instruction**; few are launched.

# %%
before, after = fused.before, fused.counts
lowered = jax.jit(with_dropout).lower(*shapes, mask).as_text()
stages = {
    "recorded": f"jaxpr\n{len(jaxpr.eqns)} operations",
    "spelled out": f"StableHLO\n{lowered.count(' = stablehlo.')} operations",
    "read by XLA": f"HLO\n{before.kernels} operations\n{before.hbm_bytes / 1e6:,.0f} MB, each\na kernel",
    "some 60 passes": f"optimised HLO\nkernels: {after.kernels}\n{after.hbm_bytes / 1e6:,.0f} MB",
}
fig, ax = plt.subplots(figsize=(9, 1.6))
for column, (arrow, text) in enumerate(stages.items()):
    ax.text(column, 0, text, ha="center", va="center", size=9, bbox={"fc": "none", "pad": 6})
    ax.text(column - 0.5, 1, arrow, ha="center", va="center", size=9)
    ax.text(column - 0.5, 0, "→", ha="center", va="center", size=14)
ax.set(xlim=(-0.8, 3.4), ylim=(-1, 1.2), frame_on=False, xticks=[], yticks=[])
tpulab.show(fig, alt="From function to program: " + "; ".join(map(": ".join, stages.items())))


# %% tags=["nbval-ignore-output"]
def plain_compile(fn, *shapes):
    chips_there = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = Mesh(np.array(chips_there[:1]), ("chip",), axis_types=(AxisType.Auto,))  # one of four
    place = NamedSharding(mesh, PartitionSpec())
    there = [jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place) for one in shapes]
    return jax.jit(fn).lower(*there).compile()


if problem := xla.compiler_problem():
    print(problem)
else:
    text = plain_compile(with_dropout, *shapes, mask).as_text()
    print(*(line[:100] for line in text.split("ENTRY")[1].splitlines()), sep="\n")

# %% [exercise] fusion.1

# %% [markdown]
# ## One kernel against five
#
# Now we forbid it. `lax.optimization_barrier` gives back what it gets, and no pass may reach across it. With one after
# each step, every step is a kernel, just as if you had jitted five functions.


# %%
def apart(x, w, b, keep):
    h = lax.optimization_barrier(x @ w)
    h = lax.optimization_barrier(h + b)
    h = lax.optimization_barrier(jnp.maximum(h, 0))
    h = lax.optimization_barrier(h / 0.9)
    return jnp.where(keep, h, 0)


# %% [predict] fusion.p2

# %%
programs = {
    "fused": fused,
    "apart": xla.compile_for("v5e:1x1", apart, *shapes, mask),
    "fusion off": xla.compile_for("v5e:1x1", with_dropout, *shapes, mask, fusion=False),
}
for name, program in programs.items():
    print(
        f"{name:<11} kernels: {len(program.kernels)}, {program.hbm_bytes / 1e6:6,.0f} MB,"
        f" {program.estimated_cycles / 1e6:4.1f} million cycles (compiled)"
    )
tpulab.reveal("fusion.p2", round(programs["apart"].hbm_bytes / fused.hbm_bytes, 1))

# %%
programs["apart"]

# %% [markdown]
# The same arithmetic; but each intermediate, 268 MB, is written to HBM and read back. (*Fusion off* leaves out the
# compiler's fusing pass. That is worse than eager: even the number 0 is first written out as a whole matrix of zeros.)
#
# What is it worth? The cycles are the compiler's own estimate, never checked on a chip. A second opinion is a formula,
# below the picture: a kernel takes as long as its arithmetic at peak or its bytes at the memory's rate, whichever is
# longer (chapter 07).

# %%
fig, ax = plt.subplots(figsize=(6.4, 2.2))
for row, program in enumerate(programs.values()):
    left = 0
    for number, launch in enumerate(program.launches):
        size = launch.hbm_bytes / 1e6
        look = {"color": f"C{number}", "edgecolor": "white", "hatch": "///" if launch.dma else ""}
        ax.barh(row, size, left=left, **look)
        left += size
    ax.annotate(f" kernels: {len(program.kernels)}", (left, row), va="center")
ax.set(xlabel="MB to and from HBM (compiled); one block a launch, DMAs hatched", xlim=(0, 5000))
ax.set(yticks=range(3), yticklabels=programs, ylim=(2.6, -0.6))
words = "; ".join(f"{name} {program.hbm_bytes / 1e6:,.0f} MB" for name, program in programs.items())
tpulab.show(fig, alt=f"HBM traffic of the layer with dropout, one block for each launch. {words}.")

# %%
v5e = chips.get("v5e")


def modelled_ms(program):
    return 1e3 * sum(
        max((kernel.flops or 0) / v5e.bf16_flops_per_s, kernel.hbm_bytes / v5e.hbm_bytes_per_s)
        for kernel in program.kernels
    )


for name, program in programs.items():
    cycles, ms = program.estimated_cycles, modelled_ms(program)
    print(f"{name:<11} {cycles / fused.estimated_cycles:.1f} times the cycles (compiled)", end="")
    print(f" | {ms:4.1f} ms, {ms / modelled_ms(fused):.1f} times (modelled)")

# %% [markdown]
# The two opinions differ, because the compiler reckons with a slower memory. But by both, four trips to memory and back
# cost half as much as the product's 1.1 trillion operations, or as much again. Memory, not arithmetic, limits every
# kernel here but the product.
#
# That intermediates never reach HBM is a fact of the program. Whether they sit in registers or in VMEM meanwhile, it
# does not say.
#
# <!-- claim 1: holds with conditions: compiled as a whole the layer is one kernel where an eager run has five; jit is what records the whole, and torch.compile does so too -->
# <!-- claim 10: holds with conditions: apart, four of five kernels are limited by memory; the product itself, at these sizes, is limited by arithmetic -->
# <!-- claim 12: holds with conditions: the fused intermediates do not reach HBM; whether they stay in registers or in VMEM the compiled program does not say -->

# %% [markdown] tags=["instructor"]
# **Plan.** 25 minutes of reading and running, 15 of core exercises (`fusion.1` to `fusion.3`). In a two-hour workshop
# leave out *CPU against TPU* and `fusion.4` on. **Before p1** collect numbers aloud: most say five or seven.
# **Misconception:** *fusion saves launches*. On these shapes five launches cost microseconds, the trips milliseconds.
# **Ask** why the product is not fused with a second product (its input must be complete first).

# %% [exercise] fusion.2

# %% [exercise] fusion.7

# %% [markdown]
# ## Where does the mask come from?
#
# Handing over a mask is cheating: it has to be drawn. `draws_mask` gets a key, as in `jax.random` everywhere, and draws
# 134 million truth values.


# %%
def draws_mask(key, x, w, b):
    y = layer(x, w, b)
    return jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0)


key = jax.eval_shape(lambda: jax.random.key(0))

# %% [predict] fusion.p3

# %%
drawn = xla.compile_for("v5e:1x1", draws_mask, key, *shapes)
for kernel in drawn.kernels:
    print(f"{kernel.name:<24}{kernel.hbm_bytes / 1e6:7.1f} MB, operations inside: {len(kernel.opcodes)}")
share = drawn.hbm_bytes / fused.hbm_bytes
for name, program in {"mask given": fused, "mask drawn": drawn}.items():
    print(f"{name} {program.hbm_bytes / 1e6:.0f} MB, {program.estimated_cycles:,} cycles (compiled)")
tpulab.reveal("fusion.p3", "fewer" if share < 0.9 else "more" if share > 1.1 else "about the same")

# %% [markdown]
# Fewer: the random bits are computed from the key and the place of each number, inside the product's kernel, and the
# mask is never in memory at all. The other kernels are tiny; they take the key apart and number the rows.
#
# So *product, activation and dropout in one kernel* is true, up to those. But look at the estimate:
# no more cycles than before, though more than a hundred operations were added for each number. It looks at the matrix
# unit and the memory, hardly at the rest. Trust the bytes more than the cycles.
#
# <!-- claim 11: holds with conditions: one kernel when the mask is given; drawn from a key, one large kernel and six tiny ones that prepare the key -->

# %% [markdown]
# ## When one pass is not enough
#
# Two functions found in every transformer. No product in them: surely *they* become one kernel?


# %%
def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def normalize(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)


# %% [predict] fusion.p4

# %%
matrix = bf16((32768, 8192))
reads = {}
for fn in (softmax, normalize):
    program = xla.compile_for("v5e:1x1", fn, matrix)
    print(f"{fn.__name__}, {program.hbm_bytes / 1e6:,.0f} MB")
    for kernel in program.kernels:
        read, written = kernel.bytes_read / 1e6, kernel.bytes_written / 1e6
        print(f"  reads {read:4.0f} MB, writes {written:4.0f} MB  {', '.join(kernel.steps)}")
    reads[fn.__name__] = round(sum(kernel.bytes_read for kernel in program.kernels) / (2 * 32768 * 8192))
tpulab.reveal("fusion.p4", reads)

# %% [markdown]
# A sum over a row is known only when the row has been read. What needs it must read the row again: the maximum, then
# the sum of exponentials, then the result. (A row would fit on the chip. XLA does not see it that way; a kernel written
# by hand can.) The small results, one number a row, stay in VMEM and cost nothing.

# %% [exercise] fusion.6

# %% [markdown]
# ## What breaks a fusion
#
# Seven functions, each the layer and a little more.


# %%
def inner_jit(x, w, b):
    return jax.jit(lambda h: jnp.maximum(h, 0))(x @ w + b)


def transposed(x, w, b):
    return layer(x, w, b).T


def used_twice(x, w, b):
    h = x @ w + b
    return jnp.maximum(h, 0), h


# %%
def row_sums(x, w, b):
    return layer(x, w, b).sum(axis=1)


def reversed_rows(x, w, b):
    return layer(x, w, b)[::-1]


def sorted_rows(x, w, b):
    return jnp.sort(layer(x, w, b), axis=1)


def two_layers(x, w, b):
    return jnp.maximum(layer(x, w, b) @ w.T, 0)


# %% [predict] fusion.p5

# %%
broken = {}
for fn in (inner_jit, transposed, used_twice, row_sums, reversed_rows, sorted_rows, two_layers):
    program = broken[fn.__name__.replace("_", " ")] = xla.compile_for("v5e:1x1", fn, *shapes)
    shown = ", ".join(kernel.kind for kernel in program.kernels)
    print(f"{fn.__name__:<14}{program.hbm_bytes / 1e6:6,.0f} MB  {len(program.kernels)}: {shown}")
kinds = {name: ("one", "several")[len(program.kernels) > 1] for name, program in broken.items()}
tpulab.reveal("fusion.p5", kinds)

# %% [markdown]
# - An inner `jit`, a transposition, a second use, even a sum over rows: no break. `row_sums` moves the least of all,
#   since the layer's output never leaves the chip. **What you do not return need not exist.**
# - Reversing rows breaks it in two places; a sort waits for its whole input; so does a second product, whose every
#   number needs a whole row of the first. Lookups with computed indices, scatters and running sums break it, too.
#
# And explicit parameters, which are said to make such optimisations possible? Let us hide them.

# %%
frozen = np.full((256, 256), 0.01, jnp.bfloat16)


def with_captured(x):
    return jnp.maximum(x @ frozen, 0)


program = xla.compile_for("v5e:1x1", with_captured, bf16((65536, 256)))
print(f"kernels: {len(program.kernels)}, {program.hbm_bytes / 1e6:.1f} MB")

# %% [markdown]
# One kernel, `x` in and the result out: it fuses just as well. What is lost is something else: these weights are part of
# the program, and the next training step would need a new one.
#
# To find what blocks a fusion, look at what stands between two kernels, and ask: must it be there? A lookup in a small
# table, for instance, is a product in disguise.
#
# <!-- claim 3: holds with conditions: fusion does not need parameters to be arguments; using one program for new weights, and donating them, does -->

# %%
table = jnp.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
rows = jnp.array([2, 0, 2])
print(table[rows].tolist())
print((jax.nn.one_hot(rows, 3) @ table).tolist())

# %% [exercise] fusion.3

# %% [exercise] fusion.4

# %% [exercise] fusion.5

# %% [exercise] fusion.9

# %% [markdown]
# ## CPU against TPU
#
# `compile_here` asks XLA's compiler for the machine under your hands.

# %% tags=["nbval-ignore-output"]
here = xla.compile_here(layer, *shapes)
for kernel in here.kernels:
    mb, steps = kernel.hbm_bytes / 1e6, ", ".join(kernel.steps)
    print(f"{kernel.kind:<20}{mb:7,.0f} MB to and from memory  {steps}")

# %% [markdown]
# On a CPU the product is apart: a call into a library of matrix kernels, or from jax 0.10.2 on a fusion of kind
# `kCustom` that hands it to one. Inputs are first widened to float32 where the CPU has no bfloat16. So a CPU's program
# tells little about a TPU's. Where there is no TPU compiler it is a fallback, no stand-in.
#
# ## The small-shape surprise
#
# All arrays so far had hundreds of MB. Most examples on the web have not.

# %% [predict] fusion.p6

# %%
small = bf16((2048, 1024)), bf16((1024, 4096)), bf16((4096,))
on = xla.compile_for("v5e:1x1", layer, *small)
off = xla.compile_for("v5e:1x1", layer, *small, fusion=False)
for name, program in (("fused", on), ("fusion off", off)):
    mb, cycles = program.hbm_bytes / 1e6, program.estimated_cycles
    print(f"{name:<11}kernels: {len(program.kernels)}, {mb:.1f} MB, {cycles:,} cycles (compiled)")
tpulab.reveal("fusion.p6", round(off.hbm_bytes / on.hbm_bytes, 2))

# %% [markdown]
# The same bytes. A v5e has 128 MiB of VMEM, and the compiler keeps intermediates of some MB there: a kernel's output
# need not go to HBM. The kernels still cost cycles, but whoever measures traffic on a small example will report that
# fusion does nothing. Use sizes that you mean.
#
# ## Pass by pass
#
# Who did it? `xla.passes` gives the program after each pass. Here are those that changed how much would be launched.

# %% tags=["nbval-ignore-output"]
history = xla.passes("v5e:1x1", with_dropout, *shapes, mask)
for before, now in itertools.pairwise(history):
    if now.operations != before.operations:
        name = now.after or now.pipeline
        print(f"{name:<32}to launch: {now.operations:>3}, of these fusions: {now.fusions}")

# %% [exercise] fusion.8

# %% [markdown]
# ## If you come from PyTorch
#
# | | `torch.compile(f)` (2.1 on), TorchInductor | `jax.jit(f)`, XLA:TPU |
# |---|---|---|
# | without it | one kernel for each operation | the same |
# | elementwise chains, softmax | generated Triton kernels; a row may stay on the chip | loop fusions; one pass for each reduction |
# | matmul with bias and activation | a library's matmul with the bias, then a kernel; `max-autotune` may make one | one kernel |
# | breaks at | graph breaks, other kernels, `.item()` | other kernels; a break in the graph is an error |
# | dropout | drawn inside the kernel | drawn inside the kernel, from the key you pass |
# | look with | `TORCH_LOGS="output_code"` | `compile_for(…)`, or `.lower().compile().as_text()` |
# | keep apart | `torch._dynamo.graph_break()` | `lax.optimization_barrier` |

# %% [markdown]
# ## On a real TPU
#
# Nothing in this chapter was measured on a TPU yet. Where there is one, the cell times the layer with dropout as one
# program and as five. Expect five to be slower by a factor between the two opinions above, or less, if the chip
# overlaps more than either thinks.


# %% tags=["nbval-ignore-output"]
cut, divide = jax.jit(lambda h: jnp.maximum(h, 0)), jax.jit(lambda h: h / 0.9)
choose = jax.jit(lambda h, keep: jnp.where(keep, h, 0))


def five(x, w, b, keep):
    return choose(divide(cut(jnp.add(jnp.matmul(x, w), b))), keep)


def figures():
    args = [jnp.full(one.shape, 0.5, one.dtype) for one in (*shapes, mask)]
    timings = {"one program": jax.jit(with_dropout), "five programs": five}
    return {name: tpulab.measure(fn, *args) for name, fn in timings.items()}


tpulab.on_tpu("fusion", figures)

# %% [markdown]
# ## What you can do now
#
# - You followed a function from its recording to the program that a TPU runs, and compiled it without a TPU.
# - You know what a kernel is, and counted the bytes that each one moves.
# - You predicted what becomes one kernel, and what that saves.
# - You found what breaks a fusion, and wrote it in another way.
# - You can tell when fewer kernels save nothing.
#
# Next: how many operations a byte must feed before memory is no longer what you wait for.
