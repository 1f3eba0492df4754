"""What the exercises of chapter 07 teach, held against figures that others worked out."""

import math

import pytest

from tpulab.learn.bank import bank
from tpulab.xla.shape import Layout, Shape

SOLUTION = {item.name: item.solution for item in bank("roofline").exercises}


@pytest.mark.parametrize("dims", [(262144, 3), (5, 7, 9), (16, 8192), (2, 3, 9, 200), (130,)])
def test_padding_is_that_of_compiled_shapes(dims):
    row_major = tuple(reversed(range(len(dims))))
    shape = Shape("f32", dims, Layout(row_major, ((8, 128),)))
    assert SOLUTION["padded_bytes"](dims, 4, (8, 128)) == shape.padded_bytes


def test_worked_problems_of_the_scaling_book():
    # jax-ml/scaling-book: tpus.md question 4.1, exact 262.7; roofline.md question 1, 243 with the weights alone
    assert SOLUTION["smallest_batch"](4096, 16384, 3.94e14, 8.1e11, 1) == 263
    assert SOLUTION["smallest_batch"](10**9, 10**9, 3.94e14, 8.1e11, 1) == 244
    # inference.md, pop quiz: 2.5 ms
    assert math.isclose(SOLUTION["decode_seconds"](30e9, 1, 4, 819e6, 16, "v5e"), 0.0025, rel_tol=0.03)
    # tpus.md question 1: 200e9 parameters in bf16 on 32 v4
    assert math.isclose(SOLUTION["decode_seconds"](200e9, 2, 1, 0, 32, "v4"), 0.01, rel_tol=0.05)
    # roofline.md: the dot product of two long vectors, 0.5 FLOP/byte
    assert math.isclose(SOLUTION["intensity"](1, 10**9, 1, 2, 2), 0.5, rel_tol=1e-6)
