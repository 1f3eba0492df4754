"""Devices of a TPU that is not here, and meshes over them."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import pair
from .errors import UnknownTarget, in_one_line
from .target import Target, parse

if TYPE_CHECKING:
    from jax.sharding import Mesh

AXIS_OF_ONE = "one_chip"


def mesh_for(target: str, axes: Mapping[str, int]) -> Mesh:
    """Build a mesh over the chips of a TPU that need not be here.

    For functions that name their mesh, e.g. in `jax.shard_map`; give the same mesh to `compile_for`.

    Args:
        target: e.g. "v5e:2x2".
        axes: name → size, e.g. {"data": 2, "model": 2}; sizes multiply to the number of devices, or fewer.

    Returns:
        A mesh whose axes are of type Auto, neighbours on the torus next to each other.

    Raises:
        UnknownTarget: there is no such chip or shape.
        CompilerMissing: no TPU compiler works here.
        ValueError: the sizes are no whole numbers, or ask for more devices than there are.
    """
    wanted = parse(target)
    sizes = checked_axes(wanted, axes)
    return build(devices(wanted), sizes)


def checked_axes(target: Target, axes: Mapping[str, int]) -> dict[str, int]:
    """Check a mesh's axes against the number of devices.

    Raises:
        ValueError: they do not go together; says what would.
    """
    if not isinstance(axes, Mapping) or not axes or not all(isinstance(name, str) for name in axes):
        raise ValueError(f'`mesh` is a dict of axis names and sizes, e.g. {{"data": 2, "model": 2}}; got {axes!r}')
    for name, size in axes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"the size of mesh axis {name!r} is a whole number from 1; got {size!r}")
    wanted = math.prod(axes.values())
    if wanted > target.devices:
        per_chip = target.generation.devices_per_chip
        cores = f" ({target.chips} chips of {per_chip} devices)" if per_chip > 1 else ""
        product = " x ".join(map(str, axes.values()))
        raise ValueError(f"the mesh wants {product} = {wanted} devices, and {target.name} has {target.devices}{cores}")
    return dict(axes)


def devices(target: Target) -> tuple[Any, ...]:
    """Give the devices of a slice, quietly.

    Raises:
        CompilerMissing: no TPU compiler works here.
        UnknownTarget: this compiler does not know the slice.
    """
    pair.prepare()
    return _devices(target)


@functools.lru_cache(maxsize=64)
def _devices(target: Target) -> tuple[Any, ...]:
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=target.compiler_name, **target.compiler_arguments
        )
    except Exception as error:
        if "Invalid TPU external name" in str(error):
            version = pair.versions().get("libtpu", "here")
            raise UnknownTarget(
                f"libtpu {version} does not know the chip {target.chip} yet; install a newer jax[tpu]"
            ) from None
        raise in_one_line(error) from None
    return tuple(description.devices)


def build(found: tuple[Any, ...], sizes: Mapping[str, int]) -> Mesh:
    """Put devices in an order in which neighbours in the mesh are neighbours on the torus."""
    import numpy as np
    from jax.experimental import mesh_utils
    from jax.sharding import AxisType, Mesh

    shape = tuple(sizes.values())
    count = math.prod(shape)
    ordered = np.array(found[:count]).reshape(shape)
    if count == len(found):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A shape that does not map onto the torus gets the compiler's own order.
            with contextlib.suppress(ValueError, NotImplementedError, AssertionError):
                ordered = mesh_utils.create_device_mesh(shape, list(found))
    return Mesh(ordered, tuple(sizes), axis_types=(AxisType.Auto,) * len(shape))
