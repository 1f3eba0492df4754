"""Decoded programs against XLA's own view of them."""

import re
from typing import Any

import pytest

from tpulab.xla.module import decode
from tpulab.xla.wire import Malformed

from . import corpus


@pytest.fixture(params=corpus.TARGETS)
def target(request):
    corpus.device(request.param)
    return request.param


def theirs(module: Any):
    """XLA's own computations: name to (opcode, number of operands) of each instruction, by name."""
    return {
        computation.name: {item.name: (opcode(item), len(item.operands())) for item in computation.instructions()}
        for computation in module.computations()
    }


OTHERWISE = {"exp": "exponential", "expm1": "exponential-minus-one", "log1p": "log-plus-one", "cos": "cosine"}
OTHERWISE |= {"sin": "sine"}


def opcode(item):
    """HloOpcode.kGetTupleElement → "get-tuple-element"."""
    name = str(item.opcode).rsplit(".k", 1)[-1]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return OTHERWISE.get(words, words)


def ours(module):
    return {
        computation.name: {item.name: (item.opcode, len(item.operands)) for item in computation.instructions}
        for computation in module.computations
    }


@pytest.mark.parametrize("name", corpus.SMALL)
def test_agrees_with_xla(name, target):
    built = corpus.small(name, target)
    hlo = built.compiled.runtime_executable().hlo_modules()[0]
    if not hasattr(hlo.computations()[0], "instructions"):
        assert {item.name for item in decode(built.after).computations} == {item.name for item in hlo.computations()}
        return
    for data in (built.before, built.after):
        assert ours(decode(data)) == theirs(type(hlo).from_serialized_hlo_module_proto(data))


@pytest.mark.parametrize("name", corpus.SMALL)
def test_shapes_print_as_xla_prints_them(name, target):
    built = corpus.small(name, target)
    text = re.sub(r"/\*index=\d+\*/", "", built.compiled.as_text())
    for computation in decode(built.after).computations:
        for item in computation.instructions:
            assert f"{item.name} = {item.shape} {item.opcode}" in text


def test_entry_schedule_and_sources(target):
    built = corpus.small("chain", target)
    module = decode(built.after)
    assert sorted(module.schedule) == sorted(item.id for item in module.entry.instructions)
    assert module.entry.root in module.entry.instructions
    assert [item.shape.dims for item in module.entry.parameters] == [(256, 128), (128, 512), (512,), ()]
    named = [item for computation in module.computations for item in computation.instructions if item.source_line]
    assert {item.source_file for item in named} >= {corpus.__file__}
    lines = {item.frames[0].function.rsplit(".", 1)[-1] for item in named if item.frames}
    assert not lines or "chain" in lines
    assert {item.op_name for item in named} >= {"jit(chain)/dot_general"}


def test_a_constant_and_a_comparison_are_read():
    module = decode(corpus.small("scan", "cpu").before)
    items = [item for computation in module.computations for item in computation.instructions]
    assert 10 in {item.literal for item in items}
    assert "LT" in {item.comparison_direction for item in items}


def test_aliases_are_read():
    function, *shapes = corpus.SMALL["update"]
    module = decode(corpus.build("cpu", function, *shapes, donate=(0,)).after)
    assert module.aliases == (((), 0),)


def field(number, value):
    """Write one field of a message, by the specification."""
    if isinstance(value, int):
        return bytes([*varint(number << 3), *varint(value)])
    value = value.encode() if isinstance(value, str) else value
    return bytes([*varint(number << 3 | 2), *varint(len(value))]) + value


def varint(value):
    out = []
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return [*out, value]


F32 = field(3, field(2, 11))


def instruction(id, opcode, *more):
    return field(2, field(1, f"{opcode}.{id}") + field(2, opcode) + F32 + field(35, id) + b"".join(more))


def module(*computations, entry=1):
    return field(1, "m") + field(2, "e") + b"".join(field(3, c) for c in computations) + field(6, entry)


def computation(id, root, *instructions):
    return field(1, f"c{id}") + b"".join(instructions) + field(5, id) + field(6, root)


def test_a_written_module_and_a_dump_that_holds_it():
    data = module(computation(1, 2, instruction(1, "parameter"), instruction(2, "add", field(36, 1), field(36, 1))))
    assert decode(data).entry.root.operands == (1, 1)
    assert decode(field(1, data)) == decode(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (module(), "no HLO computation"),
        (field(1, field(1, "m")), "no HLO computation"),
        (module(computation(1, 7, instruction(1, "parameter"))), "the result of computation 'c1' is not in it"),
        (module(computation(1, 1, instruction(1, "parameter")), entry=5), "entry computation is not in it"),
        (module(computation(1, 1, instruction(1, "add", field(36, 1)))), "'add.1' takes a value that is not made"),
        (module(computation(1, 1, instruction(1, "call", field(38, 1)))), "'call.1' calls a computation that is not"),
        (module(computation(1, 1, instruction(1, "add"), instruction(1, "add"))), "two instructions"),
        (module(computation(1, 1, instruction(1, "add")), computation(1, 1, instruction(1, "add"))), "two comput"),
        (
            module(computation(1, 1, instruction(1, "add"))) + field(7, field(1, field(1, 1) + field(2, field(1, 9)))),
            "the schedule of 'c1'",
        ),
        (module(computation(1, 1, field(2, field(35, 1) + field(3, field(2, 99))))), "element type 99"),
        (module(computation(1, 1, field(2, field(35, 1) + field(3, field(2, 11) + field(5, field(1, 3)))))), "layout"),
    ],
)
def test_what_does_not_resolve_is_named(data, words):
    with pytest.raises(Malformed, match=words):
        decode(data)


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        (field(87, field(1, field(1, 0) + field(1, 1)) + field(1, field(1, 2) + field(1, 3))), ((0, 1), (2, 3))),
        (field(49, field(1, 0) + field(1, 1)), ((0, 1),)),
        # [2,2]<=[4]
        (field(92, field(1, 2) + field(2, 2) + field(3, 4)), ((0, 1), (2, 3))),
        # [4,2]<=[2,4]T(1,0)
        (
            field(87, field(2, field(1, 4) + field(2, 2) + field(3, bytes([2, 4])) + field(4, bytes([1, 0])))),
            ((0, 4), (1, 5), (2, 6), (3, 7)),
        ),
        # mesh['a'=2,'b'=3] {'a'}
        (
            field(93, field(1, field(1, field(2, 2)) + field(1, field(2, 3))) + field(2, field(1, 0))),
            ((0, 3), (1, 4), (2, 5)),
        ),
        # mesh['a'=8] {'a':(2)2}: of 2 × 2 × 2 the middle one
        (
            field(93, field(1, field(1, field(2, 8))) + field(2, field(2, field(1, 2) + field(2, 2)))),
            ((0, 2), (1, 3), (4, 6), (5, 7)),
        ),
    ],
)
def test_every_spelling_of_device_groups(written, groups):
    data = module(computation(1, 1, instruction(1, "all-reduce", written)))
    assert decode(data).entry.root.replica_groups == groups


def test_groups_that_do_not_fit_are_damage():
    for written in (
        field(92, field(1, 2**40) + field(2, 2**20) + field(3, 4)),
        field(92, field(1, 2**20) + field(2, 2**20) + field(3, 2**40)),
        field(93, field(1, field(1, field(2, 8))) + field(2, field(2, field(1, 3) + field(2, 2)))),
    ):
        with pytest.raises(Malformed, match="device"):
            decode(module(computation(1, 1, instruction(1, "all-reduce", written))))
