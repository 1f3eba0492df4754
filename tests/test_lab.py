"""Handing notebooks out never loses what a learner has; JupyterLab really starts, and stops in order."""

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.nobody import open_folder, read_only
from tpulab.cli import lab, server
from tpulab.cli.status import INTERRUPTED, OK, UNFINISHED, WRONG_USE, Stop

ROOT = Path(__file__).parent.parent
NAMES = ("00_start.ipynb", "03_jit.ipynb")


def book(*sources, ran=True):
    cells = [new_markdown_cell("# A chapter")]
    for number, source in enumerate(sources, 1):
        outputs = [new_output("stream", text="out\n")] if ran else []
        cells.append(new_code_cell(source, outputs=outputs, execution_count=number if ran else None))
    made = new_notebook(cells=cells, metadata={"tpulab": {"digest": "x"}, "widgets": {"state": {}}})
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return made


def publish(folder, *sources, names=NAMES):
    """Make a course version: notebooks that hold these cells."""
    folder.mkdir(exist_ok=True)
    for name in names:
        nbformat.write(book(*sources), folder / name)
    return sorted(folder.glob("*.ipynb"))


def sources(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def edit(path, *new):
    """What a learner does: change cells, run them, save."""
    nbformat.write(book(*new), path)


def snapshot(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture
def course(tmp_path):
    return tmp_path / "course"


@pytest.fixture
def work(tmp_path):
    return tmp_path / "my work, Übung π"


def test_copies_are_cleared_and_whole(course, work):
    done = lab.hand_out(publish(course, "x = 1", "x"), work)
    assert done.new == NAMES
    copy = nbformat.read(work / "03_jit.ipynb", as_version=4)
    nbformat.validate(copy)
    assert [cell.source for cell in copy.cells] == ["# A chapter", "x = 1", "x"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in copy.cells[1:])
    assert set(copy.metadata) == {"kernelspec"}
    assert done.lines() == [f"Notebooks in {work}: 2 new"]
    assert sorted(path.name for path in work.iterdir()) == [".tpulab.json", *NAMES]


def test_second_run_writes_nothing(course, work):
    given = publish(course, "x = 1")
    lab.hand_out(given, work)
    before = snapshot(work)
    done = lab.hand_out(given, work)
    assert done.same == NAMES and snapshot(work) == before


def test_untouched_is_replaced_though_it_was_run(course, work):
    lab.hand_out(publish(course, "x = 1"), work)
    edit(work / "03_jit.ipynb", "x = 1")  # outputs only
    edit(work / "00_start.ipynb", "x = 1", "")  # JupyterLab adds an empty cell at the end
    done = lab.hand_out(publish(course, "x = 2"), work)
    assert done.updated == NAMES
    assert sources(work / "03_jit.ipynb") == ["x = 2"]


@pytest.mark.parametrize("source", ["# A chapter", ""])
def test_a_picture_dropped_into_a_cell_is_a_change(course, work, source):
    lab.hand_out(publish(course, "x = 1"), work)
    mine = nbformat.read(work / "03_jit.ipynb", as_version=4)
    picture = {"a.png": {"image/png": "iVBORw0KGgo="}}
    if source:
        mine.cells[0].attachments = picture
    else:
        mine.cells.append(new_markdown_cell("", attachments=picture))
    nbformat.write(mine, work / "03_jit.ipynb")
    done = lab.hand_out(publish(course, "x = 2"), work)
    assert (done.kept, done.updated) == (("03_jit.ipynb",), ("00_start.ipynb",))
    assert "a.png" in (work / "03_jit.ipynb").read_text(encoding="utf-8")


def test_fingerprints_stay_what_earlier_versions_noted():
    known = "b05acabbc96ece640a865799aaf297200dec2b44da4007646ca08a51b4e0ca8a"
    assert lab.fingerprint(book("x = 1")) == known
    lines = {"cell_type": "markdown", "source": ["a\n", "b"], "attachments": {"p": {"text/plain": ["1\n", "2"]}}}
    text = {"cell_type": "markdown", "source": "a\nb", "attachments": {"p": {"text/plain": "1\n2"}}}
    assert lab.fingerprint({"cells": [lines]}) == lab.fingerprint({"cells": [text]})
    assert lab.fingerprint({"cells": [text | {"attachments": {}}]}) != lab.fingerprint({"cells": [text]})


def test_touched_stays_and_the_new_version_goes_beside_once(course, work):
    lab.hand_out(publish(course, "x = 1"), work)
    edit(work / "03_jit.ipynb", "x = 1 + mine")
    same = lab.hand_out(publish(course, "x = 1"), work)
    assert (same.kept, same.beside) == (("03_jit.ipynb",), ()), "the course has nothing new"
    second = publish(course, "x = 2")
    done = lab.hand_out(second, work)
    assert done.updated == ("00_start.ipynb",)
    assert done.beside == (("03_jit.ipynb", "03_jit.new.ipynb"),)
    assert "beside it: 03_jit.new.ipynb" in done.lines()[0]
    assert sources(work / "03_jit.ipynb") == ["x = 1 + mine"]
    assert sources(work / "03_jit.new.ipynb") == ["x = 2"]
    before = snapshot(work)
    again = lab.hand_out(second, work)
    assert again.beside == () and snapshot(work) == before
    (work / "03_jit.new.ipynb").unlink()
    lab.hand_out(second, work)
    assert not (work / "03_jit.new.ipynb").exists(), "what the learner threw away does not come back"


def test_a_later_version_replaces_an_untouched_one_beside_and_spares_a_touched_one(course, work):
    lab.hand_out(publish(course, "x = 1"), work)
    edit(work / "03_jit.ipynb", "mine")
    lab.hand_out(publish(course, "x = 2"), work)
    done = lab.hand_out(publish(course, "x = 3"), work)
    assert done.beside == (("03_jit.ipynb", "03_jit.new.ipynb"),)
    assert sources(work / "03_jit.new.ipynb") == ["x = 3"]
    edit(work / "03_jit.new.ipynb", "x = 3 + mine")
    done = lab.hand_out(publish(course, "x = 4"), work)
    assert done.beside == (("03_jit.ipynb", "03_jit.new-2.ipynb"),)
    assert sources(work / "03_jit.new.ipynb") == ["x = 3 + mine"]
    assert sources(work / "03_jit.new-2.ipynb") == ["x = 4"]


def test_taking_over_the_new_version_makes_it_the_courses_again(course, work):
    lab.hand_out(publish(course, "x = 1"), work)
    edit(work / "03_jit.ipynb", "mine")
    lab.hand_out(publish(course, "x = 2"), work)
    (work / "03_jit.new.ipynb").replace(work / "03_jit.ipynb")
    assert lab.hand_out(publish(course, "x = 2"), work).same == NAMES
    assert lab.hand_out(publish(course, "x = 3"), work).updated == NAMES


def test_missing_and_new_chapters_are_brought(course, work):
    lab.hand_out(publish(course, "x = 1"), work)
    (work / "03_jit.ipynb").unlink()
    done = lab.hand_out(publish(course, "x = 1", names=[*NAMES, "04_vmap.ipynb"]), work)
    assert done.new == ("03_jit.ipynb", "04_vmap.ipynb")


FOREIGN = {
    "a text": "my notes",
    "half a notebook": '{"cells": [',
    "no cells": "{}",
    "a list": "[]",
    "an old format": json.dumps({"nbformat": 3, "worksheets": []}),
    "bytes": "\x00\x01",
    "deep": "[" * 50_000,
    "empty": "",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_none_of_ours_is_kept(course, work, name):
    work.mkdir()
    (work / "03_jit.ipynb").write_text(FOREIGN[name], encoding="utf-8")
    done = lab.hand_out(publish(course, "x = 1"), work)
    assert done.beside == (("03_jit.ipynb", "03_jit.new.ipynb"),)
    assert (work / "03_jit.ipynb").read_text(encoding="utf-8") == FOREIGN[name]
    assert lab.hand_out(publish(course, "x = 1"), work).beside == ()


def test_a_folder_or_dangling_link_of_the_name_is_kept(course, work):
    work.mkdir()
    (work / "03_jit.ipynb").mkdir()
    (work / "00_start.ipynb").symlink_to(work / "nowhere")
    done = lab.hand_out(publish(course, "x = 1"), work)
    assert done.kept == NAMES and len(done.beside) == 2
    assert (work / "03_jit.ipynb").is_dir() and (work / "00_start.ipynb").is_symlink()


def test_a_pipe_of_the_name_is_kept_and_not_waited_for(course, work):
    work.mkdir()
    os.mkfifo(work / "00_start.ipynb")
    os.mkfifo(work / "03_jit.new.ipynb")
    (work / "03_jit.ipynb").write_text("mine")
    source = (
        "import sys; from pathlib import Path; from tpulab.cli import lab; course, work = map(Path, sys.argv[1:]); "
    )
    source += "print(lab.hand_out(sorted(course.glob('*.ipynb')), work).beside)"
    publish(course, "x = 1")
    done = subprocess.run(
        [sys.executable, "-c", source, str(course), str(work)], capture_output=True, text=True, timeout=60
    )
    assert "'00_start.new.ipynb'" in done.stdout and "'03_jit.new-2.ipynb'" in done.stdout, done.stderr
    assert (work / "00_start.ipynb").is_fifo() and (work / "03_jit.new.ipynb").is_fifo()


LISTS = [
    "",
    "{",
    "[]",
    '{"format": 9, "notebooks": {}}',
    '{"format": 1, "notebooks": {"03_jit.ipynb": 3}}',
    "[" * 50_000,
]


@pytest.mark.parametrize("text", LISTS, ids=range(len(LISTS)))
def test_damaged_list_makes_everything_count_as_touched(course, work, text):
    lab.hand_out(publish(course, "x = 1"), work)
    (work / ".tpulab.json").write_text(text)
    done = lab.hand_out(publish(course, "x = 2"), work)
    assert done.kept == NAMES and "was damaged" in done.lines()[0]
    assert sources(work / "03_jit.ipynb") == ["x = 1"] and sources(work / "03_jit.new.ipynb") == ["x = 2"]
    assert lab.hand_out(publish(course, "x = 2"), work).note == ""


def test_missing_list_makes_everything_count_as_touched(course, work):
    lab.hand_out(publish(course, "x = 1"), work)
    (work / ".tpulab.json").unlink()
    assert lab.hand_out(publish(course, "x = 2"), work).kept == NAMES


def test_a_list_of_another_shape_is_never_an_error(course, work):
    work.mkdir()
    entries = {"03_jit.ipynb": {"sources": ["odd"], "beside": 3}, "03_jit.new.ipynb": {"sources": None}}
    (work / ".tpulab.json").write_text(json.dumps({"format": 1, "notebooks": entries}))
    edit(work / "03_jit.ipynb", "mine")
    assert lab.hand_out(publish(course, "x = 1"), work).kept == ("03_jit.ipynb",)


class Learner(RuleBasedStateMachine):
    """Edits, runs, deletions, updates, lost lists and kills in any order: no text of the learner's is ever lost."""

    @initialize()
    def start(self):
        self.place = tempfile.TemporaryDirectory()
        self.course, self.work = Path(self.place.name, "course"), Path(self.place.name, "work")
        self.version, self.edits, self.mine = 1, 0, {}
        self.hand_out()

    def files(self):
        return sorted(path for path in self.work.glob("*.ipynb"))

    @rule()
    def hand_out(self):
        lab.hand_out(publish(self.course, f"course {self.version}"), self.work)
        assert all((self.work / name).exists() for name in NAMES)

    @rule()
    def update(self):
        self.version += 1

    @precondition(lambda self: self.version > 1)
    @rule()
    def downgrade(self):
        self.version -= 1

    @rule(which=st.integers(0, 9))
    def edits_one(self, which):
        path = self.files()[which % len(self.files())]
        self.edits += 1
        edit(path, f"mine {self.edits}")
        self.mine[path] = [f"mine {self.edits}"]

    @rule(which=st.integers(0, 9))
    def runs_one(self, which):
        path = self.files()[which % len(self.files())]
        edit(path, *sources(path))

    @precondition(lambda self: len(self.files()) > 1)
    @rule(which=st.integers(0, 9))
    def deletes_one(self, which):
        path = self.files()[which % len(self.files())]
        path.unlink()
        self.mine.pop(path, None)

    @rule(text=st.sampled_from(["", "{}", "[]"]))
    def list_is_damaged(self, text):
        (self.work / lab.MANIFEST).write_text(text)

    @rule(after=st.integers(0, 6))
    def killed_midway(self, after):
        calls, whole = iter(range(100)), Path.replace

        def replace(draft, target):
            if next(calls) == after:
                raise Killed
            return whole(draft, target)

        class Killed(BaseException):
            pass

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with contextlib.suppress(Killed):
                self.hand_out()

    @invariant()
    def nothing_is_lost(self):
        for path, text in getattr(self, "mine", {}).items():
            assert sources(path) == text
        for path in self.files() if hasattr(self, "work") else ():
            nbformat.read(path, as_version=4)

    def teardown(self):
        if hasattr(self, "place"):
            self.place.cleanup()


TestLearner = Learner.TestCase
TestLearner.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_kill_in_the_middle_leaves_whole_notebooks(course, work):
    """kill -9 while two versions are handed out in turn: each file is one of the two, and the next run mends."""
    one, two = publish(course, "x = 1"), publish(course.with_name("second"), "x = 2")
    source = (
        f"import pathlib; from tpulab.cli import lab\nwork = pathlib.Path({str(work)!r})\nprint('go', flush=True)\n"
        f"versions = [[pathlib.Path(p) for p in v] for v in {[list(map(str, one)), list(map(str, two))]!r}]\n"
        "while True:\n    for version in versions: lab.hand_out(version, work)\n"
    )
    for wait_s in (0.0, 0.004, 0.011, 0.02, 0.05):
        with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as child:
            assert child.stdout and child.stdout.readline()
            time.sleep(wait_s)
            child.kill()
        for path in work.glob("*.ipynb"):
            assert sources(path) in (["x = 1"], ["x = 2"])
    draft = work / ".03_jit.ipynb.1.tpulab-draft"
    draft.write_text("left by a kill")
    os.utime(draft, (0, 0))
    lab.hand_out(two, work)
    assert not draft.exists()


def test_folder_that_is_read_only():
    with open_folder() as place:
        given, work = publish(place / "course", "x = 1"), place / "work"
        lab.hand_out(given, work)
        before = snapshot(work)
        second = publish(place / "course", "x = 2")
        with read_only(work), pytest.raises(Stop, match=r"cannot write in .*choose a folder of yours") as caught:
            lab.hand_out(second, work)
        assert caught.value.status == UNFINISHED
        assert snapshot(work) == before
        with read_only(place), pytest.raises(Stop, match="cannot write in"):
            lab.hand_out(second, place / "cannot be made")


def test_no_room_left_loses_nothing(course, work):
    lab.hand_out(publish(course, "x = 1"), work)
    edit(work / "00_start.ipynb", "mine")
    before = snapshot(work)
    second = publish(course, "x = 2" + "#" * 100_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # the file system says "too large"
    try:
        with pytest.raises(Stop, match="no room in") as caught:
            lab.hand_out(second, work)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.status == UNFINISHED
    assert snapshot(work) == before


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "no room"), (errno.EACCES, "cannot write"), (errno.EROFS, "cannot write")],
)
def test_errors_of_the_disk_name_a_remedy(course, work, monkeypatch, number, words):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(Stop, match=words) as caught:
        lab.hand_out(publish(course, "x = 1"), work)
    assert "--work DIR" in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_way(course, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Stop, match="in the way") as caught:
        lab.hand_out(publish(course, "x = 1"), tmp_path / place)
    assert caught.value.status == UNFINISHED
    assert (tmp_path / "file").read_text() == "mine"


def test_the_courses_own_folders_are_refused(course):
    given = publish(course, "x = 1")
    for folder in (course, course / "below", Path(lab.__file__).parent, Path(lab.__file__).parent / "notebooks"):
        with pytest.raises(Stop, match="belongs to the course") as caught:
            lab.hand_out(given, folder)
        assert caught.value.status == WRONG_USE
    assert sources(given[0]) == ["x = 1"] and nbformat.read(given[0], as_version=4).cells[1].outputs


def test_what_is_made_anew_or_removed_is_refused(course, tmp_path, monkeypatch):
    """`make clean`, a set-up and git act on these without looking for notebooks."""
    given, root = publish(course, "x = 1"), tmp_path / "checkout"
    monkeypatch.setattr(lab, "_PACKAGE", root / "tpulab")
    for name in ("tpulab", "course", "real"):
        (root / name).mkdir(parents=True)
    (root / "course" / "build.py").touch()
    (root / "link").symlink_to(root / "real" / ".." / "build")
    for folder in (root, root / "build", root / ".venv/a/b", root / ".git", root / "link/x", Path(sys.prefix) / "x"):
        with pytest.raises(Stop, match=r"course.*--work DIR") as caught:
            lab.hand_out(given, folder)
        assert caught.value.status == WRONG_USE
        assert not (folder / NAMES[0]).exists()
    assert lab.hand_out(given, root / "work").new == NAMES


def test_a_link_is_the_learners(course, work, tmp_path):
    lab.hand_out(publish(course, "x = 1"), work)
    (work / "03_jit.ipynb").rename(tmp_path / "elsewhere.ipynb")
    (work / "03_jit.ipynb").symlink_to(tmp_path / "elsewhere.ipynb")
    assert lab.hand_out(publish(course, "x = 1"), work).same == NAMES
    done = lab.hand_out(publish(course, "x = 2"), work)
    assert done.beside == (("03_jit.ipynb", "03_jit.new.ipynb"),)
    assert (work / "03_jit.ipynb").is_symlink() and sources(tmp_path / "elsewhere.ipynb") == ["x = 1"]
    (work / "03_jit.new.ipynb").rename(tmp_path / "new.ipynb")
    (work / "03_jit.new.ipynb").symlink_to(tmp_path / "new.ipynb")
    assert lab.hand_out(publish(course, "x = 3"), work).beside == (("03_jit.ipynb", "03_jit.new-2.ipynb"),)


def test_a_list_that_is_a_folder_is_named_itself(course, work):
    (work / ".tpulab.json").mkdir(parents=True)
    with pytest.raises(Stop, match=r"/\.tpulab\.json is in the way"):
        lab.hand_out(publish(course, "x = 1"), work)


def test_read_only_course_is_enough(course, work):
    given = publish(course, "x = 1")
    for path in given:
        path.chmod(0o444)
    lab.hand_out(given, work)
    assert os.access(work / "03_jit.ipynb", os.W_OK) and (work / "03_jit.ipynb").stat().st_mode & 0o200


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"{}", b'{"cells": [{}], "metadata": {}}', b""])
def test_a_damaged_notebook_of_the_course_is_named(course, work, content):
    given = publish(course, "x = 1")
    given[1].write_bytes(content)
    with pytest.raises(Stop, match=r"03_jit\.ipynb cannot be read as a notebook.*install tpulab again"):
        lab.hand_out(given, work)
    assert sources(work / "00_start.ipynb") == ["x = 1"], "what came before it is whole"


