"""The compiler lab: what XLA makes of a program, for a TPU that need not be here.

Importing it is instant: names below are loaded when first used, and jax is not imported before that.
"""

from typing import TYPE_CHECKING

from ..lazy import loader as _loader

if TYPE_CHECKING:
    from .compiler import compile_for as compile_for
    from .compiler import compile_here as compile_here
    from .errors import CompileError as CompileError
    from .errors import CompilerMissing as CompilerMissing
    from .errors import DoesNotFit as DoesNotFit
    from .errors import IndivisibleShape as IndivisibleShape
    from .errors import UnknownTarget as UnknownTarget
    from .pair import compiler_problem as compiler_problem
    from .program import Program as Program
    from .reading import read as read
    from .stages import Stage as Stage
    from .stages import passes as passes
    from .topology import mesh_for as mesh_for
    from .wire import Malformed as Malformed

_HOME_OF = {
    "compile_for": "compiler",
    "compile_here": "compiler",
    "compiler_problem": "pair",
    "mesh_for": "topology",
    "read": "reading",
    "Malformed": "wire",
    "passes": "stages",
    "Program": "program",
    "Stage": "stages",
    "CompileError": "errors",
    "CompilerMissing": "errors",
    "DoesNotFit": "errors",
    "IndivisibleShape": "errors",
    "UnknownTarget": "errors",
}

__all__ = [*_HOME_OF]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _loader(__name__, _HOME_OF)
