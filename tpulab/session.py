"""Which machine this is and which devices a notebook computes on."""

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

# PCI device numbers of TPU chips (vendor 0x1ae0, Google): v2 and v3 share one.
# Source: jax, jax/_src/hardware_utils.py, read 2026-11-30.
_GOOGLE = "0x1ae0"
_TPU_CHIPS = {
    "0x0027": "v2/v3",
    "0x0056": "v4i",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
}
_RESTART = "restart the kernel (JupyterLab: Kernel > Restart; Colab: Runtime > Restart session) and run this cell first"


@dataclass(frozen=True, repr=False)
class Session:
    """The devices a kernel has, as the first cell shows them.

    Args:
        count: how many devices.
        kind: what they are, e.g. "TPU v5 lite" or "cpu".
        simulated: they are several CPU devices that share this machine's cores.
        jax_version: the version in use.
        note: a line about what to do, or "".
    """

    count: int
    kind: str
    simulated: bool
    jax_version: str
    note: str = ""

    @property
    def devices(self) -> str:
        """The devices in words, e.g. "8 simulated devices (on this machine's CPU)"."""
        plural = "s" if self.count > 1 else ""
        if self.simulated:
            return f"{self.count} simulated device{plural} (all on this machine's CPU)"
        return f"{self.count} real device{plural} ({self.kind})"

    @property
    def speed(self) -> str:
        """What timings on these devices are worth."""
        if self.simulated:
            return "results are exact; their speed says nothing about a TPU"
        return "times are measured on this machine"

    def rows(self) -> list[tuple[str, str]]:
        """Give the table's rows."""
        rows = [("devices", self.devices), ("timing", self.speed), ("jax", self.jax_version)]
        return rows + ([("note", self.note)] if self.note else [])

    def __repr__(self) -> str:
        return "\n".join(f"{name:<8} {value}" for name, value in self.rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{value}</td></tr>"
            for name, value in self.rows()
        )
        return f"<table>{cells}</table>"


def setup(devices: int = 1, where: str | None = None) -> None:
    """Choose the devices of this kernel and print one small table that says which.

    With 1, the real chip where there is one, else the CPU. With more, the real chips if there are at
    least two, else that many simulated CPU devices, also beside a single chip. Also sets NPROC, so
    that a loop over simulated devices that never waits cannot abort the process, and the course's
    defaults for figures. Running it twice is harmless.

    Args:
        devices: how many; the environment variable TPULAB_DEVICES overrides a number above 1.
        where: "real" or "simulated" to insist.

    Raises:
        ValueError: `devices` below 1 or an unknown `where`.
    """
    if where not in (None, "real", "simulated"):
        raise ValueError(f'`where` is "real" or "simulated"; got {where!r}')
    if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= 512:
        raise ValueError(f"`devices` is a whole number from 1 to 512; got {devices!r}")
    if devices > 1:
        devices = int(os.environ.get("TPULAB_DEVICES") or devices)
    from . import compat, figures

    note = "" if compat.backend_has_started() else _choose(devices, where)
    session = _look(devices, where, note)
    figures.use_course_style()
    _show(session)


def tpu_chips() -> list[str]:
    """List the TPU chips on this machine's PCI bus, e.g. ["v5e"], without starting JAX."""
    found = []
    for folder in sorted(Path("/sys/bus/pci/devices").glob("*")):
        try:
            if (folder / "vendor").read_text().strip() == _GOOGLE:
                name = _TPU_CHIPS.get((folder / "device").read_text().strip())
                found += [name] if name else []
        except OSError:
            continue
    return found


def _choose(devices: int, where: str | None) -> str:
    """Set what JAX reads when its backend starts; returns a note for the table."""
    import jax

    chips = len(tpu_chips())
    simulated = where == "simulated" or (devices > 1 and where is None and chips < 2 and not _gpus())
    os.environ["NPROC"] = str(max(16, 2 * devices, int(os.environ.get("NPROC") or 0)))
    if simulated:
        jax.config.update("jax_num_cpu_devices", devices)
        # The first platform named is the default one; a chip beside it stays within reach.
        jax.config.update("jax_platforms", "cpu,tpu" if chips else "cpu")
    elif not chips and importlib.util.find_spec("libtpu") and not (jax.config.jax_platforms or _gpus()):
        # The TPU compiler is installed and no TPU is: looking for one would print warnings.
        jax.config.update("jax_platforms", "cpu")
    return ""


def _gpus() -> bool:
    return any(
        importlib.util.find_spec(name) for name in ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_rocm7_plugin")
    )


def _look(devices: int, where: str | None, note: str) -> Session:
    """Start the backend if it has not started, and say what is there."""
    import jax

    found = jax.devices()
    kind = found[0].device_kind
    platform = found[0].platform
    simulated = platform == "cpu" and len(found) > 1
    lacks_real = where == "real" and (platform == "cpu" or len(found) < devices)
    if lacks_real:
        note = f"{devices} real chip(s) were wanted; this machine has {len(tpu_chips())}"
    elif (where == "simulated" and platform != "cpu") or (platform == "cpu" and len(found) != devices):
        note = f"{devices} device(s) were wanted, but JAX had already started: {_RESTART}"
    elif devices == 1 and not tpu_chips() and "COLAB_TPU_ADDR" in os.environ:
        note = "a TPU runtime was chosen and no TPU was found: Runtime > Disconnect and delete, then connect again"
    return Session(len(found), kind, simulated, jax.__version__, note)


def _show(session: Session) -> None:
    """Print for a terminal, display for a notebook."""
    shell = sys.modules.get("IPython")
    if shell and shell.get_ipython() is not None:
        from IPython.display import display

        display(session)
    else:
        print(session)
