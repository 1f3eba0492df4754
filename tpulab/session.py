"""Which machine this is and which devices a notebook computes on."""

import html
import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import first_line

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
MAX_DEVICES = 512
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
        kind = "this machine's CPU" if self.kind == "cpu" else self.kind
        return f"{self.count} real device{plural} ({kind})"

    @property
    def speed(self) -> str:
        """What timings on these devices are worth."""
        if self.simulated:
            return "the same program, results equal up to rounding; their speed says nothing about a TPU"
        return "times are measured on this machine"

    def rows(self) -> list[tuple[str, str]]:
        """Give the table's rows."""
        rows = [("devices", self.devices), ("timing", self.speed), ("jax", self.jax_version)]
        return rows + ([("note", self.note)] if self.note else [])

    def __repr__(self) -> str:
        return "\n".join(f"{name:<8} {value}" for name, value in self.rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{html.escape(value)}</td></tr>"
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
        RuntimeError: JAX finds no device at all, e.g. with a JAX_PLATFORMS that names none.
    """
    if where not in (None, "real", "simulated"):
        raise ValueError(f'`where` is "real" or "simulated"; got {where!r}')
    if devices != 1:
        devices = _wanted(devices)
    from . import compat, figures

    if not compat.backend_has_started():
        _choose(devices, where)
    session = _look(devices, where)
    notes = (session.note, figures.use_course_style(), _flags())
    _show(replace(session, note="; ".join(filter(None, notes))))


def _wanted(devices: int) -> int:
    """Check the number of devices, or take the one that the environment insists on."""
    text = os.environ.get("TPULAB_DEVICES") or devices
    if isinstance(text, str) and text.isdecimal():
        text = int(text)
    if not isinstance(text, int) or isinstance(text, bool) or not 1 <= text <= MAX_DEVICES:
        name = "TPULAB_DEVICES" if os.environ.get("TPULAB_DEVICES") else "`devices`"
        raise ValueError(f"{name} is a whole number from 1 to {MAX_DEVICES}; got {text!r}")
    return text


def tpu_chips(bus: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """List the TPU chips on this machine's PCI bus, e.g. ["v5e"], without starting JAX."""
    found = []
    for folder in sorted(bus.glob("*")):
        try:
            if (folder / "vendor").read_text().strip() == _GOOGLE:
                name = _TPU_CHIPS.get((folder / "device").read_text().strip())
                found += [name] if name else []
        except OSError:
            continue
    return found


def _choose(devices: int, where: str | None) -> None:
    """Set what JAX reads when its backend starts."""
    import jax

    chips = len(tpu_chips())
    simulated = where == "simulated" or (devices > 1 and where is None and chips < 2 and not _gpus())
    os.environ["NPROC"] = str(max(_threads(devices), _nproc()))
    jax.config.update("jax_num_cpu_devices", devices if simulated else 1)
    if simulated:
        # The first platform named is the default one; a chip beside it stays within reach.
        jax.config.update("jax_platforms", "cpu,tpu" if chips else "cpu")
    elif not chips and not _gpus() and importlib.util.find_spec("libtpu") and not os.environ.get("JAX_PLATFORMS"):
        # The TPU compiler is installed and no TPU is: looking for one would print warnings.
        jax.config.update("jax_platforms", "cpu")


def _nproc() -> int:
    """Give NPROC as it is set; 0 when it is not, or is no number."""
    text = os.environ.get("NPROC", "")
    return int(text) if text.isdecimal() else 0


def _threads(devices: int) -> int:
    """How many threads XLA's CPU pool needs so that collectives of unfinished steps never starve.

    Measured: with fewer, a loop over 4 or 8 simulated devices that never waits often aborts the
    process on two cores; with this many it finished each time.
    """
    return max(16, 2 * devices)


def _gpus() -> bool:
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_rocm7_plugin")
    return any(importlib.util.find_spec(name) for name in plugins)


def no_device(error: RuntimeError) -> str:
    """Say why JAX did not start, and what to do."""
    chosen = os.environ.get("JAX_PLATFORMS", "")
    remedy = f"JAX_PLATFORMS is {chosen!r}: unset it and restart the kernel" if chosen else "run `tpulab doctor`"
    return f"JAX finds no device ({first_line(error)}); {remedy}"


def _look(devices: int, where: str | None) -> Session:
    """Start the backend if it has not started, and say what is there."""
    import jax

    try:
        found = jax.devices()
    except RuntimeError as error:
        raise RuntimeError(no_device(error)) from None
    on_cpu = found[0].platform == "cpu"
    simulated = on_cpu and (len(found) > 1 or where == "simulated")
    note = ""
    if where == "real" and (on_cpu or len(found) < devices):
        have = "none" if on_cpu else str(len(found))
        note = f"{devices} real were wanted and this machine has {have}; where=None takes simulated ones instead"
    elif (where == "simulated" and not on_cpu) or (on_cpu and len(found) != devices):
        wanted = "1 device was" if devices == 1 else f"{devices} devices were"
        note = f"{wanted} wanted, but JAX had already started with {len(found)}: {_RESTART}"
    elif simulated and _nproc() < _threads(len(found)):
        note = f"JAX had already started, and a loop that never waits may end this kernel: {_RESTART}"
    elif on_cpu and "COLAB_RELEASE_TAG" in os.environ and importlib.util.find_spec("libtpu"):
        note = (
            "no TPU was found; if you chose a TPU runtime: Runtime > Disconnect and delete runtime, then connect again"
        )
    return Session(len(found), found[0].device_kind, simulated, jax.__version__, note)


def _flags() -> str:
    """Name the flags that change what the cells show."""
    import jax

    on = [name for name in ("jax_disable_jit", "jax_debug_nans") if getattr(jax.config, name)]
    return f"cells show other things while {' and '.join(on)} is on; set it to False" if on else ""


def _show(session: Session) -> None:
    """Print for a terminal, display for a notebook."""
    shell = sys.modules.get("IPython")
    if shell and shell.get_ipython() is not None:
        from IPython.display import display

        display(session)
    else:
        print(session)
