"""Bytes of shapes, by hand."""

import pytest

from tpulab.xla.shape import Layout, Shape

ROWS = ((8, 128), (2, 1))


@pytest.mark.parametrize(
    ("shape", "logical", "padded"),
    [
        (Shape("bf16", (2048, 1024), Layout((1, 0), ROWS)), 2048 * 1024 * 2, 2048 * 1024 * 2),
        (Shape("f32", (1000, 3), Layout((0, 1), ((4, 128),))), 12_000, 1024 * 4 * 4),
        (Shape("f32", (1000, 3), Layout((1, 0), ((8, 128),))), 12_000, 1000 * 128 * 4),
        (Shape("f32", (1000, 3)), 12_000, 12_000),
        (Shape("bf16", (), Layout((), ((256,),))), 2, 512),  # a scalar takes the whole tile
        (Shape("f32", (5,), Layout((0,), ((8, 128),))), 20, 8 * 128 * 4),  # missing dimensions are 1
        (Shape("s4", (3,), Layout((0,), (), 0, 4)), 2, 2),
        (Shape("s4", (3,), Layout((0,), (), 0, 8)), 3, 3),
        (Shape("pred", (7,)), 7, 7),
        (Shape("token"), 0, 0),
        (Shape("f32", (0, 9), Layout((1, 0), ((8, 128),))), 0, 0),
        (Shape("f32", (3, 5), Layout((1, 0), ((-1, 128),))), 60, 3 * 128 * 4),
    ],
)
def test_bytes(shape, logical, padded):
    assert (shape.logical_bytes, shape.padded_bytes) == (logical, padded)


def test_a_tuple_adds_its_parts():
    part = Shape("f32", (2, 3), Layout((1, 0), ((8, 128),), 1))
    both = Shape("tuple", parts=(part, Shape("tuple", parts=(Shape("s32"), part))))
    assert both.leaves() == (part, Shape("s32"), part)
    assert both.size == 13
    assert both.logical_bytes == 52
    assert both.padded_bytes == 2 * 4096 + 4
    assert str(both) == "(f32[2,3]{1,0:T(8,128)S(1)}, (s32[], f32[2,3]{1,0:T(8,128)S(1)}))"
    assert both.plain == "(f32[2,3], (s32[], f32[2,3]))"


def test_spaces_have_names_where_they_are_public():
    assert [Shape("f32", (), Layout((), (), n)).space for n in (0, 1, 3)] == ["HBM", "VMEM", "space 3"]
