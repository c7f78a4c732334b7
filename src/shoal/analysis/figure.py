"""The curves as a picture. matplotlib is imported only when one is drawn, and opens no window."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.analysis.results import Band, Comparison
from shoal.analysis.runs import RunGroup
from shoal.analysis.statistics import LEVEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito: distinct for every kind of colour blindness, and in print. Without yellow, too light for lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLES = ("-", "--", ":", "-.")
_GREY = "#5f6368"
_LEGEND_WIDTH = 150
"""Characters that fit side by side."""


def draw(comparison: Comparison) -> bytes:
    """Two panels, over steps and over seconds, as a PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 10, "font.family": "sans-serif", "axes.titlesize": 11}):
        labels = [_label(one.group) for one in comparison.groups]
        columns = max(1, min(len(labels), _LEGEND_WIDTH // (max(map(len, labels)) + 8)))
        rows = -(-len(labels) // columns)
        figure = Figure(figsize=(11, 4.4 + 0.22 * rows), dpi=150, facecolor="white")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, sharey=True)
        for number, (one, label) in enumerate(zip(comparison.groups, labels, strict=True)):
            look = {"color": _COLOURS[number % 7], "linestyle": _STYLES[number // 7 % 4], "zorder": 4 + number}
            _draw_band(left, one.over_steps, look, label)
            _draw_band(right, one.over_seconds, look, label)
        for axes, name in ((left, "env steps of a run"), (right, "seconds")):
            _dress(axes, name, comparison.threshold)
        left.set_ylabel(comparison.metric)
        left.set_title(f"interquartile mean over runs, {100 * LEVEL:g} % interval", loc="left", color=_GREY)
        figure.legend(*left.get_legend_handles_labels(), loc="lower center", ncols=columns, frameon=False)
        figure.tight_layout(rect=(0, 0.02 + 0.24 * rows / figure.get_figheight(), 1, 1))
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})  # the same numbers, the same bytes
        return file.getvalue()


def _label(group: RunGroup) -> str:
    launches = f" in {len(group.launches)} launches" if len(group.launches) > 1 else ""
    return f"{group.name} (n = {len(group.runs)}{launches})"


def _draw_band(axes: Axes, band: Band, look: dict[str, Any], label: str) -> None:
    axes.plot(band.x, band.value, linewidth=2, drawstyle="steps-post", label=label, **look)
    if np.isfinite(band.low).any():
        axes.fill_between(
            band.x, band.low, band.high, step="post", color=look["color"], alpha=0.16, linewidth=0, zorder=2
        )


def _dress(axes: Axes, name: str, threshold: float | None) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_xlabel(name)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.grid(color="#e4e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa0a6")
    axes.tick_params(color="#9aa0a6", labelcolor=_GREY)
    axes.margins(x=0.02)
    if threshold is not None:
        axes.axhline(threshold, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
        axes.annotate(
            f"{threshold:.10g}",
            (0, threshold),  # on the left, where curves are low
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            color=_GREY,
            fontsize=9,
        )


def _short(value: float) -> str:
    """250000 as 250k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
