"""The picture of a roofline: its words say which ceiling binds, and it stays small."""

import matplotlib.pyplot as plt
import pytest

from tpulab import chips
from tpulab.chips import plot, roofline


def test_one_program_in_words():
    picture = roofline((17.2e9, 29.4e6), "v5e", name="layer").figure()
    assert picture.alt == (
        "Roofline, modelled. layer, 585 FLOP/byte, is compute-bound on TPU v5e (ridge 240, at most 197 TFLOP/s)."
    )
    assert len(picture.png) < 60_000 and plt.get_fignums() == []


def test_many_programs_on_many_chips():
    work = {"decode": (2.7e8, 3.4e7), "layer": (1.1e12, 4.7e8)}
    items = [roofline(pair, chip, name=name) for name, pair in work.items() for chip in ("v5e", "v5p", "v6e")]
    picture = plot(items)
    assert picture.alt.count("memory-bound") == picture.alt.count("compute-bound") == 3
    assert plot(*items).png == picture.png, "one by one or as a list, and the same each time"


@pytest.mark.parametrize("work", [(0, 1e9), (1e9, 0), (1, 1e15), (1e15, 1)])
def test_far_away_is_drawn_too(work):
    assert roofline(work, "v5e").figure().png


def test_own_ceilings_are_drawn():
    mine = chips.Ceilings("laptop", 1e11, 1e10, "f32", "measured")
    assert "laptop" in plot(roofline((1e9, 1e9), mine)).alt


def test_wants_rooflines():
    with pytest.raises(ValueError, match="at least one roofline; got none"):
        plot()
    with pytest.raises(TypeError, match="plot draws what `roofline` gives; got str"):
        plot(["v5e"])  # type: ignore[list-item]
