"""Results stored with the course: shown where no compiler is, and only for the very same function."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from tpulab.xla import CompilerMissing, DoesNotFit, entry, recorded
from tpulab.xla.errors import does_not_fit
from tpulab.xla.lowering import Call

from .test_cache import COMPILED, MEMORY

X = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16)
MISSING = CompilerMissing("no compiler")


def helper(x):
    return x * 2


def layer(x):
    return helper(x)  # a comment


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_RECORD_COMPILED", str(tmp_path))
    monkeypatch.setattr(recorded, "STORED", tmp_path)
    return tmp_path


def test_what_was_recorded_is_read(stored):
    call = Call(layer, (X,))
    name = recorded.name_of("v5e:2x2", call, None, {})
    recorded.write(name, call, COMPILED)
    assert [path.name for path in stored.iterdir()] == [f"{name}.z"] and name.startswith("v5e-2x2.layer.")
    found = recorded.read(name, call, MISSING)
    assert found.recorded and found.after == COMPILED.after and found.lines == COMPILED.lines
    assert found.notes[-1] == "compiled with jax 1 on 2026-11-30; stored with the course"


def test_nothing_is_recorded_unless_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("TPULAB_RECORD_COMPILED", raising=False)
    monkeypatch.setattr(recorded, "STORED", tmp_path)
    recorded.write("a", Call(layer, (X,)), COMPILED)
    with pytest.raises(CompilerMissing, match="no compiler; no result of layer with these arguments is stored"):
        recorded.read("a", Call(layer, (X,)), MISSING)


def test_a_changed_function_gets_no_stale_result(stored):
    recorded.write("a", Call(layer, (X,)), COMPILED)

    def layer2(x):
        return helper(x) + 1

    with pytest.raises(CompilerMissing, match="no compiler; the stored result of layer2 is of another version of it"):
        recorded.read("a", Call(layer2, (X,)), MISSING)


def test_damage_counts_as_none(stored):
    call = Call(layer, (X,))
    mark = recorded.fingerprint(layer).encode()
    for body in (b"", b"junk", mark + b"\n", mark + b"\njunk", b"\xff\n"):
        (stored / "a.z").write_bytes(body)
        with pytest.raises(CompilerMissing):
            recorded.read("a", call, MISSING)
    (stored / "a.z").write_bytes(mark + b"\n" + entry.pack(COMPILED))  # not what a program packed twice looks like
    with pytest.raises(CompilerMissing):
        recorded.read("a", call, MISSING)


def test_that_a_program_does_not_fit_is_a_result(stored):
    call = Call(layer, (X,))
    recorded.write_error("a", call, does_not_fit("v5e", 20, 10, MEMORY.buffers))
    with pytest.raises(DoesNotFit) as caught:
        recorded.read("a", call, MISSING)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (20, 10)
    assert caught.value.buffers == MEMORY.buffers


def test_the_mark_follows_meaning_not_layout(tmp_path):
    def marks(text):
        scope = {"__name__": "cell"}
        path = tmp_path / f"cell{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        exec(compile(text, str(path), "exec"), scope)
        return recorded.fingerprint(scope["f"])

    first = marks("K = 2\ndef g(x):\n    return x + K\ndef f(x):\n    return g(x)\n")
    assert marks("K = 2\ndef g(x):\n    # why\n    return (x\n      + K)\ndef f(x): return g(x)\n") == first
    others = [
        "K = 3\ndef g(x):\n    return x + K\ndef f(x):\n    return g(x)\n",  # a constant
        "K = 2\ndef g(x):\n    return x - K\ndef f(x):\n    return g(x)\n",  # a helper
        "K = 2\ndef g(x):\n    return x + K\ndef f(x):\n    return g(x) + 1\n",
    ]
    assert len({first, *map(marks, others)}) == 4


def test_the_name_changes_with_all_that_is_asked():
    def name(**changes):
        asked = {"target": "v5e:2x2", "args": (X,), "axes": None, "options": {}, **changes}
        call = Call(
            layer, asked.pop("args"), in_shardings=asked.pop("ins", None), static_argnums=asked.pop("static", ())
        )
        return recorded.name_of(asked["target"], call, asked["axes"], asked["options"])

    other = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    names = [
        name(),
        name(target="v6e:2x2"),
        name(args=(other,)),
        name(args=({"x": X},)),
        name(axes={"d": 4}),
        name(axes={"d": 4}, ins=P("d")),
        name(axes={"d": 4}, ins=(P(None, "d"),)),
        name(options={"xla_disable_hlo_passes": "tpu_fusion"}),
        name(static=(0,)),
    ]
    assert len(set(names)) == len(names)
    assert name(args=(jnp.ones((64, 128), jnp.bfloat16),)) == name()
