"""The roofline: figures by hand, which ceiling binds, and what has no place on it."""

import math
from types import SimpleNamespace

import pytest

from tpulab import chips
from tpulab.chips import Ceilings, roofline
from tpulab.chips.ceilings import of_chip


def test_by_hand():
    """v5e: 197e12 FLOP/s, 820e9 bytes/s; 1.97e12 FLOPs take 10 ms, 8.2e9 bytes take 10 ms."""
    even = roofline((1.97e12, 8.2e9), "v5e")
    assert even.compute_s == pytest.approx(0.01) and even.memory_s == pytest.approx(0.01)
    assert even.ridge_flops_per_byte == pytest.approx(240.24, rel=1e-4)
    more_bytes = roofline((1.97e12, 2 * 8.2e9), "v5e")
    assert more_bytes.bound == "memory" and more_bytes.seconds == pytest.approx(0.02)
    assert more_bytes.attainable_flops_per_s == pytest.approx(98.5e12)
    assert more_bytes.intensity_flops_per_byte == pytest.approx(120.12, rel=1e-4)
    more_flops = roofline((2 * 1.97e12, 8.2e9), "v5e")
    assert more_flops.bound == "compute" and more_flops.attainable_flops_per_s == pytest.approx(197e12)


def test_the_extremes():
    assert roofline((0, 1), "v5e").bound == "memory" and roofline((0, 1), "v5e").intensity_flops_per_byte == 0
    assert roofline((1, 0), "v5e").bound == "compute" and roofline((1, 0), "v5e").intensity_flops_per_byte == math.inf


def test_number_types():
    assert roofline((1e12, 1), "v5e", dtype="int8").compute_s == pytest.approx(1e12 / 3.94e14)
    assert roofline((1e12, 1), "7x", dtype="fp8").compute_s == pytest.approx(1e12 / 4.614e15)
    with pytest.raises(ValueError, match=r"the fp8 peak of TPU v4 is unknown .*; known: bf16, int8"):
        roofline((1, 1), "v4", dtype="fp8")
    with pytest.raises(ValueError, match="peaks for bf16, int8, fp8; got dtype='f32'"):
        roofline((1, 1), "v5e", dtype="f32")


def test_what_a_program_counts_is_one_device():
    """JAX shows a 7x chip as two devices, a v5e chip as one."""
    program = SimpleNamespace(name="step", flops=1e12, hbm_bytes=1e9, devices=8)
    assert roofline(program, "7x").compute_s == 2 * roofline((1e12, 1e9), "7x").compute_s
    assert roofline(program, "7x").ceilings.name == "one of the 2 devices of TPU7x"
    assert roofline(program, "v5e").compute_s == roofline((1e12, 1e9), "v5e").compute_s
    assert roofline(program, "v5e").name == "step"
    assert of_chip(chips.get("v3"), per_device=True).bytes_per_s == 4.5e11


def test_own_ceilings():
    mine = Ceilings("laptop", 1e11, 1e10, "f32", "measured")
    model = roofline((1e9, 1e9), mine)
    assert model.seconds == pytest.approx(0.1) and model.ridge_flops_per_byte == 10
    assert repr(mine) == "laptop: 100 GFLOP/s in f32, 10 GB/s, ridge 10 FLOP/byte (measured)"
    with pytest.raises(ValueError, match="measured in f32; got dtype='bf16'"):
        roofline((1, 1), mine, dtype="bf16")


@pytest.mark.parametrize(
    ("work", "says"),
    [
        ((None, 1), "the FLOPs of this program are unknown; give your own count"),
        (SimpleNamespace(name="f", flops=1, hbm_bytes=None), "the bytes to and from HBM of f are unknown"),
        ((-1, 1), "FLOPs are a number, 0 or more; got -1"),
        ((1, math.nan), "got nan"),
        ((math.inf, 1), "got inf"),
        (("1", 1), "got '1'"),
        ((0, 0), "no place on a roofline"),
    ],
)
def test_no_place(work, says):
    with pytest.raises(ValueError, match=says) as caught:
        roofline(work, "v5e")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("work", [3, None, (1, 2, 3), "12", {"flops": 1}])
def test_wants_flops_and_bytes(work):
    with pytest.raises(TypeError, match=r"has \.flops and \.hbm_bytes, or is the pair"):
        roofline(work, "v5e")


def test_says_where_it_comes_from():
    text = repr(roofline((1e12, 1e9), "v5e", name="layer"))
    assert text.splitlines() == [
        "layer on TPU v5e, bf16: compute-bound (modelled)",
        "intensity 1,000 FLOP/byte, ridge 240 FLOP/byte",
        "arithmetic 5.08 ms for 1 TFLOP, memory 1.22 ms for 1 GB",
        "at least 5.08 ms, at most 197 TFLOP/s",
    ]
