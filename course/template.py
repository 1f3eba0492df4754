# %% [markdown]
# # What this chapter is about
#
# After this chapter you can
# - say in one sentence what the first idea is,
# - do the second thing without looking it up,
# - tell when the third applies.

# %%
import tpulab

tpulab.setup()

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

# %% [markdown]
# ## The first idea
#
# Say what the next cell does and what to look at. One idea a cell, 25 to 60 words.

# %%
x = jnp.array([3.0, -7.0, 1.0])
print(x)

# %% [markdown]
# Three numbers, two of them above zero. What will their sum be?

# %% [predict] template.p1

# %%
total = x.sum()
print(total)
tpulab.reveal("template.p1", "plus" if total > 0 else "minus")

# %% [markdown]
# Say what the reader has just seen, and why it came out so.

# %% [exercise] template.1

# %% [markdown]
# ## The second idea
#
# A prediction before each surprise; its answer is computed, not typed.

# %%
numbers = np.random.default_rng(0).normal(size=1000)
print(f"{len(numbers)} numbers, the first is {numbers[0]:.2f}")

# %% [predict] template.p2

# %%
above = int((numbers > 0).sum())
tpulab.reveal("template.p2", above)

# %% [markdown]
# About half of them, as they are drawn evenly around zero.

# %% [predict] template.p3

# %%
largest = float(np.abs(numbers).max())
tpulab.reveal("template.p3", round(largest, 2))

# %% [markdown]
# ## A picture
#
# Where people would rather look than read.

# %%
fig, ax = plt.subplots()
ax.hist(numbers, bins=30)
ax.set(xlabel="value", ylabel="how many")
tpulab.show(fig, alt="A histogram of 1,000 numbers: most lie between -2 and 2, the peak is at 0.")

# %% [markdown] tags=["instructor"]
# Ask before the picture: where will the peak be? Most say 0; few can say how far the tails reach.

# %% [markdown]
# ## An error, read
#
# Errors shown on purpose are caught, so that Run All goes on.

# %%
with tpulab.expect_error(TypeError):
    x[0] = 5.0

# %% [markdown]
# The first line names the type and the way out.

# %% [markdown]
# ## How long does it take?
#
# A time differs from run to run, so its cell is tagged.

# %% tags=["nbval-ignore-output"]
tpulab.measure(jnp.sort, x)

# %% [markdown]
# ## If you come from PyTorch
#
# | PyTorch | JAX |
# |---|---|
# | `x[0] = 5.0` changes the tensor | `x.at[0].set(5.0)` gives a new array |

# %% [markdown]
# ## On a real TPU
#
# On a TPU the next cell measures; elsewhere it shows what was measured on one, with its date, or says that nothing was.


# %%
def sorting():
    return {"sort 3 numbers": tpulab.measure(jnp.sort, x)}


tpulab.on_tpu("template", sorting)

# %% [markdown]
# ## What you can do now
#
# - You said in one sentence what the first idea is.
# - You did the second thing without looking it up.
# - You told when the third applies.
