"""Progress survives: damage, two writers at once, folders that cannot be written, codes that were garbled."""

import copy
import json
import multiprocessing
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tpulab
from tests.nobody import open_folder, read_only
from tpulab.learn import code, notebook, report, store

COUNTS = st.integers(min_value=0, max_value=50)
DONE = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["not yet", "correct"]),
        "attempts": COUNTS,
        "hints": COUNTS,
        "seen": st.sampled_from([0, 1]),
    },
)
ANSWERS = {
    "start.p1": st.integers(),
    "start.p2": st.sampled_from(["float64", "BFLOAT16 "]),
    "jit.p1": st.fixed_dictionaries({"lines": COUNTS, "x": st.just("a number")}),
}
GUESSES = {
    id: st.fixed_dictionaries({"answer": answers}, optional={"right": st.booleans()}) for id, answers in ANSWERS.items()
}
IDS = st.sampled_from(["start.1", "jit.1", "jit.2"])
RECORDS = st.builds(
    lambda exercises, predictions: store.empty() | {"exercises": exercises, "predictions": predictions},
    st.dictionaries(IDS, DONE),
    st.fixed_dictionaries({}, optional=GUESSES),
)
# The progress folder is the same for every example; each example writes what it needs.
same_folder = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(text):
    store.home().mkdir(parents=True, exist_ok=True)
    store.path().write_bytes(text if isinstance(text, bytes) else text.encode())


def test_nothing_done_yet():
    assert store.read() == (store.empty(), "")
    assert not store.home().exists(), "reading makes no folder"


@same_folder
@given(RECORDS)
def test_what_is_written_is_read(record):
    write("{}")
    with store.update() as (mine, _):
        mine.clear()
        mine.update(copy.deepcopy(record))
    assert store.read() == (record, "")
    assert {path.name for path in store.home().iterdir()} >= {"progress.json"}
    assert not list(store.home().glob("*draft*"))


DAMAGED = [
    "",
    "{",
    "null",
    "[]",
    '"text"',
    "[" * 100_000,
    '{"format": 1}',
    '{"format": "2", "exercises": {}, "predictions": {}}',
    '{"format": 1, "exercises": [], "predictions": {}}',
    '{"format": 1, "exercises": {"jit.1": 3}, "predictions": {}}',
    '{"format": 1, "exercises": {"jit.1": {"status": "great"}}, "predictions": {}}',
    '{"format": 1, "exercises": {"jit.1": {"attempts": "3"}}, "predictions": {}}',
    '{"format": 1, "exercises": {}, "predictions": {"jit.p1": 3}}',
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_file_is_kept_aside(text):
    write(text)
    before = store.path().read_bytes()
    record, note = store.read()
    assert record == store.empty()
    assert "progress.damaged-1.json" in note
    assert (store.home() / "progress.damaged-1.json").read_bytes() == before
    assert store.read() == (store.empty(), ""), "said once"


@same_folder
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_kept_aside(content):
    write(content)
    kept = len(list(store.home().glob("progress.damaged-*.json")))
    _, note = store.read()
    aside = list(store.home().glob("progress.damaged-*.json"))
    assert len(aside) == kept + bool(note)
    if note:
        assert content in [path.read_bytes() for path in aside]


def test_damage_while_updating_loses_nothing_new():
    write("not JSON")
    with store.update() as (record, note):
        record["exercises"]["jit.1"] = {"attempts": 1}
    assert "damaged" in note
    assert store.read()[0]["exercises"] == {"jit.1": {"attempts": 1}}


def test_body_that_raises_changes_nothing():
    with store.update() as (record, _):
        record["exercises"]["jit.1"] = {"attempts": 1}
    with pytest.raises(ZeroDivisionError), store.update() as (record, _):
        record["exercises"].clear()
        raise ZeroDivisionError
    assert store.read()[0]["exercises"] == {"jit.1": {"attempts": 1}}


def count_up(folder, name, times):
    os.environ["TPULAB_HOME"] = folder
    for _ in range(times):
        with store.update() as (record, _):
            for key in (name, "both"):
                done = record["exercises"].setdefault(key, {})
                done["attempts"] = done.get("attempts", 0) + 1


def test_two_processes_at_once_lose_nothing(home):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=count_up, args=(str(home), name, 60)) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    done = store.read()[0]["exercises"]
    assert {key: value["attempts"] for key, value in done.items()} == {"one": 60, "two": 60, "both": 120}


NEWER = '{"format": 2, "exercises": {"jit.1": "solved"}, "since": 3}'


def test_a_newer_file_is_left_alone(home, monkeypatch):
    monkeypatch.setattr(notebook, "_unsaved", {})
    write(NEWER)
    said = "newer tpulab; update tpulab, or set TPULAB_HOME to another folder"
    with pytest.raises(OSError, match=said):
        store.read()
    for card in (tpulab.check("start.1", lambda x: x), tpulab.hint("start.1"), tpulab.predict("start.p1", 1.0)):
        assert said in repr(card) and len(repr(card).splitlines()[-1]) < 300
    assert said in tpulab.progress().note
    assert store.path().read_text() == NEWER
    assert not list(home.glob("*damaged*"))


