"""The one-command set-up: what it says when something is missing. No network; the real thing is in the matrix."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bootstrap

ROOT = Path(__file__).parent.parent
# Nothing listens there, so every index is out of reach at once.
UNREACHABLE = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
UNREACHABLE |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "TPU_COMPILER": "0"}


@pytest.fixture
def clone(tmp_path) -> Path:
    """Copy what the set-up reads into a folder whose name has spaces and umlauts."""
    folder = tmp_path / "my clön dir"
    for name in ("bootstrap.py", "pyproject.toml", "README.md", "requirements/lab.txt", "tpulab/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def set_up(clone: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(clone / "bootstrap.py"), *words]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 3, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_no_network_is_one_line_and_the_next_run_starts_anew(clone):
    said = one_line(set_up(clone, **UNREACHABLE))
    assert "pip cannot reach its package index" in said
    assert "setup.log" in said
    assert (clone / ".venv/setup.log").read_text(encoding="utf-8")
    assert (clone / ".venv/setup.busy").exists(), "so the next run makes the environment anew"
    assert not (clone / ".venv/setup.json").exists()


def test_no_venv_module_is_one_line(clone, tmp_path):
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "ensurepip.py").write_text("raise ImportError('split off by the distribution')\n")
    said = one_line(set_up(clone, PYTHONPATH=str(stub)))
    assert f"sudo apt install python3.{sys.version_info.minor}-venv" in said
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_something_else_of_the_name_is_one_line_and_stays(clone, kind):
    if kind == "file":
        (clone / ".venv").write_text("mine")
    else:
        (clone / ".venv").symlink_to("nowhere")
    assert ".venv is in the way" in one_line(set_up(clone, **UNREACHABLE))
    assert os.path.lexists(clone / ".venv") and not (clone / ".venv").is_dir()


def test_wrong_use_shows_how(clone):
    done = set_up(clone, "everything")
    assert done.returncode == 2
    assert "python bootstrap.py dev" in done.stdout


@pytest.fixture
def venv(tmp_path, monkeypatch) -> Path:
    """Let the set-up believe in an environment that is complete."""
    folder = tmp_path / ".venv"
    folder.mkdir()
    monkeypatch.setattr(bootstrap, "VENV", folder)
    for name in ("STAMP", "BUSY", "LOG"):
        monkeypatch.setattr(bootstrap, name, folder / getattr(bootstrap, name).name)
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    bootstrap.write_stamp(
        {"inputs": bootstrap.inputs(), "root": str(ROOT), "extras": ["lab"], "compiler_failed": False}
    )
    return folder


@pytest.fixture
def done(venv, monkeypatch) -> list[str]:
    """Note what the set-up would do instead of doing it."""
    noted: list[str] = []
    monkeypatch.setattr(bootstrap, "choose_python", lambda: sys.executable)
    monkeypatch.setattr(bootstrap, "make_venv", lambda python: noted.append("make"))
    monkeypatch.setattr(bootstrap, "pip_install", lambda *what: noted.append(" ".join(what)))
    return noted


def test_a_complete_environment_is_left_alone(done, capsys):
    bootstrap.set_up("lab", "no", False)
    assert done == []
    assert capsys.readouterr().out == ""


def test_tests_add_to_what_is_there(done):
    bootstrap.set_up("dev", "keep", False)
    assert done == ["-e .[dev,lab]"]
    bootstrap.set_up("lab", "no", False)
    assert len(done) == 1, "what learners need is there too"


def test_the_compiler_is_added_and_kept_up_to_date(done):
    bootstrap.set_up("lab", "yes", False)
    assert done == ["jax[tpu]"]
    bootstrap.set_up("dev", "keep", False)
    bootstrap.STAMP.write_text(json.dumps(bootstrap.read_stamp() | {"inputs": "older"}))
    del done[:]
    bootstrap.set_up("lab", "keep", False)
    assert done == ["-e .[dev,lab]", "jax[tpu]"]


def test_without_the_compiler_the_course_opens(done, monkeypatch, capsys):
    def refuse(*what):
        done.append(" ".join(what))
        raise bootstrap.Problem("no network")

    monkeypatch.setattr(bootstrap, "pip_install", refuse)
    bootstrap.set_up("lab", "yes", False)
    assert "went on without it" in capsys.readouterr().out
    bootstrap.set_up("lab", "yes", False)
    assert len(done) == 1, "make lab does not try each time"
    bootstrap.set_up("lab", "yes", True)
    assert len(done) == 2, "make setup does"


def test_an_interrupted_or_moved_environment_is_made_anew(done):
    bootstrap.BUSY.touch()
    bootstrap.set_up("lab", "no", False)
    assert done == ["make", "-e .[lab]"]
    assert not bootstrap.BUSY.exists()
    bootstrap.STAMP.write_text(json.dumps(bootstrap.read_stamp() | {"root": "elsewhere"}))
    bootstrap.set_up("lab", "no", False)
    assert done[2:] == ["make", "-e .[lab]"]


@pytest.mark.parametrize(
    "text", ["[1]", "1", "{", "{}", '{"extras": null, "root": "x"}', '{"extras": [[]], "root": ""}', "[" * 99999]
)
def test_a_damaged_note_counts_as_none(done, text):
    bootstrap.STAMP.write_text(text)
    bootstrap.set_up("lab", "no", False)
    assert done == ["-e .[lab]"]
    assert bootstrap.read_stamp()["extras"] == ["lab"]


def test_a_full_disk_is_said_before_anything_is_fetched(done, monkeypatch):
    bootstrap.STAMP.unlink()
    bootstrap.BUSY.touch()
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 10**10, 10**9))
    with pytest.raises(bootstrap.Problem, match=r"takes 2\.0 GB of disk and 1\.0 GB are free"):
        bootstrap.set_up("lab", "no", False)
    assert done == []


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("Error: [Errno 30] Read-only file system: '.venv'", "may not be written to"),
        ("PermissionError: [Errno 13] Permission denied: '.venv'", "may not be written to"),
        ("Retrying after connection broken by 'ProxyError('Cannot connect to proxy.'", "cannot reach"),
        ("Failed to establish a new connection: [Errno -3] Temporary failure in name resolution", "cannot reach"),
        ("noise\nERROR: Could not find a version that satisfies jax==9", "cannot reach"),
        (
            "WARNING: Retrying after connection broken\n" + "noise\n" * 99 + "ERROR: ResolutionImpossible: for help",
            "cannot reach",
        ),
        ("WARNING: Location 'file:///x/' is ignored: it is neither a file nor a directory.", "cannot reach"),
        ("Collecting async-timeout\n" + "noise\n" * 99 + "ERROR: ResolutionImpossible", "failed: ERROR: Resolution"),
        ("", "no output"),
    ],
)
def test_pip_is_put_into_words(output, said):
    assert said in str(bootstrap.explain(output, "pip install", "setup.log"))


def test_a_python_that_is_too_old_names_the_remedy(monkeypatch):
    monkeypatch.setattr(bootstrap, "version_of", lambda python: (3, 10, 4))
    monkeypatch.setattr(bootstrap, "find_python", lambda version: None)
    with pytest.raises(bootstrap.Problem, match=r"CPython 3\.11 to 3\.13.*make lab PYTHON="):
        bootstrap.choose_python()
    monkeypatch.setattr(bootstrap, "find_python", lambda version: "newer" if version == "3.12" else None)
    assert bootstrap.choose_python() == "newer"


def test_an_intel_mac_is_sent_elsewhere(monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "platform", "darwin")
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: "x86_64")
    with pytest.raises(bootstrap.Problem, match="Colab"):
        bootstrap.choose_python()


def test_a_python_that_is_newer_goes_on_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(bootstrap, "version_of", lambda python: (3, 14, 0))
    assert bootstrap.choose_python()
    assert "newer than what the course is tested on (3.11 to 3.13)" in capsys.readouterr().out


def test_file_is_python_of_2016():
    import ast

    ast.parse((ROOT / "bootstrap.py").read_text(encoding="utf-8"), feature_version=(3, 6))
