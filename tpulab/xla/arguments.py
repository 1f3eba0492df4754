"""What a function is compiled with: shapes and types of its arguments, and how they are sharded."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import CompileError, IndivisibleShape

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec


class WrongArgument(CompileError, TypeError):
    """An argument is neither an array nor named as static."""


def function_in(fn: Any) -> Any:
    """Take off whatever wraps a function: jit, partial, a method's binding."""
    while True:
        inner = getattr(fn, "func", None) or getattr(fn, "__func__", None) or getattr(fn, "__wrapped__", None)
        if not callable(inner) or inner is fn:
            return fn
        fn = inner


def name_of(fn: Callable) -> str:
    """Give a function's plain name, whatever wraps it."""
    inner = function_in(fn)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "lambda" if name == "<lambda>" else name


def parameter_names(fn: Callable) -> list[str]:
    """Give the names of positional parameters; [] for what has no signature."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def static_positions(fn: Callable, count: int, numbers: int | Iterable[int], names: str | Iterable[str]) -> set[int]:
    """Say which positional arguments are static, as jax.jit would.

    Raises:
        ValueError: a number that no argument has.
    """
    numbers = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    names = (names,) if isinstance(names, str) else tuple(names)
    for number in numbers:
        if not -count <= number < count:
            raise ValueError(f"`static_argnums` names argument {number}, and {count} were given")
    known = parameter_names(fn)
    return {number % count for number in numbers} | {known.index(name) for name in names if name in known[:count]}


def abstract(
    fn: Callable,
    args: Sequence[Any],
    static: set[int],
    mesh: Mesh | None,
    shardings: Any,
    *,
    keep_scalars: bool = False,
) -> tuple[list[Any], int]:
    """Replace every array by its shape, type and sharding over the mesh.

    Args:
        fn: for the names of its parameters.
        args: positional arguments.
        static: positions that stay as they are.
        mesh: of the devices that the program is compiled for; None for this machine, where arrays stay
            sharded as they are.
        shardings: a PartitionSpec for all, or one for each argument that is not static, prefixes allowed;
            None leaves each as its ShapeDtypeStruct says, else whole on every device.
        keep_scalars: leave Python numbers as they are: the function may have named them static itself.

    Returns:
        The arguments, and how many arrays were sharded over more than one device.
    """
    import jax

    dynamic = [arg for at, arg in enumerate(args) if at not in static]
    names = parameter_names(fn)
    labels = [names[at] if at < len(names) else f"argument {at}" for at in range(len(args)) if at not in static]
    specs = _spread(shardings, dynamic, labels)
    sharded = 0
    out = list(args)
    places = [at for at in range(len(args)) if at not in static]
    for place, arg, spec, label in zip(places, dynamic, specs, labels, strict=True):
        leaves, tree = jax.tree_util.tree_flatten_with_path(arg)
        made = []
        for (path, leaf), leaf_spec in zip(leaves, _prefix(spec, arg, label), strict=True):
            where = label + jax.tree_util.keystr(path)
            one, split = leaf_struct(leaf, leaf_spec, mesh, where, keep_scalars)
            made.append(one)
            sharded += split
        out[place] = jax.tree_util.tree_unflatten(tree, made)
    return out, sharded


def leaf_struct(leaf: Any, spec: Any, mesh: Mesh | None, where: str, keep_scalars: bool = False) -> tuple[Any, bool]:
    """Turn one array into its shape, type and sharding."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        if keep_scalars:
            return leaf, False
        shape, dtype, weak = (), jax.dtypes.result_type(leaf), not isinstance(leaf, bool)
    elif hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        shape, dtype, weak = tuple(leaf.shape), _dtype(leaf.dtype, where), bool(getattr(leaf, "weak_type", False))
    elif keep_scalars:
        return leaf, False
    else:
        raise WrongArgument(
            f"{where} is a {type(leaf).__name__}, which is no array; name it in static_argnums= or static_argnames="
        )
    if mesh is None:
        own = getattr(leaf, "sharding", None)
        own = own if own is not None and own.num_devices > 1 else None
        return jax.ShapeDtypeStruct(shape, dtype, sharding=own, weak_type=weak), own is not None
    if spec is None:
        spec = (
            getattr(getattr(leaf, "sharding", None), "spec", None) if isinstance(leaf, jax.ShapeDtypeStruct) else None
        )
    spec = PartitionSpec() if spec is None else spec
    split = _check(shape, spec, mesh, where)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec), weak_type=weak), split


def _dtype(dtype: Any, where: str) -> Any:
    """Take a type as JAX holds it: keys as they are, 64 bits as 32 unless they are switched on."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return dtype
    if not (jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)):
        raise WrongArgument(f"{where} has the type {dtype}, which JAX has no array of")
    return jax.dtypes.canonicalize_dtype(dtype)


def _spread(shardings: Any, dynamic: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Give each argument its part of `in_shardings`."""
    from jax.sharding import NamedSharding, PartitionSpec

    if shardings is None or isinstance(shardings, (PartitionSpec, NamedSharding)):
        return [shardings] * len(dynamic)
    if not isinstance(shardings, (tuple, list)):
        shardings = (shardings,)
    if len(shardings) != len(dynamic):
        raise ValueError(
            f"`in_shardings` has {len(shardings)} entries for {len(dynamic)} arguments ({', '.join(labels)}); "
            "give one each, or a single PartitionSpec for all"
        )
    return list(shardings)


def _prefix(spec: Any, arg: Any, label: str) -> list[PartitionSpec | None]:
    """Spread a tree of specs over a tree of arrays that it is a prefix of."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    def is_spec(node: Any) -> bool:
        return node is None or isinstance(node, (PartitionSpec, NamedSharding))

    def spread(one: Any, subtree: Any) -> list[Any]:
        if not is_spec(one):
            raise ValueError(f"`in_shardings` for {label} holds a {type(one).__name__}; it takes PartitionSpec or None")
        one = one.spec if isinstance(one, NamedSharding) else one
        return [one] * len(jax.tree.leaves(subtree))

    found: list[Any] = []
    try:
        jax.tree.map(lambda one, subtree: found.extend(spread(one, subtree)), spec, arg, is_leaf=is_spec)
    except ValueError as error:
        if str(error).startswith("`in_shardings`"):
            raise
        raise ValueError(f"`in_shardings` for {label} has another structure than the argument: {spec!r}") from None
    return found


def _check(shape: tuple[int, ...], spec: Any, mesh: Mesh, where: str) -> bool:
    """Check that an array divides over the mesh; say whether it is split at all."""
    split = False
    if len(spec) > len(shape):
        raise IndivisibleShape(f"{where} has {len(shape)} axes, and its sharding {spec} names {len(spec)}")
    for axis, entry in enumerate(spec):
        if entry is not None and not isinstance(entry, (str, tuple)):
            continue
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        for name in names:
            if name not in mesh.shape:
                raise ValueError(f"{where} is sharded over {name!r}, and the mesh has {', '.join(mesh.shape)}")
        parts = math.prod(mesh.shape[name] for name in names)
        split |= parts > 1
        if shape[axis] % parts:
            up = math.ceil(shape[axis] / parts) * parts
            over = " and ".join(f"{name!r} ({mesh.shape[name]})" for name in names)
            raise IndivisibleShape(
                f"axis {axis} of {where} has size {shape[axis]}, which does not divide over mesh axis {over}; "
                f"pad it to {up}, or shard another axis"
            )
    return split
