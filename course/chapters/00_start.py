# %% [markdown]
# # Start here: your laptop is a TPU lab
#
# After this chapter you can
# - x

# %%
import tpulab

tpulab.setup(devices=4)

# %% [predict] start.p1

# %%
import jax

tpulab.reveal("start.p1", jax.nn.relu(-2.0))

# %% [exercise] start.1

# %%
import matplotlib.pyplot as plt

fig, ax = plt.subplots()
ax.plot([1, 2, 3])
ax.plot([3, 2, 2])
tpulab.show(fig, alt="Two lines that cross each other.")
