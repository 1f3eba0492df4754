"""What the compiler makes of a user's function, in lines or as JSON, with a verdict from the roofline."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..chips.ceilings import Ceilings
from ..chips.model import Roofline, ratio_text, roofline
from ..timing import seconds_text
from . import function, spelling
from .status import NO, UNFINISHED, WRONG_USE, Stop

if TYPE_CHECKING:
    from ..xla.errors import DoesNotFit
    from ..xla.program import Kernel, Program

HERE = ("cpu", "here")
_HLO = (".hlo", ".pb", ".txt")


@dataclass(frozen=True)
class Question:
    """What was asked on the command line.

    Args:
        what: MODULE:FUNCTION, FILE.py:FUNCTION or a file with HLO.
        shapes: one for each array.
        statics: name=value.
        target: e.g. "v5e:2x2"; "cpu" for this machine; None is one v5e chip, or nothing known for a file.
        mesh: axis=size.
        specs: one for each shape.
        fusion: let the compiler fuse.
        peak: number type of the peak that the roofline takes.
    """

    what: str
    shapes: Sequence[str] = ()
    statics: Sequence[str] = ()
    target: str | None = None
    mesh: Sequence[str] = ()
    specs: Sequence[str] = ()
    fusion: bool = True
    peak: str = "bf16"

    @property
    def of_file(self) -> bool:
        """It is a file with HLO, already compiled or to be read as it is."""
        return Path(self.what).suffix.lower() in _HLO


def program(question: Question) -> Program:
    """Compile the function, or read the file.

    Raises:
        DoesNotFit: it needs more memory than the device has.
        Stop: anything else that keeps from an answer, in one line.
    """
    if question.of_file:
        return _read(question)
    import jax  # noqa: F401  before the user's folder is searched, where a file may be called like a part of it

    from .. import xla

    shapes, by_name = spelling.shapes(question.shapes)
    statics = spelling.statics(question.statics)
    axes = spelling.mesh(question.mesh)
    specs = spelling.specs(question.specs, len(shapes), axes)
    fn = function.find(question.what)
    args, kwargs = function.bind(fn, shapes, by_name, statics)
    told: dict[str, Any] = {"static_argnames": tuple(statics)} if statics else {}
    with _one_line(), function.running(question.what, fn):
        if question.target in HERE:
            if axes:
                raise Stop("--mesh is for a TPU target; this machine's CPU is one device", WRONG_USE)
            return xla.compile_here(fn, *args, **told, fusion=question.fusion, **kwargs)
        told |= {"mesh": axes, "in_shardings": tuple(specs) if specs else None, "fusion": question.fusion}
        return xla.compile_for(question.target or "v5e", fn, *args, **told, **kwargs)


def verdict(program: Program, question: Question) -> Roofline | None:
    """Set the program against its chip, or against ceilings measured here; None where a count or a chip is unknown."""
    from ..chips.registry import get

    if program.flops is None or not (program.flops or program.hbm_bytes):
        return None
    if program.target == "cpu" or (question.of_file and question.target in HERE):
        from ..chips.stopwatch import ceilings_here

        return roofline(program, ceilings_here())
    if not (program.chip or question.target):
        return None
    try:
        chip = get(program.chip or question.target)
    except ValueError as error:
        raise Stop(f"--target: {error}", WRONG_USE) from None
    try:
        return roofline(program, chip, dtype=question.peak)
    except ValueError as error:
        raise Stop(f"--peak: {error}", WRONG_USE) from None


def lines(program: Program, model: Roofline | None) -> str:
    """Write the report and the verdict."""
    parts = [program.report().rstrip(), _verdict_lines(program, model)]
    if program.target != "a file":
        parts.append("Kernels, bytes, FLOPs and cycles are compiled: the compiler's claim, not measured on hardware.")
    return "\n\n".join(parts)


def as_dict(program: Program, model: Roofline | None) -> dict[str, Any]:
    """Give the answer for another program; figures stand under the word that says where they come from."""
    compiled = {
        "before": asdict(program.before) if program.before else None,
        "after": asdict(program.counts),
        "peak_memory_bytes": program.peak_memory_bytes,
        "launches": [{**asdict(one), "hbm_bytes": one.hbm_bytes} for one in program.launches],
        "collectives": [asdict(one) for one in program.collectives],
    }
    names = ("name", "target", "chip", "devices", "date", "notes", "recorded")
    facts = {name: getattr(program, name) for name in names}
    modelled = _modelled(program, model) if model else None
    return {**facts, "versions": dict(program.versions), "compiled": compiled, "modelled": modelled}


def too_large(error: DoesNotFit) -> dict[str, Any]:
    """Give what does not fit, for another program."""
    buffers = [asdict(one) for one in error.buffers]
    return {
        "fits": False,
        "needed_bytes": error.needed_bytes,
        "available_bytes": error.available_bytes,
        "buffers": buffers,
    }


def save_picture(program: Program, path: Path) -> None:
    """Write the picture of a program.

    Raises:
        Stop: it cannot be written there.
    """
    try:
        program.save_svg(path)
    except OSError as error:
        raise Stop(f"--svg {path}: {error.strerror or error}", UNFINISHED) from None


def _read(question: Question) -> Program:
    from .. import xla

    if question.shapes or question.statics or question.mesh or question.specs or not question.fusion:
        raise Stop("a file holds a program that is made; with it go --target, --json and --svg alone", WRONG_USE)
    try:
        return xla.read(Path(question.what))
    except xla.Malformed as error:
        raise Stop(f"{question.what}: {error}", WRONG_USE) from None
    except OSError as error:
        raise Stop(f"{question.what}: {error.strerror or error}", WRONG_USE) from None


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn what the compiler room raises into one line and the right status."""
    from .. import xla

    try:
        yield
    except xla.DoesNotFit:
        raise
    except xla.CompilerMissing as error:
        raise Stop(f"{error}; --target cpu compiles for this machine", UNFINISHED) from None
    except (ValueError, TypeError) as error:  # UnknownTarget and IndivisibleShape are ValueErrors
        raise Stop(str(error), WRONG_USE) from None
    except (xla.CompileError, RuntimeError) as error:
        raise Stop(str(error), UNFINISHED) from None


