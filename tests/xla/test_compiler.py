"""Compiling for a TPU that is not here, whatever kind of function a user has."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tpulab.xla import (
    CompileError,
    CompilerMissing,
    DoesNotFit,
    IndivisibleShape,
    UnknownTarget,
    compiler,
    mesh_for,
    pair,
)
from tpulab.xla.lowering import Call, call_of
from tpulab.xla.module import decode


def struct(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def layer(x, w, b):
    return jax.nn.relu(x @ w + b)


CHAIN = (struct(2048, 1024), struct(1024, 4096), struct(4096))
SMALL = (struct(64, 128), struct(128, 256), struct(256))
CHAIN_BYTES = 2 * (2048 * 1024 + 1024 * 4096 + 4096 + 2048 * 4096)  # by hand: bf16 arguments and result


def compile_for(target, fn, *args, mesh=None, fusion=True, compiler_options=None, **options):
    names = ("in_shardings", "out_shardings", "static_argnums", "static_argnames", "donate_argnums")
    known = {name: options.pop(name, None if "shardings" in name else ()) for name in names}
    call = call_of(fn, args, options, *known.values())
    return compiler.compiled_for(target, call, mesh=mesh, fusion=fusion, compiler_options=compiler_options)


def memory_of(made):
    """What the compiler said of memory, which it need not."""
    assert made.memory is not None
    return made.memory


def entry_shapes(made):
    """Shapes of the compiled program's parameters, as one device has them."""
    return [item.shape.dims for item in decode(made.after).entry.parameters]


pytestmark = pytest.mark.usefixtures("needs_compiler")


@pytest.mark.parametrize("target", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x", "v5e:1x2", "v5e:2x2", "v4:2x2x1"])
def test_each_generation(target):
    if target == "7x" and pair.find().jax.startswith("0.7."):
        with pytest.raises(UnknownTarget, match="does not know the chip 7x yet"):
            compile_for(target, layer, *SMALL)
        return
    made = compile_for(target, layer, *SMALL)
    assert made.chip == target.partition(":")[0]
    assert made.devices == 1 and entry_shapes(made) == [(64, 128), (128, 256), (256,)]
    tiled = [item.shape.layout and item.shape.layout.tiles for item in decode(made.after).entry.parameters]
    assert all(tiled)  # a CPU's program has no tiles


def test_what_is_known_of_a_program():
    made = compile_for("v5e:2x2", layer, *CHAIN)
    assert (made.name, made.target, made.chip, made.devices) == ("layer", "v5e:2x2", "v5e", 1)
    assert set(made.versions) == {"jax", "jaxlib", "libtpu"} and len(made.date) == 10
    assert memory_of(made).capacity_bytes == round(15.75 * 2**30)
    assert CHAIN_BYTES <= (memory_of(made).peak_bytes or 0) <= CHAIN_BYTES + 1024
    assert memory_of(made).argument_bytes == CHAIN_BYTES - memory_of(made).output_bytes
    assert memory_of(made).buffers[0].kind == "result"
    assert "return jax.nn.relu(x @ w + b)" in made.lines.values()
    assert "return jax.nn.relu(x @ w + b) (test_compiler.py:" in memory_of(made).buffers[0].source
    assert memory_of(made).buffers[1].source == "w"
    assert "give mesh= to use more of its 4 devices" in made.notes[0]
    assert decode(made.before or b"").entry.parameters[0].shape.dims == (2048, 1024)


def test_a_mesh_splits_the_work():
    shardings = (P("data"), P(None, "model"), P("model"))
    made = compile_for("v5e:2x2", layer, *SMALL, mesh={"data": 2, "model": 2}, in_shardings=shardings)
    assert made.devices == 4 and not made.notes
    assert entry_shapes(made) == [(32, 128), (128, 128), (128,)]
    again = compile_for("v5e:2x2", jax.jit(layer), *SMALL, mesh={"data": 2, "model": 2}, in_shardings=shardings)
    assert entry_shapes(again) == entry_shapes(made)


def test_a_mesh_alone_replicates_and_says_so():
    made = compile_for("v5e:2x2", layer, *SMALL, mesh={"data": 4})
    assert entry_shapes(made)[0] == (64, 128)
    assert "no argument is split: every one of the 4 devices holds all" in made.notes[0]


def test_part_of_a_slice_is_said():
    made = compile_for("v5e:2x2", layer, *SMALL, mesh={"data": 2}, in_shardings=(P("data"), None, None))
    assert made.notes == ("the mesh uses 2 of the 4 devices of v5e:2x2",)


def test_out_shardings():
    made = compile_for("v5e:2x2", layer, *SMALL, mesh={"data": 4}, in_shardings=P(), out_shardings=P("data"))
    assert decode(made.after).entry.root.shape.dims == (16, 256)


def test_a_whole_pod():
    made = compile_for(
        "v5p:16x16x24", layer, struct(6144, 128), *SMALL[1:], mesh={"d": 6144}, in_shardings=(P("d"), None, None)
    )
    assert made.devices == 6144 and entry_shapes(made)[0] == (1, 128)


def test_v4_is_one_device_a_chip():
    mesh = mesh_for("v4:2x2x1", {"x": 2, "y": 2})
    assert mesh.devices.shape == (2, 2)
    assert {device.core_on_chip for device in mesh.devices.flat} == {0}


def test_a_function_with_its_own_mesh():
    mesh = mesh_for("v5e:2x2", {"data": 4})

    def total(x):
        return jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    made = compile_for("v5e:2x2", total, struct(512, 128), mesh=mesh, in_shardings=P("data"))
    assert any(item.opcode.startswith("all-reduce") for item in decode(made.after).entry.instructions)
    with pytest.raises(CompileError, match="mesh_for"):
        compile_for("v5e:2x2", total, struct(512, 128))


def test_a_mesh_of_this_machine_lends_its_axes():
    auto = (jax.sharding.AxisType.Auto,) * 2
    here = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4], axis_types=auto)
    made = compile_for("v5e:2x2", layer, *SMALL, mesh=here, in_shardings=(P("data"), None, None))
    assert made.devices == 4 and entry_shapes(made)[0] == (32, 128)


