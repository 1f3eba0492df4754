"""Damage HLO files in every way, read each, and say what came of it: python mutants.py FOLDER [OFFSET].

Runs in a process of its own with little memory, so that a file that takes all of it is found out.
"""

import json
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tpulab.xla.module import decode
from tpulab.xla.reading import program_of
from tpulab.xla.wire import Malformed, Message

MEMORY = 1 << 30
MOST_SECONDS = 10


def mutants(data: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Give damaged copies of a file, each with a word for the damage."""
    size = len(data)
    for part in (0.1, 0.5, 0.9, 0.999):
        yield "truncated", data[: int(size * part)]
    for count in (1, 1, 1, 1, 3, 3, 10, 100):
        flipped = bytearray(data)
        for _ in range(count):
            flipped[chance.randrange(size)] ^= 1 << chance.randrange(8)
        yield f"{count} bits flipped", bytes(flipped)
    for _ in range(6):
        changed = bytearray(data)
        changed[chance.randrange(size)] = chance.choice([0, 1, 127, 128, 255])
        yield "one byte changed", bytes(changed)
    for _ in range(3):
        at = chance.randrange(size)
        yield "huge length", data[:at] + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + data[at:]
        a, b = sorted(chance.sample(range(size), 2))
        yield "cut out", data[:a] + data[b:]
        yield "repeated", data[:b] + data[a:b] * 3 + data[b:]
    yield "twice", data + data
    yield "text before it", b"HloModule jit_f\x00" + data
    yield "text after it", data + b"ENTRY main { ROOT x = f32[] parameter(0) }"
    for _ in range(8):
        yield "rearranged", rearranged(data, chance)
    yield "random", chance.randbytes(size)


Fields = dict[int, list[int | bytes]]


def rearranged(data: bytes, chance: random.Random) -> bytes:
    """Give a sound file with a program that makes no sense: fields of a few instructions changed, taken out or swapped."""
    module = split(data)
    bodies = [split(body) for body in nested(module, 3)]
    homes = [[split(item) for item in nested(body, 2)] for body in bodies]
    everywhere = [item for home in homes for item in home]
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        item, other = chance.choice(everywhere), chance.choice(everywhere)
        number = chance.choice(sorted(other))
        item[number] = other[number]
        number = chance.choice(sorted(item))
        value = item[number][-1]
        if chance.random() < 0.3 and number != 35:
            del item[number]
        elif isinstance(value, int):
            item[number] = [chance.choice([0, 1, 2, 7, value + 1, 2**31, 2**62, 2**64 - 1])]
        elif chance.random() < 0.3:
            item[number] = [value[: chance.randrange(len(value) + 1)]]
    for body, home in zip(bodies, homes, strict=True):
        body[2] = [join(item) for item in home]
    module[3] = [join(body) for body in bodies]
    return join(module)


def split(data: bytes) -> Fields:
    return {number: list(values) for number, values in Message(data)._fields.items()}


def nested(fields: Fields, number: int) -> list[bytes]:
    return [value for value in fields.get(number, []) if isinstance(value, bytes)]


def join(fields: Fields) -> bytes:
    out = bytearray()
    for number, values in fields.items():
        for value in values:
            if isinstance(value, int):
                out += varint(number << 3) + varint(value)
            else:
                out += varint(number << 3 | 2) + varint(len(value)) + value
    return bytes(out)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def outcome(data: bytes) -> str:
    """Read, count and draw one file."""
    try:
        program = program_of(decode(data), name="f", target="a file")
        assert program.report()
        assert program.svg()
    except Malformed as problem:
        assert len(str(problem).splitlines()) == 1
        return "malformed"
    return "module"


def too_long(*_: object) -> None:
    raise TimeoutError(f"more than {MOST_SECONDS} s")


def main(folder: Path, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, too_long)
    chance = random.Random(seed)
    for path in sorted(folder.glob("*.pb")):
        for number, (kind, data) in enumerate(mutants(path.read_bytes(), chance)):
            started = time.perf_counter()
            signal.alarm(MOST_SECONDS)
            try:
                found = outcome(data)
            except BaseException as error:
                found = f"{type(error).__name__}: {error}"
                if len(sys.argv) > 3:
                    Path(sys.argv[3], f"{path.stem}.{number}.bad").write_bytes(data)
            signal.alarm(0)
            print(json.dumps([path.stem, kind, found, time.perf_counter() - started]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
