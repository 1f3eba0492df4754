"""What a machine needs for the course, one check each: what was found, and the remedy."""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYTHON_FIRST, PYTHON_LAST = (3, 11), (3, 13)  # tested from one to the other
MEMORY_GB = 1.0  # a kernel after work on 8 simulated devices holds about 0.3 GB; the rest is for JupyterLab
DISK_GB = 0.5
# What jupyter_client replaces by the Python that runs it.
_THIS_PYTHON = ("python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}")
_STEER_JAX = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "LIBTPU_INIT_ARGS")
_INSTALL = "pip install 'tpulab[lab]'"
_REBUILD = f"rebuild the environment (in a clone: make clean setup; elsewhere: {_INSTALL} in a fresh one)"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        name: what, e.g. "kernel".
        ok: True; False, which makes a machine not ready; None for what is not needed or not tried.
        found: in words; may name folders of this machine.
        remedy: what to do, or "".
        fact: the one number or word that goes into the code for an instructor; never a path or a name.
    """

    name: str
    ok: bool | None
    found: str
    remedy: str = ""
    fact: str | float | None = None


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Look at Python's version."""
    text = ".".join(map(str, version))
    span = f"{PYTHON_FIRST[0]}.{PYTHON_FIRST[1]} to {PYTHON_LAST[0]}.{PYTHON_LAST[1]}"
    if version[:2] < PYTHON_FIRST:
        return Check("python", False, f"{text}; the course needs {span}", f"install Python {span}", text)
    if version[:2] > PYTHON_LAST:
        return Check("python", None, f"{text}, untried: the course is tested on {span}", "", text)
    return Check("python", True, text, "", text)


def system() -> Check:
    """Name the operating system and processor; nothing about them makes a machine not ready."""
    kind = f"{platform.system()} {platform.machine()}"
    return Check("system", None if kind == "Darwin x86_64" else True, kind, _system_remedy(kind), kind)


def _system_remedy(kind: str) -> str:
    return "JAX is no longer built for Intel Macs; use Colab or a hub" if kind == "Darwin x86_64" else ""


def packages(first_cell: Mapping[str, Any]) -> list[Check]:
    """Look whether jax, jaxlib, flax and optax are there and can be imported."""
    rows = []
    for name in ("jax", "jaxlib", "flax", "optax"):
        version = version_of(name)
        broken = first_cell.get("broken", {}).get(name)
        if not version:
            rows.append(Check(name, False, "not installed", f"pip install {name}"))
        elif broken:
            rows.append(Check(name, False, f"{version}, cannot be imported: {broken}", _REBUILD, version))
        else:
            rows.append(Check(name, True, version, "", version))
    return rows


def versions_fit() -> Check:
    """Look whether every package has the versions of the others that it asks for."""
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        return Check("versions fit", None, "cannot tell: the package `packaging` is missing", _REBUILD)
    clashes = []
    for owner in ("tpulab", "jax", "jaxlib", "flax", "optax"):
        for text in _requirements_of(owner):
            need = Requirement(text)
            if need.marker and not need.marker.evaluate({"extra": ""}):
                continue
            have = version_of(need.name)
            if not have or not need.specifier.contains(have, prereleases=True):
                clashes.append(f"{owner} needs {need.name}{need.specifier}, found {have or 'none'}")
    if clashes:
        return Check("versions fit", False, "; ".join(clashes), _REBUILD, len(clashes))
    return Check("versions fit", True, "each package has what it asks for")


def devices(first_cell: Mapping[str, Any]) -> Check:
    """Look at the devices that a notebook's first cell finds."""
    if error := first_cell.get("error"):
        if "no answer" in error and _has_tpu():
            remedy = "restart the machine's other TPU programs, or set JAX_PLATFORMS=cpu"
        else:
            remedy = _REBUILD
            if steering := [name for name in _STEER_JAX if os.environ.get(name)]:
                remedy = f"unset {', '.join(steering)} and run `tpulab doctor` again; if that does not help, {_REBUILD}"
        return Check("devices", False, f"a notebook's first cell fails: {error}", remedy)
    kind = f"{first_cell['devices']} x {first_cell['kind']}"
    return Check("devices", True, f"{kind}; more are simulated when a chapter asks for them", "", kind)


def memory(available_gb: float | None = None) -> Check:
    """Look at the memory that is free, within a container's limit."""
    available_gb = _free_memory_gb() if available_gb is None else available_gb
    if available_gb is None:
        return Check("memory", None, "cannot tell: the package `psutil` is missing", _INSTALL)
    ok = available_gb >= MEMORY_GB
    remedy = "" if ok else f"close other programs or kernels: the course needs {MEMORY_GB:g} GB"
    return Check("memory", ok, f"{available_gb:.1f} GB free", remedy, round(available_gb, 1))


