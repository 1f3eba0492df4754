"""Programs that the tests of this room compile, and how they are compiled without the room itself."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tpulab.xla import pair

B, F, I = jnp.bfloat16, jnp.float32, jnp.int32  # noqa: E741


@dataclass(frozen=True)
class Built:
    """One program before and after, as bytes, and what XLA says of it."""

    before: bytes
    after: bytes
    compiled: Any


def s(*dims, dtype=B):
    """An argument's shape."""
    return jax.ShapeDtypeStruct(dims, dtype)


def chain(x, w, b, scale):
    return jax.nn.relu(x @ w + b) * scale


def elementwise(x, b, scale):
    return jnp.tanh(jax.nn.relu(x + b) * scale) + x


def softmax(x):
    return jax.nn.softmax(x, -1)


def attention(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


def layernorm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def mlp(x, w1, b1, w2, b2):
    return jax.nn.gelu(x @ w1 + b1) @ w2 + b2


def scan(x, w):
    return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=10)[0]


def search(x):
    """A loop whose count depends on the data."""
    return lax.while_loop(lambda c: jnp.sum(c) < 1e6, lambda c: c * 2 + 1, x)


def branch(x, flag):
    return lax.cond(flag > 0, lambda y: jnp.sin(y) @ y, lambda y: y - y.mean(), x)


def convolve(x, k):
    return lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def depthwise(x, k):
    return lax.conv_general_dilated(
        x, k, (1, 1), "VALID", rhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
    )


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def embed(table, ids):
    return jax.ops.segment_sum(table[ids], ids % 8, 8)


def ordered(x):
    return jnp.cumsum(jnp.sort(x, -1), -1)


def update(cache, row, at):
    return lax.dynamic_update_slice(cache, row, (at, 0))


def train(w1, w2, x, y):
    def loss(weights):
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2)

    grads = jax.grad(loss)((w1, w2))
    return w1 - 0.1 * grads[0], w2 - 0.1 * grads[1]


def dropout(x, w, key):
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, (x.shape[0], w.shape[1]))
    return jnp.where(kept, jax.nn.relu(x @ w), 0)


def quantized(x, w):
    return lax.dot(x, w, preferred_element_type=I)


SMALL = {
    "chain": (chain, s(256, 128), s(128, 512), s(512), s()),
    "elementwise": (elementwise, s(512, 512), s(512), s()),
    "softmax": (softmax, s(512, 1024)),
    "attention": (attention, s(2, 4, 256, 64), s(2, 4, 256, 64), s(2, 4, 256, 64)),
    "layernorm": (layernorm, s(512, 1024, dtype=F), s(1024, dtype=F), s(1024, dtype=F)),
    "mlp": (mlp, s(256, 128), s(128, 512), s(512), s(512, 128), s(128)),
    "scan": (scan, s(256, 256, dtype=F), s(256, 256, dtype=F)),
    "search": (search, s(128, 128, dtype=F)),
    "branch": (branch, s(128, 128, dtype=F), s(dtype=I)),
    "convolve": (convolve, s(4, 30, 30, 16), s(3, 3, 16, 32)),
    "depthwise": (depthwise, s(2, 16, 16, 8, dtype=F), s(3, 3, 1, 8, dtype=F)),
    "pool": (pool, s(2, 30, 30, 8, dtype=F)),
    "embed": (embed, s(64, 128, dtype=F), s(256, dtype=I)),
    "ordered": (ordered, s(16, 300, dtype=F)),
    "update": (update, s(1024, 128), s(1, 128), s(dtype=I)),
    "train": (train, s(128, 512), s(512, 128), s(64, 128), s(64, 128)),
    "dropout": (dropout, s(256, 128), s(128, 512), s(2, dtype=jnp.uint32)),
    "quantized": (quantized, s(64, 128, dtype=jnp.int8), s(128, 256, dtype=jnp.int8)),
}
TARGETS = ("cpu", "v5e:2x2", "v6e:2x2", "v4:2x2x1")


@functools.cache
def device(target):
    """One chip of a target; None for this machine's CPU."""
    if target == "cpu":
        return None
    if problem := pair.compiler_problem():
        pytest.skip(problem)
    from jax.experimental import topologies

    more = {"chip_config_name": "megacore"} if target.startswith("v4") else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=target, **more).devices


def build(target, function, *shapes, options=None, donate=()):
    """Compile for one chip of a target."""
    devices = device(target)
    if devices is not None:
        one = jax.sharding.SingleDeviceSharding(devices[0])
        shapes = [jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=one) for shape in shapes]
    return finish(jax.jit(function, donate_argnums=donate).lower(*shapes), options)


def mesh(target, **axes):
    """A mesh over the first devices of a target."""
    sizes = tuple(axes.values())
    found = device(target)
    assert found is not None, "a mesh of this machine's own devices is made by jax.make_mesh"
    some = np.array(found[: np.prod(sizes)]).reshape(sizes)
    return jax.sharding.Mesh(some, tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes))


def build_over(mesh, function, shapes, inside, outside):
    """Compile for several chips; shardings are given as partition specs, one for each array."""

    def place(specs):
        return tuple(jax.sharding.NamedSharding(mesh, spec) for spec in specs)

    results = place(outside) if isinstance(outside, list) else place([outside])[0]
    return finish(jax.jit(function, in_shardings=place(inside), out_shardings=results).lower(*shapes))


def finish(lowered, options=None):
    """Compile what was lowered and take the bytes of both ends."""
    compiled = lowered.compile(compiler_options=options)
    after = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return Built(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), after, compiled)


@functools.cache
def small(name, target):
    """One of the small programs for one target."""
    function, *shapes = SMALL[name]
    return build(target, function, *shapes)