def test_course_notebooks_come_from_the_package_then_the_checkout(tmp_path, monkeypatch):
    package = tmp_path / "site" / "tpulab"
    package.mkdir(parents=True)
    monkeypatch.setattr(lab, "_PACKAGE", package)
    publish(tmp_path / "site" / "notebooks", "somebody else's")
    with pytest.raises(Stop, match=r"missing from .*tpulab.notebooks.*course/build.py") as caught:
        lab.course_notebooks()
    assert caught.value.status == UNFINISHED
    (tmp_path / "site" / "course").mkdir()
    (tmp_path / "site" / "course" / "build.py").touch()
    assert [path.name for path in lab.course_notebooks()] == list(NAMES)
    publish(package / "notebooks", "ours", names=["00_start.ipynb"])
    assert lab.course_notebooks() == [package / "notebooks" / "00_start.ipynb"]


# JupyterLab


def test_free_port_passes_over_taken_ones():
    with socket.socket() as taken:
        taken.bind((server.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert server.free_port(first=port) > port
        with pytest.raises(Stop, match=f"port {port} cannot be had .* choose another, e.g.") as caught:
            server.free_port(port)
        assert caught.value.status == WRONG_USE
    assert server.free_port(port) == port


def test_no_port_is_free(monkeypatch):
    monkeypatch.setattr(server.socket.socket, "bind", lambda *_: (_ for _ in ()).throw(OSError(98, "taken")))
    with pytest.raises(Stop, match="no free port"):
        server.free_port()


def test_command_keeps_the_token_out_and_opens_on_the_first_notebook():
    words = server.command(Path("/work"), 8890, first="00_start.ipynb", browser=False)
    assert words[:3] == [sys.executable, "-m", "jupyterlab"]
    assert "--ServerApp.ip=127.0.0.1" in words and "--ServerApp.port_retries=0" in words
    assert "--ServerApp.default_url=/lab/tree/00_start.ipynb" in words
    assert not any("token" in word for word in words)
    assert ("--allow-root" in words) == (os.geteuid() == 0)


def test_environment_goes_round_the_proxy_and_before_other_kernels(monkeypatch):
    changed = server.environment("secret", {"no_proxy": "example.org", "JUPYTER_PATH": "/theirs", "HOME": "/h"})
    assert changed["JUPYTER_TOKEN"] == "secret" and changed["HOME"] == "/h"
    assert changed["NO_PROXY"] == changed["no_proxy"] == "example.org,127.0.0.1,localhost"
    ours, theirs = changed["JUPYTER_PATH"].split(os.pathsep)
    assert theirs == "/theirs"
    spec = json.loads((Path(ours) / "kernels" / "python3" / "kernel.json").read_text())
    assert spec["argv"][0] == "python", "which Jupyter replaces by the Python that runs it"
    page = json.loads((Path(changed["JUPYTER_CONFIG_PATH"]) / "labconfig" / "page_config.json").read_text())
    assert page["disabledExtensions"] == {"@jupyterlab/apputils-extension:announcements": True}


def test_has_browser(monkeypatch):
    monkeypatch.setattr(server.sys, "platform", "linux")
    monkeypatch.setattr(server.webbrowser, "get", lambda: object())
    assert not server.has_browser({})
    assert server.has_browser({"DISPLAY": ":0"}) and server.has_browser({"BROWSER": "wslview"})

    def none():
        raise server.webbrowser.Error

    monkeypatch.setattr(server.webbrowser, "get", none)
    assert not server.has_browser({"DISPLAY": ":0"})


def test_jupyterlab_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Stop, match=r"pip install 'tpulab\[lab\]'"):
        server.serve(tmp_path)


@pytest.mark.parametrize(
    ("source", "limit_s", "words"),
    [("raise SystemExit(4)", 60, "ended before it was ready"), ("import time; time.sleep(60)", 0.5, "did not answer")],
)
def test_jupyterlab_that_does_not_start(monkeypatch, tmp_path, source, limit_s, words):
    monkeypatch.setattr(server, "_READY_WITHIN_S", limit_s)
    monkeypatch.setattr(server, "command", lambda *_, **__: [sys.executable, "-c", source])
    with pytest.raises(Stop, match=words) as caught:
        server.serve(tmp_path)
    assert caught.value.status == UNFINISHED


def test_a_port_taken_between_our_look_and_jupyterlabs(monkeypatch, tmp_path):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda _: object())
    said, starts = [], []

    def command(_folder, port, **_):
        starts.append(port)
        rival = socket.create_server((server.HOST, port)) if len(starts) < 3 else None
        rivals.callback(rival.close) if rival else None
        return [sys.executable, "-c", f"import sys; sys.exit({0 if rival is None else 1})"]

    monkeypatch.setattr(server, "command", command)
    ready = server._ready
    monkeypatch.setattr(server, "_ready", lambda *args: len(starts) == 3 or ready(*args))
    with contextlib.ExitStack() as rivals:
        assert server.serve(tmp_path, say=said.append) == OK
        assert len(set(starts)) == 3
        assert sum("taken by another program meanwhile" in line for line in said) == 2
        starts.clear()
        with pytest.raises(Stop, match=r"port \d+ cannot be had"):
            server.serve(tmp_path, port=server.free_port(), say=said.append)


