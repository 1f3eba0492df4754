"""Memory from the compiler's plan of buffers, against the compiler's own report."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from tpulab.xla import backend, memory, target, topology
from tpulab.xla.lowering import Call, lower
from tpulab.xla.wire import Message


def loss(weights, x):
    def block(x, pair):
        return x + jnp.tanh(x @ pair[0]) @ pair[1], None

    return (jax.lax.scan(jax.checkpoint(block), x, weights)[0] ** 2).mean()


def step(weights, x):
    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, jax.grad(loss)(weights, x))


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize("name", ["v5e:2x4", "v4:2x2x2"])
def test_the_peak_is_the_compilers_own_total(needs_compiler, tmp_path, name):
    wanted = target.parse(name)
    mesh = topology.mesh_for(name, {"fsdp": 8})
    weights = (struct(4, 512, 1024), struct(4, 1024, 512))
    lowered, _ = lower(Call(step, (weights, struct(256, 512)), in_shardings=(P(None, "fsdp"), P("fsdp"))), mesh)
    backend.run(lowered, {}, tmp_path, wanted)
    found = memory.of_dump(tmp_path, wanted.capacity_bytes)
    assert found and found.peak_bytes
    parts = found.argument_bytes + found.output_bytes - found.alias_bytes + found.temporary_bytes
    assert parts == found.peak_bytes
    report = next(tmp_path.glob("*memory-usage-report.pb"), None)
    if report is not None:  # libtpu before 0.0.37 writes it as text alone
        spaces = Message(report.read_bytes()).messages(1)
        assert found.peak_bytes == next(space.integer(1) for space in spaces if space.integer(2) == memory.HBM)
    assert [buffer.bytes for buffer in found.buffers] == sorted((b.bytes for b in found.buffers), reverse=True)
    assert any("(test_memory.py:" in buffer.source for buffer in found.buffers)


def test_no_plan_is_no_error(tmp_path):
    assert memory.of_dump(tmp_path, None) is None and memory.module_of_dump(tmp_path) is None
    (tmp_path / "module_1.after_optimizations.hlo.pb").write_bytes(b"\x0a\xff damaged")
    assert memory.of_dump(tmp_path, None) is None
