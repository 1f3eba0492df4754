import io

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter

from tpulab import figures

ALT = 'A line that rises from 0 to 2 & stays below "3".'


def draw(points=(0, 1, 2)):
    fig, ax = plt.subplots(figsize=(4, 2))
    ax.plot(points)
    return fig


def test_same_figure_same_bytes():
    assert figures.show(draw(), alt=ALT).png == figures.show(draw(), alt=ALT).png


def test_closes_the_figure_so_that_it_is_not_shown_twice():
    figures.show(draw(), alt=ALT)
    assert plt.get_fignums() == []


def test_html_export_carries_the_alt_text():
    picture = figures.show(draw(), alt=ALT)
    data = {"text/plain": repr(picture), "text/html": picture._repr_html_()}
    output = nbformat.v4.new_output("execute_result", data, execution_count=1)
    cell = nbformat.v4.new_code_cell("figure", outputs=[output], execution_count=1)
    page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert [image["alt"] for image in BeautifulSoup(page, "html.parser").find_all("img")] == [ALT]


def test_small():
    fig, axes = plt.subplots(2, 2, figsize=(8, 6))
    for ax in axes.flat:
        ax.imshow(np.random.default_rng(0).random((64, 64)))
    assert len(figures.show(fig, alt=ALT).png) < 100_000


@pytest.mark.parametrize("thing", [None, plt, [1, 2]])
def test_wants_a_figure(thing):
    with pytest.raises(TypeError, match="`fig` is a matplotlib figure"):
        figures.show(thing, alt=ALT)


@pytest.mark.parametrize("alt", ["", "plot", "a plot"])
def test_wants_words(alt):
    with pytest.raises(ValueError, match="`alt` says in a sentence"):
        figures.show(draw(), alt=alt)
    plt.close("all")


def luminance(color: str) -> float:
    """WCAG 2.1, relative luminance."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_course_style_uses_colors_and_markers_and_is_white_behind():
    with mpl.rc_context():
        figures.use_course_style()
        cycle = mpl.rcParams["axes.prop_cycle"].by_key()
        assert len(set(cycle["color"])) == len(set(cycle["marker"])) == 6
        assert all(1.05 / (luminance(color) + 0.05) >= 1.9 for color in cycle["color"]), "visible on white"
        png = figures.show(draw(), alt=ALT).png
    pixels = plt.imread(io.BytesIO(png))
    assert (pixels[0, 0, :3] == 1).all() and pixels[0, 0, 3] == 1
