"""What all figures share: colours of light and dark pages, a canvas, axes, PNG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from infobatch_lab.comparison import Comparison, Method
from infobatch_lab.metrics import Metric
from infobatch_lab.styles import MATCHED_DASH, STYLES, Style, style_of
from infobatch_lab.visible import visible

WIDTH = 4.3  # inches: with 10 pt text it still reads when shrunk to a phone
DPI = 200


@dataclass(frozen=True)
class Theme:
    """Colours of a page."""

    name: str
    paper: str
    ink: str
    faint: str

    def colour(self, method: Method, comparison: Comparison) -> str:
        """The same for a rule in all figures."""
        return self.colour_of(style(method, comparison))

    def colour_of(self, style: Style) -> str:
        return style.light if self.name == "light" else style.dark


LIGHT = Theme("light", paper="#ffffff", ink="#1f2328", faint="#d5d9de")
DARK = Theme("dark", paper="#161b22", ink="#e6edf3", faint="#3a424d")


def style(method: Method, comparison: Comparison) -> Style:
    """The style of a method's family, the same in all figures of a comparison."""
    return style_of(method.family, {m.family for m in comparison.methods})


@dataclass(frozen=True)
class Drawing:
    """A figure of the page, or a sentence about what would make it."""

    name: str
    title: str
    text: str
    """The caption; without an image, the runs that would make it."""
    alt: str = ""
    light: bytes = b""
    dark: bytes = b""


Sketch = tuple[Figure, str] | None
"""A figure and its words for those who do not see it; None where the runs for it are missing."""


def rendered(sketch: Callable[[Theme], Sketch]) -> tuple[str, bytes, bytes] | None:
    """A figure's words and its images for light and dark pages; None if there is no figure."""
    words, images = "", []
    for theme in (LIGHT, DARK):
        with matplotlib.rc_context(_look(theme)):
            made = sketch(theme)
            if made is None:
                return None
            figure, words = made
            file = io.BytesIO()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Glyph .* missing")  # the page has the name too
                figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
            images.append(file.getvalue())
    light, dark = images
    return words, light, dark


def _look(theme: Theme) -> dict[Any, Any]:
    return {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.parse_math": False,  # a name may hold a dollar
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.edgecolor": theme.faint,
        "grid.color": theme.faint,
        "grid.linewidth": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "lines.linewidth": 1.8,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
    }


def canvas(height: float, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure of the page's width."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)
    return figure, list(axes[:, 0])


def dash(method: Method, comparison: Comparison) -> Any:  # one of matplotlib's many forms
    """The dash pattern of a method."""
    return MATCHED_DASH if method.match_forwards else style(method, comparison).dash


def full_colour(theme: Theme) -> str:
    """The colour of full training."""
    return theme.colour_of(STYLES["full"])


def draw_reference(axes: Axes, comparison: Comparison, theme: Theme, margin: float) -> float | None:
    """Draw full training, where there is one; returns its height."""
    if comparison.full is None:
        return None
    reference(axes, comparison.full.mean, comparison.metric, theme, margin)
    return comparison.full.mean


def reference(axes: Axes, full: float, metric: Metric, theme: Theme, margin: float) -> None:
    """Draw a line at the metric of full training, and the margin on its worse side."""
    colour = full_colour(theme)
    axes.axhline(full, color=colour, linewidth=0.9, zorder=1)
    axes.axhspan(full - metric.sign * margin, full, color=colour, alpha=0.09, linewidth=0)


def metric_axis(axes: Axes, metric: Metric) -> None:
    """Ticks in the metric's unit."""
    low, high = axes.get_ylim()
    if metric.unit == "%":  # nothing is above all of it
        whole = 100 / metric.scale
        axes.set_ylim(low, min(high, max(whole, low)) if high > whole else high)
        decimals = 1 if (high - low) / whole < 0.06 else 0
        axes.yaxis.set_major_formatter(PercentFormatter(whole, decimals=decimals))
    elif metric.scale != 1:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{metric.scale * y:g}"))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))


def short_name(name: str) -> str:
    """A name that a figure has room for."""
    return visible(name, most=28)