def cores() -> Check:
    """Count the processor cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count < 2:
        return Check("cores", None, "1: everything works, cells take longer than the course says", "", count)
    return Check("cores", True, str(count), "", count)


def compiler() -> Check:
    """Try the TPU compiler, which nobody needs: without it the course shows stored results."""
    if importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH"):
        from ..xla import compiler_problem

        version = version_of("libtpu") or "present"
        found, _, remedy = compiler_problem().partition("; ")
        if found:
            return Check("TPU compiler", None, f"{found}: stored results are shown", f"optional: {remedy}", version)
        return Check("TPU compiler", True, f"libtpu {version} compiles", "", version)
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return Check(
            "TPU compiler",
            None,
            "not here: stored results are shown",
            f"optional: {sys.executable} -m pip install '{_libtpu()}'",
        )
    live = "to run it live: WSL2 (on Windows), or a Colab CPU runtime with the libtpu that fits its jax"
    return Check("TPU compiler", None, "none for this system: stored results are shown", live)


def kaggle() -> list[Check]:
    """Say why Kaggle's notebooks cannot run the course."""
    if "KAGGLE_KERNEL_RUN_TYPE" not in os.environ:
        return []
    why = "not supported today: its image forces an older libtpu than the course's jax goes with"
    return [Check("kaggle", False, why, "use Colab or a laptop")]


def progress_folder() -> Check:
    """Look whether progress can be written where it is kept."""
    from ..learn import store

    remedy = "set TPULAB_HOME to a folder of yours"
    try:
        folder = store.home()
    except OSError as error:
        return Check("progress folder", False, str(error), remedy)
    made = [part for part in (folder, *folder.parents) if not _is_there(part)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"written by tpulab doctor")
            stream.flush()
    except OSError as error:
        why = f"{folder} cannot be written ({error.strerror or error})"
        return Check("progress folder", False, why, remedy)
    finally:
        for part in made:  # leave nothing behind
            with contextlib.suppress(OSError):  # not made, or not empty
                part.rmdir()
    return Check("progress folder", True, str(folder))


def jupyterlab(answer: Mapping[str, Any]) -> Check:
    """Look whether JupyterLab is there and can be imported; Colab has a page of its own."""
    if version := answer.get("version"):
        return Check("JupyterLab", True, version, "", version)
    if in_colab():
        return Check("JupyterLab", None, "not needed in Colab")
    error = answer["error"]
    if "No module named 'jupyterlab'" in error:
        return Check("JupyterLab", False, "not installed", _INSTALL)
    return Check("JupyterLab", False, f"cannot be started: {error}", _REBUILD)


def kernel(answer: Mapping[str, Any]) -> Check:
    """Look whether a notebook's kernel starts and is this Python."""
    runs = answer.get("executable") or answer.get("runs", "")
    prefix = answer.get("prefix")
    is_other = not _same_place(prefix, sys.prefix) if prefix else runs not in (*_THIS_PYTHON, sys.executable, "")
    error = answer.get("error", "")
    if is_other:
        found = f"python3 is another Python, {runs} ({answer['spec']}), not {sys.executable}"
        remedy = "open notebooks with `tpulab lab`, which takes this one, or remove the other: "
        return Check("kernel", False, found, f"{remedy}python -m jupyter kernelspec remove python3")
    if error:
        missing = "No module named" in error or "NoSuchKernel" in error
        return Check("kernel", False, f"does not start: {error}", _INSTALL if missing else _REBUILD)
    if not answer["tpulab"]:
        return Check("kernel", False, f"{runs} starts, but finds no tpulab", _REBUILD)
    return Check("kernel", True, f"starts, {runs}")


def disk(folder: Path | None = None) -> Check:
    """Look at the room on the disk where the learner's folder is, or would be."""
    folder = (folder or Path.home()).absolute()
    there = next(part for part in (folder, *folder.parents) if _is_there(part))
    free_gb = shutil.disk_usage(there).free / 1e9
    ok = free_gb >= DISK_GB
    remedy = "" if ok else f"free {DISK_GB:g} GB in your home folder"
    return Check("disk", ok, f"{free_gb:.1f} GB free", remedy, round(free_gb, 1))


def version_of(package: str) -> str:
    """Give an installed package's version, or ""."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def in_colab() -> bool:
    """Say whether this is a Colab runtime."""
    return "COLAB_RELEASE_TAG" in os.environ


def _requirements_of(package: str) -> list[str]:
    try:
        return importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _is_there(path: Path) -> bool:
    """Say whether a path exists; one that may not be looked at counts as missing."""
    try:
        return path.exists()
    except OSError:
        return False


def _has_tpu() -> bool:
    """Say whether the system shows a TPU's chips, by the names under which their drivers do."""
    return any(Path("/dev").glob("accel*")) or any(Path("/dev").glob("vfio/[0-9]*"))


def _libtpu() -> str:
    """Give the requirement by which the installed jax names its libtpu."""
    named = [text.split(";")[0].strip() for text in _requirements_of("jax") if text.startswith("libtpu")]
    return named[0] if named else "tpulab[tpu]"


def _free_memory_gb() -> float | None:
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    limits = [psutil.virtual_memory().available]
    if (limit := _container_free(Path("/sys/fs/cgroup"))) is not None:
        limits.append(limit)
    return max(0, min(limits)) / 1e9


def _container_free(group: Path) -> int | None:
    """Bytes left below a container's own limit, which psutil does not see; None where there is none."""
    try:
        used = int((group / "memory.current").read_text())
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int((group / "memory.max").read_text()) - used + int(cached.get("inactive_file", 0))
    except (OSError, ValueError):
        return None


def _same_place(one: str, other: str) -> bool:
    return os.path.normcase(Path(one).resolve()) == os.path.normcase(Path(other).resolve())
