"""Whether a TPU compiler works here: jax and libtpu, tried once in a process of their own."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..session import tpu_chips
from . import cache
from .errors import CompilerMissing

LIBRARY = "TPU_LIBRARY_PATH"
TRIAL_S = 300.0
# A TPU compiler alone looks for a TPU, a metadata server and a log folder, and locks other processes out.
_QUIET = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_TRIAL = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("one",))
whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
x = jax.ShapeDtypeStruct((128, 128), jnp.bfloat16, sharding=whole)
compiled = jax.jit(lambda x: jnp.tanh(x @ x)).lower(x).compile()
assert compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
print("it works")
"""


@dataclass(frozen=True)
class Pair:
    """A jax and a libtpu that are to work together.

    Args:
        jax: its version.
        jaxlib: its version.
        libtpu: its version; "" when the library does not say.
        library: the file.
    """

    jax: str
    jaxlib: str
    libtpu: str
    library: Path

    @property
    def key(self) -> str:
        """Tell this pair from every other, also from the same versions with another file."""
        stat = self.library.stat()
        parts = (self.jax, self.jaxlib, self.libtpu, sys.version, str(self.library), stat.st_size, stat.st_mtime_ns)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def versions() -> dict[str, str]:
    """Give the versions of jax, jaxlib and libtpu, those that are here."""
    found = {}
    for package in ("jax", "jaxlib"):
        found[package] = importlib.metadata.version(package)
    library = _library()
    if library and (version := _libtpu_version(library)):
        found["libtpu"] = version
    return found


def find() -> Pair:
    """Find the pair that would compile.

    Raises:
        CompilerMissing: there is no libtpu; says how to get one, or what to use instead.
    """
    library = _library()
    if library is None:
        raise CompilerMissing(f"no TPU compiler is installed here; {_how_to_get_one()}")
    if not library.is_file():
        raise CompilerMissing(f"{LIBRARY} names no file: {str(library)!r}; unset it or correct it")
    return Pair(
        importlib.metadata.version("jax"),
        importlib.metadata.version("jaxlib"),
        _libtpu_version(library),
        library,
    )


def prepare() -> Pair:
    """Make sure that a compiler works here, and that it stays quiet.

    The first time, a pair compiles something small in a process of its own, since a bad pair ends its
    process; the verdict is kept on disk.

    Raises:
        CompilerMissing: none does; says why and what to do.
    """
    pair = find()
    if not tpu_chips():
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
    if (loaded := _loaded()) and not loaded.samefile(pair.library):
        raise CompilerMissing(
            f"this process has already loaded another TPU library ({loaded}); restart the kernel and set {LIBRARY} "
            "before anything starts JAX"
        )
    if reason := _verdict(pair.key, pair.library):
        raise CompilerMissing(f"{_names(pair)} cannot compile here: {reason}; {_remedy(pair)}")
    return pair


def compiler_problem() -> str:
    """Say in one line why no TPU compiler works here, and what to do; "" where one does."""
    try:
        prepare()
    except CompilerMissing as missing:
        return str(missing)
    return ""


@functools.cache
def _verdict(key: str, library: Path) -> str:
    """Say why a pair does not work; "" when it does."""
    name = f"pair-{key}.json"
    if (stored := cache.read(name)) is not None:
        try:
            return str(json.loads(stored)["reason"])
        except (ValueError, KeyError, TypeError):
            pass
    reason, lasting = try_out(library)
    if lasting:
        cache.write(name, json.dumps({"reason": reason}).encode())
    elif reason:
        raise CompilerMissing(f"the TPU compiler's first try did not end well: {reason}; try again")
    return reason


def try_out(library: Path, timeout_s: float = TRIAL_S) -> tuple[str, bool]:
    """Compile something small in a process of its own.

    Returns:
        Why it failed, or ""; and whether the next try would end the same way.
    """
    if not sys.executable:
        return "", False
    # On a machine with a TPU this process may hold the library's lock; the trial only compiles, so it may share.
    env = {**_QUIET, **os.environ, LIBRARY: str(library), "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    try:
        run = subprocess.run(
            [sys.executable, "-c", _TRIAL], capture_output=True, text=True, errors="replace", env=env, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout_s:.0f} s", False
    except OSError as error:
        return f"no process could be started ({error})", False
    if run.returncode == 0 and "it works" in run.stdout:
        return "", True
    if run.returncode < 0:
        number = -run.returncode
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"the compiler ends its process ({name})", number not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    last = next((line for line in reversed(run.stderr.splitlines()) if re.match(r"\S*(Error|Exception)\b", line)), "")
    return last.strip().rstrip(".") or f"its process ended with status {run.returncode}", bool(last)


def _library() -> Path | None:
    """Find libtpu.so: where the environment says, else in the package."""
    if named := os.environ.get(LIBRARY):
        return Path(named)
    spec = importlib.util.find_spec("libtpu")
    folders = spec.submodule_search_locations if spec else None
    return Path(next(iter(folders))) / "libtpu.so" if folders else None


def _loaded(maps: Path = Path("/proc/self/maps")) -> Path | None:
    """Find the TPU library that this process holds: JAX loads one when it looks for a TPU, and only one."""
    try:
        names = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if line.endswith("libtpu.so")}
    except OSError:
        return None
    return next((path for path in map(Path, names) if path.is_file()), None)


def _libtpu_version(library: Path) -> str:
    """Read a library's version from what pip wrote beside its package."""
    for folder in library.parent.parent.glob("libtpu*.dist-info"):
        return folder.name.removesuffix(".dist-info").partition("-")[2]
    return ""


def _wanted_libtpu() -> str:
    """Give the libtpu that this jax was made for, as pip takes it, e.g. "libtpu==0.0.42.*"."""
    for requirement in importlib.metadata.requires("jax") or []:
        if requirement.startswith("libtpu"):
            return requirement.partition(";")[0].strip()
    return "libtpu"


def _how_to_get_one() -> str:
    """Say how this machine comes by a compiler."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return f"pip install '{_wanted_libtpu()}' (about 500 MB, under Google's own terms), then try again"
    if sys.platform == "win32":
        return "libtpu is for Linux on x86-64: use WSL2, or a Colab CPU runtime; compile_here works on this machine"
    return "libtpu is for Linux on x86-64: use a Colab CPU runtime; compile_here works on this machine"


def _names(pair: Pair) -> str:
    return f"jax {pair.jax} with libtpu {pair.libtpu or f'({pair.library})'}"


def _remedy(pair: Pair) -> str:
    """Say how to get a matching library without replacing anything."""
    wanted = _wanted_libtpu()
    if wanted.removeprefix("libtpu==").rstrip(".*") in pair.libtpu and not os.environ.get(LIBRARY):
        return "run `tpulab doctor`, or use a Colab CPU runtime; compile_here works on this machine"
    return (
        f"get the matching one beside it: pip install --target libtpu-side --no-deps '{wanted}', "
        f'then restart the kernel and begin with os.environ["{LIBRARY}"] = os.path.abspath("libtpu-side/libtpu/libtpu.so")'
    )