def test_fields_of_a_newer_version_stay():
    newer = store.empty() | {
        "exercises": {"start.1": {"attempts": 1, "status": "not yet", "minutes": 2.5}},
        "predictions": {"start.p1": {"answer": 1.0, "sure": "very"}},
        "since": "spring",
    }
    write(json.dumps(newer))
    tpulab.check("start.1", lambda x: x)
    newer["exercises"]["start.1"]["attempts"] = 2
    assert store.read() == (newer, "")


def test_a_link_stays_a_link(home, tmp_path):
    home.mkdir()
    target = tmp_path / "elsewhere.json"
    (home / "progress.json").symlink_to(target)
    for attempts in (1, 2):
        tpulab.check("start.1", lambda x: x)
        assert json.loads(target.read_text())["exercises"]["start.1"]["attempts"] == attempts
    target.write_text("{")
    assert "damaged" in tpulab.check("start.1", lambda x: x).text
    assert (home / "progress.json").readlink() == target
    assert (tmp_path / "progress.damaged-1.json").read_text() == "{"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_keeps_nobody_waiting(home):
    home.mkdir()
    os.mkfifo(home / "progress.json")
    assert "no plain file" in tpulab.check("start.1", lambda x: x).text
    assert "no plain file" in tpulab.progress().note


def test_the_last_count_is_no_damage():
    most = store.MAX_COUNT - 1
    packed = {"e": {"start.1": [1, most, most, most]}, "p": {}}
    tpulab.progress(restore=code.encode("progress", packed))
    for _ in range(2):
        assert "damaged" not in tpulab.check("start.1", lambda x: x).text + tpulab.hint("start.1").text
    assert store.read()[0]["exercises"]["start.1"]["attempts"] == most


def test_restore_leaves_out_what_the_course_has_no_place_for():
    many = {f"gone.{number}": [2, 1, 0, 0] for number in range(30_000)}
    guesses = {"start.p1": [[[1]], None], "start.p3": [7, True], "gone.p1": ["x" * 100_000, None]}
    shown = tpulab.progress(restore=code.encode("progress", {"e": many | {"start.1": [2, 1, 0, 0]}, "p": guesses}))
    assert store.read()[0] == store.empty() | {
        "exercises": {"start.1": {"status": "correct", "attempts": 1}},
        "predictions": {"start.p3": {"answer": 7, "right": True}},
    }
    assert tpulab.progress(restore=shown.code) == shown


def test_codes_of_another_kind_or_version():
    for kind in ("\x1b[2J" * 9, "x" * 900_000, ["progress"], None):
        with pytest.raises(ValueError) as caught:
            tpulab.progress(restore=code.encode(kind, {}))  # type: ignore[arg-type]
        assert str(caught.value) == "this is another code; a progress code was wanted"
    with pytest.raises(ValueError, match="from a newer tpulab; update tpulab"):
        tpulab.progress(restore="TPULAB2-abc")


def test_killed_writer_leaves_a_whole_file(home):
    """kill -9 in the middle of writing: the file is always one that was written."""
    source = (
        "from tpulab.learn import store\n"
        "print('go', flush=True)\n"
        "for n in range(10**6):\n"
        "    with store.update() as (record, _):\n"
        "        record['exercises'] = {f'jit.{i}': {'attempts': n} for i in range(200)}\n"
    )
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as child:
            assert child.stdout and child.stdout.readline() == b"go\n"
            while not store.path().exists():
                pass
            child.kill()
        record, note = store.read()
        assert note == ""
        assert len({done["attempts"] for done in record["exercises"].values()}) == 1


