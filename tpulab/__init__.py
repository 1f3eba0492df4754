"""Your laptop is a TPU lab: the helper package of the course "JAX & TPU Lab".

Importing it is instant: names below are loaded when first used, and neither jax nor matplotlib is
imported before that.
"""

from typing import TYPE_CHECKING

from .lazy import loader as _loader

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import chips as chips
    from . import learn as learn
    from . import xla as xla
    from .errors import expect_error as expect_error
    from .figures import show as show
    from .learn import check as check
    from .learn import hint as hint
    from .learn import predict as predict
    from .learn import progress as progress
    from .learn import reveal as reveal
    from .learn import solution as solution
    from .record import on_tpu as on_tpu
    from .session import setup as setup
    from .timing import measure as measure

_HOME_OF = {
    "setup": "session",
    "measure": "timing",
    "show": "figures",
    "expect_error": "errors",
    "on_tpu": "record",
    "check": "learn",
    "predict": "learn",
    "reveal": "learn",
    "hint": "learn",
    "solution": "learn",
    "progress": "learn",
}
_ROOMS = ("chips", "learn", "xla")

__all__ = [*_HOME_OF, *_ROOMS]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _loader(__name__, _HOME_OF, _ROOMS)
