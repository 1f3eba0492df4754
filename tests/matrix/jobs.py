"""What the matrix runs; each job gives a line about what it saw, or raises Failed or Skipped."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import tpulab

from . import environments
from .environments import ROOT, Failed, Skipped, run

# Test modules of the base package's own modules; its rooms' tests are found by their folders.
BASE_MODULES = ("session", "timing", "figures", "errors", "record", "compat")
FITS_COLAB = "0.0.23"  # the oldest libtpu that compiles with Colab's jax, whose own libtpu does not
# Platforms that nothing here runs on: pip's tags, the Python to ask for, and what markers see there.
PLATFORMS = {
    "macOS arm64": (
        [f"macosx_{major}_0_arm64" for major in (11, 12, 13, 14)],
        "3.13",
        {"sys_platform": "darwin", "platform_machine": "arm64", "os_name": "posix"},
    ),
    "Windows x86-64": (
        ["win_amd64"],
        "3.12",
        {"sys_platform": "win32", "platform_machine": "AMD64", "os_name": "nt"},
    ),
    "Linux aarch64": (
        [f"manylinux{tag}_aarch64" for tag in ("_2_28", "_2_27", "_2_17", "2014")],
        "3.11",
        {"sys_platform": "linux", "platform_machine": "aarch64", "os_name": "posix"},
    ),
}


def resolve_default_set(_runs: int) -> str:
    """The default set resolves as it stands on the Pythons that it is for; on this one it is installed."""
    run([sys.executable, "-m", "pip", "check"])
    here = f"3.{sys.version_info.minor}"
    with ThreadPoolExecutor() as pool:
        others = list(pool.map(_resolve, sorted({"3.11", "3.12", "3.13"} - {here})))
    return ", ".join([f"{here}: installed", *others])


def _resolve(version: str) -> str:
    python = environments.find(version)
    with tempfile.TemporaryDirectory() as folder:
        run([python, "-m", "venv", folder])
        report = Path(folder) / "report.json"
        command = [f"{folder}/bin/python", "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report)]
        run([*command, "-c", "requirements/lab.txt", ".[dev]"])
        listed = json.loads(report.read_text(encoding="utf-8"))["install"]
    names = {_normal(item["metadata"]["name"]) for item in listed}
    if free := names - set(environments.pins("lab")) - {"tpulab"}:
        raise Failed(f"Python {version}: requirements/lab.txt leaves {sorted(free)} free: renew it")
    return f"{version}: {len(names)} packages"


def resolve_other_platforms(_runs: int) -> str:
    """Each pinned package has a wheel on the platforms that nothing here runs on."""
    with ThreadPoolExecutor() as pool:
        return "wheels for " + ", ".join(pool.map(_find_wheels, PLATFORMS))


def _find_wheels(platform: str) -> str:
    from packaging.requirements import Requirement

    tags, version, markers = PLATFORMS[platform]
    here = markers | {"python_version": version, "python_full_version": f"{version}.0"}
    lines = (ROOT / "requirements" / "lab.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    fits = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(here)]
    wanted = [str(pin).split(";")[0] for pin in fits if not _runs_anywhere(pin.name)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--target", folder]
        command += ["--only-binary=:all:", "--python-version", version]
        command += [word for tag in tags for word in ("--platform", tag)]
        run([*command, *wanted])
    return f"{platform} with Python {version}: {len(fits)}, {len(wanted)} of them built for it"


def _runs_anywhere(name: str) -> bool:
    """Say whether a package came here as a wheel for every platform, so that none need be looked for."""
    try:
        return "py3-none-any" in (metadata.distribution(name).read_text("WHEEL") or "").replace("py2.", "")
    except metadata.PackageNotFoundError:
        return False


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def colab_first_cell(_runs: int) -> str:
    """On a fresh Colab set, the first cell installs tpulab from its tag and replaces nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environments.make(folder / "venv", "colab", tools=False)
        before = environments.installed(python)
        changes = _change_list(python, before, folder / "report.json")
        address = _published(folder / "course.git")
        _run_first_cell(python, folder, address)
        after = environments.installed(python)
        moved = {one: (before[one], after.get(one)) for one in before if after.get(one) != before[one]}
        if moved:
            raise Failed(f"the first cell changed what Colab has: {moved}")
        _came_from_tag(python, address)
    return f"changes: {changes}; first cell added {', '.join(sorted(set(after) - set(before)))}"


