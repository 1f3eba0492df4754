"""A compiled program in the words of the course: kernels, bytes to and from HBM, FLOPs, cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .compiled import Memory

if TYPE_CHECKING:
    from .collective import Collective
    from .module import Module


@dataclass(frozen=True)
class Edge:
    """A value that one launch leaves in memory and another reads.

    Args:
        source: the kernel that wrote it, by name; "" for an argument of the program.
        target: the kernel that reads it; "" for a result of the program.
        label: the argument's name where it has one (e.g. "x"), else "".
        shape: as HLO prints it without the layout, e.g. "bf16[2048,4096]".
        bytes: padded size; what crosses if it lies in HBM.
        space: "HBM", "VMEM", or "space N" for one without a public name.
    """

    source: str
    target: str
    label: str
    shape: str
    bytes: int
    space: str


@dataclass(frozen=True)
class Kernel:
    """One thing that the device launches: a kernel, or a DMA that moves data.

    Args:
        name: of its HLO instruction, e.g. "fusion.3".
        kind: in plain words: "matmul fusion", "loop fusion", "reduce fusion", "copy", "custom call", "all-reduce", …
        opcode: of the launched instruction.
        opcodes: of what is computed inside, in order, parameters left out.
        times: how often it is launched in one run; None when a loop's count is unknown.
        flops: of one launch; None when unknown (a custom call that states none).
        bytes_read: from HBM in one launch, padding included.
        bytes_written: to HBM in one launch.
        estimated_cycles: of one launch, the compiler's own estimate; None when it gives none.
        steps: the JAX operations it does, e.g. ("dot_general", "add", "max").
        source: the learner's source lines it does, as text.
        dma: it only moves data (a copy or slice that the compiler started early).
        position: its place among all launches in the order they start, from 1.
    """

    name: str
    kind: str
    opcode: str
    opcodes: tuple[str, ...]
    times: int | None
    flops: int | None
    bytes_read: int
    bytes_written: int
    estimated_cycles: int | None
    steps: tuple[str, ...]
    source: tuple[str, ...]
    dma: bool
    position: int = 0

    @property
    def hbm_bytes(self) -> int:
        """Bytes to and from HBM in one launch."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Counts:
    """Sums over one program, each launch times how often it runs; None is unknown, never 0.

    Args:
        kernels: launches that compute.
        dmas: launches that only move data.
        hbm_bytes: to and from HBM.
        flops: a multiply-add counts as 2; elementwise operations as 1 each.
        transcendentals: exp, log, tanh and the like, not counted in `flops`.
        estimated_cycles: the compiler's own, summed where it gives one.
        unknown: what could not be counted, in words, e.g. "custom call tpu_custom_call: FLOPs not stated".
    """

    kernels: int
    dmas: int
    hbm_bytes: int
    flops: int | None
    transcendentals: int | None
    estimated_cycles: int | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Program:
    """One compiled program, per device.

    Args:
        name: of the function.
        target: what it was compiled for, e.g. "v5e:2x2" or "cpu".
        chip: the chip's short name; None for a CPU or a file that does not say.
        devices: how many run it.
        counts: of the optimised program.
        kernels: launches that compute, in the order they run.
        dmas: launches that only move data.
        edges: what flows between launches.
        collectives: what crosses between devices.
        before: counts of the program before optimisation, as if each operation were a kernel; that program is still
            whole, all devices together; None when not known.
        memory: what it needs; None when the compiler did not say.
        module: the decoded HLO, for whoever wants to look further.
        versions: of jax, jaxlib and libtpu.
        date: when it was compiled, ISO.
        options: compiler options that were set.
        notes: sentences a reader must know.
        recorded: it was compiled elsewhere and stored with the course.
    """

    name: str
    target: str
    chip: str | None
    devices: int
    counts: Counts
    kernels: tuple[Kernel, ...]
    dmas: tuple[Kernel, ...]
    edges: tuple[Edge, ...]
    collectives: tuple[Collective, ...]
    before: Counts | None
    memory: Memory | None
    module: Module
    versions: Mapping[str, str]
    date: str
    options: Mapping[str, str]
    notes: tuple[str, ...]
    recorded: bool

    @property
    def launches(self) -> tuple[Kernel, ...]:
        """Kernels and DMAs in the order they start."""
        return tuple(sorted((*self.kernels, *self.dmas), key=lambda kernel: kernel.position))

    @property
    def hbm_bytes(self) -> int:
        """Bytes to and from HBM in one run."""
        return self.counts.hbm_bytes

    @property
    def flops(self) -> int | None:
        """Floating-point operations in one run; a multiply-add is 2."""
        return self.counts.flops

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's own estimate, summed; None when it gives none."""
        return self.counts.estimated_cycles

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most HBM that is taken at once; None when the compiler does not say."""
        return self.memory.peak_bytes if self.memory else None

    def report(self) -> str:
        """Say in plain lines what the compiler made: before and after, then each launch."""
        from .report import text

        return text(self)

    def svg(self) -> str:
        """Draw the launches and what they move, as the text of an SVG file."""
        from .draw import svg

        return svg(self)

    def save_svg(self, path: str | Path) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    def __repr__(self) -> str:
        return self.report()

    def _repr_html_(self) -> str:
        from .report import page

        return page(self)
