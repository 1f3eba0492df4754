"""Results on disk: whole or not there, small, and never in the way."""

import os

import pytest

from tpulab.xla import cache, entry
from tpulab.xla.compiled import Buffer, Compiled, Memory

MEMORY = Memory(100, 60, 40, 0, 0, 200, (Buffer(60, "x.1", "f32[15]", "argument", "x"),))
COMPILED = Compiled(
    name="f",
    target="v5e:2x2",
    chip="v5e",
    devices=4,
    before=b"\x0a\x01f",
    after=b"\x0a\x03f\n\0",  # a module's name, with bytes that text mode would change
    versions={"jax": "1"},
    date="2026-11-30",
    memory=MEMORY,
    lines={("a.py", 3): "y = x"},
    options={"o": "True"},
    notes=("one",),
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_CACHE", str(tmp_path / "own"))
    return tmp_path / "own" / "xla"


def test_a_program_comes_back_as_it_went_in():
    assert entry.unpack(entry.pack(COMPILED)) == COMPILED


def test_written_is_read(own):
    assert entry.read("a.hlo") is None
    entry.write("a.hlo", COMPILED)
    assert entry.read("a.hlo") == COMPILED
    assert [path.name for path in own.iterdir()] == ["a.hlo"]  # nothing half-written is left


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: b"", lambda data: data[:40] + b"!" + data[41:]]
)
def test_a_damaged_entry_counts_as_none(own, damage):
    entry.write("a.hlo", COMPILED)
    path = own / "a.hlo"
    path.write_bytes(damage(path.read_bytes()))
    assert entry.read("a.hlo") is None


def test_an_entry_of_another_format_counts_as_none(own):
    cache.write("a.hlo", b"no program")
    assert entry.read("a.hlo") is None


@pytest.mark.parametrize("off", ["0", "off", "OFF"])
def test_it_can_be_switched_off(monkeypatch, off):
    monkeypatch.setenv("TPULAB_CACHE", off)
    cache.write("a", b"x")
    assert cache.folder() is None and cache.read("a") is None


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TPULAB_CACHE", str(tmp_path / "file"))
    cache.write("a", b"x")
    assert cache.read("a") is None


def test_the_least_recently_used_goes_first(own, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 1000)
    for at, name in enumerate("abc"):
        cache.write(name, b"x" * 218)  # 250 bytes with the checksum
        os.utime(own / name, (at, at))
    cache.read("a")  # used again, so "b" is now the oldest
    cache.write("d", b"x" * 218)
    cache.write("e", b"x" * 218)
    assert sorted(path.name for path in own.iterdir()) == ["a", "c", "d", "e"]


def test_the_key_changes_with_everything():
    parts = {"target": "v5e:2x2", "name": "f", "program": "module", "source": "def f", "options": {"o": 1}}
    parts |= {"versions": {"jax": "1"}}
    others = {"target": "v6e:2x2", "name": "g", "program": "module2", "source": "def f2", "options": {"o": 2}}
    others |= {"versions": {"jax": "2"}}
    keys = {entry.key(**parts)}  # pyright: ignore[reportArgumentType]
    for part, other in others.items():
        keys.add(entry.key(**parts | {part: other}))  # pyright: ignore[reportArgumentType]
    assert len(keys) == 7
