"""From a Python function to the program that the compiler is given."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .arguments import abstract, function_in, name_of, static_positions
from .errors import CompileError, in_one_line
from .topology import AXIS_OF_ONE

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.stages import Lowered


@dataclass(frozen=True, eq=False)
class Call:
    """A function and how it is to be called.

    Args:
        fn: plain, jitted, a method, a partial, a Flax NNX function, or a pmap over devices of a mesh.
        args: positional arguments; of arrays only shape and type are used.
        kwargs: keyword arguments; whole on every device.
        in_shardings: see `compile_for`.
        out_shardings: see `compile_for`.
        static_argnums: as in jax.jit.
        static_argnames: as in jax.jit.
        donate_argnums: as in jax.jit.
    """

    fn: Callable
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    in_shardings: Any = None
    out_shardings: Any = None
    static_argnums: int | tuple[int, ...] = ()
    static_argnames: str | tuple[str, ...] = ()
    donate_argnums: int | tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        return name_of(self.fn)

    @property
    def source(self) -> str:
        """The text of the function; "" where it has none."""
        try:
            return inspect.getsource(function_in(self.fn))
        except (OSError, TypeError):
            return ""

    @property
    def jit_options(self) -> dict[str, Any]:
        """What jax.jit is told; nothing that was not asked for."""
        told = {name: getattr(self, name) for name in ("static_argnums", "static_argnames", "donate_argnums")}
        return {name: value for name, value in told.items() if value != ()}


def call_of(fn: Callable, args: Any, kwargs: Any, ins: Any, outs: Any, numbers: Any, names: Any, donated: Any) -> Call:
    """Gather a call; sequences become tuples."""

    def fixed(value: Any) -> Any:
        return value if isinstance(value, (int, str)) else tuple(value)

    return Call(fn, args, kwargs, ins, outs, fixed(numbers), fixed(names), fixed(donated))


def lower(call: Call, mesh: Mesh | None) -> tuple[Lowered, int]:
    """Trace a function for the devices of a mesh, or for this machine's first device.

    Args:
        call: what to lower.
        mesh: of devices that need not be here; None for the machine at hand.

    Returns:
        The lowered program, and how many of its arguments are split over devices.

    Raises:
        CompileError: JAX refuses; in one line. What the function itself raises comes as it is.
    """
    if not callable(call.fn):
        raise TypeError(f"`fn` is a function; got {type(call.fn).__name__}")
    positions = static_positions(call.fn, len(call.args), call.static_argnums, call.static_argnames)
    jitted = hasattr(call.fn, "lower")
    over = None if has_own_devices(call.fn) else mesh
    args, split = abstract(
        call.fn, call.args, positions, over, call.in_shardings, keep_scalars=jitted and any(map(_is_array, call.args))
    )
    kwargs = _abstract_kwargs(call, over, jitted)
    function = _jitted(call, over, positions, nothing=not any(map(_is_array, (*args, kwargs))))
    with _context(over if over is not None and tuple(over.shape) != (AXIS_OF_ONE,) else None):
        try:
            lowered = function.lower(*args, **kwargs)
        except Exception as error:
            if _jax_refused(error):
                raise in_one_line(error) from None
            raise
    return getattr(lowered, "lowered", lowered), split


def _jitted(call: Call, mesh: Mesh | None, positions: set[int], *, nothing: bool) -> Any:
    """Wrap the function in jit unless it is already and nothing was asked for."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    options = call.jit_options
    if positions:  # jax.jit infers them from names only where no numbers are given
        options["static_argnums"] = tuple(sorted(positions))
    out = call.out_shardings
    if mesh is not None and (out is not None or nothing):
        # A program without arguments has no other way to learn for which devices it is.
        out = PartitionSpec() if out is None else out

        def placed(spec: Any) -> Any:
            return NamedSharding(mesh, getattr(spec, "spec", spec)) if spec is not None else None

        options["out_shardings"] = jax.tree.map(
            placed, out, is_leaf=lambda node: node is None or isinstance(node, (PartitionSpec, NamedSharding))
        )
    if hasattr(call.fn, "lower") and not options:
        return call.fn
    make = sys.modules["flax.nnx"].jit if _holds_modules(call) else jax.jit
    fn = call.fn
    if hasattr(fn, "lower"):
        fn = functools.wraps(fn)(lambda *args, **kwargs: call.fn(*args, **kwargs))
    return make(fn, **options)


def _abstract_kwargs(call: Call, mesh: Mesh | None, jitted: bool) -> dict[str, Any]:
    """Replace arrays among keyword arguments; static ones stay as they are."""
    names = (call.static_argnames,) if isinstance(call.static_argnames, str) else call.static_argnames
    made = {}
    for name, value in call.kwargs.items():
        if name in names:
            made[name] = value
            continue
        (made[name],), _ = abstract(_named_parameter(name), [value], set(), mesh, None, keep_scalars=jitted)
    return made


def _named_parameter(name: str) -> Callable:
    """Give a stand-in whose one parameter has the name of a keyword argument, for messages."""

    def stand_in(_: Any) -> None: ...

    parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    stand_in.__signature__ = inspect.Signature([parameter])  # pyright: ignore[reportFunctionMemberAccess]
    return stand_in


def _is_array(tree: Any) -> bool:
    import jax

    return any(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in jax.tree.leaves(tree))


def has_own_devices(fn: Any) -> bool:
    """Say whether a function is a pmap, which chooses its devices itself."""
    import jax

    jitted = isinstance(fn, type(jax.jit(_is_array))) or "nnx" in type(fn).__module__
    return hasattr(fn, "lower") and not jitted


def _holds_modules(call: Call) -> bool:
    """Say whether Flax NNX modules are among the arguments: they change in place, which plain jit would drop."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False
    kinds = tuple(kind for name in ("Module", "Optimizer", "Metric", "Rngs") if (kind := getattr(nnx, name, None)))
    return any(isinstance(value, kinds) for value in (*call.args, *call.kwargs.values()))


def _context(mesh: Mesh | None) -> Any:
    """Make a mesh the one that bare PartitionSpecs inside the function mean."""
    import jax

    if mesh is None:
        return contextlib.nullcontext()
    if _abstract_mesh_is_enough():
        return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    return jax.set_mesh(mesh)


@functools.cache
def _abstract_mesh_is_enough() -> bool:
    """Try it: where it is not (0.7.2) the mesh itself is set, which newer versions also compute constants on."""
    import jax
    from jax.sharding import AbstractMesh, AxisType, PartitionSpec

    try:
        with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,))):
            constrain = functools.partial(jax.lax.with_sharding_constraint, shardings=PartitionSpec("x"))
            jax.eval_shape(constrain, jax.ShapeDtypeStruct((1,), "float32"))
    except Exception:
        return False
    return True


def _jax_refused(error: Exception) -> bool:
    """Tell JAX's words about devices and shardings from an error in the learner's own function."""
    text = str(error)
    words = ("ncompatible devices", "divisible", "lockfile", "Only interpret mode")
    return any(word in text for word in words) or isinstance(error, CompileError)
