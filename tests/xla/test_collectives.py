"""What crosses between devices, on meshes of several TPU kinds; bytes by hand."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tpulab import xla
from tpulab.xla.module import decode
from tpulab.xla.reading import program_of

from . import corpus
from .corpus import F, s

MESHES = ("v5e:2x4", "v4:2x2x2", "v5p:2x2x2")
ALL = tuple(range(8))
WEIGHTS = s(1024, 4096), s(4096, 1024)
BATCH = s(512, 1024), s(512, 1024)


@pytest.fixture(params=MESHES)
def target(request):
    corpus.device(request.param)
    return request.param


def read(built):
    return program_of(decode(built.after), name="f", target="x")


ROWS = P("data")


def mapped(target, function, out=ROWS):
    mesh = corpus.mesh(target, data=8)
    whole = jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=out, check_vma=False)
    return read(corpus.build_over(mesh, whole, [s(8192, 1024, dtype=F)], [P("data")], out)).collectives


def step(w1, w2, x, y):
    """One step of training; the loss is the mean over all devices' rows."""

    def loss(weights):
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2)

    value, grads = jax.value_and_grad(loss)((w1, w2))
    return value, w1 - 0.1 * grads[0], w2 - 0.1 * grads[1]


def test_data_parallel_gradients_are_one_all_reduce(target):
    mesh = corpus.mesh(target, data=8)
    built = corpus.build_over(mesh, step, [*WEIGHTS, *BATCH], [P(), P(), P("data"), P("data")], [P(), P(), P()])
    program = read(built)
    assert program.devices == 8
    assert {one.kind for one in program.collectives} == {"all-reduce"}
    gradients = max(program.collectives, key=lambda one: one.bytes)
    assert gradients.bytes == 2 * 1024 * 4096 * 2  # both weights, bf16
    assert gradients.groups == (ALL,) and (gradients.group_count, gradients.group_size) == (1, 8)
    assert gradients.times == 1


def test_sharded_weights_are_gathered_and_gradients_scattered():
    mesh = corpus.mesh("v5e:2x4", data=8)
    parts = [P("data")] * 4
    built = corpus.build_over(mesh, step, [*WEIGHTS, *BATCH], parts, [P(), P("data"), P("data")])
    found = read(built).collectives
    weight = 1024 * 4096 * 2
    scattered = [one for one in found if one.kind == "reduce-scatter"]
    assert [one.bytes for one in scattered] == [weight, weight]
    assert not re.search(r" reduce-scatter\(", built.compiled.as_text())  # a search for the word finds none
    gathered = [one for one in found if one.kind == "all-gather" and one.bytes == weight]
    assert len(gathered) == 2
    # one of them overlaps with a product: it stands in several fusions, and counts once
    assert any(one.asynchronous for one in gathered)
    assert len(re.findall(r" all-gather(?:-start)?\(", built.compiled.as_text())) > len(gathered) + 1


def test_each_kind_by_its_name(target):
    shard, whole = 1024 * 1024 * 4, 8192 * 1024 * 4
    (one,) = mapped(target, lambda x: lax.all_gather(x, "data", tiled=True), P())
    assert (one.kind, one.bytes) == ("all-gather", whole)
    (one,) = mapped(target, lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True))
    assert (one.kind, one.bytes, one.group_size) == ("all-to-all", shard, 8)
    (one,) = mapped(target, lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in ALL]))
    assert (one.kind, one.bytes, one.group_size, one.asynchronous) == ("collective-permute", shard, 8, True)
    (one,) = mapped(target, lambda x: lax.psum(x, "data"), P())
    assert (one.kind, one.bytes) == ("all-reduce", shard)
    (one,) = mapped(target, lambda x: lax.psum_scatter(x, "data", tiled=True))
    assert one.kind in ("reduce-scatter", "all-reduce")  # small meshes of v4 and v5p reduce all and slice
    assert one.bytes == shard


