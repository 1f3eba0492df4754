"""The package as others install it: light to import, whole in a wheel, described once."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tomllib
import types
import zipfile
from pathlib import Path

import pytest
import yaml

import tpulab

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOUND = [info for info in pkgutil.walk_packages(tpulab.__path__, "tpulab.") if not info.name.endswith("__main__")]
MODULES = sorted(info.name for info in FOUND)
PACKAGES = ["tpulab", *(info.name for info in FOUND if info.ispkg)]


def python(code: str, *, path: Path = ROOT, **environment: str) -> str:
    """Run code in a fresh Python that finds tpulab in `path`; gives what it prints."""
    env = os.environ | {"PYTHONPATH": str(path)} | environment
    done = subprocess.run([sys.executable, "-c", code], cwd=path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light():
    heavy = "jax jaxlib numpy matplotlib flax optax sklearn IPython ipywidgets typer"
    code = f"import sys, tpulab; dir(tpulab); print(*[name for name in {heavy.split()} if name in sys.modules])"
    assert python(code) == ""


def test_bank_starts_no_backend():
    code = (
        "from tpulab.learn.bank import banks; banks(); from tpulab import compat; print(compat.backend_has_started())"
    )
    assert python(code) == "False"


def test_each_module_imports_first():
    code = f"""
import importlib, sys
for name in {MODULES}:
    for loaded in [one for one in sys.modules if one.split(".")[0] == "tpulab"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""
    python(code)


def test_public_names_after_every_module_is_loaded():
    for name in MODULES:
        importlib.import_module(name)
    for name in tpulab.__all__ * 2:
        value = getattr(tpulab, name)
        wanted = types.ModuleType if name in tpulab._ROOMS else types.FunctionType | type
        assert isinstance(value, wanted), f"tpulab.{name} is {value!r}"
    assert set(tpulab.__all__) <= set(dir(tpulab))
    with pytest.raises(AttributeError, match="it offers check, "):
        tpulab.no_such_name  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_function_is_named_like_a_module(package):
    module = importlib.import_module(package)
    rooms = {info.name for info in pkgutil.iter_modules(module.__path__)} - set(getattr(module, "_ROOMS", ()))
    public = set(getattr(module, "__all__", ())) | {
        name for name, value in vars(module).items() if isinstance(value, types.FunctionType | type)
    }
    assert not public & rooms


def test_public_names_have_docstrings():
    assert not [name for name in tpulab.__all__ if not (getattr(tpulab, name).__doc__ or "").strip()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel from the checkout, without network."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Install the wheel alone into a folder of its own, beside nothing of the checkout."""
    folder = tmp_path_factory.mktemp("with spaces and ü") / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(folder), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_wheel_carries_notebooks_and_data(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    notebooks = {f"tpulab/notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks, "there are no notebooks to carry"
    assert notebooks <= inside
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tpulab").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert package <= inside
    extra = {name for name in inside - package - notebooks if ".dist-info/" not in name}
    assert not extra, "a wheel carries the package and the notebooks, nothing else"


def test_wheel_alone_hands_out_the_course(installed, tmp_path):
    before = {path for path in installed.rglob("*") if "__pycache__" not in path.parts}
    env = os.environ | {"PYTHONPATH": str(installed), "TPULAB_HOME": str(tmp_path / "home")}
    where = subprocess.run(
        [sys.executable, "-c", "import tpulab; print(tpulab.__file__)"], env=env, cwd=tmp_path, capture_output=True, text=True
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(installed)
    work = tmp_path / "my work"
    command = [sys.executable, "-m", "tpulab", "lab", "--work", str(work), "--copy-only"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    handed = {path.name for path in work.rglob("*.ipynb")}
    assert handed == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    for path in work.rglob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path.name
    # The package folder may be read-only or shared by a whole hub.
    assert {path for path in installed.rglob("*") if "__pycache__" not in path.parts} == before


def test_wheel_alone_runs_a_check(installed, tmp_path):
    code = "import tpulab; print(tpulab.__file__); print(len(tpulab.learn.exercises()))"
    where, count = python(code, path=installed, TPULAB_HOME=str(tmp_path)).splitlines()
    assert Path(where).is_relative_to(installed)
    assert int(count) == len(tpulab.learn.exercises())


def names(requirements: list[str]) -> set[str]:
    """Reduce requirements to what pip calls their packages."""
    from packaging.requirements import Requirement

    return {Requirement(text).name.lower().replace("_", "-") for text in requirements}


def test_conda_environment_agrees_with_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge"]
    *conda, last = environment["dependencies"]
    assert [text.split("=")[0].split(">")[0] for text in conda] == ["python", "pip"]
    assert last == {"pip": ["-c requirements/lab.txt", "-e .[lab]"]}
    assert "lab" in PROJECT["optional-dependencies"]
    wanted = conda[0].removeprefix("python")
    assert wanted.startswith(PROJECT["requires-python"])


@pytest.mark.parametrize("name", ["lab", "newest", "colab"])
def test_version_sets_are_names_and_versions_only(name):
    from packaging.requirements import Requirement

    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(pin.url is None and not pin.extras for pin in pins)
    assert all([one.operator for one in pin.specifier] == ["=="] for pin in pins)
    assert len({pin.name for pin in pins}) == len(pins), "a package has one version for every Python"
    found = names([str(pin) for pin in pins])
    assert not [one for one in found if one.startswith(("torch", "nvidia", "jax-cuda", "jax-rocm", "triton"))]
    base = names(PROJECT["dependencies"])
    extras = set().union(*(names(PROJECT["optional-dependencies"][extra]) for extra in ("lab", "tpu", "dev")))
    wanted = {"lab": base | extras, "newest": base | extras, "colab": base - {"filelock"}}[name] - {"tpulab"}
    assert wanted <= found, f"requirements/{name}.txt leaves {sorted(wanted - found)} free: renew it"


def test_version_sets_fit_the_declared_bounds():
    from packaging.requirements import Requirement

    for name in ("lab", "newest", "colab"):
        lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        pinned = {pin.name: next(iter(pin.specifier)).version for pin in map(Requirement, filter(_is_pin, lines))}
        for bound in map(Requirement, PROJECT["dependencies"]):
            assert bound.name not in pinned or bound.specifier.contains(pinned[bound.name]), (name, str(bound))


def _is_pin(line: str) -> bool:
    return not line.startswith("#")


def test_version_stands_in_one_place():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert PROJECT["dynamic"] == ["version"]
    assert str(citation["version"]) == tpulab.__version__
    assert f"\n## {tpulab.__version__}" in changelog
    assert changelog.index("\n## ") == changelog.index(f"\n## {tpulab.__version__}"), "the newest version stands first"


def test_citation_is_valid_and_names_nobody():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type"} <= set(citation)
    assert all(set(author) == {"name"} for author in citation["authors"]), "entities, no personal data"
