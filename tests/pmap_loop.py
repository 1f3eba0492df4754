"""A loop that learners write: 300 pmap steps over 8 simulated devices, none waited for.

Without NPROC such a loop often aborts the process on two cores; `tpulab.setup` sets it.
"""

import jax
import jax.numpy as jnp

import tpulab

tpulab.setup(devices=8)


def step(x):
    return jax.lax.pmean(jnp.tanh(x @ x.T) @ x, "devices")


parallel = jax.pmap(step, axis_name="devices")
x = jnp.ones((jax.device_count(), 64, 64)) / 64
for _ in range(300):
    x = parallel(x)
jax.block_until_ready(x)
print("300 steps finished")
