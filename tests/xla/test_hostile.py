"""Damaged and hostile files: each gives a program or one line, soon, and in little memory."""

import json
import subprocess
import sys
import time

import pytest

from tpulab.xla.launch import launches
from tpulab.xla.module import decode
from tpulab.xla.reading import program_of
from tpulab.xla.wire import Malformed

from . import corpus, mutants
from .test_module import computation, field, instruction, module

NAMES = ("chain", "scan", "branch", "train", "convolve", "attention")


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by setrlimit")
def test_damaged_files_give_a_program_or_one_line(tmp_path):
    for name in NAMES:
        built = corpus.small(name, "cpu")
        (tmp_path / f"{name}.before.pb").write_bytes(built.before)
        (tmp_path / f"{name}.after.pb").write_bytes(built.after)
    command = [sys.executable, mutants.__file__, str(tmp_path), "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) >= 400
    assert {outcome for _, _, outcome, _ in found} == {"module", "malformed"}
    assert len({kind for _, kind, outcome, _ in found if outcome == "malformed"}) >= 10
    assert max(seconds for *_, seconds in found) < 5


def doubling(depth):
    """Computations of which each calls the one before twice: 2**depth calls from the entry."""
    first = computation(1, 1, instruction(1, "parameter"))
    rest = [
        computation(n, 1, *(instruction(i, "call", field(38, n - 1)) for i in (1, 2, 3))) for n in range(2, depth + 2)
    ]
    return module(first, *rest, entry=depth + 1)


def fused_many_times(count, size):
    """Many fusions of one large computation."""
    inside = computation(1, 1, *(instruction(i, "add") for i in range(1, size)))
    return module(
        inside, computation(2, 1, *(instruction(i, "fusion", field(38, 1)) for i in range(1, count))), entry=2
    )


def meshed(layers, width):
    """Reshapes of which each takes all of the layer before: width**layers ways through."""
    items = [instruction(1, "parameter")]
    before = [1]
    for layer in range(layers):
        now = [2 + layer * width + i for i in range(width)]
        items += [instruction(i, "reshape", *(field(36, id) for id in before)) for i in now]
        before = now
    items.append(instruction(9999, "add", field(36, before[0])))
    inside = computation(1, 9999, *items)
    outside = computation(
        2, 2, instruction(1, "parameter"), instruction(2, "fusion", field(38, 1), field(36, 1), field(11, "kLoop"))
    )
    return module(inside, outside, entry=2)


def tuples(depth):
    shape = field(2, 11)
    for _ in range(depth):
        shape = field(2, 13) + field(4, shape)
    return module(computation(1, 1, field(2, field(2, "parameter") + field(35, 1) + field(3, shape))))


def wide_windows(count):
    """Convolutions with windows that take 260,000 steps to count, no two alike."""
    shape = field(3, field(2, 11) + b"".join(field(3, n) for n in (1, 5, 1)) + field(5, bytes([10, 3, 2, 1, 0])))
    numbers = field(16, field(11, 1) + field(4, 2) + field(3, 0) + field(10, 2) + field(12, 1))
    items = [field(2, field(2, "parameter") + shape + field(35, 1))]
    for i in range(2, count):
        window = field(1, field(1, 260_000) + field(3, 100 + i) + field(5, 1))
        more = field(36, 1) + field(36, 1) + field(15, window) + numbers
        items.append(field(2, field(2, "convolution") + shape + field(35, i) + more))
    return module(computation(1, 1, *items))


def deep_json():
    return module(computation(1, 1, instruction(1, "custom-call", field(43, '{"a":' * 100_000))))


def slashes():
    return module(computation(1, 1, instruction(1, "add", field(7, field(2, "((/" * 100_000)))))


def shared_payload():
    """Many instructions that name one large remark."""
    many = (instruction(i, "custom-call", field(99, field(2, 0))) for i in range(1, 2000))
    return module(computation(1, 1, *many)) + field(22, '{"a": "' + "x" * 2_000_000 + '"}')


def tracebacks():
    """A traceback that ends in itself, and one that names nothing."""
    index = field(3, field(1, 5) + field(3, 7)) + field(4, field(1, 1) + field(2, 1)) + field(4, field(1, 9))
    both = (instruction(1, "add", field(7, field(15, 1))), instruction(2, "add", field(7, field(15, 2))))
    return module(computation(1, 1, *both)) + field(17, index)


@pytest.mark.parametrize(
    "made",
    [
        lambda: doubling(60),
        lambda: doubling(5_000),
        lambda: fused_many_times(3_000, 3_000),
        lambda: meshed(8, 60),
        lambda: tuples(500),
        lambda: wide_windows(20),
        lambda: wide_windows(5_000),
        deep_json,
        slashes,
        shared_payload,
        tracebacks,
    ],
)
def test_files_made_to_exhaust_are_soon_done(made):
    data = made()
    started = time.perf_counter()
    try:
        program = program_of(decode(data), name="f", target="a file")
        program.report(), program.svg()
    except Malformed as problem:
        assert len(str(problem).splitlines()) == 1
    assert time.perf_counter() - started < 20


def test_calls_are_followed_as_long_as_there_are_not_too_many():
    assert len(launches(decode(doubling(3)))) == 0  # they end in a parameter, which launches nothing
    with pytest.raises(Malformed, match="so often"):
        decode(doubling(60))
