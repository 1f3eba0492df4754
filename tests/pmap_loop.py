"""300 pmap steps over 8 simulated devices that nobody waits for: what a learner writes, and it must finish.

python tests/pmap_loop.py            under tpulab.setup
python tests/pmap_loop.py --bare     without it, to see what setup is for (may abort)
"""

import functools
import itertools
import os
import sys
import time

DEVICES, STEPS = 8, 300


def main(bare: bool) -> None:
    """Run the loop once and print how long it took."""
    if bare:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(DEVICES)
    else:
        import tpulab

        tpulab.setup(devices=DEVICES, where="simulated")
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(layers, images, labels):
        for weights, bias in layers[:-1]:
            images = jax.nn.relu(images @ weights + bias)
        weights, bias = layers[-1]
        scores = jax.nn.log_softmax(images @ weights + bias)
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    @functools.partial(jax.pmap, axis_name="devices")
    def step(layers, images, labels):
        value, gradient = jax.value_and_grad(loss)(layers, images, labels)
        value, gradient = jax.lax.pmean((value, gradient), "devices")
        return jax.tree.map(lambda old, slope: old - 0.1 * slope, layers, gradient), value

    rng = np.random.default_rng(0)
    sizes = (64, 256, 256, 10)
    layers = [
        (rng.normal(0, 0.1, (ins, outs)).astype("float32"), np.zeros(outs, "float32"))
        for ins, outs in itertools.pairwise(sizes)
    ]
    layers = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (DEVICES, *leaf.shape)), layers)
    images = rng.normal(size=(DEVICES, 224, 64)).astype("float32")
    labels = rng.integers(0, 10, (DEVICES, 224))
    started = time.perf_counter()
    value = None
    for _ in range(STEPS):
        layers, value = step(layers, images, labels)
    jax.block_until_ready((layers, value))
    print(f"{STEPS} steps on {jax.device_count()} simulated devices in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main("--bare" in sys.argv[1:])
