"""Problems that others have worked out, answered here with the chip table and the roofline.

Figures of a chip come from the table wherever the row means that chip; where the source rounds them otherwise, the row's
own figures stand for the machine. The row says which answer, and how near to it an answer must be.
"""

import csv
import json
from pathlib import Path

import pytest

from tpulab.chips import Ceilings, get, roofline, slice_chips

with (Path(__file__).parent.parent / "data" / "worked_problems.csv").open(encoding="utf-8", newline="") as stream:
    ROWS = {row["id"]: row for row in csv.DictReader(stream)}
BF16, F32, INT8 = 2, 4, 1


def inputs(name):
    return json.loads(ROWS[name]["inputs"])


def table(chip, field) -> float:
    """Take a figure from the table."""
    value = getattr(get(chip), field)
    assert isinstance(value, (int, float)), f"{field} of {chip} is unknown"
    return value


def book(chip, field, word="") -> float:
    """Take the figure that the source of the problem has, which the table keeps as an alternative."""
    found = get(chip).alternatives(field)
    values = [one.value for one in found if "BOOK" in "".join(one.sources) and word in one.remark]
    assert isinstance(values[0], float)
    return values[0]


def machine(peak: float, bandwidth: float) -> Ceilings:
    """Put two figures together that no one chip has."""
    return Ceilings("a machine", peak, bandwidth, "bf16")


def matmul(batch, side_in, side_out, *, width=BF16, weight_width=None):
    """Count FLOPs and bytes of one product, each matrix crossing once."""
    weight = side_in * side_out * (weight_width or width)
    return 2 * batch * side_in * side_out, weight + width * batch * (side_in + side_out)


def smallest_batch(work, on, **options):
    """Find the batch at which a product stops being memory-bound, by bisection."""
    low, high = 1, 2**40
    while low < high:
        middle = (low + high) // 2
        if roofline(work(middle), on, **options).bound == "memory":
            low = middle + 1
        else:
            high = middle
    return low


def streamed(count, width=BF16):
    """Count a matrix-vector product: every weight crosses once."""
    return 2 * count, count * width


HUGE = 2**30  # a matrix side against which the batch is nothing


def ro_01():
    return roofline((inputs("ro-01")["flops"], 0), "H100").compute_s


def ro_02():
    return roofline((inputs("ro-02")["flops"], 0), "v6e").compute_s


def ro_03():
    return roofline((1, 1), "v5e").ridge_flops_per_byte


def ro_04():
    count = inputs("ro-04")["N"]
    return roofline((2 * count - 1, BF16 * (2 * count + 1)), "v5e").intensity_flops_per_byte


def ro_05():
    return smallest_batch(lambda batch: matmul(batch, HUGE, HUGE, width=INT8), "v5e", dtype="int8")


def ro_06():
    return smallest_batch(lambda batch: matmul(batch, HUGE, HUGE, weight_width=INT8), "v5e")


def ro_07():
    b, d, f = (inputs("ro-07")[name] for name in "BDF")
    return roofline((2 * b * d * f, b * (d + d * f + f) * INT8), "v5e", dtype="int8").intensity_flops_per_byte


def ro_08():
    return smallest_batch(lambda batch: matmul(batch, HUGE, HUGE), "H100")


def ro_09():
    """Each chip computes batch x (length / 2) x out, and sends batch x out partial sums over one link."""
    over_the_link = machine(table("v5e", "bf16_flops_per_s"), table("v5e", "link_oneway_bytes_per_s"))
    return smallest_batch(lambda length: (2 * 64 * (length / 2) * 64, BF16 * 64 * 64), over_the_link)


def tp_01():
    """The source takes 1.23e12 bytes/s, which the table keeps as an alternative to 1.2e12."""
    on = machine(table("v4", "bf16_flops_per_s"), book("v4", "hbm_bytes_per_s"))
    return roofline(streamed(inputs("tp-01")["params"] / inputs("tp-01")["chips"]), on).seconds


def tp_02():
    return table("v5e", "pod_chips") / table("v5e", "chips_per_host")


def tp_03():
    return table("v5e", "pod_chips") * table("v5e", "bf16_flops_per_s")


def tp_04():
    return slice_chips(f"v5p:{get('v5p').pod_shape}") / table("v5p", "chips_per_host")


