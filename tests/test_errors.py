import pytest

from tpulab import expect_error
from tpulab.errors import first_line


def test_prints_type_and_first_line(capsys):
    with expect_error(TypeError, ValueError):
        raise ValueError("first line\nsecond line")
    assert capsys.readouterr().out == "ValueError: first line\n"


def test_without_a_message(capsys):
    with expect_error(StopIteration):
        raise StopIteration
    assert capsys.readouterr().out == "StopIteration\n"


def test_nothing_raised_fails():
    with pytest.raises(AssertionError, match="expected TypeError or ValueError, and nothing was raised"):
        with expect_error(TypeError, ValueError):
            pass


def test_another_error_goes_on():
    with pytest.raises(KeyError), expect_error(TypeError):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("No hash for [2]. The error was:\nTypeError: unhashable", "No hash for [2]."),
        ("out_specs do not fit the mesh:\nMesh(4)", "out_specs do not fit the mesh …"),
        ("wanted one of these, e.g. a tuple:\n(2,)", "wanted one of these, e.g. a tuple …"),
        ("nothing follows:", "nothing follows:"),
        ("whole\nsecond", "whole"),
        ("", ""),
    ],
)
def test_a_line_that_only_announces_the_next_is_not_left_hanging(message, line):
    assert first_line(ValueError(message)) == line


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_message_that_raises_is_none(kind):
    class Wordless(Exception):
        def __str__(self):
            raise kind

    assert first_line(Wordless()) == ""