def test_groups_along_one_axis_of_a_mesh(target):
    """Products split over 4 devices are added in 2 groups of 4 neighbours along "model"."""
    mesh = corpus.mesh(target, data=2, model=4)
    shapes = s(4096, 2048), s(2048, 8192), s(8192, 2048)
    specs = [P("data", None), P(None, "model"), P("model", None)]
    built = corpus.build_over(mesh, lambda x, w, v: jax.nn.relu(x @ w) @ v, shapes, specs, P("data"))
    (one,) = read(built).collectives
    assert (one.kind, one.group_count, one.group_size) == ("all-reduce", 2, 4)
    assert one.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert one.bytes == 2048 * 2048 * 2


def test_a_collective_product_is_a_loop_of_permutes(target):
    """Pieces of x go round while products of other pieces run; FLOPs add up to one eighth of the whole product."""
    mesh = corpus.mesh(target, model=8)
    shapes = s(8192, 4096), s(4096, 8192)
    built = corpus.build_over(mesh, lambda x, w: x @ w, shapes, [P("model", None), P(None, "model")], P(None, "model"))
    program = read(built)
    assert {one.kind for one in program.collectives} == {"collective-permute"}
    assert any((one.times or 0) > 1 for one in program.collectives)
    assert sum(one.times or 0 for one in program.collectives) >= 7  # each device needs the pieces of the other 7
    assert {one.bytes for one in program.collectives} == {1024 * 4096 * 2}
    share = 2 * 8192 * 4096 * 8192 // 8
    assert program.counts.flops is not None and share <= program.counts.flops < 1.05 * share


def test_what_a_loop_gathers_is_gathered_each_time(target):
    mesh = corpus.mesh(target, data=8)

    def layers(x, weights):
        return lax.scan(lambda c, w: (jax.nn.relu(c @ w), None), x, weights)[0]

    shapes = s(1024, 2048), s(6, 2048, 2048)
    built = corpus.build_over(mesh, layers, shapes, [P("data"), P(None, "data")], P("data"))
    found = [one for one in read(built).collectives if one.kind == "all-gather"]
    assert sum(one.times or 0 for one in found) == 6
    assert {one.bytes for one in found} == {2048 * 2048 * 2}


def test_simulated_devices_are_read_alike():
    """The same gradients on CPU devices of this machine."""
    if jax.device_count() < 8:
        pytest.skip("needs 8 simulated devices")
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    built = corpus.build_over(mesh, step, [*WEIGHTS, *BATCH], [P(), P(), P("data"), P("data")], [P(), P(), P()])
    found = read(built).collectives
    assert {one.kind for one in found} == {"all-reduce"}
    assert sum(one.bytes for one in found) >= 2 * 1024 * 4096 * 2


STARTED_EARLY = """HloModule early

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = f32[8] parameter(0)
  y = f32[16] parameter(1)
  gather = (f32[8], f32[32]) all-gather-start(x), replica_groups={{0,1,2,3}}, dimensions={0}
  sums = (f32[8], f32[16]) all-reduce-start(x, y), replica_groups={{0,1,2,3}}, to_apply=add
  gathered = f32[32] all-gather-done(gather)
  summed = (f32[8], f32[16]) all-reduce-done(sums)
  second = f32[16] get-tuple-element(summed), index=1
  negative = f32[32] negate(gathered)
  ROOT both = (f32[32], f32[16]) tuple(negative, second)
}
"""


def test_what_was_started_early_is_read_where_it_is_used():
    program = xla.read(STARTED_EARLY)
    moved = {one.name: (one.bytes_read, one.bytes_written) for one in program.launches}
    assert moved == {"gather": (32, 128), "sums": (96, 96), "negative": (128, 128)}
    assert {one.kind: one.bytes for one in program.collectives} == {"all-gather": 128, "all-reduce": 96}
    flows = {(edge.source, edge.target, edge.shape) for edge in program.edges if edge.source}
    assert flows == {("gather", "negative", "f32[32]"), ("negative", "", "f32[32]"), ("sums", "", "f32[16]")}