def get(url, token=""):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"} if token else {})
    with opener.open(request, timeout=20) as reply:
        return json.load(reply)


@pytest.fixture
def running(course, work, tmp_path):
    """`tpulab lab` for real, in a home with a trap: a kernel called python3 that is another Python."""
    pytest.importorskip("jupyterlab")
    trap = tmp_path / "user" / "kernels" / "python3"
    trap.mkdir(parents=True)
    (trap / "kernel.json").write_text(
        json.dumps({"argv": ["/no/python"], "display_name": "Trap", "language": "python"})
    )
    own = {"HOME": str(tmp_path / "user"), "JUPYTER_PATH": str(tmp_path / "user"), "http_proxy": "http://127.0.0.1:9"}
    source = (
        "import pathlib, sys; from tpulab import cli; from tpulab.cli import lab\n"
        f"lab.course_notebooks = lambda: sorted(pathlib.Path({str(course)!r}).glob('*'))\n"
        f"sys.exit(cli.main(['lab', '--no-browser', '--work', {str(work)!r}]))\n"
    )
    publish(course, "x = 1")
    log = (tmp_path / "log").open("w+")
    child = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | own
    )
    yield child, log
    child.kill()
    child.communicate()
    log.close()


def page_of(child, log):
    said = []
    for line in child.stdout:
        if "http://" in line:
            return line.split()[-1]
        said.append(line)
    log.seek(0)
    raise AssertionError(f"no address was printed, but: {''.join(said)}{log.read()}")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_lab_starts_serves_this_python_and_stops(running, ending, work, tmp_path):
    child, log = running
    address, token = page_of(child, log).split("?token=")
    base = address.removesuffix("/lab/tree/00_start.ipynb")
    assert base.startswith("http://127.0.0.1:")
    assert get(f"{base}/api/status", token)["kernels"] == 0
    with pytest.raises(urllib.error.HTTPError, match="403") as caught:
        get(f"{base}/api/contents")
    caught.value.close()
    assert {item["name"] for item in get(f"{base}/api/contents", token)["content"]} == set(NAMES)
    specs = get(f"{base}/api/kernelspecs", token)["kernelspecs"]
    assert specs["python3"]["spec"]["argv"][0] == "python"
    saving = get(f"{base}/lab/api/settings/@jupyterlab/docmanager-extension:plugin", token)["schema"]["properties"]
    assert saving["autosaveInterval"]["default"] == 15, "as is said when it starts"
    kernel = kernel_process(base, token)
    child.send_signal(ending)
    assert child.wait(30) == INTERRUPTED
    assert not server.answers(int(base.rsplit(":", 1)[1]), token)
    assert wait_until_gone(kernel), "its kernel ends with it"
    log.seek(0)
    assert "/tpulab/" not in log.read(), "a kernel interrupted while it starts may say so, we don't"
    assert not (tmp_path / "user" / ".jupyter" / "lab" / "user-settings").exists(), "the learner's settings are theirs"