def test_bare_specs_inside_a_function_mean_the_mesh():
    def constrained(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), P("data"))

    made = compile_for("v5e:2x2", constrained, struct(64, 128), mesh={"data": 4}, in_shardings=P("data"))
    assert decode(made.after).entry.root.shape.dims == (16, 128)


def power(x, n, mode="plain"):
    return x**n if mode == "plain" else jnp.exp(x) ** n


class Model:
    def forward(self, x):
        return x * 2


X = np.ones((8, 128), np.float32)


@pytest.mark.parametrize(
    ("fn", "args", "options", "name"),
    [
        (lambda x: x * 2, (X,), {}, "lambda"),
        (Model().forward, (X,), {}, "forward"),
        (functools.partial(power, n=2), (X,), {}, "power"),
        (jax.jit(functools.partial(power, n=2)), (X,), {}, "power"),
        (power, (X, 2), {"static_argnums": 1}, "power"),
        (power, (X, 2, "other"), {"static_argnums": (1,), "static_argnames": "mode"}, "power"),
        (power, (X,), {"n": 2, "mode": "other", "static_argnames": ("n", "mode")}, "power"),
        (jax.jit(power, static_argnums=1), (X, 2), {}, "power"),
        (power, (X, 2), {"static_argnums": 1, "donate_argnums": 0}, "power"),
        (lambda: jnp.ones((8, 128)), (), {}, "lambda"),
        (jax.jit(lambda: jnp.ones((8, 128))), (), {}, "lambda"),
        (lambda key: jax.random.normal(key, (8, 128)), (jax.random.key(0),), {}, "lambda"),
        (lambda tree: tree["a"] + tree["b"][0], ({"a": X, "b": (X, None)},), {}, "lambda"),
        (lambda x, k: x * k, (X, 3), {}, "lambda"),
        (lambda x: x + jnp.asarray(X), (struct(8, 128, dtype=jnp.float32),), {}, "lambda"),
    ],
)
def test_all_kinds_of_functions_and_arguments(fn, args, options, name):
    made = compile_for("v5e", fn, *args, **options)
    assert (made.name, made.target) == (name, "v5e:1x1")
    assert decode(made.after).entry.root.shape.dims == (8, 128)


def test_donated_arguments_are_aliased():
    made = compile_for("v5e", lambda x: x + 1, struct(1024, 1024), donate_argnums=0)
    assert memory_of(made).alias_bytes == 2 * 1024 * 1024 == memory_of(made).peak_bytes


