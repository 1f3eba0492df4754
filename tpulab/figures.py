"""Figures that stay small, can be read aloud, and keep their colours apart for everybody."""

import base64
import html
import io
import os
import sys
from dataclasses import dataclass
from typing import Any

# Okabe and Ito, "Color Universal Design", 2008: eight colours that colour-blind readers tell apart.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


@dataclass(frozen=True, repr=False)
class Picture:
    """A PNG with the words that stand in for it.

    Args:
        png: the image.
        alt: what it shows, for readers who do not see it.
        width: pixels on the page.
    """

    png: bytes
    alt: str
    width: int

    def __repr__(self) -> str:
        return f"[figure: {self.alt}]"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        alt = html.escape(self.alt, quote=True)
        return f'<img alt="{alt}" width="{self.width}" style="max-width:100%" src="data:image/png;base64,{data}">'


def show(fig: Any, *, alt: str, dpi: int = 100) -> Picture:
    """Turn a matplotlib figure into a picture with alt text, and close the figure.

    JupyterLab and HTML export keep the alt text of an HTML image and lose that of every other kind,
    so the picture is one.

    Args:
        fig: a matplotlib figure.
        alt: one or two sentences that say what the picture shows, not what kind of plot it is.
        dpi: dots per inch.

    Raises:
        TypeError: `fig` is no figure.
        ValueError: `alt` says nothing.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> show(fig, alt="An empty square of axes from 0 to 1.")
        [figure: An empty square of axes from 0 to 1.]
    """
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    if not isinstance(fig, Figure):
        raise TypeError(f"`fig` is a matplotlib figure, as plt.subplots() gives it; got {type(fig).__name__}")
    if len(alt.split()) < 3:
        raise ValueError(f"`alt` says in a sentence what the picture shows; got {alt!r}")
    stream = io.BytesIO()
    # White behind it, whatever the page's theme; no software name, so that two builds are equal bytes.
    fig.savefig(stream, format="png", dpi=dpi, facecolor="white", bbox_inches="tight", metadata={"Software": None})
    plt.close(fig)
    png = stream.getvalue()
    pixels = int.from_bytes(png[16:20], "big")  # the width in a PNG's header
    return Picture(png, alt, round(pixels * 100 / dpi))


def use_course_style() -> str:
    """Set matplotlib's defaults: Okabe-Ito colours with markers, cividis maps, small figures.

    Returns:
        One sentence if MPLBACKEND names no backend, else "".
    """
    note = _import_matplotlib()
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=OKABE_ITO[:6]) + cycler(marker=["o", "s", "^", "D", "v", "P"]),
            "lines.markersize": 5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.figsize": (6.4, 3.4),
            "font.size": 10,
            "image.cmap": "cividis",
        }
    )
    return note


def _import_matplotlib() -> str:
    """Import matplotlib also where MPLBACKEND is one that it refuses; that import would fail and leave half of it."""
    if "matplotlib" in sys.modules or not (backend := os.environ.pop("MPLBACKEND", "")):
        return ""
    import matplotlib as mpl

    try:
        mpl.rcParams["backend"] = os.environ["MPLBACKEND"] = backend
    except ValueError:
        if "ipykernel" in sys.modules:
            mpl.rcParams["backend"] = "module://matplotlib_inline.backend_inline"
        return f"MPLBACKEND is {backend!r}, which matplotlib does not know, and counts as unset here; unset it"
    return ""
