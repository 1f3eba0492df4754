"""Measurements from a TPU: taken there, stored with their origin, shown elsewhere; never made up."""

import json

import jax
import pytest

from tpulab import record
from tpulab.timing import measure


@pytest.fixture
def stored(monkeypatch, tmp_path):
    folder = tmp_path / "stored"
    monkeypatch.setattr(record, "STORED", folder)
    monkeypatch.setattr(record.read, "__defaults__", (folder,))
    return folder


def never():
    raise AssertionError("measured without a TPU")


def test_on_cpu_nothing_is_measured(stored):
    got = record.on_tpu("jit", never)
    assert repr(got).startswith("Not measured: there is no TPU here")
    assert got.origin is None and got.figures == {}


def test_on_cpu_what_is_stored_is_shown(stored):
    origin = record.Origin("TPU v5 lite", 1, {"jax": "0.7.2"}, "2026-11-30", "abc", "tpulab record")
    record.write(record.Measurement("jit", {"matmul": "41.1 us"}, origin), stored)
    got = record.on_tpu("jit", never)
    assert repr(got) == "matmul: 41.1 us\n(measured on 1 x TPU v5 lite, 2026-11-30, jax 0.7.2)"
    assert record.on_tpu("vmap", never).origin is None


def test_on_tpu_measures_and_writes_where_record_says(stored, monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setenv(record.RECORD_TO, str(tmp_path / "out"))
    got = record.on_tpu("jit", lambda: {"add": measure(lambda: 1 + 1, runs=3), "ratio": 2.0})
    assert got.figures["ratio"] == "2" and "median of 3 runs" in got.figures["add"]
    assert got.origin and got.origin.versions["jax"] == jax.__version__ and got.origin.command == "tpulab record"
    content = json.loads((tmp_path / "out" / "jit.json").read_text())
    assert set(content["origin"]) == {"chip", "chips", "versions", "date", "commit", "command"}
    assert record.read("jit", tmp_path / "out") == got


def test_on_tpu_without_recording_writes_nothing(stored, monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.delenv(record.RECORD_TO, raising=False)
    monkeypatch.chdir(tmp_path)
    origin = record.on_tpu("jit", lambda: {"ratio": 2.0}).origin
    assert origin and origin.chips == jax.device_count()
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("name", ["", "../jit", "a b", "jit.json"])
def test_a_name_is_one_word(name):
    with pytest.raises(ValueError, match="one word"):
        record.on_tpu(name, never)
