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
    assert not (clone / ".venv/setup.json").exists(), "so the next run makes the environment anew"


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
    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / ".venv.lock")
    for name in ("STAMP", "LOG"):
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


def test_an_interrupted_or_moved_environment_is_made_anew(done, monkeypatch):
    bootstrap.STAMP.write_text(json.dumps(bootstrap.read_stamp() | {"inputs": "older"}))
    whole = bootstrap.pip_install
    monkeypatch.setattr(bootstrap, "pip_install", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.set_up("lab", "no", False)
    assert not bootstrap.STAMP.exists()
    monkeypatch.setattr(bootstrap, "pip_install", whole)
    bootstrap.set_up("lab", "no", False)
    assert done == ["make", "-e .[lab]"], "even one that was cut short before pip was there"
    bootstrap.STAMP.write_text(json.dumps(bootstrap.read_stamp() | {"root": "elsewhere"}))
    bootstrap.set_up("lab", "no", False)
    assert done[2:] == ["make", "-e .[lab]"]


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_second_set_up_waits_for_the_first(done, monkeypatch, capsys):
    """It neither clears what the first makes nor does its work again."""
    bootstrap.STAMP.unlink()
    with bootstrap.lock(), bootstrap.LOCK.open("a") as other:
        assert not bootstrap.try_lock(other)
    note = {"inputs": bootstrap.inputs(), "root": str(ROOT), "extras": ["lab"], "compiler_failed": False}
    first = bootstrap.LOCK.open("a")
    assert bootstrap.try_lock(first), "given back"

    def first_ends(seconds):
        bootstrap.write_stamp(note)
        first.close()

    monkeypatch.setattr(bootstrap.time, "sleep", first_ends)
    bootstrap.set_up("lab", "no", False)
    assert done == []
    assert capsys.readouterr().out == "Another set-up is running here; waiting for it to end.\n"


def test_notebooks_inside_are_not_cleared_away(clone):
    mine = clone / ".venv/mine/deep/03_jit.ipynb"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert "mine/deep holds notebooks" in one_line(set_up(clone, **UNREACHABLE))
    assert mine.read_text() == "mine"


def test_a_path_that_no_environment_can_have(clone):
    odd = clone.rename(clone.with_name("a:b"))
    assert "Rename that folder" in one_line(set_up(odd, **UNREACHABLE))


def test_a_python_that_prints_more_than_it_was_asked(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import atexit; print('hello 1'); atexit.register(print, 'bye')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert bootstrap.version_of(sys.executable) == sys.version_info[:3]
    assert bootstrap.version_of("/bin/echo") == ()


@pytest.fixture
def makefile(tmp_path) -> Path:
    """Copy the Makefile into a folder where nothing is set up."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "bootstrap.py").touch()
    return tmp_path


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(folder), "--no-print-directory", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("work", ["build/mine", "./.venv/mine", "{}/dist/mine", "work"])
def test_clean_stops_where_it_would_remove_notebooks(makefile, work):
    folder = makefile / (work.format(makefile) if work != "work" else "dist/mine")
    folder.mkdir(parents=True)
    (folder / "a.ipynb").touch()
    if work == "work":  # another run put them there
        (folder / ".tpulab.json").touch()
    done = make(makefile, "clean", f"WORK={work.format(makefile)}")
    assert done.returncode and (folder / "a.ipynb").exists()
    assert done.stderr.splitlines()[0].startswith("make clean would remove ")


def test_clean_removes_the_rest(makefile):
    for name in (".venv/bin", "build/lib", "tpulab/__pycache__", "it's mine/__pycache__"):
        (makefile / name).mkdir(parents=True)
    assert make(makefile, "clean", "WORK=it's mine").returncode == 0
    assert sorted(path.name for path in makefile.iterdir()) == ["Makefile", "bootstrap.py", "it's mine", "tpulab"]
    assert (makefile / "it's mine/__pycache__").exists() and not (makefile / "tpulab/__pycache__").exists()


@pytest.mark.parametrize("name", ["it's mine", 'a "b" c'])
def test_a_folder_of_any_name_reaches_the_lab(makefile, name):
    (makefile / ".venv/bin").mkdir(parents=True)
    python = makefile / ".venv/bin/python"
    python.write_text('#!/bin/sh\necho "$WORK"\n')
    python.chmod(0o755)
    done = make(makefile, "lab", f"WORK={name}")
    assert (done.stdout, done.stderr) == (f"{name}\n", "")


@pytest.mark.parametrize(
    "text", ["[1]", "1", "{", "{}", '{"extras": null, "root": "x"}', '{"extras": [[]], "root": ""}', "[" * 99999]
)
def test_a_damaged_note_counts_as_none(done, text):
    bootstrap.STAMP.write_text(text)
    bootstrap.set_up("lab", "no", False)
    assert done == ["make", "-e .[lab]"]
    assert bootstrap.read_stamp()["extras"] == ["lab"]


def test_a_full_disk_is_said_before_anything_is_fetched(done, monkeypatch):
    bootstrap.STAMP.unlink()
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
