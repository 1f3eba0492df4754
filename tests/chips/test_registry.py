"""The chip table: the file's own cells, every name people use, unknown as unknown."""

import copy
import csv
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tpulab import chips
from tpulab.chips import registry
from tpulab.chips.chip import FIELDS
from tpulab.units import gib_text

with (registry.DATA / "chips.csv").open(encoding="utf-8", newline="") as stream:
    ROWS = list(csv.DictReader(stream))
RATES = ("bf16_flops_per_s", "int8_ops_per_s", "fp8_flops_per_s")


def test_import_is_light():
    code = "import sys, tpulab.chips as c; c.get('v5e'); c.roofline((1, 1), 'v5e'); print({'jax', 'numpy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_every_public_name_is_there():
    for name in chips.__all__ * 2:
        assert (getattr(chips, name).__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="it offers Ceilings"):
        chips.no_such_name  # noqa: B018


def test_fields_are_the_columns():
    columns = [name for name in ROWS[0] if not name.endswith(("_source", "_alt"))]
    assert list(FIELDS) == columns


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_every_cell_is_kept(row):
    """Numbers are those of the file; what is empty or a rate of 0 is None; sources and alternatives stay."""
    chip = chips.get(row["name"])
    for name in FIELDS:
        value, cell = getattr(chip, name), row[name]
        if not cell or (name in RATES and float(cell) == 0):
            assert value is None and chip.text(name) == "unknown"
        elif isinstance(value, str):
            assert value == cell
        else:
            assert value == float(cell) and value > 0
        assert chip.source(name).startswith(row.get(f"{name}_source", ""))
        others = row.get(f"{name}_alt", "")
        assert len(chip.alternatives(name)) == len(re.findall(r"\[[A-Z0-9_,]+\]", others))
        for one in chip.alternatives(name):
            assert set(one.sources) <= set(chips.sources())
    assert set(chip.unverified) <= set(FIELDS)
    assert chip.confidence.split(";")[0] in ("high", "medium", "low")


def test_sources_explain_every_key():
    """A source begins with a key: "DOCS; BOOK: a remark" names DOCS and BOOK."""
    told = [part for chip in chips.all() for name in FIELDS for part in chip.source(name).split("; ") if part]
    keys = {key for part in told for key in re.findall(r"^[A-Z0-9_,]*", part)[0].split(",") if len(key) > 1}
    assert len(told) > 200 and {"DOCS", "BOOK", "JAX", "SKY"} <= keys <= set(chips.sources())


def test_a_rate_of_zero_is_unknown_and_says_why():
    v4 = chips.get("v4")
    assert v4.fp8_flops_per_s is None and "no native rate" in v4.source("fp8_flops_per_s")
    assert chips.get("7x").int8_ops_per_s is None
    assert chips.get("7x").alternatives("int8_ops_per_s")[0].value == 4.61e15


def test_disagreement_is_kept():
    assert chips.get("v3").bf16_flops_per_s == 1.23e14
    (other,) = chips.get("v3").alternatives("bf16_flops_per_s")
    assert other.value == 1.40e14 and other.sources == ("BOOK", "JAX") and "1.07 GHz" in other.remark


NAMES = {
    "v5e": ["v5e", "V5E", "TPU v5e", "TPU v5 lite", "v5litepod", "v5litepod-16", "v5e:2x2", "Cloud TPU v5e", "v5lite"],
    "v5p": ["v5p", "TPU v5", "TPU v5p", "v5p-128", "v5p:4x4x4"],
    "v6e": ["v6e", "TPU v6 lite", "TPU v6e", "Trillium", "v6e-8"],
    "7x": ["7x", "tpu7x", "v7x", "TPU7x", "tpu7x-128", "tpu7x-4x4x4", "Ironwood"],
    "v4": ["v4", "TPU v4", "v4-8", "v4:2x2x1"],
    "H100": ["H100", "h100", "NVIDIA H100 80GB HBM3"],
    "A100-80": ["A100-80", "NVIDIA A100-SXM4-80GB"],
}


@pytest.mark.parametrize(("short", "name"), [(short, name) for short, names in NAMES.items() for name in names])
def test_names(short, name):
    assert chips.get(name).short == short


def test_get_takes_what_jax_shows_and_chips():
    v5e = chips.get(SimpleNamespace(device_kind="TPU v5 lite"))
    assert v5e is chips.get("v5e") is chips.get(v5e)


@pytest.mark.parametrize(
    "name", ["v9", "", "A100", "NVIDIA A100-SXM4-40GB", "H100-8", "cpu", None, 5, ["v5e"], "v5e\n"]
)
def test_unknown_names_list_the_known(name):
    if name == "v5e\n":
        assert chips.get(name).short == "v5e"
        return
    with pytest.raises(
        ValueError, match=r"no chip is called .*known are v2, v3, v4, v5e, v5p, v6e, 7x, A100-80, H100"
    ) as caught:
        chips.get(name)
    assert "\n" not in str(caught.value)


def test_this_machine_is_no_chip_of_the_table():
    with pytest.raises(ValueError, match=r"ceilings_here\(\) measures this machine"):
        chips.get("cpu")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("v5p-128", 64), ("v2-8", 4), ("v3-2048", 1024), ("v4-128", 64), ("v5litepod-256", 256), ("v6e-256", 256),
        ("v5e-16", 16), ("tpu7x-128", 64), ("tpu7x-4x4x4", 64), ("v5p:16x16x24", 6144), ("v5e:2x2", 4), ("v4:2x2x1", 4),
    ],
)  # fmt: skip
def test_slices_count_chips(name, count):
    assert chips.slice_chips(name) == count


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v5p-7", "counts cores, 2 to a chip"),
        ("v5e-512", "a whole pod of TPU v5e has 256"),
        ("v5e-0", "multiple"),
        ("v5e", "a slice is named like"),
        ("H100-8", "no chip is called|a slice is named like"),
        ("v9-8", "no chip is called 'v9'"),
        (None, "a slice is named like"),
        ("v5e-²", "a slice is named like|no chip"),
    ],
)
def test_slices_that_are_none(name, says):
    with pytest.raises(ValueError, match=says):
        chips.slice_chips(name)


def test_gb_is_not_gib():
    v5e, h200 = chips.get("v5e"), chips.get("H200")
    assert v5e.hbm_bytes == 16 * 2**30 and v5e.text("hbm_bytes") == "16 GiB"
    assert h200.hbm_bytes == 141 * 10**9 and h200.text("hbm_bytes") == "141 GB"
    assert gib_text(16e9) == "14.9 GiB"


def test_unknown_field_is_one_line():
    for ask in (chips.get("v5e").source, chips.get("v5e").alternatives, chips.get("v5e").text):
        with pytest.raises(ValueError, match="a chip has no field 'hbm'; it has name, "):
            ask("hbm")


def test_a_chip_shows_itself_with_sources():
    chip = chips.get("v5e")
    assert "197 TFLOP/s" in repr(chip) and "DOCS; BOOK; JAX" in repr(chip) and "confidence: high" in repr(chip)
    assert "<td style=text-align:left>820 GB/s</td>" in chip._repr_html_()


def test_chips_are_values():
    chip = chips.get("v5e")
    assert pickle.loads(pickle.dumps(chip)) == copy.deepcopy(chip) == chip and hash(chip) == hash(
        chips.get("v5litepod")
    )
    with pytest.raises(AttributeError):
        chip.hbm_bytes = 1  # pyright: ignore[reportAttributeAccessIssue]
