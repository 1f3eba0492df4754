"""Each check of the doctor in both outcomes; the real thing once; a code that holds nothing personal."""

import getpass
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.nobody import open_folder, read_only
from tpulab import xla
from tpulab.cli import checks, doctor, probe
from tpulab.cli.checks import Check
from tpulab.learn import code, store

FIRST_CELL = {"devices": 1, "kind": "cpu", "platform": "cpu", "broken": {}}
KERNEL = {"runs": "python", "spec": "/s", "executable": sys.executable, "prefix": sys.prefix, "tpulab": True}
ANSWERS = {"first-cell": FIRST_CELL, "kernel": KERNEL, "jupyterlab": {"version": "4.6.6"}}


def examine(**answers):
    known = ANSWERS | {name.replace("_", "-"): answer for name, answer in answers.items()}
    return doctor.examine(lambda questions, _: {question: known[question] for question in questions})


def row(report, name):
    return next(check for check in report.checks if check.name == name)


@pytest.fixture
def installed(monkeypatch):
    """Pretend that other versions are installed; None takes a package away."""
    true_version, true_requires = importlib.metadata.version, importlib.metadata.requires
    versions, requires = {}, {}

    def version(name):
        found = versions[name] if name in versions else true_version(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires.get(name) or true_requires(name))
    return versions, requires


@pytest.mark.parametrize(
    ("version", "ok", "words"),
    [
        ((3, 10, 9), False, "needs 3.11 to 3.13"),
        ((3, 11, 0), True, "3.11.0"),
        ((3, 13, 5), True, "3.13.5"),
        ((3, 14, 0), None, "untried"),
    ],
)
def test_python(version, ok, words):
    check = checks.python(version)
    assert check.ok is ok and words in check.found
    assert bool(check.remedy) == (ok is False)


def test_system(monkeypatch):
    assert checks.system().ok is True
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert checks.system().ok is None and "Colab" in checks.system().remedy


def test_packages(installed):
    rows = checks.packages(FIRST_CELL)
    assert [(check.name, check.ok) for check in rows] == [(n, True) for n in ("jax", "jaxlib", "flax", "optax")]
    installed[0]["optax"] = None
    broken = checks.packages(FIRST_CELL | {"broken": {"flax": "ImportError: half installed"}})
    assert [check.ok for check in broken] == [True, True, False, False]
    assert "half installed" in broken[2].found and broken[2].remedy
    assert broken[3] == Check("optax", False, "not installed", "pip install optax")


def test_versions_fit(installed):
    versions, requires = installed
    assert checks.versions_fit().ok is True
    requires["tpulab"] = ["filelock>=3.12"]
    requires["flax"] = ["jax>=99", 'torch; extra == "testing"']
    requires["jax"] = ["jaxlib<=0.1,>=0.1", "numpy>=1"]
    versions["filelock"] = None
    check = checks.versions_fit()
    assert check.ok is False and check.remedy and check.fact == 3
    assert f"flax needs jax>=99, found {importlib.metadata.version('jax')}" in check.found
    assert "jax needs jaxlib<=0.1,>=0.1" in check.found and "filelock>=3.12, found none" in check.found
    assert "torch" not in check.found


def test_versions_fit_cannot_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert checks.versions_fit().ok is None


def test_versions_fit_when_jax_is_missing(installed):
    installed[0]["jax"], installed[1]["tpulab"] = None, ["jax>=0.7.2"]
    assert "tpulab needs jax" in checks.versions_fit().found


def test_devices():
    assert checks.devices(FIRST_CELL).fact == "1 x cpu"
    assert checks.devices(FIRST_CELL | {"devices": 4, "kind": "TPU v5 lite"}).fact == "4 x TPU v5 lite"
    for error in ("no answer within 90 s", "ModuleNotFoundError: No module named 'jax'"):
        check = checks.devices({"error": error})
        assert check.ok is False and error in check.found and check.remedy