def kernel_process(base, token):
    """Start a kernel and find its process; it must be this Python."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{base}/api/kernels", b'{"name": "python3"}', {"Authorization": f"token {token}"})
    with opener.open(request, timeout=30) as reply:
        identity = json.load(reply)["id"]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(identity in word for word in words):
            assert words[0] == sys.executable
            return folder
    raise AssertionError("the kernel does not run")


def wait_until_gone(folder):
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        if not folder.exists() or "\nState:\tZ" in (folder / "status").read_text():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ending_make_ends_the_lab(tmp_path, ending):
    """Ctrl-C, which all of a terminal get, is no error of make; a termination of make alone reaches the lab."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "bootstrap.py").touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    package = tmp_path / "tpulab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(
        "import signal, time\n"
        "def main(words):\n"
        "    signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "    try:\n"
        "        print('up', *words, flush=True)\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        print('Stopped.', flush=True)\n"
        "        return 130\n"
    )
    # A worker of pytest may ignore Ctrl-C, and so would all that it starts.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            heed,
            "make",
            "-C",
            str(tmp_path),
            "--no-print-directory",
            "lab",
            f"PYTHON={sys.executable}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert child.stdout and child.stdout.readline() == "up lab --work work\n"
    (os.killpg if ending == signal.SIGINT else os.kill)(child.pid, ending)
    said = child.communicate(timeout=20)[0]
    assert "Stopped.\n" in said and (ending == signal.SIGTERM or said == "Stopped.\n")


def test_shut_down_from_its_page_is_success(running):
    child, log = running
    address, token = page_of(child, log).split("?token=")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    base = address.split("/lab")[0]
    request = urllib.request.Request(f"{base}/api/shutdown", b"", {"Authorization": f"token {token}"}, method="POST")
    with opener.open(request, timeout=20) as reply:
        assert reply.status == 200
    assert child.wait(30) == OK
