"""Figures along a run: the metric by samples so far, and the kept fraction by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mode
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from infobatch_lab.comparison import Comparison, Method
from infobatch_lab.metrics import Metric
from infobatch_lab.report.canvas import Sketch, Theme, canvas, dash, metric_axis, short_name, style
from infobatch_lab.report.labels import label_ends

Curve = tuple[Method, np.ndarray, np.ndarray]
"""A method, its kept fractions, its metric."""


def progress(comparison: Comparison, theme: Theme) -> Sketch:
    """The metric by samples trained so far."""
    curves, metric = _curves(comparison), comparison.metric
    if not curves:
        return None
    figure, (axes,) = canvas(3.6)
    ends = []
    for method, kept, values in curves:
        colour = theme.colour(method, comparison)
        samples = np.cumsum(kept) * method.runs[0].num_samples
        axes.plot(samples, values, color=colour, linestyle=dash(method, comparison))
        axes.plot(samples[-1], values[-1], style(method, comparison).marker, color=colour, ms=6)
        ends.append((float(samples[-1]), float(values[-1]), method.short_name, colour))
    axes.set(xlabel="samples trained so far", ylabel=short_name(metric.words))
    axes.set_ylim(_range(curves, metric))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    metric_axis(axes, metric)
    label_ends(axes, ends)
    words = (
        f"{name} ends at {metric.full_text(y)} after {x:,.0f} samples" for x, y, name, _ in ends
    )
    return figure, "; ".join(words) + "."


def kept_by_epoch(comparison: Comparison, theme: Theme) -> Sketch:
    """The kept fraction and the metric, by epoch."""
    curves = _curves(comparison)
    if all(np.min(kept) == 1 for _, kept, _ in curves):
        return None
    figure, (top, bottom) = canvas(4.6, rows=2)
    lines, words = [], []
    for method, kept, values in curves:
        colour, epochs = theme.colour(method, comparison), np.arange(1, len(kept) + 1)
        style: dict[str, Any] = {"color": colour, "linestyle": dash(method, comparison)}
        top.plot(epochs, kept, **style)
        bottom.plot(epochs, values, **style)
        lines.append(Line2D([], [], label=short_name(method.name), **style))
        words.append(f"{method.name} keeps {np.mean(kept):.0%} on average")
    top.set(ylabel="kept", ylim=(0, 1.05))
    top.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bottom.set(xlabel="epoch", ylabel=short_name(comparison.metric.words))
    bottom.set_ylim(_range(curves, comparison.metric))
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    metric_axis(bottom, comparison.metric)
    figure.align_ylabels()
    figure.legend(
        handles=lines,
        loc="outside upper left",
        ncols=2 if any(len(m.name) > 14 for m, _, _ in curves) else 3,
        frameon=False,
        fontsize=9,
        handlelength=2.6,
        columnspacing=1.2,
    )
    return figure, "; ".join(words) + "."


def _curves(comparison: Comparison) -> list[Curve]:
    """The kept fraction and the metric of each epoch, means over the seeds of a method."""
    curves = []
    for method in comparison.main_methods:
        # Matched runs may differ by an epoch; a mean is over those of the most common length.
        length = mode(len(run.kept_fractions) for run in method.runs)
        runs = [run for run in method.runs if len(run.kept_fractions) == length]
        if length:
            kept = np.mean([run.kept_fractions for run in runs], axis=0)
            values = np.mean([run.values for run in runs], axis=0)
            measured = ~np.isnan(values)
            if measured.sum() > 1 or length == 1:
                steps = np.arange(length)
                curves.append((method, kept, np.interp(steps, steps[measured], values[measured])))
    return curves


def _range(curves: Sequence[Curve], metric: Metric) -> tuple[float, float]:
    """The range of the metric's axis: all but the bad values of the first quarter."""
    late = np.concatenate([metric.sign * values[len(values) // 4 :] for _, _, values in curves])
    best = max(float(np.max(metric.sign * values)) for _, _, values in curves)
    worst = float(late.min())
    room = 0.06 * (best - worst) or 0.01
    low, high = sorted((metric.sign * (worst - room), metric.sign * (best + room)))
    return low, high
