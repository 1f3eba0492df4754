"""The chips that are known, by every name that people give them."""

import csv
import math
import re
import typing
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .chip import FIELDS, Chip

DATA = Path(__file__).parent.parent / "data" / "chips"
_RATES = ("bf16_flops_per_s", "int8_ops_per_s", "fp8_flops_per_s")
_NICKNAMES = {
    "v4p": "v4",
    "v5lite": "v5e",
    "v5litepod": "v5e",
    "v5": "v5p",
    "v6lite": "v6e",
    "trillium": "v6e",
    "v7": "7x",
    "v7x": "7x",
    "ironwood": "7x",
    "a100sxm480gb": "a10080",
    "a10080gb": "a10080",
    "h10080gbhbm3": "h100",
    "h10080gb": "h100",
    "h100sxm": "h100",
}
_SLICE = re.compile(r"(?P<chip>.+?)(?P<sign>[-:])(?P<size>\d{1,6}(?:x\d{1,6})*)")


@lru_cache(maxsize=1)
def all() -> tuple[Chip, ...]:
    """Give every chip of the table."""
    with (DATA / "chips.csv").open(encoding="utf-8", newline="") as stream:
        return tuple(_chip(row) for row in csv.DictReader(stream))


def names() -> tuple[str, ...]:
    """Give the short names, e.g. "v5e"."""
    return tuple(chip.short for chip in all())


@lru_cache(maxsize=1)
def sources() -> Mapping[str, str]:
    """Say what the words in capitals stand for that sources are named by."""
    with (DATA / "sources.csv").open(encoding="utf-8", newline="") as stream:
        return MappingProxyType({row["key"]: row["source"] for row in csv.DictReader(stream)})


def get(name: Any) -> Chip:
    """Find a chip by what anybody calls it.

    Args:
        name: a short name (v5e), what JAX says ("TPU v5 lite"), a slice ("v5litepod-16", "v5p-128", "v5e:2x2"),
            a JAX device, or a chip.

    Raises:
        ValueError: no chip is called so; lists those that are known.

    Example:
        >>> get("TPU v5 lite").hbm_bytes == get("v5litepod-16").hbm_bytes == 16 * 2**30
        True
    """
    if isinstance(name, Chip):
        return name
    name = getattr(name, "device_kind", name)
    if isinstance(name, str):
        found = _by_name().get(_squeezed(name))
        if not found and (match := _SLICE.fullmatch(name.strip())):
            found = _by_name().get(_squeezed(match["chip"]))
            found = found if found and found.kind == "TPU" else None
        if found:
            return found
    raise ValueError(f"no chip is called {name!r}; known are {', '.join(names())}{_hint(name)}")


def slice_chips(name: str) -> int:
    """Count the chips of a slice by its name, which for some generations counts cores.

    Example:
        >>> slice_chips("v5p-128"), slice_chips("v5litepod-16"), slice_chips("v5p:4x4x4")
        (64, 16, 64)

    Raises:
        ValueError: no slice is called so.
    """
    match = _SLICE.fullmatch(name.strip()) if isinstance(name, str) else None
    chip = get(match["chip"]) if match else None
    if not match or not chip or chip.kind != "TPU":
        raise ValueError(f'a slice is named like "v5p-128", "v5litepod-16" or "v5e:2x2"; got {name!r}')
    sizes = [int(size) for size in match["size"].split("x")]
    per_chip = (chip.cores_per_chip or 1) if len(sizes) == 1 and chip.naming_rule == "cores" else 1
    if min(sizes) < 1 or sizes[-1] % per_chip:
        raise ValueError(f"{name!r}: the number counts {chip.naming_rule}, {per_chip} to a chip; give a multiple of it")
    if math.prod(sizes) // per_chip > (chip.pod_chips or math.inf):
        raise ValueError(f"{name!r}: a whole pod of {chip.name} has {chip.pod_chips} chips")
    return math.prod(sizes) // per_chip


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, Chip]:
    found = {}
    for chip in all():
        found |= {_squeezed(one): chip for one in (chip.short, chip.name, chip.jax_device_kind)}
    return found | {nickname: found[short] for nickname, short in _NICKNAMES.items()}


def _squeezed(name: str) -> str:
    """Leave out what people write or do not: case, spaces, signs, the maker."""
    bare = re.sub(r"[\s_-]", "", name.lower())
    return re.sub(r"^(google)?(cloud)?(tpu)?(nvidia)?", "", bare)


def _hint(name: object) -> str:
    if isinstance(name, str) and name.strip().lower() == "cpu":
        return "; tpulab.chips.ceilings_here() measures this machine"
    return ' (also as "TPU v5 lite", "v5litepod-16", "tpu7x")'


def _chip(row: Mapping[str, str]) -> Chip:
    values = {name: _value(name, row[name]) for name in FIELDS}
    told = {name: row.get(f"{name}_source", "") for name in FIELDS}
    for name in _RATES:
        if row[name] == "0":  # 0 in these sources is no rate: "not available in that file"
            told[name] += ": gives 0, which stands for no native rate; unknown here"
    others = {name: row.get(f"{name}_alt", "") for name in FIELDS}
    return Chip(**values, _sources=told, _alternatives=others)


def _value(name: str, cell: str) -> Any:
    """Read a cell as the field's type; empty is unknown, and so is a rate of 0."""
    kinds = _kinds()[name]
    if not cell or (name in _RATES and cell == "0"):
        return None
    return int(cell) if int in kinds else float(cell) if float in kinds else cell


@lru_cache(maxsize=1)
def _kinds() -> Mapping[str, tuple[type, ...]]:
    return {name: typing.get_args(kind) or (kind,) for name, kind in typing.get_type_hints(Chip).items()}
