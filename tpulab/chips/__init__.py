"""Chips: what their makers and the field say about them, with sources; and the roofline."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ceilings import Ceilings as Ceilings
    from .chip import Chip as Chip
    from .diagram import plot as plot
    from .model import Roofline as Roofline
    from .model import roofline as roofline
    from .registry import all as all
    from .registry import get as get
    from .registry import names as names
    from .registry import slice_chips as slice_chips
    from .registry import sources as sources
    from .stopwatch import ceilings_here as ceilings_here

_HOME_OF = {
    "get": "registry",
    "names": "registry",
    "all": "registry",
    "slice_chips": "registry",
    "sources": "registry",
    "Chip": "chip",
    "Ceilings": "ceilings",
    "roofline": "model",
    "Roofline": "model",
    "plot": "diagram",
    "ceilings_here": "stopwatch",
}

__all__ = [*_HOME_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    raise AttributeError(f"tpulab.chips has no name {name!r}; it offers {', '.join(sorted(__all__))}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
