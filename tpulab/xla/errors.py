"""What can keep a program from being compiled, each said in one line with the remedy."""

import re
from collections.abc import Iterable

from ..errors import first_line
from .compiled import Buffer

GIB = 2**30


class CompileError(RuntimeError):
    """A program could not be compiled."""


class UnknownTarget(CompileError, ValueError):
    """There is no such chip, or no slice of that shape."""


class CompilerMissing(CompileError):
    """No TPU compiler works here."""


class IndivisibleShape(CompileError, ValueError):
    """An array does not divide over the mesh as asked."""


class DoesNotFit(CompileError):
    """A program needs more HBM than the chip has.

    Args:
        message: the line to show.
        needed_bytes: what it needs on one device; None when the compiler does not say.
        available_bytes: what the compiler may use there.
        buffers: the ten largest, largest first.
    """

    def __init__(
        self, message: str, needed_bytes: int | None, available_bytes: int | None, buffers: Iterable[Buffer] = ()
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.buffers = tuple(buffers)

    def table(self) -> str:
        """Give the largest buffers as text, one a line: GiB, kind, shape, source line."""
        rows = [("GiB", "kind", "shape", "made by")]
        for buffer in self.buffers:
            made_by = buffer.source or buffer.instruction
            rows.append((f"{buffer.bytes / GIB:.2f}", buffer.kind, buffer.shape, made_by))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            f"{size:>{widths[0]}}  {kind:<{widths[1]}}  {shape:<{widths[2]}}  {made_by}".rstrip()
            for size, kind, shape, made_by in rows
        )


def does_not_fit(target: str, needed: int | None, available: int | None, buffers: Iterable[Buffer] = ()) -> DoesNotFit:
    """Say how much is missing, which buffer is the largest, and what to try."""
    buffers = tuple(buffers)
    amount = "more HBM than there is" if needed is None else f"{needed / GIB:.2f} GiB of HBM"
    there = "" if available is None else f", and {available / GIB:.2f} GiB can be used"
    largest = ""
    if buffers:
        made_by = f", {buffers[0].source}" if buffers[0].source else ""
        shape = re.sub(r"\{[^}]*\}", "", buffers[0].shape)
        largest = f"; the largest buffer is {buffers[0].kind} {shape} ({buffers[0].bytes / GIB:.2f} GiB{made_by})"
    advice = (
        "shard it over more devices, use a smaller batch, or jax.checkpoint; .buffers and .table() list the largest"
    )
    return DoesNotFit(
        f"on one device of {target} this program needs {amount}{there}{largest}; {advice}", needed, available, buffers
    )


def sizes_in(message: str) -> tuple[int | None, int | None]:
    """Read needed and available bytes from the compiler's own words; all known forms give both in GiB.

    Example:
        >>> sizes_in("the total memory required for HLO temporaries (20.00G) exceeds available HBM (15.75G).")
        (21474836480, 16911433728)
        >>> sizes_in("Ran out of memory in memory space hbm. Used 17.00G of 15.75G hbm.")
        (18253611008, 16911433728)
    """
    found = re.search(r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)", message) or re.search(
        r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm", message
    )
    if not found:
        return None, None
    unit = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    needed, needed_unit, available, available_unit = found.groups()
    return round(float(needed) * unit[needed_unit]), round(float(available) * unit[available_unit])


def is_out_of_hbm(message: str) -> bool:
    """Say whether the compiler stopped because HBM is too small; Pallas asking too much VMEM is another thing."""
    return "on HBM" in message or "memory space hbm" in message or "CompileTimeHbmOom" in message


def in_one_line(error: BaseException) -> CompileError:
    """Put what XLA or JAX said when it refused a program into one line with a remedy where one is known."""
    line = re.sub(r"^(?:[A-Z_]{4,}: )?(?:[EW]\d+: \w+: )?", "", first_line(error))
    text = str(error)
    if option := re.search(r"No such compile option: '([^']*)'", text):
        return CompileError(f"this compiler has no option {option[1]!r}; leave it out of compiler_options")
    if "ivisible" in type(error).__name__ or re.search(r"divisible by|evenly divide", text):
        return IndivisibleShape(f"{line} Pad the axis, or use another mesh axis for it.")
    if "lockfile" in text:
        return CompilerMissing(
            "another process has the TPU compiler and keeps it for itself; "
            "set ALLOW_MULTIPLE_LIBTPU_LOAD=1 before the first compilation, or stop that process"
        )
    if "ncompatible devices" in text:
        return CompileError(
            "the function itself names devices of this machine; build its mesh with tpulab.xla.mesh_for(target, axes) "
            "and give compile_for the same mesh="
        )
    if "Only interpret mode is supported on CPU" in text:
        return CompileError("a Pallas kernel for a TPU cannot be compiled for this machine's CPU; use compile_for")
    return CompileError(f"{type(error).__name__}: {line}" if line else type(error).__name__)
