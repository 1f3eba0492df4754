"""The version sets as virtual environments, made once and kept until their lists change."""

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import bootstrap

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONTINUOUS = os.environ.get("CI") == "true"

PYTHONS = {"colab": ("3.13",), "newest": ("3.13", "3.12")}
# What Colab has installed of what a notebook of the course can touch, beside the base dependencies.
COLAB_HAS = [
    "ipykernel",
    "ipython",
    "nbclient",
    "nbconvert",
    "nbformat",
    "notebook",
    "jupytext",
    "libtpu",
    "orbax-checkpoint",
    "pandas",
    "psutil",
    "rich",
]
TEST_TOOLS = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "nbval"]


class Failed(Exception):
    """A job's answer is no."""


class Skipped(Exception):
    """A job cannot run here; under CI=true that is a failure."""


def run(command: list[str], *, cwd: Path = ROOT, minutes: float = 10, env: dict[str, str] | None = None) -> str:
    """Run a command to its end and give what it prints.

    Raises:
        Failed: it failed or took longer; with its last lines.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=clean_environment() | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=minutes * 60,
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout if isinstance(late.stdout, bytes) else b""
        raise Failed(f"{_words(command)}: not done after {minutes:.0f} min\n{_tail(output.decode())}") from None
    if done.returncode:
        raise Failed(f"{_words(command)}: exit status {done.returncode}\n{_tail(done.stdout)}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Give the environment without what a test run or an active virtual environment put there."""
    drop = ("TPULAB_", "JAX_", "XLA_", "PYTEST_", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "NBGRADER_", "NPROC")
    drop += ("TPU_", "MAKE", "MFLAGS")  # what an outer make hands down
    return {key: value for key, value in os.environ.items() if not key.startswith(drop)}


def find(*versions: str) -> str:
    """Find a Python of the first of some versions that is there.

    Raises:
        Skipped: none is.
    """
    for version in versions:
        if found := bootstrap.find_python(version):
            return found
    raise Skipped(f"no Python {' or '.join(versions)} on PATH or among pyenv's and uv's")


def pins(name: str) -> dict[str, str]:
    """Read a version set as {"package": "package==version"}, names in lower case with dashes."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    found = [line.split(";")[0].strip() for line in lines if line and not line.startswith("#")]
    return {pin.split("==")[0].lower().replace("_", "-"): pin for pin in found}


def colab_packages(*, tools: bool) -> list[str]:
    """List what to install for the Colab set; what Colab lacks comes in the default set's versions, with `tools` only."""
    have, default = pins("colab"), pins("lab")
    wanted = [_name(one) for one in PROJECT["dependencies"]] + COLAB_HAS + (TEST_TOOLS if tools else [])
    return [one if one in have else default[one] for one in wanted if one in have or tools]


def make(folder: Path, name: str, *, tools: bool = True) -> Path:
    """Make a set's environment in a folder and give its Python.

    Raises:
        Skipped: the Python for it is missing.
        Failed: pip could not.
    """
    base = find(*PYTHONS[name])
    python = folder / "bin" / "python"
    constraint = ["-c", f"requirements/{name}.txt"]
    run([base, "-m", "venv", "--clear", str(folder)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if name == "colab":
        run([*install, pins("colab")["pip"], pins("colab")["setuptools"]])
        run([*install, *constraint, *colab_packages(tools=tools)])
    else:
        run([*install, *constraint, "-e", ".[dev,tpu]"])
    return python


def ensure(name: str) -> Path:
    """Give the Python of `.venv-<name>`, made if it is missing or its list has changed."""
    folder = ROOT / f".venv-{name}"
    stamp = folder / "matrix.json"
    texts = [(ROOT / place).read_text(encoding="utf-8") for place in ("pyproject.toml", f"requirements/{name}.txt")]
    wanted = {
        "inputs": hashlib.sha256("".join([*texts, Path(__file__).read_text(encoding="utf-8")]).encode()).hexdigest(),
        "root": str(ROOT),
    }
    python = folder / "bin" / "python"
    if python.exists() and stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == wanted:
        return python
    made = make(folder, name)
    stamp.write_text(json.dumps(wanted), encoding="utf-8")
    return made


def side_compiler(version: str) -> Path:
    """Give the library of another libtpu, installed into a folder of its own beside Colab's environment."""
    folder = ensure("colab").parent.parent / f"libtpu-{version}"
    library = folder / "libtpu" / "libtpu.so"
    if not library.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*install, "--target", str(folder), f"libtpu=={version}"])
    return library


def installed(python: Path) -> dict[str, str]:
    """Give the packages of an environment and their versions."""
    text = run([str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"])
    listed = json.loads(text[text.index("[") : text.rindex("]") + 1])
    return {item["name"].lower().replace("_", "-"): item["version"] for item in listed}


def _name(requirement: str) -> str:
    from packaging.requirements import Requirement

    return Requirement(requirement).name.lower().replace("_", "-")


def _words(command: list[str]) -> str:
    return " ".join(command)[:200]


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-40:])
