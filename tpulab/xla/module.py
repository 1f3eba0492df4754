"""An HLO program decoded from its bytes: computations of instructions that refer to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .decoder import Decoder
from .instruction import Instruction
from .wire import MOST_BYTES, Budget, Malformed, Message


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
    for proto in message.messages(3):
        computation = _computation(proto, decoder, computations, schedule)
        if computation.id in computations:
            raise Malformed(f"two computations have the id {computation.id}")
        computations[computation.id] = computation
    entry = computations.get(message.integer(6))
    if entry is None:
        raise Malformed("its entry computation is not in it")
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