def test_folder_that_cannot_be_made_is_an_oserror(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(OSError), store.update():
        raise AssertionError("the body must not run")
    assert report.progress().next_step, "reading still works"


def test_read_only_folder_is_an_oserror_and_progress_is_kept(monkeypatch):
    with open_folder() as folder:
        monkeypatch.setenv("TPULAB_HOME", str(folder))
        with store.update() as (record, _):
            record["exercises"]["jit.1"] = {"attempts": 1}
        with read_only(folder):
            with pytest.raises(OSError), store.update() as (record, _):
                record["exercises"].clear()
            assert store.read()[0]["exercises"] == {"jit.1": {"attempts": 1}}


def test_home_follows_the_environment_then_drive(monkeypatch, tmp_path):
    assert store.home().name == "home"
    monkeypatch.delenv("TPULAB_HOME")
    monkeypatch.setattr(store, "_DRIVE", tmp_path)
    assert store.home() == tmp_path / "tpulab"
    monkeypatch.setattr(store, "_DRIVE", tmp_path / "not mounted")
    assert store.home().name == "tpulab"


RANK = {"": 0, "not yet": 1, "correct": 2}


@given(RECORDS, RECORDS)
def test_merge_never_loses(mine, other):
    merged = copy.deepcopy(mine)
    store.merge(merged, other)
    for part in (mine, other):
        for key, done in part["exercises"].items():
            got = merged["exercises"][key]
            assert RANK[got.get("status", "")] >= RANK[done.get("status", "")]
            assert all(got.get(name, 0) >= done.get(name, 0) for name in ("attempts", "hints", "seen"))
        assert set(part["predictions"]) <= set(merged["predictions"])
    for key, guess in mine["predictions"].items():
        assert merged["predictions"][key]["answer"] == guess["answer"], "the first counts"
        assert merged["predictions"][key].items() >= guess.items(), "what is known of it stays"
    again = copy.deepcopy(merged)
    store.merge(again, other)
    assert again == merged, "twice is once"


@given(RECORDS)
def test_code_carries_a_record(record):
    text = code.encode("progress", report.pack(record))
    assert text.split("-")[0] == "TPULAB1" and len(text.split()) == 1
    kind, packed = code.decode(text)
    assert kind == "progress"
    restored, wanted = store.empty(), store.empty()
    store.merge(restored, report.unpack(packed))
    store.merge(wanted, record)
    drop_zeros = lambda parts: {key: {n: v for n, v in done.items() if v} for key, done in parts.items()}  # noqa: E731
    assert drop_zeros(restored["exercises"]) == drop_zeros(wanted["exercises"])
    assert restored["predictions"] == wanted["predictions"]


@given(RECORDS, st.data())
def test_shortened_or_garbled_code_gives_one_line(record, data):
    text = code.encode("progress", report.pack(record))
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(exclude_characters=text[place], exclude_categories=["Z", "Cc", "Cs"]))
    for damaged in (text[:place], text[place + 1 :], text[:place] + letter + text[place + 1 :]):
        try:
            kind, packed = code.decode(damaged)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1
        else:  # the last letter carries spare bits: what it says is still whole
            assert (kind, packed) == code.decode(text)


@given(st.text(max_size=60))
def test_text_that_is_no_code_gives_one_line(text):
    for one in (text, f"TPULAB1-{text}"):
        with pytest.raises(ValueError) as caught:
            code.decode(one)
        assert len(str(caught.value).splitlines()) == 1


def test_copied_with_line_breaks_is_whole():
    text = code.encode("progress", {"jit.1": list(range(50))})
    assert code.decode(f"  {text[:30]}\n{text[30:50]} \t{text[50:]}\n") == code.decode(text)


def test_deep_or_huge_codes_are_refused(monkeypatch):
    for payload in ("[" * 200_000 + "]" * 200_000, json.dumps(["progress", "x" * 2_000_000])):
        monkeypatch.setattr(code.json, "dumps", lambda *_, payload=payload, **__: payload)
        text = code.encode("progress", {})
        with pytest.raises(ValueError, match="not copied whole"):
            code.decode(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(JSON | st.fixed_dictionaries({"e": st.dictionaries(IDS, st.lists(JSON, min_size=4, max_size=4)), "p": JSON}))
def test_foreign_record_is_refused_or_readable(packed):
    try:
        record = report.unpack(packed)
    except ValueError as error:
        assert "update tpulab" in str(error)
    else:
        store.checked(json.loads(json.dumps(record)))


def test_restore_merges_into_what_is_here():
    with store.update() as (record, _):
        record["exercises"]["start.1"] = {"status": "not yet", "attempts": 5}
        record["exercises"]["jit.9"] = {"status": "correct", "attempts": 1}
    other = store.empty() | {"exercises": {"start.1": {"status": "correct", "attempts": 2}}}
    shown = report.progress(restore=code.encode("progress", report.pack(other)))
    assert shown.chapters[0].solved == 1
    assert store.read()[0]["exercises"] == {
        "start.1": {"status": "correct", "attempts": 5},
        "jit.9": {"status": "correct", "attempts": 1},
    }


def test_restore_refuses_a_doctor_code():
    with pytest.raises(ValueError, match="doctor code"):
        report.progress(restore=code.encode("doctor", {}))


def test_summary_counts_and_says_what_is_next():
    record = store.empty()
    fresh = report.summarize(record)
    assert "start.1" in fresh.next_step
    assert fresh.chapters[0].minutes_left > 0
    for shown in (repr(fresh), fresh._repr_html_()):
        assert "reading counts until a chapter is begun" in shown
    record["exercises"]["start.1"] = {"status": "correct", "attempts": 2, "seen": 1}
    record["predictions"]["start.p1"] = {"answer": 0.0, "right": True}
    row = report.summarize(record).chapters[0]
    assert (row.solved, row.seen, row.predictions, row.right) == (1, 1, 1, 1)
    assert "start.1" not in report.summarize(record).next_step
    assert "chapter" in repr(report.summarize(record)) and "<table>" in report.summarize(record)._repr_html_()
