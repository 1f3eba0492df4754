"""The command: exit statuses, one line on stderr whatever goes wrong, and what it prints."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

import tpulab
from tpulab import cli
from tpulab.cli import doctor, lab, probe, recorder, server
from tpulab.cli.checks import Check
from tpulab.learn import code, report, store

COMMANDS = ("lab", "doctor", "progress", "inspect", "record")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        status = cli.main([str(word) for word in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return call


def one_line(err, *words):
    assert err.startswith("tpulab: ") and err.count("\n") == 1, err
    assert all(word in err for word in words), err
    return True


def test_help_of_everything(run):
    status, out, err = run("--help")
    assert status == 0 and err == "" and all(name in out for name in COMMANDS)
    assert run()[:2] == (0, out), "no command: the same help"
    for name in COMMANDS:
        status, out, _ = run(name, "--help")
        assert status == 0 and f"tpulab {name}" in out and "│" not in out


def test_version(run):
    assert run("--version") == (0, f"tpulab {tpulab.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lba"], "lba"),
        (["lab", "--prot", "1"], "--prot"),
        (["lab", "--port", "x"], "--port"),
        (["lab", "--port", "70000"], "65535"),
        (["lab", "extra"], "extra"),
        (["progress", "--restore"], "--restore"),
        (["progress", "--class", "-", "--code"], "--class stands alone"),
        (["progress", "--class", "no/such/file"], "no/such/file: No such file"),
        (["progress", "--restore", "nonsense"], "starts with TPULAB1-"),
        (["progress", "--restore", ""], "--restore is empty"),
        (["progress", "--class", ""], "--class is empty"),
        (["lab", "--work", ""], "--work is empty"),
        (["lab", "--work", "~nosuch/x"], "--work ~nosuch/x: "),
        (["record", "--out", " "], "--out is empty"),
        (["record", "--out", "~nosuch/x"], "full path"),
    ],
)
def test_wrong_use_is_one_line(run, words, says):
    status, out, err = run(*words)
    assert status == 2 and out == "" and one_line(err, says)


def test_help_is_fast_and_light():
    source = (
        "import sys; from tpulab.cli import main; status = main(['--help'])\n"
        "heavy = [n for n in ('jax', 'matplotlib', 'nbclient', 'zmq', 'tpulab.learn') if n in sys.modules]\n"
        "sys.exit(f'{status} {heavy}' if status or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["typer", "rich", "psutil"])
def test_base_install_says_how_to_get_the_rest(name):
    """Without the lab extra: one line and status 2; psutil alone is not needed for help."""
    source = f"import sys; sys.modules[{name!r}] = None; from tpulab.cli import main; sys.exit(main(['progress']))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    if name == "psutil":
        assert done.returncode == 0
    else:
        assert done.returncode == 2 and one_line(done.stderr, "pip install 'tpulab[lab]'", name)


def test_python_m_tpulab():
    done = subprocess.run([sys.executable, "-m", "tpulab", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"tpulab {tpulab.__version__}\n")


def test_what_should_not_happen_is_one_line_too(run, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: [][0])
    status, _, err = run("doctor")
    assert status == 3 and one_line(err, "IndexError", "TPULAB_TRACEBACK=1")
    monkeypatch.setenv("TPULAB_TRACEBACK", "1")
    with pytest.raises(IndexError):
        cli.main(["doctor"])


def test_interrupted(run, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupt)
    status, _, err = run("doctor")
    assert status == 130
    assert err in ("", "tpulab: interrupted\n")


def shell(words, **environment):
    command = ["sh", "-c", f'"{sys.executable}" -m tpulab {words}']
    return subprocess.run(command, capture_output=True, env=os.environ | environment, timeout=60)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("progress >&-", "standard output is closed"),
        ("progress >/dev/full", "cannot write to standard output (No space left on device)"),
        ("progress --json >/dev/full", "cannot write to standard output"),
        ("--help >/dev/full", "cannot write to standard output"),
    ],
)
def test_an_output_that_takes_nothing_is_one_line(words, says):
    done = shell(words)
    assert done.returncode == 3 and one_line(done.stderr.decode(), says)


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_without_a_stream_for_errors_the_status_tells(closed):
    done = shell(f"progress --restore nonsense {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")
    assert shell(f"--version {closed}").returncode == 0


def test_characters_that_the_output_does_not_have(tmp_path):
    done = shell(f"lab --copy-only --work '{tmp_path}/Übung'", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and b"/\\xdcbung: " in done.stdout, done.stderr
    done = shell("progress --class 'Übung'", PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and one_line(done.stderr.decode(), "\\xdcbung")


def test_a_reader_that_leaves_is_no_error():
    done = subprocess.run(
        f'"{sys.executable}" -c "import sys; from tpulab.cli import main; sys.exit(main([\'progress\']))" | true',
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


# lab


@pytest.fixture
def course(tmp_path, monkeypatch):
    folder = tmp_path / "course"
    folder.mkdir()
    for name in ("00_start", "03_jit"):
        nbformat.write(new_notebook(cells=[new_code_cell("x = 1")]), folder / f"{name}.ipynb")
    monkeypatch.setattr(lab, "course_notebooks", lambda: sorted(folder.glob("*.ipynb")))
    return folder


def test_lab_copy_only(run, course, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "serve", lambda *_, **__: pytest.fail("nothing is started"))
    assert run("lab", "--copy-only", "--work", tmp_path / "w") == (0, f"Notebooks in {tmp_path / 'w'}: 2 new\n", "")


def test_lab_where_the_working_directory_is_gone(run, course, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    status, out, err = run("lab", "--work", "mine", "--copy-only")
    assert status == 2 and out == "" and one_line(err, "working directory is gone", "full path")


def test_lab_goes_to_the_home_folder_and_starts_jupyterlab(run, course, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = {}
    monkeypatch.setattr(server, "serve", lambda folder, **options: asked.update(options, folder=folder) or 130)
    assert run("lab", "--port", "8899", "--no-browser")[0] == 130
    assert asked.pop("say")
    assert asked == {"folder": tmp_path / "tpulab", "first": "00_start.ipynb", "port": 8899, "browser": False}


def test_lab_without_notebooks_says_how_to_build_them(run, tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "_PACKAGE", tmp_path / "tpulab")
    status, out, err = run("lab", "--work", tmp_path / "w")
    assert status == 3 and out == "" and one_line(err, "missing", "python course/build.py")
    assert not (tmp_path / "w").exists()


def test_lab_in_the_courses_own_folder(run, course):
    status, _, err = run("lab", "--copy-only", "--work", course)
    assert status == 2 and one_line(err, "belongs to the course", "--work DIR")


def test_lab_without_jupyterlab(run, course, tmp_path, monkeypatch):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda _: None)
    status, out, err = run("lab", "--work", tmp_path / "w")
    assert status == 3 and "2 new" in out and one_line(err, "pip install 'tpulab[lab]'")


# doctor


def found(ok):
    return doctor.Report((Check("jax", True, "0.10.2", "", "0.10.2"), Check("kernel", ok, "found it", "mend it")))


@pytest.mark.parametrize(("ok", "status", "verdict"), [(True, 0, "ready"), (None, 0, "ready"), (False, 1, "not ready")])
def test_doctor(run, monkeypatch, ok, status, verdict):
    monkeypatch.setattr(doctor, "examine", lambda: found(ok))
    got, out, err = run("doctor")
    assert got == status and err == ""
    assert out.splitlines()[-1].startswith(verdict) and "TPULAB1-" in out
    got, out, _ = run("doctor", "--json")
    assert got == status and json.loads(out)["ready"] is (ok is not False)


# progress


def solve(*ids):
    with store.update() as (record, _):
        for one in ids:
            record["exercises"][one] = {"status": "correct", "attempts": 2}


def test_progress_table(run):
    status, out, err = run("progress")
    assert status == 0 and err == ""
    assert "00_start" in out and "start.1" in out and "minutes left" in out
    assert "reading counts until a chapter is begun" in out
    assert out.splitlines()[-1].startswith("Next: 00_start, exercise start.1")
    solve("start.1")
    _, out, _ = run("progress", "--all")
    line = next(line for line in out.splitlines() if line.strip().startswith("start.1"))
    assert line.rstrip().endswith("correct")


def test_progress_states_in_full(run):
    with store.update() as (record, _):
        record["exercises"]["start.1"] = {"status": "not yet", "attempts": 3, "seen": 1}
    assert "not yet (3 attempts), solution seen" in run("progress")[1]


def test_progress_json(run):
    solve("start.1")
    status, out, _ = run("progress", "--json")
    shown = json.loads(out)
    assert status == 0 and set(shown) == {"next", "code", "chapters"}
    assert shown["chapters"][0]["exercises"][0]["status"] == "correct"
    assert code.decode(shown["code"])[0] == "progress"


def test_progress_code_restores_elsewhere(run, monkeypatch, tmp_path):
    solve("start.1")
    status, text, err = run("progress", "--code")
    assert status == 0 and err == "" and len(text.split()) == 1
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "elsewhere"))
    solve("jit.99")
    assert run("progress", "--restore", text)[0] == 0
    assert set(store.read()[0]["exercises"]) == {"start.1", "jit.99"}


def test_drafts_of_killed_programs_are_swept(run, home):
    home.mkdir()
    old, young, mine = (home / name for name in (".progress.json.1.tpulab-draft", ".x.2.tpulab-draft", "mine.txt"))
    for path in (old, young, mine):
        path.write_text("{")
    before = time.time() - 90
    for path in (old, mine):
        os.utime(path, (before, before))
    assert run("progress", "--restore", report.progress().code)[0] == 0
    assert not old.exists() and young.exists() and mine.exists()


def test_progress_refuses_cut_and_foreign_codes(run):
    solve("start.1")
    text = report.progress().code
    for bad, says in ((text[:-5], "not copied whole"), (code.encode("doctor", {}), "doctor code")):
        status, out, err = run("progress", "--restore", bad)
        assert status == 2 and out == "" and one_line(err, says)


def test_progress_with_a_damaged_file(run, home):
    home.mkdir()
    (home / "progress.json").write_text("{")
    status, out, err = run("progress", "--code")
    assert status == 0 and one_line(err, "progress.damaged-1.json") and len(out.split()) == 1


def test_progress_that_cannot_be_read_is_not_shown_as_none(run, home):
    (home / "progress.json").mkdir(parents=True)
    status, out, err = run("progress", "--code")
    assert status == 3 and out == "" and one_line(err, "TPULAB_HOME")


def test_progress_without_a_folder(run, monkeypatch):
    def nobody():
        raise OSError("TPULAB_HOME is ~nosuch/x, and nobody is called nosuch; choose another")

    monkeypatch.setattr(store, "home", nobody)
    status, out, err = run("progress")
    assert status == 3 and out == "" and one_line(err, "TPULAB_HOME", "nosuch")


def test_restore_where_nothing_can_be_written(run, monkeypatch, tmp_path):
    text = report.progress().code
    (tmp_path / "file").touch()
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "file" / "home"))
    status, _, err = run("progress", "--restore", text)
    assert status == 3 and one_line(err, "TPULAB_HOME")


# progress --class


def class_file(tmp_path, *extra):
    solve("start.1")
    lines = [f"Ada {report.progress().code}", f"Ben {found(False).code}", *extra]
    path = tmp_path / "class.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_class_table(run, tmp_path):
    status, out, err = run("progress", "--class", class_file(tmp_path))
    assert status == 0 and err == ""
    assert "Ada" in out and "not ready: kernel" in out and "solutions seen" in out


def test_class_names_bad_lines_and_shows_the_rest(run, tmp_path):
    status, out, err = run("progress", "--json", "--class", class_file(tmp_path, "", "Cleo TPULAB1-cut"))
    assert status == 1 and one_line(err, "class.txt: line 4: Cleo: the code was not copied whole")
    assert [seat["name"] for seat in json.loads(out)["seats"]] == ["Ada", "Ben"]


def test_class_cannot_steer_the_terminal(run, tmp_path):
    evil = code.encode("doctor", {"ready": False, "c": {"ker\x1b[2Jnel\u202e\ud800": [False, None]}})
    lines = ["Eve\x1b]0;owned\x07 \x9b31m " + evil, "M\u00e9\u00a0Li\x1b[8m\u674e " + evil, "Mal\x1b[2J no code"]
    status, out, err = run("progress", "--class", class_file(tmp_path, *lines))
    assert status == 1 and one_line(err, "line 5: no code in 'Mal[2J no code'")
    assert all(character.isprintable() or character == "\n" for character in out + err)
    assert "not ready: ker[2Jnel" in out and "M\u00e9 Li[8m\u674e" in out


def test_class_from_standard_input(tmp_path):
    words = [sys.executable, "-m", "tpulab", "progress", "--class", "-"]
    done = subprocess.run(words, input=class_file(tmp_path).read_bytes(), capture_output=True)
    assert done.returncode == 0 and b"Ada" in done.stdout


def test_class_of_nobody(run, tmp_path):
    (tmp_path / "empty").touch()
    status, _, err = run("progress", "--class", tmp_path / "empty")
    assert status == 1 and one_line(err, "no lines of NAME CODE")


# record

# What stands in for a TPU: the notebook itself says that it runs on one.
ON_TPU = "import jax, tpulab\njax.default_backend = lambda: 'tpu'\ntpulab.on_tpu('{name}', lambda: {{'x': 1.0}})"


@pytest.fixture
def tpu(course, monkeypatch):
    """A course whose notebooks measure, and a machine that is taken for a TPU."""
    monkeypatch.setattr(recorder, "require_tpu", lambda: None)
    for name in ("jit", "vmap"):
        cells = [new_code_cell(ON_TPU.format(name=name)), new_code_cell("1")]
        nbformat.write(new_notebook(cells=cells), course / f"0{3 if name == 'jit' else 4}_{name}.ipynb")
    (course / "00_start.ipynb").unlink()
    return course


def test_record_refuses_anything_but_a_tpu(run, course):
    status, out, err = run("record")
    assert status == 1 and out == "" and one_line(err, "no TPU here: JAX finds", "cpu")


def test_require_tpu(monkeypatch):
    recorder.require_tpu(lambda *_: {"platform": "tpu", "devices": 4, "kind": "TPU v5 lite"})
    with pytest.raises(recorder.Stop, match="no TPU here: broken"):
        recorder.require_tpu(lambda *_: {"error": "broken"})
    assert recorder.require_tpu.__defaults__ == (probe.ask,)


def test_record_writes_what_the_notebooks_measure(run, tpu, tmp_path):
    before = {path: path.read_bytes() for path in tpu.iterdir()}
    status, out, _ = run("record", "--out", tmp_path / "out")
    assert status == 0 and "2 written" in out and "measured" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["jit.json", "vmap.json"]
    assert json.loads((tmp_path / "out" / "jit.json").read_text())["figures"] == {"x": "1"}
    assert {path: path.read_bytes() for path in tpu.iterdir()} == before


def test_record_some_chapters(run, tpu, tmp_path):
    status, out, _ = run("record", "04", "--out", tmp_path / "out")
    assert status == 0 and "1 written" in out and "vmap.json" in out
    status, _, err = run("record", "09", "--out", tmp_path / "out")
    assert status == 2 and one_line(err, "'09'", "03_jit, 04_vmap")


def test_record_goes_on_after_a_failing_notebook(run, tpu, tmp_path):
    cells = [new_code_cell(ON_TPU.format(name="jit")), new_code_cell("print('x')\n1 / 0")]
    nbformat.write(new_notebook(cells=cells), tpu / "03_jit.ipynb")
    status, out, err = run("record", "--out", tmp_path / "out")
    assert status == 3 and "2 written" in out, "what was measured before the failure is kept"
    assert "03_jit did not run to its end: ZeroDivisionError: division by zero" in err


def test_record_survives_a_kernel_that_dies(run, tpu, tmp_path):
    nbformat.write(new_notebook(cells=[new_code_cell("import os; os._exit(1)")]), tpu / "03_jit.ipynb")
    status, out, err = run("record", "--out", tmp_path / "out")
    assert status == 3 and "vmap.json" in out and "Kernel died" in err


def test_record_of_nothing(run, tpu, tmp_path):
    nbformat.write(new_notebook(cells=[new_code_cell("1")]), tpu / "03_jit.ipynb")
    status, _, err = run("record", "03", "--out", tmp_path / "out")
    assert status == 1 and "none of them measured" in err


def test_record_where_nothing_can_be_written(run, tpu, tmp_path):
    (tmp_path / "file").touch()
    status, _, err = run("record", "--out", tmp_path / "file")
    assert status == 3 and "--out DIR" in err


def test_record_is_interrupted(tpu, tmp_path):
    """Ctrl-C in the middle of a cell: status 130, the kernel gone, what was measured kept."""
    mark = tmp_path / "kernel"
    cells = [
        new_code_cell(ON_TPU.format(name="jit")),
        new_code_cell(f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"),
    ]
    nbformat.write(new_notebook(cells=cells), tpu / "03_jit.ipynb")
    source = (
        "import pathlib, sys; from tpulab import cli; from tpulab.cli import lab, recorder\n"
        f"lab.course_notebooks = lambda: sorted(pathlib.Path({str(tpu)!r}).glob('*'))\n"
        "recorder.require_tpu = lambda: None\n"
        f"sys.exit(cli.main(['record', '--out', {str(tmp_path / 'out')!r}]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True) as child:
        give_up = time.monotonic() + 60
        while not (mark.exists() and mark.read_text()) and time.monotonic() < give_up:
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130 and "Traceback" not in err, err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["jit.json"], "and 04 was not begun"
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    assert Path(tpu / "04_vmap.ipynb").exists()
