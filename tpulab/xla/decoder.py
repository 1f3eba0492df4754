"""From the messages of HLO's protobuf format to instructions.

Field numbers: openxla/xla, xla/service/hlo.proto and xla/xla_data.proto, read 2026-11-30.
"""

from __future__ import annotations

import math

from .instruction import Convolution, Dot, Frame, Instruction, Window
from .shape import Shape, read_shape
from .wire import Budget, Malformed, Message

_DEEPEST_TRACEBACK = 64
_MOST_DEVICES = 2**20  # in all groups of one collective
_WHOLE = {"s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "pred"}


class Decoder:
    """What instructions of one module share: tracebacks, payloads, shapes already read.

    Args:
        module: an HloModuleProto.
    """

    def __init__(self, module: Message) -> None:
        index = module.message(17)
        self._texts = [[raw.decode("utf-8", "replace") for raw in index.raws(number)] for number in (1, 2)]
        self._places = index.messages(3)
        self._frames = index.messages(4)
        self._payloads = [raw.decode("utf-8", "replace") for raw in module.raws(22)]
        self._budget = Budget()
        self._shapes: dict[bytes, Shape] = {}
        self._tracebacks: dict[int, tuple[Frame, ...]] = {0: ()}

    def instruction(self, message: Message) -> Instruction:
        """Read an HloInstructionProto."""
        shape = self._shape(message.raw(3))
        metadata = message.message(7)
        frames = self._traceback(metadata.integer(15))
        first = frames[0] if frames else Frame("", "", 0)
        return Instruction(
            id=message.integer(35),
            name=message.text(1),
            opcode=message.text(2),
            shape=shape,
            operands=message.integers(36),
            called=message.integers(38),
            fusion_kind=message.text(11),
            op_name=metadata.text(2),
            source_file=metadata.text(3) or first.file,
            source_line=metadata.integer(4) or first.line,
            frames=frames,
            backend_config=self._config(message),
            literal=_scalar(message, shape) if 8 in message else None,
            dimensions=message.integers(14),
            sizes=message.integers(20),
            dot=_dot(message.message(30)) if 30 in message else None,
            windows=_windows(message.message(15)) if 15 in message else (),
            convolution=_convolution(message) if 16 in message else None,
            parameter_number=message.integer(9),
            tuple_index=message.integer(13),
            custom_call_target=message.text(28),
            comparison_direction=message.text(63),
            channel_id=message.integer(26),
            replica_groups=self._groups(message),
            source_target_pairs=tuple((pair.integer(1), pair.integer(2)) for pair in message.messages(52)),
            control_predecessors=message.integers(37),
            cross_program_prefetch=80 in message,
            async_thread=message.text(79),
        )

    def _shape(self, raw: bytes) -> Shape:
        """Read a shape once; programs repeat them."""
        shape = self._shapes.get(raw)
        if shape is None:
            shape = self._shapes[raw] = read_shape(Message(raw, self._budget))
        return shape

    def _config(self, message: Message) -> str:
        """Give the compiler's remarks, which newer versions keep in a list of their own."""
        if 99 not in message:
            return message.text(43)
        payload = message.message(99)
        if 1 in payload:
            return payload.text(1)
        number = payload.integer(2)
        return self._payloads[number] if 0 <= number < len(self._payloads) else ""

    def _traceback(self, frame: int) -> tuple[Frame, ...]:
        """Follow a stack frame to its callers."""
        if frame in self._tracebacks:
            return self._tracebacks[frame]
        found, at = [], frame
        while 0 < at <= len(self._frames) and len(found) < _DEEPEST_TRACEBACK:
            place = self._frames[at - 1].integer(1)
            found.append(self._place(place))
            at = self._frames[at - 1].integer(2)
        self._budget.spend(len(found))
        self._tracebacks[frame] = tuple(found)
        return self._tracebacks[frame]

    def _place(self, number: int) -> Frame:
        if not 0 < number <= len(self._places):
            return Frame("", "", 0)
        place = self._places[number - 1]
        file, function = (
            names[at - 1] if 0 < (at := place.integer(field)) <= len(names) else ""
            for field, names in zip((1, 2), self._texts, strict=True)
        )
        return Frame(file, function, place.integer(3))

    def _groups(self, message: Message) -> tuple[tuple[int, ...], ...]:
        """Read the groups of devices of a collective, in whichever of the five spellings they are."""
        groups: tuple[tuple[int, ...], ...] = ()
        if 87 in message:
            devices = message.message(87)
            groups = tuple(group.integers(1) for group in devices.messages(1))
            if not groups and 2 in devices:
                groups = _iota(devices.message(2))
        elif 92 in message:
            groups = _iota(message.message(92))
        elif 93 in message:
            groups = _along_axes(message.message(93))
        elif 49 in message:
            groups = tuple(group.integers(1) for group in message.messages(49))
        self._budget.spend(sum(map(len, groups)))
        return groups


def _scalar(message: Message, shape: Shape) -> int | None:
    """Read the value of a scalar constant of whole numbers."""
    if shape.dims or shape.dtype not in _WHOLE:
        return None
    literal = message.message(8)
    for number in (4, 5, 6, 7):  # s32, s64, u32, u64
        values = literal.integers(number)
        if values:
            # A negative s32 is stored as 64 bits of two's complement.
            return values[0]
    return None


def _dot(message: Message) -> Dot:
    return Dot(*(message.integers(number) for number in (1, 2, 3, 4)))


def _windows(message: Message) -> tuple[Window, ...]:
    return tuple(
        Window(
            size=item.integer(1),
            stride=item.integer(2, 1) or 1,
            padding_low=item.integer(3),
            padding_high=item.integer(4),
            window_dilation=item.integer(5, 1) or 1,
            base_dilation=item.integer(6, 1) or 1,
        )
        for item in message.messages(1)
    )


def _convolution(message: Message) -> Convolution:
    numbers = message.message(16)
    return Convolution(
        input_spatial=numbers.integers(11),
        kernel_input_feature=numbers.integer(3),
        kernel_output_feature=numbers.integer(4),
        kernel_spatial=numbers.integers(6),
        output_batch=numbers.integer(9),
        output_feature=numbers.integer(10),
        output_spatial=numbers.integers(12),
        feature_groups=message.integer(50, 1) or 1,
        batch_groups=message.integer(58, 1) or 1,
    )


def _iota(message: Message) -> tuple[tuple[int, ...], ...]:
    """Spell out [4,2]<=[2,4]T(1,0): the numbers 0…7 in a 2×4 grid, its axes swapped, cut into 4 rows of 2."""
    count, size = message.integer(1), message.integer(2)
    shape, order = message.integers(3), message.integers(4)
    order = order or tuple(range(len(shape)))
    if sorted(order) != list(range(len(shape))) or math.prod(shape) != count * size:
        raise Malformed("a list of device groups does not fit its grid")
    return _rows(_grid(shape, order), size)


def _grid(shape: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """Number a grid row by row and read it with its axes in another order."""
    if any(size < 1 for size in shape) or math.prod(shape) > _MOST_DEVICES:
        raise Malformed("a grid of devices has a size below 1, or more than 2**20 devices")
    found = [0]
    for axis in order:
        step = math.prod(shape[axis + 1 :])
        found = [base + step * index for base in found for index in range(shape[axis])]
    return found


def _rows(numbers: list[int], size: int) -> tuple[tuple[int, ...], ...]:
    if size < 1:
        raise Malformed("a group of devices is empty")
    return tuple(tuple(numbers[at : at + size]) for at in range(0, len(numbers), size))


def _along_axes(message: Message) -> tuple[tuple[int, ...], ...]:
    """Spell out groups given as axes of a mesh, or parts of axes: devices that differ only along these."""
    sizes = [axis.integer(2) for axis in message.message(1).messages(1)]
    wanted: list[tuple[int, int, int]] = []  # axis, product of its parts before this one, this part
    for axis in message.messages(2):
        number, part = axis.integer(1), axis.message(2)
        if not 0 <= number < len(sizes):
            raise Malformed("a group of devices names a mesh axis that is not there")
        wanted.append((number, part.integer(1), part.integer(2)) if 2 in axis else (number, 1, sizes[number]))
    shape: list[int] = []
    inside: dict[tuple[int, int, int], int] = {}
    for number, size in enumerate(sizes):
        done = 1
        for item in sorted(item for item in wanted if item[0] == number):
            if item[2] < 1 or item[1] % done or size < 1 or size % (item[1] * item[2]):
                raise Malformed("a group of devices takes a part of a mesh axis that does not divide it")
            inside[item] = len(shape) + 1
            shape += [item[1] // done, item[2]]
            done = item[1] * item[2]
        shape.append(size // done)
    within = [inside[item] for item in dict.fromkeys(wanted)]
    outside = [axis for axis in range(len(shape)) if axis not in within]
    return _rows(_grid(tuple(shape), (*outside, *within)), math.prod(shape[axis] for axis in within))