def test_the_remedy_for_devices_fits_the_cause(monkeypatch):
    hangs, fails = {"error": "no answer within 90 s"}, {"error": "RuntimeError: no backend"}
    for name in checks._STEER_JAX:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checks, "_has_tpu", lambda: False)
    assert checks.devices(hangs).remedy == checks.devices(fails).remedy == checks._REBUILD
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    monkeypatch.setenv("XLA_FLAGS", "--nonsense")
    assert checks.devices(fails).remedy.startswith("unset JAX_PLATFORMS, XLA_FLAGS and run `tpulab doctor` again")
    monkeypatch.setattr(checks, "_has_tpu", lambda: True)
    assert "other TPU programs" in checks.devices(hangs).remedy


def test_memory(monkeypatch):
    assert checks.memory(8.04) == Check("memory", True, "8.0 GB free", "", 8.0)
    assert checks.memory(0.4).ok is False and "1 GB" in checks.memory(0.4).remedy
    assert checks.memory().ok is not None
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert checks.memory().ok is None and "psutil" in checks.memory().found


def test_memory_of_a_container(tmp_path):
    def limit(text):
        (tmp_path / "memory.max").write_text(text)
        return checks._container_free(tmp_path)

    assert limit("max") is None
    (tmp_path / "memory.current").write_text("900000000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 300000000\n")
    assert limit("1000000000\n") == 400_000_000, "what is only cached can be had"
    assert limit("max\n") is None


def test_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert (checks.cores().ok, checks.cores().fact) == (True, 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert (checks.cores().ok, checks.cores().fact) == (None, 1)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert checks.cores().fact == os.cpu_count()


def test_compiler(monkeypatch, installed):
    true_find = importlib.util.find_spec
    found: dict[str, bool | None] = {"libtpu": None}
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)  # JAX sets it where libtpu is installed
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: found.get(name, true_find(name, *rest)))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    installed[1]["jax"] = ['libtpu==0.0.42.*; extra == "tpu"']
    check = checks.compiler()
    assert check.ok is None and check.remedy == f"optional: {sys.executable} -m pip install 'libtpu==0.0.42.*'"
    installed[1]["jax"] = ["jaxlib"]
    assert "'tpulab[tpu]'" in checks.compiler().remedy
    for system, machine in (("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "aarch64")):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        check = checks.compiler()
        assert check.ok is None and "WSL2" in check.remedy and "Colab CPU runtime" in check.remedy
    found["libtpu"], installed[0]["libtpu"] = True, "0.0.42.1"
    problem = ""
    monkeypatch.setattr(xla, "compiler_problem", lambda: problem)
    assert checks.compiler() == Check("TPU compiler", True, "libtpu 0.0.42.1 compiles", "", "0.0.42.1")
    problem = "jax 1 with libtpu 2 cannot compile here: it dies; get another; and so on"
    check = checks.compiler()
    assert (
        check.ok is None and check.found == "jax 1 with libtpu 2 cannot compile here: it dies: stored results are shown"
    )
    assert check.remedy == "optional: get another; and so on"


def test_kaggle(monkeypatch):
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    assert checks.kaggle() == []
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    (check,) = checks.kaggle()
    assert check.ok is False and "older libtpu" in check.found and "Colab" in check.remedy


def test_progress_folder_leaves_no_trace(home):
    assert checks.progress_folder() == Check("progress folder", True, str(home))
    assert not home.exists()
    home.mkdir()
    (home / "progress.json").write_text("{}")
    assert checks.progress_folder().ok is True
    assert [path.name for path in home.iterdir()] == ["progress.json"]


def test_progress_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "file" / "home"))
    check = checks.progress_folder()
    assert check.ok is False and "cannot be written" in check.found and "TPULAB_HOME" in check.remedy
    with open_folder() as folder:
        monkeypatch.setenv("TPULAB_HOME", str(folder))
        with read_only(folder):
            assert checks.progress_folder().ok is False
            monkeypatch.setenv("TPULAB_HOME", str(folder / "a" / "b"))
            assert checks.progress_folder().ok is False
        (folder / "closed").mkdir(mode=0)
        monkeypatch.setenv("TPULAB_HOME", str(folder / "closed" / "home"))
        with read_only(folder):
            assert checks.progress_folder().ok is False
        (folder / "closed").chmod(0o700)


def test_progress_folder_without_a_name(monkeypatch):
    def nobody():
        raise OSError("TPULAB_HOME is ~nosuch/x, and nobody is called nosuch")

    monkeypatch.setattr(store, "home", nobody)
    check = checks.progress_folder()
    assert check.ok is False and "nosuch" in check.found and "TPULAB_HOME" in check.remedy


