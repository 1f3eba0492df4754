"""Targets: names that people use, shapes that exist, one line for all others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.xla import UnknownTarget, target


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices"),
    [
        ("v5e:2x2", "v5e:2x2", 4, 4),
        ("V5E:2X4", "v5e:2x4", 8, 8),
        ("v5litepod:4x4", "v5e:4x4", 16, 16),
        ("TPU v5 lite:2x2", "v5e:2x2", 4, 4),
        ("v5e:2x2x1", "v5e:2x2", 4, 4),
        ("v5e", "v5e:1x1", 1, 1),
        ("v6e:1x1", "v6e:1x1", 1, 1),
        ("v2:2x2", "v2:2x2", 4, 8),  # two cores a chip, each a device
        ("v3", "v3:1x1", 1, 2),
        ("v4:2x2", "v4:2x2x1", 4, 4),  # megacore: a chip is one device
        ("v4:8x8x8", "v4:8x8x8", 512, 512),
        ("v5p:16x16x24", "v5p:16x16x24", 6144, 6144),
        ("7x:2x2x1", "7x:2x2x1", 4, 8),
        ("v7x:2x2x1", "7x:2x2x1", 4, 8),
        ("tpu7x-4x4x4", "7x:4x4x4", 64, 128),
        ("ironwood", "7x:1x1x1", 1, 2),
    ],
)
def test_names(text, name, chips, devices):
    found = target.parse(text)
    assert (found.name, found.chips, found.devices) == (name, chips, devices)
    assert target.parse(found.name) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v9:2x2", "chips are v2, v3, v4, v5e, v5p, v6e, 7x"),
        ("v5litepod-4", 'counts chips: 4 chips, e.g. "v5e:2x2"'),
        ("v5e-1", 'counts chips: 1 chip, e.g. "v5e:1x1"'),
        ("v5p-128", 'counts cores, two a chip: that is 64 chips, e.g. "v5p:4x4x4"'),
        ("v4-8", 'that is 4 chips, e.g. "v4:2x2x1"'),
        ("v5p-1", "there is no slice 'v5p-1'"),
        ("v5e:3x3", "the first two even; try v5e:1x1, v5e:2x2"),
        ("v5e:0x2", "no v5e slice has the shape"),
        ("v5e:2x2x2", "2 axes"),
        ("v5e:32x32", "the largest v5e slice is 16x16 chips"),
        ("v4:18x2x2", "the largest v4 slice is 16x16x16 chips"),
        ("v5e:two", "comes the shape in chips; try v5e:1x1"),
        ("v5e:", "comes the shape in chips"),
        ("v5e:999999x2", "comes the shape in chips"),
        ("v5e:-2x2", "comes the shape in chips"),
        ("", "there is no TPU chip ''"),
        (4, 'such as "v5e:2x2"'),
    ],
)
def test_what_does_not_exist(text, words):
    with pytest.raises(UnknownTarget) as caught:
        target.parse(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_suggestions_are_valid():
    for name, generation in target._GENERATIONS.items():
        for count in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            shape = "x".join(map(str, target.nearly_cubic(count, generation.axes)))
            assert target.parse(f"{name}:{shape}").chips == count
        for suggestion in target._try(generation).removeprefix("try ").split(", "):
            target.parse(suggestion)


@given(st.text(max_size=30))
def test_any_text_is_a_target_or_one_line(text):
    try:
        target.parse(text)
    except UnknownTarget as error:
        assert len(str(error)) < 400


def test_small_slices_are_told_to_older_compilers():
    assert target.parse("v5e:1x1").compiler_arguments == {"chips_per_host_bounds": (1, 1, 1)}
    assert target.parse("v5e:1x2").compiler_arguments == {"chips_per_host_bounds": (1, 2, 1)}
    assert target.parse("v5e:4x4").compiler_arguments == {}
    assert target.parse("v4:2x2x1").compiler_arguments == {"chip_config_name": "megacore"}
