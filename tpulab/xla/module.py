"""An HLO program decoded from its bytes: computations of instructions that refer to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .decoder import Decoder
from .instruction import Instruction
from .shape import Shape
from .wire import MOST_BYTES, Budget, Malformed, Message

# Counting follows calls, so what two places call is looked at twice. The 6-billion-parameter step that the course
# compiles weighs 40,000.
MOST_WEIGHT = 4_000_000
WIDEST_WINDOW = 2**18  # places of a convolution's window, each of which is looked at
# Operands and called computations without which an operation means nothing.
_FEWEST = {
    "bitcast": (1, 0),
    "convolution": (2, 0),
    "copy-done": (1, 0),
    "copy-start": (1, 0),
    "dot": (2, 0),
    "dynamic-slice": (1, 0),
    "dynamic-update-slice": (2, 0),
    "fusion": (0, 1),
    "get-tuple-element": (1, 0),
    "reduce": (2, 1),
    "reduce-window": (2, 1),
    "scatter": (3, 1),
    "select-and-scatter": (3, 2),
    "sort": (1, 1),
    "while": (1, 2),
}


@dataclass(frozen=True, slots=True)
class Computation:
    """A function of HLO: the entry, the body of a loop, the inside of a fusion.

    Args:
        id: unique in its module.
        name: e.g. "fused_computation.1".
        instructions: operands before what uses them.
        root: gives the result.
        order: the instructions in the order in which the compiler runs them, where it says so.
    """

    id: int
    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction
    order: tuple[Instruction, ...]
    _by_id: Mapping[int, Instruction] = field(repr=False, compare=False)

    def instruction(self, id: int) -> Instruction:
        """Give the instruction with this id."""
        return self._by_id[id]

    def operands(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """Give the instructions whose results this one takes."""
        return tuple(self._by_id[id] for id in instruction.operands)

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters, by number."""
        found = [item for item in self.instructions if item.opcode == "parameter"]
        return tuple(sorted(found, key=lambda item: item.parameter_number))


@dataclass(frozen=True, slots=True)
class Module:
    """A whole program; what it names is there, and nothing in it is circular.

    Args:
        name: e.g. "jit_layer".
        computations: called ones before those that call them.
        entry: where the program begins.
        aliases: (index into the result, parameter number) of results that take a donated argument's place.
        devices: how many it is for; None when it does not say.
    """

    name: str
    computations: tuple[Computation, ...]
    entry: Computation
    aliases: tuple[tuple[tuple[int, ...], int], ...]
    devices: int | None
    _by_id: Mapping[int, Computation] = field(repr=False, compare=False)

    def computation(self, id: int) -> Computation:
        """Give the computation with this id."""
        return self._by_id[id]

    def called(self, instruction: Instruction) -> tuple[Computation, ...]:
        """Give the computations that an instruction calls."""
        return tuple(self._by_id[id] for id in instruction.called)

    @property
    def schedule(self) -> tuple[int, ...]:
        """Ids of the entry's instructions in the order in which they run."""
        return tuple(instruction.id for instruction in self.entry.order)


def decode(data: bytes) -> Module:
    """Read an HloModuleProto, or the HloProto that compiler dumps hold.

    Raises:
        Malformed: the bytes are no such program, or a damaged one.
    """
    if not data:
        raise Malformed("it is empty")
    if len(data) > MOST_BYTES:
        raise Malformed(f"it has {len(data):,} bytes; more than {MOST_BYTES:,} are not read")
    message = Message(bytes(data), Budget())
    if 2 not in message and 1 in message:  # an HloProto has no field 2, a module names its entry there
        message = message.message(1)
    if 3 not in message:
        raise Malformed("it holds no HLO computation")
    return _module(message)


def _module(message: Message) -> Module:
    decoder = Decoder(message)
    schedule = {
        item.integer(1): item.message(2).integers(1) for item in message.message(7).messages(1)
    }  # computation: instructions
    computations: dict[int, Computation] = {}
    weights: dict[int, int] = {}
    for proto in message.messages(3):
        computation = _computation(proto, decoder, computations, schedule)
        if computation.id in computations:
            raise Malformed(f"two computations have the id {computation.id}")
        computations[computation.id] = computation
        weights[computation.id] = _weight(computation, weights)
    entry = computations.get(message.integer(6))
    if entry is None:
        raise Malformed("its entry computation is not in it")
    if weights[entry.id] > MOST_WEIGHT:
        raise Malformed("its computations call each other so often that counting would take hours")
    devices = message.message(15)
    count = devices.integer(1) * devices.integer(2) if 15 in message else None
    aliases = tuple((item.integers(1), item.integer(2)) for item in message.message(8).messages(1))
    return Module(message.text(1), tuple(computations.values()), entry, aliases, count, computations)


def _computation(
    message: Message, decoder: Decoder, known: Mapping[int, Computation], schedule: Mapping[int, tuple[int, ...]]
) -> Computation:
    """Read one computation; it may call only those before it, so nothing calls itself."""
    name = message.text(1)
    found: dict[int, Instruction] = {}
    for proto in message.messages(2):
        instruction = decoder.instruction(proto)
        if instruction.id in found:
            raise Malformed(f"two instructions of {name!r} have the id {instruction.id}")
        if not all(map(found.__contains__, instruction.operands)):
            raise Malformed(f"{instruction.name!r} takes a value that is not made before it")
        if not all(map(known.__contains__, instruction.called)):
            raise Malformed(f"{instruction.name!r} calls a computation that is not before it")
        operands, called = _FEWEST.get(instruction.opcode, (0, 0))
        if len(instruction.operands) < operands or len(instruction.called) < called:
            raise Malformed(f"{instruction.name!r} lacks an operand, or the computation that it calls")
        found[instruction.id] = instruction
    root = found.get(message.integer(6))
    if root is None:
        raise Malformed(f"the result of computation {name!r} is not in it")
    order = _order(name, found, schedule.get(message.integer(5)))
    return Computation(message.integer(5), name, tuple(found.values()), root, order, found)


def _order(name: str, found: Mapping[int, Instruction], ids: tuple[int, ...] | None) -> tuple[Instruction, ...]:
    """Put instructions into the compiler's order where it gives one."""
    if ids is None:
        return tuple(found.values())
    if len(ids) != len(found) or set(ids) != set(found):
        raise Malformed(f"the schedule of {name!r} leaves out an instruction, or names one twice")
    return tuple(found[id] for id in ids)


def _weight(computation: Computation, weights: Mapping[int, int]) -> int:
    """Say how much there is to look at, calls followed."""
    total = 0
    for item in computation.instructions:
        total += 1 + _parts(item.shape) + len(item.backend_config) // 1000
        total += sum(_parts(operand.shape) for operand in computation.operands(item))
        total += sum(min(window.size, WIDEST_WINDOW) for window in item.windows if item.convolution) // 4
        total += sum(weights[id] for id in item.called)
    return min(total, 2 * MOST_WEIGHT)  # no numbers of a million digits


def _parts(shape: Shape) -> int:
    if shape.parts:
        return 1 + sum(map(_parts, shape.parts))
    return 1 + len(shape.dims) + (len(shape.layout.tiles[0]) if shape.layout and shape.layout.tiles else 0)
