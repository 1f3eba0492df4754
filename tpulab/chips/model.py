"""The roofline model: does arithmetic bind, or does memory?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..timing import seconds_text
from ..units import bytes_text, count_text
from .ceilings import Ceilings, of_chip
from .chip import Chip
from .registry import get

if TYPE_CHECKING:
    from ..figures import Picture


@dataclass(frozen=True, repr=False)
class Roofline:
    """A program against two ceilings; every time in it is modelled.

    Args:
        name: of the program.
        flops: that it does.
        hbm_bytes: to and from HBM.
        ceilings: of the machine.
    """

    name: str
    flops: float
    hbm_bytes: float
    ceilings: Ceilings

    @property
    def intensity_flops_per_byte(self) -> float:
        """FLOPs for each byte that crosses."""
        return self.flops / self.hbm_bytes if self.hbm_bytes else math.inf

    @property
    def ridge_flops_per_byte(self) -> float:
        """The machine's intensity: below it memory binds, above it arithmetic."""
        return self.ceilings.ridge_flops_per_byte

    @property
    def compute_s(self) -> float:
        """Seconds of arithmetic at the peak."""
        return self.flops / self.ceilings.flops_per_s

    @property
    def memory_s(self) -> float:
        """Seconds in which the bytes cross at full bandwidth."""
        return self.hbm_bytes / self.ceilings.bytes_per_s

    @property
    def bound(self) -> str:
        """Which ceiling binds, "memory" or "compute"."""
        return "memory" if self.memory_s > self.compute_s else "compute"

    @property
    def seconds(self) -> float:
        """The shortest time: the longer of the two, as if they overlapped fully."""
        return max(self.compute_s, self.memory_s)

    @property
    def attainable_flops_per_s(self) -> float:
        """The rate at that time."""
        return self.flops / self.seconds

    def figure(self) -> Picture:
        """Draw it."""
        from .diagram import plot

        return plot(self)

    def __repr__(self) -> str:
        intensity, ridge = ratio_text(self.intensity_flops_per_byte), ratio_text(self.ridge_flops_per_byte)
        return (
            f"{self.name} on {self.ceilings.name}, {self.ceilings.dtype}: {self.bound}-bound (modelled)\n"
            f"intensity {intensity} FLOP/byte, ridge {ridge} FLOP/byte\n"
            f"arithmetic {seconds_text(self.compute_s)} for {count_text(self.flops, 'FLOP')}, "
            f"memory {seconds_text(self.memory_s)} for {bytes_text(self.hbm_bytes)}\n"
            f"at least {seconds_text(self.seconds)}, at most {count_text(self.attainable_flops_per_s, 'FLOP/s')}"
        )


def roofline(x: Any, chip: str | Chip | Ceilings, *, dtype: str | None = None, name: str = "") -> Roofline:
    """Set a program's FLOPs and bytes against what a chip can do.

    t = max(F / P, B / W) with F FLOPs, B bytes to and from HBM, P the peak and W the bandwidth: nothing else costs
    time, and arithmetic and transfers overlap. No run is faster.

    Args:
        x: anything with `.flops` and `.hbm_bytes`, e.g. a compiled program or one of its kernels; or the two numbers.
        chip: a name, a chip, or ceilings that were measured. A compiled program counts one JAX device, and is set
            against one (half a chip on v2, v3 and 7x); two numbers are set against the whole chip.
        dtype: of the arithmetic; "bf16" by default, "int8" or "fp8". Measured ceilings have their own.
        name: what to call it in figures; by default its own name.

    Raises:
        ValueError: FLOPs or bytes are unknown or negative, or the chip or its peak is.
        TypeError: `x` has neither.

    Example:
        >>> one = roofline((2 * 8 * 4096 * 4096, 2 * (8 * 4096 + 4096 * 4096 + 8 * 4096)), "v5e")
        >>> one.bound, f"{one.seconds * 1e6:.1f} us"
        ('memory', '41.1 us')

    Source: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52(4), 2009.
    """
    flops, hbm_bytes = _work(x)
    name = name or str(getattr(x, "name", "")) or "program"
    if isinstance(chip, Ceilings):
        if dtype not in (None, chip.dtype):
            raise ValueError(f"these ceilings were measured in {chip.dtype}; got dtype={dtype!r}")
        return Roofline(name, flops, hbm_bytes, chip)
    return Roofline(name, flops, hbm_bytes, of_chip(get(chip), dtype or "bf16", per_device=hasattr(x, "devices")))


def ratio_text(flops_per_byte: float) -> str:
    """Write an intensity with three figures.

    Example:
        >>> ratio_text(240.24), ratio_text(2341.2), ratio_text(0.5)
        ('240', '2,340', '0.5')
    """
    return f"{float(f'{flops_per_byte:.3g}'):,.10g}"


def _work(x: Any) -> tuple[float, float]:
    """Take FLOPs and bytes out of what was given."""
    if hasattr(x, "flops") and hasattr(x, "hbm_bytes"):
        flops, hbm_bytes = x.flops, x.hbm_bytes
    elif isinstance(x, (tuple, list)) and len(x) == 2:
        flops, hbm_bytes = x
    else:
        raise TypeError(f"`x` has .flops and .hbm_bytes, or is the pair (flops, bytes); got {type(x).__name__}")
    for what, value in (("FLOPs", flops), ("bytes to and from HBM", hbm_bytes)):
        if value is None:
            whose = getattr(x, "name", "") or "this program"
            raise ValueError(f"the {what} of {whose} are unknown; give your own count: roofline((flops, bytes), chip)")
        if isinstance(value, str) or not value >= 0 or value == math.inf:
            raise ValueError(f"{what} are a number, 0 or more; got {value!r}")
    if not flops and not hbm_bytes:
        raise ValueError("a program with 0 FLOPs and 0 bytes has no place on a roofline")
    return float(flops), float(hbm_bytes)