def _verdict_lines(program: Program, model: Roofline | None) -> str:
    if model is None:
        why = "its FLOPs are unknown" if program.flops is None else "its chip is unknown; name one with --target"
        why = "it neither computes nor moves anything" if program.flops == program.hbm_bytes == 0 else why
        return f"No verdict from the roofline: {why}."
    word = "modelled from ceilings measured here" if model.ceilings.origin == "measured" else "modelled"
    told = [
        f"{program.name} is {model.bound}-bound on {model.ceilings.name} ({word}): "
        f"{ratio_text(model.intensity_flops_per_byte)} FLOP/byte, and the ridge is at "
        f"{ratio_text(model.ridge_flops_per_byte)} ({model.ceilings.dtype}).",
        f"At least {seconds_text(model.seconds)}: arithmetic {seconds_text(model.compute_s)}, "
        f"memory {seconds_text(model.memory_s)}.",
    ]
    if (each := _each(program, model.ceilings)) and len(each) > 1:
        memory = sum(one.bound == "memory" for _, one in each)
        total = sum(one.seconds * (kernel.times or 1) for kernel, one in each)
        told.append(
            f"Launch by launch {memory} of {len(each)} are memory-bound; one after the other they take at least "
            f"{seconds_text(total)}."
        )
    return "\n".join(told)


def _each(program: Program, ceilings: Ceilings) -> list[tuple[Kernel, Roofline]]:
    """Set every launch that costs anything against the ceilings; [] where the FLOPs of one are unknown."""
    if any(kernel.flops is None for kernel in program.kernels):
        return []
    costly = [one for one in program.launches if one.flops or one.hbm_bytes]
    return [(one, roofline((one.flops or 0, one.hbm_bytes), ceilings)) for one in costly]


def _modelled(program: Program, model: Roofline) -> dict[str, Any]:
    intensity = model.intensity_flops_per_byte
    return {
        "ceilings": asdict(model.ceilings),
        "bound": model.bound,
        "intensity_flops_per_byte": intensity if intensity < math.inf else None,
        "ridge_flops_per_byte": model.ridge_flops_per_byte,
        "compute_s": model.compute_s,
        "memory_s": model.memory_s,
        "seconds": model.seconds,
        "launches": {kernel.name: one.bound for kernel, one in _each(program, model.ceilings)},
    }


def refusal(error: DoesNotFit) -> Stop:
    """Give the line for a program that does not fit; status 1, the answer is no."""
    line = str(error).replace("; .buffers and .table() list the largest", "")
    return Stop(line, NO)
