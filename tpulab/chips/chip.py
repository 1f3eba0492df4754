"""One chip of the table: plain numbers, each with its source and with what others say."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ..units import bytes_text, count_text, gib_text

_ALTERNATIVE = re.compile(r"(?P<value>[^\[]+?) \[(?P<sources>[^\]]+)\] ?(?P<remark>.*)")
_NEXT = re.compile(r"; (?=[^;\[]+ \[)")


@dataclass(frozen=True)
class Alternative:
    """What another source says about a figure.

    Args:
        value: its figure; text where the field is text.
        sources: keys of `tpulab.chips.sources()`.
        remark: e.g. why it differs, or "".
    """

    value: float | str
    sources: tuple[str, ...]
    remark: str = ""


@dataclass(frozen=True, repr=False)
class Chip:
    """A TPU or GPU as published; None is unknown, or a rate that the chip does not have.

    All figures are per chip, not per core or per JAX device. Bytes are counted: 16 GB is 16e9, 16 GiB is 17.2e9.

    Args:
        name: e.g. "TPU v5e".
        full_name: as the maker writes it.
        vendor: "Google" or "NVIDIA".
        kind: "TPU" or "GPU".
        jax_device_kind: what `jax.devices()[0].device_kind` says.
        jax_devices_per_chip: 2 where JAX shows each half of a chip as a device.
        naming_rule: what the number in a slice's name counts, "cores" (v5p-128 is 64 chips) or "chips".
        bf16_flops_per_s: peak of dense matrix products.
        int8_ops_per_s: the same for int8.
        fp8_flops_per_s: the same for fp8.
        hbm_bytes: size of HBM.
        hbm_bytes_per_s: bandwidth of HBM.
        onchip_bytes: VMEM; of a GPU, the L2 cache.
        mxu_dim: rows, and columns, of a matrix unit.
        mxus_per_chip: matrix units; of a GPU, Tensor Cores.
        cores_per_chip: TensorCores; of a GPU, SMs.
        clock_hz: cycles per second.
        torus_dims: dimensions of the torus in which chips are wired.
        links_per_chip: links to other chips.
        link_oneway_bytes_per_s: of one link, one direction.
        wrap_rule: when an axis of a slice closes to a ring.
        pod_chips: chips in a whole pod.
        pod_shape: how they stand.
        chips_per_host: chips that one machine holds.
        dcn_bytes_per_s_per_chip: network between hosts, shared evenly.
        price_usd_per_chip_hour: on demand, list price.
        confidence: of the whole row, and which fields are unverified.
        notes: what a reader must know.
    """

    name: str
    full_name: str
    vendor: str
    kind: str
    jax_device_kind: str
    jax_devices_per_chip: int
    naming_rule: str | None
    bf16_flops_per_s: float | None
    int8_ops_per_s: float | None
    fp8_flops_per_s: float | None
    hbm_bytes: int
    hbm_bytes_per_s: float
    onchip_bytes: int
    mxu_dim: int | None
    mxus_per_chip: int | None
    cores_per_chip: int | None
    clock_hz: float | None
    torus_dims: int | None
    links_per_chip: int | None
    link_oneway_bytes_per_s: float | None
    wrap_rule: str | None
    pod_chips: int | None
    pod_shape: str | None
    chips_per_host: int | None
    dcn_bytes_per_s_per_chip: float | None
    price_usd_per_chip_hour: float | None
    confidence: str
    notes: str
    _sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    _alternatives: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def short(self) -> str:
        """The name as people type it, e.g. "v5e", "7x", "H100"."""
        return self.name.removeprefix("TPU").strip()

    @property
    def unverified(self) -> tuple[str, ...]:
        """Fields whose figure nobody has checked against its first source."""
        _, _, names = self.confidence.partition("unverified: ")
        return tuple(filter(None, names.split(", ")))

    def source(self, name: str) -> str:
        """Say where a figure comes from; the words in capitals are keys of `tpulab.chips.sources()`.

        Raises:
            ValueError: no field has this name.
        """
        return self._sources.get(_known(name), "")

    def alternatives(self, name: str) -> tuple[Alternative, ...]:
        """Give what other sources say about a figure.

        Raises:
            ValueError: no field has this name.
        """
        cell = self._alternatives.get(_known(name), "")
        return tuple(_alternative(part) for part in _NEXT.split(cell) if part)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """List field, figure in words, source, and what others say, for every figure that has a source."""
        return [
            (one, self.text(one), self.source(one), self._alternatives.get(one, ""))
            for one in FIELDS
            if self.source(one)
        ]

    def text(self, name: str) -> str:
        """Write a figure with its unit; "unknown" for None. HBM and VMEM sizes are in GiB, rates decimal."""
        value = getattr(self, _known(name))
        if value is None:
            return "unknown"
        if name in ("hbm_bytes", "onchip_bytes"):
            return gib_text(value) if self.kind == "TPU" else bytes_text(value)
        if "bytes_per_s" in name:
            return f"{bytes_text(value)}/s"
        for end, unit in (("flops_per_s", "FLOP/s"), ("ops_per_s", "op/s"), ("_hz", "Hz")):
            if name.endswith(end):
                return count_text(value, unit)
        return f"${value:.4g}" if name.startswith("price") else f"{value}"

    def __repr__(self) -> str:
        lines = [f"{name:<26}{value:<22}{source}" for name, value, source, _ in self.rows()]
        return "\n".join([f"{self.name} ({self.full_name}); confidence: {self.confidence}", *lines])

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{word}</th>" for word in ("", self.name, "source", "others say"))
        body = "".join(
            f"<tr>{''.join(f'<td style=text-align:left>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self.rows()
        )
        notes = html.escape(f"Confidence: {self.confidence}. {self.notes}")
        return f"<table><tr>{head}</tr>{body}</table><p>{notes}</p>"


FIELDS = tuple(one.name for one in fields(Chip) if not one.name.startswith("_"))


def _known(name: str) -> str:
    if name not in FIELDS:
        raise ValueError(f"a chip has no field {name!r}; it has {', '.join(FIELDS)}")
    return name


def _alternative(text: str) -> Alternative:
    match = _ALTERNATIVE.fullmatch(text)
    if not match:
        raise ValueError(f"an alternative reads VALUE [SOURCE] remark; got {text!r}")
    try:
        value: float | str = float(match["value"])
    except ValueError:
        value = match["value"]
    return Alternative(value, tuple(one.strip() for one in match["sources"].split(",")), match["remark"])
