"""Arguments become shapes, types and shardings; whatever does not go together is named."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from tpulab.xla import CompileError, IndivisibleShape, arguments


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def layer(x, params, scale=1.0):
    return x @ params["w"] * scale


def specs(mesh, args, shardings):
    found, _ = arguments.abstract(layer, args, set(), mesh, shardings)
    return [tuple(leaf.sharding.spec) for leaf in jax.tree.leaves(found)]


ARGS = (np.ones((8, 4), np.float32), {"b": jnp.ones(6), "w": jnp.ones((4, 6))})


@pytest.mark.parametrize(
    ("shardings", "expected"),
    [
        (None, [(), (), ()]),
        (P("data"), None),  # b has 6 elements, w 4 rows: all divide by 2
        ((P("data"), None), [("data",), (), ()]),
        ((P("data", "model"), P()), [("data", "model"), (), ()]),
        ([P(), {"b": P("model"), "w": P(None, "model")}], [(), ("model",), (None, "model")]),
        ((P(("data", "model")), {"b": None, "w": P()}), [(("data", "model"),), (), ()]),
    ],
)
def test_shardings_spread_over_trees(mesh, shardings, expected):
    assert specs(mesh, ARGS, shardings) == (expected or [("data",)] * 3)


@pytest.mark.parametrize(
    ("args", "shardings", "kind", "words"),
    [
        ((np.ones((9, 4)), {}), (P("data"), None), IndivisibleShape, "axis 0 of x has size 9, which does not divide over mesh axis 'data' (2); pad it to 10"),
        ((np.ones((6, 4)), {}), (P(("data", "model")), None), IndivisibleShape, "'data' (2) and 'model' (2); pad it to 8"),
        ((np.ones(4), {}), (P("data", "model"), None), IndivisibleShape, "x has 1 axes, and its sharding"),
        (ARGS, (None, {"b": P("model"), "w": P("rows")}), ValueError, "params['w'] is sharded over 'rows', and the mesh has data, model"),
        (ARGS, (P(),), ValueError, "`in_shardings` has 1 entries for 2 arguments (x, params)"),
        (ARGS, (None, {"w": P()}), ValueError, "`in_shardings` for params has another structure"),
        (ARGS, (None, "data"), ValueError, "holds a str; it takes PartitionSpec"),
        ((np.ones(4), {"mode": "fast"}), None, TypeError, "params['mode'] is a str, which is no array; name it in static"),
        ((np.array(["a"]), {}), None, TypeError, "x has the type <U1"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_named(mesh, args, shardings, kind, words):
    with pytest.raises(kind) as caught:
        specs(mesh, args, shardings)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_types_are_those_that_jax_would_hold(mesh):
    args = [np.ones(2), 3, 2.5, True, np.float64(1), jax.random.key(0), jax.ShapeDtypeStruct((2,), jnp.bfloat16)]
    found, split = arguments.abstract(layer, args, set(), mesh, None)
    assert [str(leaf.dtype) for leaf in found] == [
        "float32", "int32", "float32", "bool", "float32", "key<fry>", "bfloat16",
    ]  # fmt: skip
    assert [leaf.weak_type for leaf in found[1:5]] == [True, True, False, False]
    assert split == 0


def test_a_struct_keeps_its_own_spec(mesh):
    own = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=jax.NamedSharding(mesh, P("data")))
    found, split = arguments.abstract(layer, [own], set(), mesh, None)
    assert (tuple(found[0].sharding.spec), split) == (("data",), 1)


def test_static_arguments_stay(mesh):
    found, _ = arguments.abstract(layer, [np.ones((8, 4)), "any"], {1}, mesh, (P("data"),))
    assert found[1] == "any" and tuple(found[0].sharding.spec) == ("data",)


def test_static_positions():
    assert arguments.static_positions(layer, 3, (-1, 0), ()) == {0, 2}
    assert arguments.static_positions(layer, 3, (), ("scale",)) == {2}
    assert arguments.static_positions(layer, 2, (), "scale") == set()  # given by name
    with pytest.raises(ValueError, match="names argument 5, and 2 were given"):
        arguments.static_positions(layer, 2, 5, ())


def test_names():
    class Model:
        def forward(self, x): ...

        def __call__(self, x): ...

    names = [layer, jax.jit(layer), functools.partial(layer, scale=2), jax.jit(functools.partial(layer, scale=2))]
    assert [arguments.name_of(fn) for fn in names] == ["layer"] * 4
    assert arguments.name_of(Model().forward) == "forward"
    assert arguments.name_of(Model()) == "Model"
    assert arguments.name_of(lambda x: x) == "lambda"
    assert issubclass(arguments.WrongArgument, CompileError)
