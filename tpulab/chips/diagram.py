"""The picture of a roofline: log-log, every program under the ceiling that binds it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..figures import OKABE_ITO, Picture, show
from ..units import bytes_text, count_text
from .ceilings import Ceilings
from .model import Roofline, ratio_text

_COLORS = (OKABE_ITO[0], OKABE_ITO[5], OKABE_ITO[2], OKABE_ITO[3], OKABE_ITO[1])
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def plot(*rooflines: Roofline | Iterable[Roofline]) -> Picture:
    """Draw programs under the ceilings of their machines.

    Left of a machine's ridge the slanted ceiling, memory, binds; right of it the flat one, arithmetic. Each program
    stands where the model puts it: on its ceiling, hollow where memory binds and full where arithmetic does.

    Args:
        *rooflines: from `roofline`, one by one or in lists.

    Raises:
        ValueError: there are none.
        TypeError: something else is among them.
    """
    import matplotlib.pyplot as plt

    items = _flat(rooflines)
    machines = list(dict.fromkeys(one.ceilings for one in items))
    left, right = _span(items)
    fig, ax = plt.subplots(figsize=(7.2, 4.2))
    ax.set(xscale="log", yscale="log", xlim=(left, right))
    for axis in (ax.xaxis, ax.yaxis):  # decades in words; the ticks between them unlabelled
        axis.set_major_formatter(lambda value, _: count_text(value).replace(" ", "\u2009"))
        axis.set_minor_formatter("")
    ax.set_xlabel("intensity: FLOPs for each byte to or from HBM")
    ax.set_ylabel("FLOP/s, at most (modelled)")
    for number, machine in enumerate(machines):
        _roof(ax, machine, number, left, right, sides=len(machines) == 1)
    _programs(ax, items, machines)
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    return show(fig, alt=_words(items))


def _flat(rooflines: Sequence[Any]) -> list[Roofline]:
    items = [one for item in rooflines for one in ([item] if isinstance(item, Roofline) else item)]
    if not items:
        raise ValueError("plot draws at least one roofline; got none")
    for one in items:
        if not isinstance(one, Roofline):
            raise TypeError(f"plot draws what `roofline` gives; got {type(one).__name__}")
    return items


def _span(items: Sequence[Roofline]) -> tuple[float, float]:
    """Choose the ends of the intensity axis: all programs and all ridges inside, with room."""
    at = [one.intensity_flops_per_byte for one in items] + [one.ridge_flops_per_byte for one in items]
    at = [value for value in at if 0 < value < math.inf]
    return min(min(at) / 8, max(at) / 64), max(at) * 8


def _roof(ax: Any, machine: Ceilings, number: int, left: float, right: float, *, sides: bool) -> None:
    """Draw one machine's two ceilings; alone, name the sides of its ridge too."""
    color, ridge = _COLORS[number % len(_COLORS)], machine.ridge_flops_per_byte
    points = [left, ridge, right]
    heights = [min(machine.flops_per_s, machine.bytes_per_s * x) for x in points]
    label = f"{machine.name}: {count_text(machine.flops_per_s, 'FLOP/s')} {machine.dtype},\n{bytes_text(machine.bytes_per_s)}/s"
    ax.plot(points, heights, color=color, linestyle=_LINES[number % len(_LINES)], marker="", linewidth=2, label=label)
    ax.axvline(ridge, color=color, linewidth=0.8, linestyle=":")
    floor = min(heights) * 1.3
    ax.text(ridge * 1.06, floor * 1.5 ** (2 * number), f"ridge {ratio_text(ridge)}", color=color, fontsize=8)
    if sides:
        ax.axvspan(left, ridge, color=OKABE_ITO[4], alpha=0.10, linewidth=0)
        top = machine.flops_per_s * 1.35
        ax.text(math.sqrt(left * ridge), top, "memory binds", ha="center", fontsize=9, color="#333333")
        ax.text(math.sqrt(ridge * right), top, "arithmetic binds", ha="center", fontsize=9, color="#333333")
        ax.set_ylim(top=machine.flops_per_s * 3)


def _programs(ax: Any, items: Sequence[Roofline], machines: Sequence[Ceilings]) -> None:
    """Put each program on its ceiling; one marker a program, the colour of its machine."""
    left, right = ax.get_xlim()
    names = list(dict.fromkeys(one.name for one in items))
    for one in items:
        marker = _MARKERS[names.index(one.name) % len(_MARKERS)]
        color = _COLORS[machines.index(one.ceilings) % len(_COLORS)]
        x = min(max(one.intensity_flops_per_byte, left * 1.2), right / 1.2)
        y = min(one.ceilings.flops_per_s, one.ceilings.bytes_per_s * x)
        fill = "white" if one.bound == "memory" else color
        ax.plot(x, y, marker=marker, color=color, markerfacecolor=fill, markersize=9, markeredgewidth=2, linestyle="")
    for name in names:
        marker = _MARKERS[names.index(name) % len(_MARKERS)]
        verdicts = {one.bound for one in items if one.name == name}
        verdict = f"{verdicts.pop()}-bound" if len(verdicts) == 1 else "bound by both, see the fill"
        fill = "white" if "memory" in verdict or "both" in verdict else "#333333"
        ax.plot([], [], marker=marker, color="#333333", markerfacecolor=fill, linestyle="", label=f"{name}: {verdict}")


def _words(items: Sequence[Roofline]) -> str:
    """Say what the picture shows: for each program its intensity, and which ceiling binds where."""
    told = []
    for name in dict.fromkeys(one.name for one in items):
        mine = [one for one in items if one.name == name]
        where = ", ".join(
            f"{one.bound}-bound on {one.ceilings.name} (ridge {ratio_text(one.ridge_flops_per_byte)}, "
            f"at most {count_text(one.attainable_flops_per_s, 'FLOP/s')})"
            for one in mine
        )
        told.append(f"{name}, {' or '.join(dict.fromkeys(map(_intensity, mine)))} FLOP/byte, is {where}")
    return f"Roofline, modelled. {'; '.join(told)}."


def _intensity(one: Roofline) -> str:
    return ratio_text(one.intensity_flops_per_byte)
