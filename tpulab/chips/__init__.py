"""Chips: what their makers and the field say about them, with sources; and the roofline."""

from typing import TYPE_CHECKING

from ..lazy import loader as _loader

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

__getattr__, __dir__ = _loader(__name__, _HOME_OF)