def test_jupyterlab(monkeypatch):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    assert checks.jupyterlab({"version": "4.6.6"}).ok is True
    missing = {"error": "ModuleNotFoundError: No module named 'jupyterlab'"}
    assert checks.jupyterlab(missing) == Check("JupyterLab", False, "not installed", "pip install 'tpulab[lab]'")
    broken = checks.jupyterlab({"error": "ImportError: tornado"})
    assert broken.ok is False and "tornado" in broken.found and broken.remedy
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    assert checks.jupyterlab(missing).ok is None


@pytest.mark.parametrize(
    ("answer", "words", "remedy"),
    [
        (
            KERNEL | {"executable": "/o/python", "prefix": "/o"},
            "another Python, /o/python",
            "kernelspec remove python3",
        ),
        ({"runs": "/o/python", "spec": "/s", "error": "Kernel died"}, "another Python, /o/python (/s)", "tpulab lab"),
        ({"runs": "python", "spec": "/s", "error": "Kernel died"}, "does not start: Kernel died", "rebuild"),
        ({"error": "ModuleNotFoundError: No module named 'jupyter_client'"}, "jupyter_client", "tpulab[lab]"),
        (KERNEL | {"tpulab": False}, "finds no tpulab", "rebuild"),
    ],
)
def test_kernel_that_is_not_right(answer, words, remedy):
    check = checks.kernel(answer)
    assert check.ok is False and words in check.found and remedy in check.remedy


def test_kernel_that_is_right():
    assert checks.kernel(KERNEL).ok is True


def test_disk(monkeypatch, tmp_path):
    assert checks.disk(tmp_path).ok is not None
    assert checks.disk(tmp_path / "not" / "there").ok is not None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8))
    check = checks.disk(tmp_path)
    assert (check.ok, check.found, check.fact) == (False, "0.1 GB free", 0.1) and check.remedy


# The whole


def test_ready_and_its_code(monkeypatch):
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    report = examine()
    assert report.ready, report.verdict
    assert report.verdict == "ready"
    kind, record = code.decode(report.code)
    assert kind == "doctor" and record["ready"] is True
    assert record["c"]["jax"] == [True, importlib.metadata.version("jax")]
    assert record["c"]["cores"][1] >= 1 and record["c"]["devices"] == [True, "1 x cpu"]


def test_not_ready_says_the_first_reason_and_its_remedy():
    report = examine(jupyterlab={"error": "No module named 'jupyterlab'"}, kernel={"error": "no answer within 90 s"})
    assert not report.ready
    assert report.verdict == (
        "not ready, because of JupyterLab: not installed; remedy: pip install 'tpulab[lab]' (and 1 more above)"
    )
    assert [check.name for check in report.failed] == ["JupyterLab", "kernel"]
    assert len(report.verdict.splitlines()) == 1
    as_dict = json.loads(json.dumps(report.as_dict()))
    assert as_dict["ready"] is False and as_dict["verdict"] == report.verdict and as_dict["code"] == report.code
    assert set(as_dict["checks"][0]) == {"name", "ok", "found", "remedy", "fact"}


def test_a_check_that_breaks_is_a_row(monkeypatch):
    def break_down():
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(checks, "disk", break_down)
    monkeypatch.setattr(checks, "kaggle", break_down)
    report = examine()
    assert [check.name for check in report.failed] == ["disk", "kaggle"]
    assert "RuntimeError: two lines" in report.verdict and report.failed[0].remedy
    assert row(report, "kernel").ok is True


def test_what_was_found_is_one_line_that_steers_no_terminal():
    report = examine(first_cell={"error": "red \x1b[31m\nand more\u2028still\x07"})
    assert row(report, "devices").found == "a notebook's first cell fails: red [31m and more still"


