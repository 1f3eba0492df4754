"""The class table: whoever can be read is shown, whatever cannot be read is named by its line."""

from hypothesis import given
from hypothesis import strategies as st

from tpulab.learn import code, report, store
from tpulab.learn.bank import banks
from tpulab.learn.classroom import read_class

EXERCISES = [item for one in banks() for item in one.exercises]
FIRST = EXERCISES[0]


def progress_code(**exercises):
    record = store.empty() | {"exercises": {key.replace("_", "."): done for key, done in exercises.items()}}
    return code.encode("progress", report.pack(record))


def doctor_code(**failed):
    rows = {"jax": [True, "0.10.2"], "cores": [None, 1]} | {name: [False, None] for name in failed}
    return code.encode("doctor", {"v": "0.1.0", "ready": not failed, "c": rows})


ADA = progress_code(start_1={"status": "correct", "attempts": 2, "seen": 1})
BEN = progress_code(start_1={"status": "not yet", "attempts": 7}, gone_9={"status": "not yet", "attempts": 99})


def seats(*lines):
    found = read_class(lines)
    assert found.problems == ()
    return found.seats


def test_who_is_where():
    ada, ben, eve = seats(f"Ada {ADA}", f"Ben {BEN}", f"Eve {doctor_code(kernel=1)}")
    assert (ada.correct, ada.stuck_on, ada.seen, ada.ready) == (1, "", 1, None)
    assert (ben.correct, ben.at, ben.chapters) == (0, banks()[0].chapter.slug, 0)
    assert (ben.stuck_on, ben.attempts) == ("start.1", 7), "an exercise that is no more does not count"
    assert (eve.ready, eve.why_not, eve.at) == (False, ("kernel",), None)


def test_everything_solved():
    (ada,) = seats(f"Ada {progress_code(**{item.id: {'status': 'correct', 'attempts': 1} for item in EXERCISES})}")
    assert ada.at == "" and ada.correct == len(EXERCISES)
    found = read_class([f"Ada {progress_code(**{item.id: {'status': 'correct'} for item in EXERCISES})}"])
    assert ada.chapters == found.chapters
    assert found.rows()[0][2] == "core done"


def test_a_solved_chapter_moves_the_learner_on():
    core = {item.id: {"status": "correct"} for item in banks()[0].exercises if item.core}
    (ada,) = seats(f"Ada {progress_code(**core)}")
    assert ada.chapters == 1 and ada.at != banks()[0].chapter.slug


def test_forms_of_a_line():
    found = read_class(
        [
            "\ufeffname,code",
            "# the morning group",
            "",
            f"Ada Lovelace,{ADA}",
            f'"Hopper, Grace";"{ADA}"',
            f"Émilie\t{ADA}\t{doctor_code()}",
            f"  Li   Na   {ADA}  ",
        ]
    )
    assert found.problems == ()
    assert [seat.name for seat in found.seats] == ["Ada Lovelace", "Hopper, Grace", "Émilie", "Li Na"]
    assert found.seats[2].ready is True


def test_lines_of_one_name_are_merged_and_the_last_doctor_counts():
    other = progress_code(start_1={"status": "not yet", "attempts": 5})
    (ada,) = seats(f"Ada {other}", f"ada {doctor_code(disk=1)}", f"ADA {doctor_code()}", f"Ada {ADA}")
    assert (ada.name, ada.correct, ada.ready, ada.why_not) == ("Ada", 1, True, ())


def test_bad_lines_are_named_and_the_rest_is_shown():
    found = read_class(
        [
            f"Ada {ADA}",
            f"Ben {BEN[:-9]}",
            "Cleo",
            ADA,
            f"Dan {code.encode('grocery', {})}",
            f"Eve {code.encode('doctor', {'c': 3})}",
            f"Fay {code.encode('progress', [])}",
        ]
    )
    assert [seat.name for seat in found.seats] == ["Ada"]
    assert [line.split(":")[0] for line in found.problems] == [f"line {number}" for number in range(2, 8)]
    assert "Ben: the code was not copied whole" in found.problems[0]
    assert "no code in 'Cleo'" in found.problems[1]
    assert "without a name" in found.problems[2]
    assert all("update tpulab" in line for line in found.problems[3:])


def test_rows_hold_what_the_head_says():
    found = read_class([f"Ada {ADA}", f"Ben {BEN} {doctor_code(kernel=1, disk=1)}", f"Eve {doctor_code()}"])
    assert all(len(row) == len(found.HEAD) for row in found.rows())
    ben = dict(zip(found.HEAD, found.rows()[1], strict=True))
    assert ben["machine"] == "not ready: disk, kernel"
    assert ben["stuck on"] == "start.1 (7 attempts)"
    assert found.rows()[2][1:] == ("ready", "?", "?", "?", "?", "?")


def test_a_long_report_makes_no_wide_table():
    many = code.encode(
        "doctor", {"ready": False, "c": {f"{number} " + "x" * 90: [False, None] for number in range(3000)}}
    )
    row = read_class([f"Ada {many}"]).rows()[0]
    assert len(row[1]) < 300 and row[1].endswith("and 2,995 more")


def test_a_newer_code_says_update():
    assert read_class(["Ada TPULAB2-abc"]).problems == ("line 1: Ada: the code is from a newer tpulab; update tpulab",)


@given(st.lists(st.text(max_size=40) | st.text(max_size=40).map(lambda text: f"Ada TPULAB1-{text}"), max_size=6))
def test_no_list_raises(lines):
    found = read_class([*lines, f"Ada {ADA}"])
    assert found.seats[0].name == "Ada" and len(found.problems) <= len(lines)
