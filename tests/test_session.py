"""setup() in fresh processes: each test starts its own JAX."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tpulab import session

SMALL = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "NPROC", "TPULAB_", "XLA_"))}

# As in pyproject.toml: Colab's matplotlib calls pyparsing by its old names.
WARNINGS = ["-W", "error"]
for module in ("_fontconfig_pattern", "_mathtext"):
    WARNINGS += ["-W", f"ignore::DeprecationWarning:matplotlib.{module}"]


def run(code: str, **environment: str) -> str:
    """Run code in a fresh Python and give what it printed."""
    done = subprocess.run(
        [sys.executable, *WARNINGS, "-c", textwrap.dedent(code)],
        env=SMALL | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("first", ["import tpulab, jax", "import jax, tpulab"])
def test_simulated_devices_whichever_is_imported_first(first):
    out = run(f"{first}; tpulab.setup(devices=5); print(jax.device_count(), jax.default_backend())")
    assert "5 simulated devices" in out
    assert "says nothing about a TPU" in out
    assert out.endswith("5 cpu\n")


def test_one_device_is_real():
    out = run("import tpulab; tpulab.setup(); import jax; print(jax.device_count())")
    assert "1 real device (this machine's CPU)" in out
    assert out.endswith("1\n")


def test_one_device_also_where_flags_ask_for_more():
    out = run("import tpulab; tpulab.setup()", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert "1 real device" in out


def test_twice_is_harmless():
    out = run("import tpulab; tpulab.setup(devices=3); tpulab.setup(devices=3)")
    assert out.count("3 simulated devices") == 2
    assert "note" not in out


def test_too_late_says_restart_in_one_line():
    # Where libtpu is installed and JAX starts before us, libtpu would speak up unless JAX is told not to look for a TPU.
    out = run("import tpulab, jax; jax.devices(); tpulab.setup(devices=4)", JAX_PLATFORMS="cpu")
    notes = [line for line in out.splitlines() if line.startswith("note")]
    assert len(notes) == 1
    assert "4 devices were wanted, but JAX had already started with 1" in notes[0]
    assert "Kernel > Restart" in notes[0]


def test_right_number_without_threads_says_restart():
    code = "import tpulab, jax; jax.config.update('jax_num_cpu_devices', 4); jax.devices(); tpulab.setup(devices=4)"
    out = run(code, JAX_PLATFORMS="cpu")
    assert "a loop that never waits may end this kernel" in out


def test_real_where_there_is_none_says_so():
    out = run("import tpulab; tpulab.setup(devices=2, where='real')")
    assert "2 real were wanted and this machine has none" in out


def test_environment_overrides_several_but_not_one():
    assert "4 simulated" in run("import tpulab; tpulab.setup(devices=8)", TPULAB_DEVICES="4")
    assert "1 real" in run("import tpulab; tpulab.setup()", TPULAB_DEVICES="4")


def test_nproc_is_set_and_never_lowered():
    code = "import os, tpulab; tpulab.setup(devices={}); print(os.environ['NPROC'])"
    assert run(code.format(2)).endswith("16\n")
    assert run(code.format(12)).endswith("24\n")
    assert run(code.format(2), NPROC="40").endswith("40\n")


def test_an_unknown_backend_of_matplotlib_is_a_note():
    code = "import tpulab; tpulab.setup(); import matplotlib.pyplot as plt; print(plt.subplots() and 'drawn')"
    out = run(code, MPLBACKEND="nonsense")
    assert "note     MPLBACKEND is 'nonsense', which matplotlib does not know" in out and out.endswith("drawn\n")
    out = run(code + "; print(plt.get_backend())", MPLBACKEND="svg")
    assert "note" not in out and out.endswith("svg\n")


def test_flags_that_change_what_cells_show_are_a_note():
    out = run("import tpulab; tpulab.setup()", JAX_DISABLE_JIT="1", JAX_DEBUG_NANS="1")
    assert out.count("note") == 1
    assert "while jax_disable_jit and jax_debug_nans is on; set it to False" in out


@pytest.mark.parametrize("devices", [0, -1, 1000, 2.0, "8 of them", True, None])
def test_wrong_devices(devices):
    if devices is True:  # True == 1 and asks for one device
        return
    with pytest.raises(ValueError, match=r"`devices` is a whole number from 1 to 512; got"):
        session.setup(devices)  # type: ignore[arg-type]


def test_wrong_environment(monkeypatch):
    monkeypatch.setenv("TPULAB_DEVICES", "many")
    with pytest.raises(ValueError, match="TPULAB_DEVICES is a whole number from 1 to 512; got 'many'"):
        session.setup(8)


def test_wrong_where():
    with pytest.raises(ValueError, match='`where` is "real" or "simulated"; got \'tpu\''):
        session.setup(where="tpu")


def fake_pci(folder: Path, *chips: tuple[str, str]) -> Path:
    for number, (vendor, device) in enumerate(chips):
        slot = folder / f"0000:00:{number:02x}.0"
        slot.mkdir(parents=True)
        (slot / "vendor").write_text(vendor + "\n")
        (slot / "device").write_text(device + "\n")
    (folder / "broken").mkdir(parents=True)
    return folder


def test_tpu_chips_are_read_from_the_pci_bus(tmp_path):
    bus = fake_pci(tmp_path / "bus", ("0x1ae0", "0x0063"), ("0x8086", "0x0063"), ("0x1ae0", "0x1234"))
    assert session.tpu_chips(bus) == ["v5e"]
    assert session.tpu_chips(tmp_path / "none") == []


def test_beside_one_chip_several_devices_are_simulated():
    """No chip here, so only what JAX is told can be looked at: the CPU first, the chip within reach."""
    code = """
    import jax
    from tpulab import session
    session.tpu_chips = lambda: {chips}
    session._choose({devices}, None)
    print(jax.config.jax_platforms, jax.config.values["jax_num_cpu_devices"])
    """
    assert run(code.format(chips=["v5e"], devices=8)) == "cpu,tpu 8\n"
    assert run(code.format(chips=["v5e"], devices=1)) == "None 1\n"
    assert run(code.format(chips=["v5e"] * 4, devices=8)) == "None 1\n"


def test_a_notebook_gets_a_table():
    shown = session.Session(4, "TPU v5 lite", False, "0.10.2", "a <tr>")
    assert shown._repr_html_().count("<tr>") == 4
    assert "4 real devices (TPU v5 lite)" in repr(shown)


def test_simulated_devices_promise_no_more_than_rounding_allows():
    assert "results equal up to rounding; their speed says nothing" in repr(session.Session(8, "cpu", True, "0.10.2"))


def test_unsynchronized_loop_finishes():
    script = Path(__file__).with_name("pmap_loop.py")
    assert run(script.read_text(encoding="utf-8")).endswith("300 steps finished\n")
