"""The few differences between the JAX versions that the course supports, in one place."""

from typing import Any


def backend_has_started() -> bool:
    """Say whether JAX has already chosen its devices; after that their number is fixed.

    JAX has no public word for this; the private one is the same in 0.7.2, 0.10.2 and 0.12.0.
    """
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def is_traced(value: Any) -> bool:
    """Say whether any leaf of a pytree is a stand-in of a function being traced."""
    import jax
    from jax.core import Tracer

    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
