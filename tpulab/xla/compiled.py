"""What the compiler gave back for one program, before anything is read from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Buffer:
    """One buffer of a compiled program, as the compiler's memory report lists it.

    Args:
        bytes: its size in HBM, padding included.
        instruction: the HLO instruction that makes it.
        shape: as HLO prints it, e.g. "bf16[16384,8192]{1,0:T(8,128)(2,1)}".
        kind: "argument", "result", "constant" or "temporary".
        source: the source line that made it, or "".
    """

    bytes: int
    instruction: str
    shape: str
    kind: str
    source: str = ""


@dataclass(frozen=True)
class Memory:
    """HBM that a program needs on one device.

    Args:
        peak_bytes: the most that is alive at once; None when this compiler does not say.
        argument_bytes: arguments.
        output_bytes: results.
        alias_bytes: results that take the place of donated arguments, counted in both above.
        temporary_bytes: everything else.
        capacity_bytes: what the compiler may use on the device; None when unknown.
        buffers: the largest ones, largest first.
    """

    peak_bytes: int | None
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    capacity_bytes: int | None = None
    buffers: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """One program as it went into the compiler and came out.

    Args:
        name: of the function, e.g. "layer".
        target: what it was compiled for, e.g. "v5e:2x2" or "cpu".
        chip: the chip's short name, e.g. "v5e"; None for a CPU.
        devices: how many devices run the program, each its own copy.
        before: HloModuleProto before optimisation; None when only the optimised program is known.
        after: HloModuleProto after optimisation.
        versions: of jax, jaxlib and libtpu.
        date: when it was compiled, ISO.
        memory: what it needs, where the compiler says so.
        lines: the text of each source line named in the program, by (file, line).
        options: compiler options that were set.
        notes: sentences a reader of the result must know, e.g. an option this compiler does not have.
        recorded: it was compiled elsewhere and stored with the course.
    """

    name: str
    target: str
    chip: str | None
    devices: int
    before: bytes | None
    after: bytes
    versions: Mapping[str, str]
    date: str
    memory: Memory | None = None
    lines: Mapping[tuple[str, int], str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    recorded: bool = False