def test_lines_of_others_are_no_answer(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os; print('hello', end=''); atexit.register(os.write, 1, b'bye\\n{}\\n')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert probe.ask("jupyterlab", 60) == {"version": importlib.metadata.version("jupyterlab")}


def test_every_failed_check_has_a_remedy():
    error = {"error": "it is all broken"}
    for check in examine(first_cell=error, kernel=error, jupyterlab=error).failed:
        assert check.remedy, check.name


def test_code_holds_no_paths_and_no_names(home):
    other = KERNEL | {"executable": f"{home}/python", "prefix": "/elsewhere"}
    text = json.dumps(code.decode(examine(kernel=other, first_cell={"error": f"{home} is broken"}).code))
    assert "/" not in text and "\\" not in text
    for personal in (socket.gethostname(), str(home), str(Path.home()), os.environ.get("USER"), getpass.getuser()):
        if personal and len(personal) > 3 and personal != "root":
            assert personal not in text


def test_real_machine_is_ready():
    """The three questions, asked for real: the first cell runs, the kernel is this Python, JupyterLab imports."""
    assert probe.ask("first-cell", 120)["devices"] >= 1
    if importlib.util.find_spec("jupyterlab"):
        assert probe.ask("jupyterlab", 120) == {"version": importlib.metadata.version("jupyterlab")}
    answer = probe.ask("kernel", 120)
    assert checks.kernel(answer).ok is True, answer


def another_python(folder, argv0):
    spec = folder / "kernels" / "python3"
    spec.mkdir(parents=True)
    content = {"argv": [argv0, "-c", "raise SystemExit(1)"], "display_name": "Other", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(content))


def test_real_kernel_of_another_python(tmp_path, monkeypatch):
    another_python(tmp_path, "/no/such/python")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    check = checks.kernel(probe.ask("kernel", 60))
    assert check.ok is False and "another Python, /no/such/python" in check.found
    assert str(tmp_path) in check.found


@pytest.mark.parametrize("name", ["jax", "flax", "matplotlib"])
def test_real_broken_packages(tmp_path, monkeypatch, name):
    """A package that breaks at import is named; nothing else of the doctor breaks."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise ImportError('half installed')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    answer = probe.ask("first-cell", 60)
    report = examine(first_cell=answer)
    assert not report.ready and "half installed" in report.verdict
    assert row(report, "flax" if name == "flax" else "devices").ok is False


def test_question_that_hangs_or_dies(tmp_path, monkeypatch):
    (tmp_path / "jax").mkdir()
    file = tmp_path / "jax" / "__init__.py"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    file.write_text("import time; time.sleep(60)")
    assert probe.ask("first-cell", 1.5) == {"error": "no answer within 1.5 s"}
    file.write_text("import os; os._exit(134)")
    assert probe.ask("first-cell", 60) == {"error": "it ended with status 134"}
    file.write_text("import os; os.kill(os.getpid(), 11)")
    assert probe.ask("first-cell", 60) == {"error": "it was ended by signal 11"}
    file.write_text("import os; os._exit(0)")
    assert probe.ask("first-cell", 60) == {"error": "it ended without an answer"}
    file.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(probe, "_answer", interrupt)
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        probe.ask_all(["first-cell", "jupyterlab"], 60)
    assert time.monotonic() - before < 10, "Ctrl-C waits for nobody"


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_kernel_that_never_answers(tmp_path, ending):
    spec = tmp_path / "kernels" / "python3"
    spec.mkdir(parents=True)
    seconds = str(400 + os.getpid() / 1e7)  # by which it is known
    content = {"argv": ["sleep", seconds], "display_name": "Sleeper", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(content))

    def sleepers():
        return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", seconds]]

    command = [sys.executable, "-m", "tpulab", "doctor"]
    env = os.environ | {"JUPYTER_PATH": str(tmp_path)}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    give_up = time.monotonic() + 60
    while not sleepers() and time.monotonic() < give_up:
        time.sleep(0.1)
    assert sleepers()
    os.killpg(process.pid, ending)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert not sleepers()


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_module_of_the_learner_does_not_stand_in(tmp_path, monkeypatch):
    (tmp_path / "optax.py").write_text("raise ImportError('a file of the learner')")
    monkeypatch.chdir(tmp_path)
    assert probe.ask("first-cell", 120).get("broken") == {}


def test_nothing_is_imported_to_load_the_doctor():
    source = (
        "import sys, tpulab.cli.doctor; print([n for n in ('jax', 'zmq', 'matplotlib', 'psutil') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
