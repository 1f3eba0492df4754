"""Measurements that only a real TPU can give: run there, stored with their origin, shown elsewhere."""

import datetime
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .timing import Timing, seconds_text

STORED = Path(__file__).parent / "data" / "measured"
RECORD_TO = "TPULAB_RECORD"  # a folder; set by `tpulab record` while it runs the notebooks


@dataclass(frozen=True)
class Origin:
    """Where a measurement comes from.

    Args:
        chip: the device's kind, e.g. "TPU v5 lite".
        chips: how many of them.
        versions: of jax, jaxlib and libtpu.
        date: the day, ISO.
        commit: of the course, or "" outside a checkout.
        command: what was typed.
    """

    chip: str
    chips: int
    versions: Mapping[str, str]
    date: str
    commit: str
    command: str


@dataclass(frozen=True, repr=False)
class Measurement:
    """Named figures from a real TPU, or the plain statement that there are none.

    Args:
        name: which measurement, e.g. "jit".
        figures: label, unit included where it is a bare number → text.
        origin: where they come from; None when it was not measured.
    """

    name: str
    figures: Mapping[str, str]
    origin: Origin | None

    def __repr__(self) -> str:
        if self.origin is None:
            return "Not measured: there is no TPU here, and no measurement from one is stored with the course yet."
        lines = [f"{label}: {figure}" for label, figure in self.figures.items()]
        versions = ", ".join(f"{package} {version}" for package, version in self.origin.versions.items())
        source = f"(measured on {self.origin.chips} x {self.origin.chip}, {self.origin.date}, {versions})"
        return "\n".join([*lines, source])


def on_tpu(name: str, figures: Callable[[], Mapping[str, Timing | float]]) -> Measurement:
    """Measure on the TPU that is here, or show what was measured on one before.

    Args:
        name: under which the measurement is stored: the chapter's short name.
        figures: what to measure; called on a TPU only. Gives label → Timing or number.

    Returns:
        The measurement, which the notebook shows.

    Raises:
        ValueError: `name` is no plain word.

    Example:
        >>> on_tpu("nowhere", dict)
        Not measured: there is no TPU here, and no measurement from one is stored with the course yet.
    """
    import jax

    if not name.isidentifier():
        raise ValueError(f"a measurement's name is one word; got {name!r}")
    if jax.default_backend() != "tpu":
        return read(name)
    texts = {label: _text(value) for label, value in figures().items()}
    measurement = Measurement(name, texts, _origin())
    if folder := os.environ.get(RECORD_TO):
        write(measurement, Path(folder))
    return measurement


def read(name: str, folder: Path = STORED) -> Measurement:
    """Read a stored measurement; one that is not there is "not measured"."""
    path = folder / f"{name}.json"
    if not path.exists():
        return Measurement(name, {}, None)
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Measurement(name, stored["figures"], Origin(**stored["origin"]))


def write(measurement: Measurement, folder: Path) -> Path:
    """Store a measurement as a small JSON file and give its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{measurement.name}.json"
    path.write_text(json.dumps(asdict(measurement), indent=1) + "\n", encoding="utf-8")
    return path


def _text(value: Timing | float) -> str:
    if isinstance(value, Timing):
        return f"{seconds_text(value.median_s)} (median of {value.runs} runs)"
    return f"{value:.4g}"


def _origin() -> Origin:
    import jax

    versions = {}
    for package in ("jax", "jaxlib", "libtpu"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    devices = jax.devices()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Origin(devices[0].device_kind, len(devices), versions, today, _commit(), "tpulab record")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
