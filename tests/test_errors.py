import pytest

from tpulab import expect_error


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