def test_flax_modules_that_change_in_place():
    nnx = pytest.importorskip("flax.nnx")
    import optax

    model = nnx.Linear(128, 128, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    for fn in (step, nnx.jit(step)):
        made = compile_for("v5e", fn, model, optimizer, struct(64, 128, dtype=jnp.float32))
        # Weights and both moments come out again: an update that nobody returns would be left out.
        results = [leaf.dims for leaf in decode(made.after).entry.root.shape.leaves()]
        assert made.name == "step" and results.count((128, 128)) == 3


def test_pmap_over_devices_that_are_not_here():
    devices = list(mesh_for("v5e:2x2", {"d": 4}).devices.flat)

    def total(x):
        return jax.lax.psum(x, "i")

    made = compile_for("v5e:2x2", jax.pmap(total, axis_name="i", devices=devices), struct(4, 512))
    assert made.devices == 4 and not made.notes
    with pytest.raises(CompileError, match="give pmap devices="):
        compile_for("v5e:2x2", jax.pmap(total, axis_name="i"), struct(8, 512))


@pytest.mark.parametrize(
    ("fn", "args", "options", "kind", "words"),
    [
        (layer, SMALL, {"mesh": {"data": 8}}, ValueError, "the mesh wants 8 = 8 devices, and v5e:2x2 has 4"),
        (layer, SMALL, {"mesh": {"data": 0}}, ValueError, "the size of mesh axis 'data' is a whole number from 1; got 0"),
        (layer, SMALL, {"mesh": (2, 2)}, ValueError, "`mesh` is a dict of axis names and sizes"),
        (layer, (struct(9, 128), *SMALL[1:]), {"mesh": {"d": 4}, "in_shardings": P("d")}, IndivisibleShape, "axis 0 of x has size 9"),
        (power, (X, 2, "plain"), {"static_argnums": 1}, TypeError, "mode is a str, which is no array"),
        (layer, SMALL, {"compiler_options": {"xla_foo": 1}}, CompileError, "this compiler has no option 'xla_foo'"),
        (layer, SMALL, {"compiler_options": "xla_foo"}, TypeError, "`compiler_options` is a dict"),
        ("layer", SMALL, {}, TypeError, "`fn` is a function; got str"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(fn, args, options, kind, words):
    with pytest.raises(kind) as caught:
        compile_for("v5e:2x2", fn, *args, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_functions_own_error_comes_as_it_is():
    with pytest.raises(ZeroDivisionError):
        compile_for("v5e", lambda x: x / (1 // 0), X)


def grown(x):
    y = jnp.tanh(x @ x)
    return y + x


@pytest.mark.parametrize(
    ("fn", "args", "needed"),
    [
        (grown, (struct(65536, 65536),), 2 * 2 * 65536**2),  # x and the result, bf16
        (lambda x, y: x.sum() + y.sum(), (struct(65536, 65536),) * 2, 2 * 2 * 65536**2),  # arguments alone
    ],
)
def test_too_large_for_hbm(fn, args, needed):
    with pytest.raises(DoesNotFit) as caught:
        compile_for("v5e", fn, *args)
    error = caught.value
    assert needed <= error.needed_bytes < needed * 1.01 and error.available_bytes == round(15.75 * 2**30)
    assert 2 <= len(error.buffers) <= 10 and error.buffers[0].bytes == 2 * 65536**2
    assert "\n" not in str(error) and "needs 16.00 GiB of HBM, and 15.75 GiB can be used" in str(error)
    assert error.table().splitlines()[1].split()[:3] == ["8.00", "argument", "bf16[65536,65536]{1,0:T(8,128)(2,1)}"]


def test_largest_buffers_name_source_lines():
    with pytest.raises(DoesNotFit) as caught:
        compile_for("v5e", grown, struct(65536, 65536))
    assert [buffer.kind for buffer in caught.value.buffers] == ["argument", "result"]
    assert "jnp.tanh(x @ x) (test_compiler.py:" in caught.value.buffers[1].source


def test_fusion_off_has_more_operations():
    on, off = (compile_for("v5e", layer, *CHAIN, fusion=fusion) for fusion in (True, False))
    fused, apart = (decode(made.after).entry.instructions for made in (on, off))
    assert len(apart) > len(fused) and off.options == {"xla_disable_hlo_passes": "tpu_fusion"}
    assert not any("with fusion off" in note for note in off.notes)


def test_fusion_off_with_nothing_to_fuse_says_so():
    made = compile_for("v5e", lambda x: x, struct(8, 128), fusion=False)
    assert "with fusion off the program is the same" in made.notes[-1]


def test_the_second_time_comes_from_disk(monkeypatch):
    first = compile_for("v5e", layer, *SMALL)
    monkeypatch.setattr(compiler.backend, "run", lambda *_: pytest.fail("compiled again"))
    assert compile_for("v5e", layer, *SMALL) == first


def test_this_machine():
    made = compiler.compiled_here(Call(layer, SMALL))
    assert (made.name, made.target, made.chip, made.devices, made.notes) == ("layer", "cpu", None, 1, ())
    assert "libtpu" not in made.versions and (memory_of(made).peak_bytes or 0) > 0
    apart = compiler.compiled_here(Call(layer, SMALL), fusion=False)
    assert apart.options == {"xla_disable_hlo_passes": "fusion"}


_OTHER_CASES = """
import jax, jax.numpy as jnp
from tpulab.xla.compiler import compiled_for
from tpulab.xla.lowering import Call
jax.config.update("jax_compilation_cache_dir", {folder!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
for _ in range(2):
    print(compiled_for("v5e", Call(lambda x: jnp.tanh(x @ x), (jnp.ones((64, 64)),))).target)
"""


def test_jaxs_own_cache_is_no_nuisance(tmp_path):
    env = {**os.environ, "TPULAB_CACHE": "off", "JAX_PLATFORMS": ""}
    command = [sys.executable, "-W", "error", "-c", _OTHER_CASES.format(folder=str(tmp_path))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
    assert (run.stdout, run.stderr) == ("v5e:1x1\nv5e:1x1\n", "")


def test_without_a_compiler_this_machine_still_works(monkeypatch):
    def missing():
        raise CompilerMissing("no TPU compiler is installed here; do this")

    monkeypatch.setattr(compiler.pair, "prepare", missing)
    with pytest.raises(CompilerMissing, match="do this; no result of layer with these arguments is stored"):
        compile_for("v5e", layer, *SMALL)
    assert compiler.compiled_here(Call(layer, SMALL)).target == "cpu"