def _change_list(python: Path, before: dict[str, str], report: Path) -> str:
    """Resolve the checkout against an environment; gives what would be added."""
    command = [str(python), "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report), str(ROOT)]
    run(command)
    listed = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    named = {_normal(item["name"]): item["version"] for item in listed}
    if replaced := {name: (before[name], version) for name, version in named.items() if name in before}:
        raise Failed(f"installing tpulab would replace {replaced}")
    return "+ " + ", ".join(f"{name} {version}" for name, version in sorted(named.items()))


def _published(bare: Path) -> str:
    """Make a repository of the checkout's last commit with the version's tag; gives its address."""
    git = ["git", "-c", "safe.directory=*"]
    run([*git, "clone", "--quiet", "--bare", "--no-hardlinks", str(ROOT), str(bare)])
    run([*git, "-C", str(bare), "tag", "--force", f"v{tpulab.__version__}", "HEAD"])
    return bare.as_uri()


def _run_first_cell(python: Path, folder: Path, address: str) -> None:
    """Build the first chapter with an address stamped in and run its first code cell in an environment."""
    sys.path.insert(0, str(ROOT / "course"))
    import chapter
    import nbformat
    import notebook

    from tpulab.learn.bank import MODULES, bank

    path = min(chapter.CHAPTERS.glob("[0-9][0-9]_*.py"))
    one = next(one for one in map(bank, MODULES) if one.chapter.slug == path.stem)
    book = notebook.assemble(chapter.read(path), one, address=address)
    book.cells = [cell for cell in book.cells if cell.cell_type == "code"][:1]
    if address not in book.cells[0].source:
        raise Failed("the first cell does not name the course's address")
    nbformat.write(book, folder / "first.ipynb")
    code = (
        "import nbformat, nbclient; book = nbformat.read('first.ipynb', 4); "
        "nbclient.NotebookClient(book, timeout=300, kernel_name='python3').execute(); "
        "print(book.cells[0].outputs[-1])"
    )
    # The environment's own kernel: `python3` is found in its prefix first.
    shown = run([str(python), "-c", code], cwd=folder, env={"TPULAB_HOME": str(folder / "home")})
    if "device" not in shown:
        raise Failed(f"the first cell shows no devices: {shown[-500:]}")


def _came_from_tag(python: Path, address: str) -> None:
    code = "from importlib.metadata import distribution as d; print(d('tpulab').read_text('direct_url.json'))"
    origin = json.loads(run([str(python), "-c", code], cwd=Path(tempfile.gettempdir())))
    if origin["url"] != address or origin["vcs_info"]["requested_revision"] != f"v{tpulab.__version__}":
        raise Failed(f"tpulab came from {origin}")


def fresh_clone(_runs: int) -> str:
    """A clone in a folder with spaces and umlauts sets itself up, also after it was cut short, and is quick then."""
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name) / "my clön dir" / "course"
        run(["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)])
        env = {"TPU_COMPILER": "0", "TPULAB_HOME": str(Path(name) / "home")}
        _cut_short(clone, env)
        started = time.monotonic()
        run(["make", "setup"], cwd=clone, env=env)
        first = time.monotonic() - started
        started = time.monotonic()
        said = run(["make", "setup"], cwd=clone, env=env)
        again = time.monotonic() - started
        if "Already set up" not in said or "installing" in said:
            raise Failed(f"a second set-up took {again:.1f} s and said {said!r}")
        run([str(clone / ".venv/bin/tpulab"), "lab", "--work", "work", "--copy-only"], cwd=clone, env=env)
        handed = len(list((clone / "work").rglob("*.ipynb")))
        if handed != len(list((ROOT / "notebooks").glob("*.ipynb"))):
            raise Failed(f"{handed} notebooks were handed out")
        if run(["git", "status", "--porcelain"], cwd=clone).strip():
            raise Failed("setting up changed tracked files")
        run(["make", "clean"], cwd=clone)
        if (clone / ".venv").exists() or not (clone / "work").exists():
            raise Failed("make clean must take .venv and leave work/")
    return f"set up in {first:.0f} s after an interruption, again in {again:.1f} s; {handed} notebooks handed out"


def _cut_short(clone: Path, env: dict[str, str]) -> None:
    """Start a set-up and kill it while pip runs."""
    process = subprocess.Popen(
        ["make", "setup"],
        cwd=clone,
        env=environments.clean_environment() | env,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (clone / ".venv" / "setup.log").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def unit(name: str) -> Callable[[int], str]:
    """Make the job that runs the package's own tests on a version set, with a TPU compiler that fits its jax."""

    def job(_runs: int) -> str:
        python = environments.ensure(name)
        env = {"PYTHONPATH": str(ROOT)}
        if name == "colab":
            env["TPU_LIBRARY_PATH"] = str(environments.side_compiler(FITS_COLAB))
        rooms = [path.parent.name for path in (ROOT / "tpulab").glob("*/__init__.py")]
        places = [ROOT / "tests" / room for room in rooms if (ROOT / "tests" / room).is_dir()]
        places += [path for module in BASE_MODULES for path in (ROOT / "tests").glob(f"test_{module}*.py")]
        return _pytest(python, [str(path.relative_to(ROOT)) for path in places], env)

    return job


def colab_compiler(_runs: int) -> str:
    """Colab's own libtpu dies while it compiles and counts as absent; another one in a side folder serves."""
    python = environments.ensure("colab")
    code = "from tpulab import xla; print(xla.compiler_problem() or 'works')"
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        env = {"PYTHONPATH": str(ROOT), "TPULAB_CACHE": cache}
        found["own"] = run([str(python), "-c", code], env=env).strip()
        env["TPU_LIBRARY_PATH"] = str(environments.side_compiler(FITS_COLAB))
        found["side"] = run([str(python), "-c", code], env=env).strip()
    own = environments.pins("colab")["libtpu"].split("==")[1]
    if "\n" in found["own"] or own not in found["own"] or found["side"] != "works":
        raise Failed(f"said of Colab's own pair {found['own']!r}, of the one beside it {found['side']!r}")
    return f"{found['own']}; libtpu {FITS_COLAB} beside it works"


def wrong_answers_on_four(_runs: int) -> str:
    """Each wrong answer is told from the right one on four devices too."""
    return _pytest(Path(sys.executable), ["tests/learn/test_bank.py"], {"TPULAB_DEVICES": "4"})


def notebooks(name: str, devices: int | None = None) -> Callable[[int], str]:
    """Make the job that runs the instructor edition, where every check must say *correct*."""

    def job(_runs: int) -> str:
        python = Path(sys.executable) if name == "lab" else environments.ensure(name)
        with tempfile.TemporaryDirectory() as folder:
            run([sys.executable, "course/build.py", "--edition", "instructor", folder])
            paths = sorted(Path(folder).glob("*.ipynb"))
            if not paths:
                raise Failed("the instructor edition is empty")
            env = {"PYTHONPATH": str(ROOT), "NBGRADER_EXECUTION": "1", "PYTHONHASHSEED": "0"}
            env |= {"TPULAB_DEVICES": str(devices)} if devices else {}
            with ThreadPoolExecutor(2) as pool:
                cells = sum(pool.map(lambda path: _nbval(python, path, env), paths))
        return f"{len(paths)} notebooks, {cells} cells"

    return job


def _nbval(python: Path, path: Path, env: dict[str, str]) -> int:
    """Run one notebook; gives how many cells ran."""
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env"]
    command += ["--nbval-cell-timeout=120", "--nbval-kernel-startup-timeout=120", path.name]
    home = {"TPULAB_HOME": str(path.parent / f"home-{path.stem}")}
    return _passed(run(command, cwd=path.parent, env=env | home, minutes=15))


def pmap_loop(name: str) -> Callable[[int], str]:
    """Make the job that runs a loop over simulated devices that never waits, several times."""

    def job(runs: int) -> str:
        python = Path(sys.executable) if name == "lab" else environments.ensure(name)
        started = time.monotonic()
        for _ in range(runs):
            run([str(python), "tests/pmap_loop.py"], minutes=3, env={"PYTHONPATH": str(ROOT)})
        return f"{runs} of {runs} finished, {(time.monotonic() - started) / runs:.1f} s each"

    return job


def _pytest(python: Path, places: list[str], env: dict[str, str]) -> str:
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal", *places]
    return f"{_passed(run(command, env=env, minutes=20))} tests"


def _passed(output: str) -> int:
    found = re.search(r"(\d+) passed", output)
    if not found:
        raise Failed(f"nothing was tested:\n{output[-2000:]}")
    return int(found.group(1))


JOBS: dict[str, Callable[[int], str]] = {
    "resolve default set": resolve_default_set,
    "resolve other platforms": resolve_other_platforms,
    "fresh-clone": fresh_clone,
    "colab first cell": colab_first_cell,
    "compiler on Colab's pair": colab_compiler,
    "unit colab": unit("colab"),
    "unit newest": unit("newest"),
    "wrong answers on 4 devices": wrong_answers_on_four,
    "notebooks colab": notebooks("colab"),
    "notebooks newest": notebooks("newest"),
    "notebooks on 1 device": notebooks("lab", 1),
    "notebooks on 4 devices": notebooks("lab", 4),
    "pmap-loop lab": pmap_loop("lab"),
    "pmap-loop colab": pmap_loop("colab"),
    "pmap-loop newest": pmap_loop("newest"),
}
__all__ = ["JOBS", "Failed", "Skipped"]