def tp_05():
    """The source takes 96 GB, which the table keeps as an alternative to the 95 GiB that are usable."""
    return table("v5p", "pod_chips") * book("v5p", "hbm_bytes")


def tp_06():
    pcie = machine(table("v6e", "bf16_flops_per_s"), inputs("tp-06")["pcie"])
    return smallest_batch(lambda batch: (2 * batch * HUGE, BF16 * HUGE), pcie)


def tp_07():
    side_in, side_out = inputs("tp-07")["D"], inputs("tp-07")["F"]
    return smallest_batch(lambda batch: matmul(batch, side_in, side_out, width=INT8), "v5e", dtype="int8")


def tp_13():
    return roofline((0, inputs("tp-13")["bytes"]), "v5e").memory_s


def tp_14():
    rows, side = inputs("tp-14")["B"], inputs("tp-14")["N"]
    return roofline(matmul(rows, side, side), "v5e").compute_s


def sh_11():
    """Gathered first, each chip does the whole product; multiplied first, an all-reduce moves the sums twice."""
    rows, columns = 64, 64
    both_ways = machine(table("v5p", "bf16_flops_per_s"), 2 * table("v5p", "link_oneway_bytes_per_s"))
    return smallest_batch(lambda length: (2 * rows * length * columns, 2 * BF16 * rows * columns), both_ways)


def in_03():
    row = inputs("in-03")
    return roofline((0, (row["b"] * row["kv"] + row["w"]) / row["chips"]), "v5e").memory_s


def in_04():
    row = inputs("in-04")
    caches = roofline((0, row["b"] * row["kv"] / row["chips"]), "v5e").seconds
    return caches + roofline((2 * row["b"] * row["N"] / row["chips"], row["N"] / row["chips"]), "v5e").seconds


def ai_06():
    row = inputs("ai-06")
    return row["b"] / row["step"] / row["chips"]


def ai_08():
    """The source takes 16 GB."""
    return roofline((0, book("v5e", "hbm_bytes")), "v5e").seconds


def ai_09():
    """Sequences, each of `n` steps; a step is one pass over a full HBM, 19 ms as in ai-08."""
    row = inputs("ai-09")
    return row["b"] / (row["n"] * ai_08()) / row["chips"]


def ai_11():
    row = inputs("ai-11")
    return roofline((0, BF16 * row["D"] * row["F"] / row["chips"]), "v5e").memory_s


def ai_12():
    row = inputs("ai-12")
    return roofline((2 * row["N"] * row["S"] / row["chips"], 0), "v5e").compute_s / row["mfu"]


def pf_01():
    """Eight cores are four chips of two."""
    row = inputs("pf-01")
    flops, moved = matmul(row["B"], row["D"], row["F"])
    chips = row["cores"] / table("v2", "cores_per_chip")
    return roofline((flops / chips, moved / chips), "v2").seconds


def gp_01():
    return table("H100", "cores_per_chip") * 4 * 32  # an SM has 4 partitions of 32 lanes


def gp_02():
    return table("v5p", "cores_per_chip") * 8 * 128 * 4  # a core has 4 vector units of 8 x 128


def gp_03():
    """One operation a lane and cycle, at the base clock, which the table keeps as an alternative."""
    return gp_01() * book("H100", "clock_hz", "base")


def gp_04():
    row = inputs("gp-04")
    model = roofline(matmul(row["B"], row["D"], row["F"]), "B200")
    assert model.bound == "memory"
    return model.seconds


def gp_05():
    row = inputs("gp-05")
    model = roofline(matmul(row["B"], row["D"], row["F"]), "B200")
    assert model.bound == "compute"
    return model.seconds


def gp_06():
    count = inputs("gp-06")["N"]
    return roofline((count, 3 * F32 * count), "H100").seconds


ANSWERS = {
    name.replace("_", "-"): fn for name, fn in list(globals().items()) if name[:2].islower() and name[3:].isdigit()
}


def test_every_problem_is_answered():
    assert set(ANSWERS) == set(ROWS) and len(ROWS) == 33
    assert {row["kind"] for row in ROWS.values()} == {"roofline", "hardware"}


@pytest.mark.parametrize("name", ROWS)
def test_worked_problem(name):
    row = ROWS[name]
    assert ANSWERS[name]() == pytest.approx(float(row["answer"]), rel=float(row["rel_tol"])), row["question"]
