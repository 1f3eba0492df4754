"""The protobuf wire format, read without a schema and without trust in what is read."""

import struct

# The 6-billion-parameter step that the course compiles has 0.6 MB and about 200,000 fields.
MOST_BYTES = 256 * 2**20
MOST_FIELDS = 8_000_000
_TOO_MUCH = f"it has more than {MOST_FIELDS:,} fields; no compiler writes such a program"


class Malformed(ValueError):
    """A file or text that is no HLO program, or a damaged one."""


class Budget:
    """How many more fields one file may have, so that no file takes all memory or hours.

    Args:
        left: fields still allowed.
    """

    __slots__ = ("left",)

    def __init__(self, left: int = MOST_FIELDS) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        """Take `count` off.

        Raises:
            Malformed: nothing is left.
        """
        self.left -= count
        if self.left < 0:
            raise Malformed(_TOO_MUCH)


class Message:
    """One protobuf message: its fields by number, unknown ones included and never looked at.

    Args:
        data: the message's bytes.
        budget: shared by all messages of one file.

    Raises:
        Malformed: the bytes are no protobuf message.

    Example:
        >>> message = Message(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69]))
        >>> message.integer(1), message.text(2), message.integers(3)
        (150, 'hi', ())
    """

    __slots__ = ("_budget", "_fields")

    def __init__(self, data: bytes, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._fields = _split(data, self._budget.left)
        self._budget.spend(sum(map(len, self._fields.values())))

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int, default: int = 0) -> int:
        """Give a field's last value as a signed 64-bit integer."""
        values = self._fields.get(number)
        if values is None:
            return default
        value = values[-1]
        if not isinstance(value, int):
            raise Malformed(f"field {number} holds text where a number belongs")
        return value - (1 << 64) if value >> 63 else value

    def integers(self, number: int) -> tuple[int, ...]:
        """Give a repeated integer, packed or not."""
        values = self._fields.get(number)
        if values is None:
            return ()
        found: list[int] = []
        for value in values:
            if isinstance(value, int):
                found.append(value)
            else:
                self._budget.spend(len(value))  # at most one number a byte
                found += _numbers(value)
        return tuple(value - (1 << 64) if value >> 63 else value for value in found)

    def raw(self, number: int) -> bytes:
        """Give a field's last value as bytes; empty where there is none."""
        values = self._fields.get(number)
        if values is None:
            return b""
        if not isinstance(values[-1], bytes):
            raise Malformed(f"field {number} holds a number where text belongs")
        return values[-1]

    def text(self, number: int) -> str:
        """Give a field's last value as text; bytes that are no UTF-8 become marks."""
        return self.raw(number).decode("utf-8", "replace")

    def raws(self, number: int) -> list[bytes]:
        """Give all values of a repeated field as bytes."""
        values = self._fields.get(number, [])
        if not all(isinstance(value, bytes) for value in values):
            raise Malformed(f"field {number} holds a number where a message belongs")
        return values  # type: ignore[return-value]

    def messages(self, number: int) -> list["Message"]:
        """Read all values of a repeated message field."""
        return [Message(value, self._budget) for value in self.raws(number)]

    def message(self, number: int) -> "Message":
        """Read a message field; an empty message where there is none."""
        return Message(self.raw(number), self._budget)


def _split(data: bytes, most: int) -> dict[int, list[int | bytes]]:
    """Cut a message into fields: number to values, in order."""
    fields: dict[int, list[int | bytes]] = {}
    at, end = 0, len(data)
    try:
        while at < end:
            key = data[at]
            key, at = (key, at + 1) if key < 128 else read_varint(data, at)  # most are one byte: spare the call
            kind = key & 7
            value: int | bytes
            if kind == 0:
                value, at = read_varint(data, at)
            elif kind == 2:
                size = data[at]
                size, at = (size, at + 1) if size < 128 else read_varint(data, at)
                value = data[at : at + size]
                at += size
            else:
                value, at = _fixed(data, at, kind)
            if at > end or key < 8:
                raise Malformed("a field reaches beyond its message" if at > end else "a field has number 0")
            number = key >> 3
            if number in fields:
                fields[number].append(value)
            else:
                fields[number] = [value]
            most -= 1
            if most < 0:
                raise Malformed(_TOO_MUCH)
    except IndexError:
        raise Malformed("it ends in the middle of a field") from None
    return fields


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read one integer of 7 bits a byte, least first; give it and where it ends."""
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise Malformed("a number is longer than 64 bits")


def _fixed(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Read a number of fixed size."""
    width = {1: 8, 5: 4}.get(kind)
    if width is None:
        raise Malformed(f"wire type {kind} is not in use")
    if at + width > len(data):
        raise IndexError
    return struct.unpack_from("<Q" if width == 8 else "<I", data, at)[0], at + width


def _numbers(data: bytes) -> list[int]:
    """Read packed integers."""
    if not data or max(data) < 128:
        return list(data)
    found = []
    at, end = 0, len(data)
    try:
        while at < end:
            value, at = read_varint(data, at)
            found.append(value)
    except IndexError:
        raise Malformed("it ends in the middle of a list of numbers") from None
    return found
