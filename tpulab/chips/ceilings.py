"""The two ceilings of a roofline: how fast a machine computes and how fast its memory delivers."""

from dataclasses import dataclass

from ..units import bytes_text, count_text
from .chip import Chip

# What people call a number type, and the column with its peak.
_PEAKS = {"bf16": "bf16_flops_per_s", "int8": "int8_ops_per_s", "fp8": "fp8_flops_per_s"}
_ALSO = {"bfloat16": "bf16", "s8": "int8", "i8": "int8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "f8": "fp8"}


@dataclass(frozen=True, repr=False)
class Ceilings:
    """Peak arithmetic and memory bandwidth of one machine.

    Args:
        name: of the machine, e.g. "TPU v5e" or "this machine (cpu)".
        flops_per_s: peak FLOP/s, or op/s of integers.
        bytes_per_s: bandwidth of the large memory (HBM, or a laptop's DRAM).
        dtype: the number type that the peak holds for.
        origin: "published" or "measured".
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    dtype: str
    origin: str = "published"

    @property
    def ridge_flops_per_byte(self) -> float:
        """The intensity at which both ceilings meet; below it memory binds."""
        return self.flops_per_s / self.bytes_per_s

    def __repr__(self) -> str:
        return (
            f"{self.name}: {count_text(self.flops_per_s, 'FLOP/s')} in {self.dtype}, {bytes_text(self.bytes_per_s)}/s, "
            f"ridge {self.ridge_flops_per_byte:.3g} FLOP/byte ({self.origin})"
        )


def of_chip(chip: Chip, dtype: str = "bf16", *, per_device: bool = False) -> Ceilings:
    """Take a chip's ceilings from the table.

    Args:
        chip: as `tpulab.chips.get` gives it.
        dtype: "bf16", "int8" or "fp8".
        per_device: of one of the devices that JAX shows; half a chip where it shows two (v2, v3, 7x).

    Raises:
        ValueError: the table has no peak for this number type.
    """
    dtype = _ALSO.get(dtype, dtype)
    if dtype not in _PEAKS:
        raise ValueError(f"the table has peaks for {', '.join(_PEAKS)}; got dtype={dtype!r}")
    peak = getattr(chip, _PEAKS[dtype])
    if peak is None:
        have = ", ".join(one for one, field in _PEAKS.items() if getattr(chip, field) is not None)
        raise ValueError(f"the {dtype} peak of {chip.name} is unknown ({chip.source(_PEAKS[dtype])}); known: {have}")
    share = chip.jax_devices_per_chip if per_device else 1
    name = chip.name if share == 1 else f"one of the {share} devices of {chip.name}"
    return Ceilings(name, peak / share, chip.hbm_bytes_per_s / share, dtype)
