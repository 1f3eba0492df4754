"""The wire format, by hand: bytes written out after the protobuf specification."""

import pytest

from tpulab.xla.wire import Budget, Malformed, Message


def test_reads_every_wire_type():
    data = bytes([0x08, 0xAC, 0x02, 0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0x1A, 2, 0x68, 0x69, 0x25, 2, 0, 0, 0])
    message = Message(data)
    assert message.integer(1) == 300
    assert message.integer(2) == 1
    assert message.text(3) == "hi"
    assert message.integer(4) == 2
    assert 5 not in message and message.integer(5, 7) == 7


def test_integers_are_two_complement():
    assert Message(bytes([0x08]) + b"\xff" * 9 + b"\x01").integer(1) == -1


def test_a_list_may_be_packed_or_not_or_both():
    assert Message(bytes([0x08, 1, 0x08, 2])).integers(1) == (1, 2)
    assert Message(bytes([0x0A, 3, 1, 0xAC, 2])).integers(1) == (1, 300)
    assert Message(bytes([0x08, 9, 0x0A, 2, 1, 2])).integers(1) == (9, 1, 2)


def test_the_last_value_counts_and_bad_utf8_is_marked():
    message = Message(bytes([0x08, 1, 0x08, 2, 0x12, 1, 0xFF]))
    assert message.integer(1) == 2
    assert message.text(2) == "\ufffd"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([0x08], "middle of a field"),
        ([0x08, 0x80], "middle of a field"),
        ([0x11, 1, 2], "middle of a field"),
        ([0x0A, 5, 1], "beyond its message"),
        ([0x0A] + [0xFF] * 9 + [1], "beyond its message"),
        ([0x08] + [0xFF] * 11, "longer than 64 bits"),
        ([0x0B], "wire type 3"),
        ([0x00, 0x00], "number 0"),
    ],
)
def test_damage_is_named(data, words):
    with pytest.raises(Malformed, match=words):
        Message(bytes(data))


def test_a_field_of_the_other_kind_is_damage():
    message = Message(bytes([0x08, 1, 0x12, 1, 0x80]))
    for wrong in (lambda: message.text(1), lambda: message.integer(2), lambda: message.message(1)):
        with pytest.raises(Malformed, match="belongs"):
            wrong()
    with pytest.raises(Malformed, match="list of numbers"):
        message.integers(2)


def test_work_is_bounded():
    with pytest.raises(Malformed, match="more than"):
        Message(bytes([0x08, 1] * 11), Budget(10))
    with pytest.raises(Malformed, match="more than"):
        Message(bytes([0x0A, 20, *[1] * 20]), Budget(10)).integers(1)
