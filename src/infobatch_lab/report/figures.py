"""The paper's figures, from the user's own runs: PNG, for light and for dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mode
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from infobatch_lab.comparison import Comparison, Method
from infobatch_lab.display import duration
from infobatch_lab.metrics import Metric
from infobatch_lab.report.labels import label_ends, label_points
from infobatch_lab.styles import MATCHED_DASH, STYLES, Style, style_of

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
        return self.colour_of(_style(method, comparison))

    def colour_of(self, style: Style) -> str:
        return style.light if self.name == "light" else style.dark


LIGHT = Theme("light", paper="#ffffff", ink="#1f2328", faint="#d5d9de")
DARK = Theme("dark", paper="#161b22", ink="#e6edf3", faint="#3a424d")


def _style(method: Method, comparison: Comparison) -> Style:
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


@dataclass(frozen=True)
class Kind:
    """One of the figures that a comparison may have; its texts name the {metric}."""

    name: str
    title: str
    shows: str
    needs: str
    """Which runs would make it."""
    sketch: Callable[[Comparison, Theme, float], Sketch]


def draw(comparison: Comparison, margin: float) -> list[Drawing]:
    """All figures of a comparison."""
    return [_drawing(kind, comparison, margin) for kind in KINDS]


def _drawing(kind: Kind, comparison: Comparison, margin: float) -> Drawing:
    words = comparison.metric.words
    name = kind.name.replace("{metric}", comparison.metric.name.replace("_", "-"))
    title, shows = (
        text.replace("{metric}", words).replace("{Metric}", words[0].upper() + words[1:])
        for text in (kind.title, kind.shows)
    )
    made = rendered(lambda theme: kind.sketch(comparison, theme, margin))
    if made is None:
        return Drawing(name, title, kind.needs)
    description, light, dark = made
    return Drawing(name, title, shows, f"{title}, {comparison.title}. {description}", light, dark)


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
            figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
            images.append(file.getvalue())
    light, dark = images
    return words, light, dark


def _look(theme: Theme) -> dict[Any, Any]:
    return {
        "font.family": "DejaVu Sans",
        "font.size": 10,
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


# The figures --------------------------------------------------------------------------------------


def _metric_by_samples(comparison: Comparison, theme: Theme, margin: float) -> Sketch:
    if len(comparison.methods) < 2:
        return None
    metric = comparison.metric
    figure, (axes,) = canvas(3.6)
    words, labels = [], []
    for method in reversed(comparison.methods):  # the main ones on top
        colour = theme.colour(method, comparison)
        value = method.mean
        bar = (method.spread or 0.0) if method.is_main else 0.0
        samples = comparison.num_full * (1 - comparison.samples_saved(method))
        axes.errorbar(
            samples,
            value,
            yerr=bar or None,
            fmt=_style(method, comparison).marker,
            markersize=8 if method.is_main else 5,
            markerfacecolor=colour if method.is_main and not method.match_forwards else theme.paper,
            color=colour,
            ecolor=(colour, 0.45),
            elinewidth=1.4,
            zorder=3 if method.is_main else 2,
        )
        labels.append((samples, value, bar, method.short_name if method.is_main else ""))
        if method.is_main:
            words.append(f"{method.name}: {metric.full_text(value)} with {samples:,.0f} samples")
    level = _reference(axes, comparison, theme, margin)
    axes.set(xlabel="samples trained", ylabel=metric.words)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.margins(0.16, 0.16)
    metric_axis(axes, metric)
    label_points(figure, axes, labels, level=level)
    return figure, "; ".join(reversed(words)) + "."


def _progress(comparison: Comparison, theme: Theme) -> Sketch:
    curves, metric = _curves(comparison), comparison.metric
    if not curves:
        return None
    figure, (axes,) = canvas(3.6)
    ends = []
    for method, kept, values in curves:
        colour = theme.colour(method, comparison)
        samples = np.cumsum(kept) * method.runs[0].num_samples
        axes.plot(samples, values, color=colour, linestyle=_dash(method, comparison))
        axes.plot(samples[-1], values[-1], _style(method, comparison).marker, color=colour, ms=6)
        ends.append((float(samples[-1]), float(values[-1]), method.short_name, colour))
    axes.set(xlabel="samples trained so far", ylabel=metric.words)
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


def _kept_by_epoch(comparison: Comparison, theme: Theme) -> Sketch:
    curves = _curves(comparison)
    if all(np.min(kept) == 1 for _, kept, _ in curves):
        return None
    figure, (top, bottom) = canvas(4.6, rows=2)
    lines, words = [], []
    for method, kept, values in curves:
        colour, epochs = theme.colour(method, comparison), np.arange(1, len(kept) + 1)
        style: dict[str, Any] = {"color": colour, "linestyle": _dash(method, comparison)}
        top.plot(epochs, kept, **style)
        bottom.plot(epochs, values, **style)
        lines.append(Line2D([], [], label=method.name, **style))
        words.append(f"{method.name} keeps {np.mean(kept):.0%} on average")
    top.set(ylabel="kept", ylim=(0, 1.05))
    top.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bottom.set(xlabel="epoch", ylabel=comparison.metric.words)
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


def _losses(comparison: Comparison, theme: Theme) -> Sketch:
    pruned = (
        (method, run, run.losses)
        for method in comparison.main_methods
        for run in method.runs
        if run.losses is not None and sum(run.losses.after) < sum(run.losses.before)
    )
    method, run, losses = next(pruned, (None, None, None))
    if method is None or run is None or losses is None:
        return None
    figure, axes = canvas(4.8, rows=3)
    colour = theme.colour(method, comparison)
    panels = (
        ("before pruning", losses.before, "samples"),
        ("after pruning", losses.after, "samples kept"),
        ("rescaled", losses.rescaled, "samples by weight"),
    )
    positive = [count for _, counts, _ in panels for count in counts if count > 0]
    for panel, (name, counts, unit) in zip(axes, panels, strict=True):
        panel.stairs(counts, losses.edges, fill=True, color=colour, alpha=0.85)
        panel.stairs(losses.before, losses.edges, color=theme.ink, linewidth=1)
        panel.set_title(f"{name}: {sum(counts):,.0f} {unit}")
        panel.set_yscale("log")
        panel.set_ylim(0.7 * min(positive, default=1), 2 * max(positive, default=1))
        panel.yaxis.set_major_locator(LogLocator(numticks=6))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panel.minorticks_off()
        panel.grid(axis="x", visible=False)
    if losses.edges[0] > 0 and losses.edges[-1] > 100 * losses.edges[0]:
        axes[-1].set_xscale("log")
    else:
        axes[-1].xaxis.set_major_locator(MaxNLocator(6))
    axes[-1].set_xlabel(f"loss, {method.name}, seed {run.seed}, epoch {losses.epoch + 1}")
    figure.supylabel("samples (log scale)", fontsize=10)
    totals = "; ".join(f"{name}: {sum(counts):,.0f} {unit}" for name, counts, unit in panels)
    return figure, f"Histograms of the losses, {totals}."


def _variation(comparison: Comparison, theme: Theme, margin: float, *, of_delta: bool) -> Sketch:
    """The metric by r at the main delta of each rule, or by delta at its main r."""
    metric = comparison.metric
    figure, (axes,) = canvas(3.4)
    words, ends = [], []
    for main in comparison.main_methods:
        same = [
            m
            for m in comparison.methods
            if m.family == main.rule
            and m.match_forwards is None
            and m.key.shrink == main.key.shrink
            and (
                m.key.prune_ratio == main.key.prune_ratio
                if of_delta
                else m.key.delta == main.key.delta
            )
        ]
        by_value = {m.key.delta if of_delta else m.key.prune_ratio: m for m in same}
        points = sorted((value, m) for value, m in by_value.items() if value is not None)
        if len(points) < 2:
            continue
        colour = theme.colour(main, comparison)
        values = [value for value, _ in points]
        means = [m.mean for _, m in points]
        spreads = [m.spread or 0.0 for _, m in points]
        axes.errorbar(
            values,
            means,
            yerr=spreads,
            color=colour,
            marker=_style(main, comparison).marker,
            linestyle=_dash(main, comparison),
            markersize=6,
            elinewidth=1.2,
        )
        ends.append((values[-1], means[-1], main.rule, colour))
        words += [
            f"{main.rule} at {v:g}: {metric.full_text(a)}"
            for v, a in zip(values, means, strict=True)
        ]
    if not ends:
        return None
    full = _reference(axes, comparison, theme, margin)
    axes.margins(0.06, 0.12)
    axes.set(xlabel="δ" if of_delta else "r", ylabel=metric.words)
    metric_axis(axes, metric)
    if full is not None:
        ends.append((axes.get_xlim()[1], full, "full", _full_colour(theme)))
    label_ends(axes, ends)
    return figure, "; ".join(words) + "."


def _overhead(comparison: Comparison, theme: Theme) -> Sketch:
    rows = []
    for method in comparison.main_methods:
        seconds = comparison.seconds_saved(method)
        overhead = method.mean_of("pruning_seconds")
        if method.rule != "full" and seconds is not None and overhead is not None:
            rows.append((method, seconds[1], overhead))
    if not rows:
        return None
    figure, (axes,) = canvas(1.0 + 0.55 * len(rows))
    for place, (method, saved, overhead) in enumerate(rows):
        colour = theme.colour(method, comparison)
        axes.barh(place - 0.16, saved, height=0.3, color=colour)
        axes.barh(place + 0.16, overhead, height=0.3, facecolor=theme.paper, edgecolor=theme.ink)
        for offset, value, verb in (
            (-0.16, saved, "saves" if saved >= 0 else "loses"),
            (0.16, overhead, "costs"),
        ):
            axes.annotate(
                f"{verb} {duration(abs(value))}",
                (max(value, 0), place + offset),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
    axes.set_yticks(range(len(rows)), [method.name for method, _, _ in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.axvline(0, color=theme.ink, linewidth=0.8)
    longest = max(max(saved, overhead) for _, saved, overhead in rows)
    axes.set_xlim(min(0, *(1.1 * saved for _, saved, _ in rows)), 1.38 * longest)
    axes.set_xlabel("seconds per run")
    words = (f"{m.name} saves {s:.3g} s and costs {c:.3g} s" for m, s, c in rows)
    return figure, "; ".join(words) + "."


KINDS = (
    Kind(
        "{metric}-by-samples",
        "{Metric} against samples trained",
        "Where each method ends: its {metric} after the last epoch, and the samples it trained "
        "for that. Bars are one standard deviation over the seeds; small "
        "hollow marks are other values of r and δ; the band is the margin of full training.",
        "It needs runs of at least two methods.",
        _metric_by_samples,
    ),
    Kind(
        "progress",
        "The way there",
        "{Metric} as training goes on, by samples trained so far; means over the seeds. The first "
        "epochs may be outside the picture.",
        "It needs runs with a history of their epochs.",
        lambda comparison, theme, _: _progress(comparison, theme),
    ),
    Kind(
        "kept-by-epoch",
        "Kept fraction and {metric} by epoch",
        "How much of the data each epoch trains, and the {metric} after it; means over the seeds "
        "(Fig. 4d of the paper's first version).",
        "It needs runs of a rule that prunes, with a history of their epochs.",
        lambda comparison, theme, _: _kept_by_epoch(comparison, theme),
    ),
    Kind(
        "losses",
        "What pruning does to the losses",
        "The losses of one epoch in the middle of training: of all samples, of the kept ones, and "
        "of the kept ones counted with their weights, which should look like the first (Fig. 6 of "
        "the paper). The line repeats the first; the last bar holds the long tail.",
        "It needs a run of a rule that prunes, with a loss_distribution.",
        lambda comparison, theme, _: _losses(comparison, theme),
    ),
    Kind(
        "prune-ratio",
        "How much to prune: r",
        "{Metric} by the part of the prunable samples that is skipped (Fig. 3a of the paper). Bars "
        "are one standard deviation over the seeds.",
        "It needs runs of one rule with several values of r and one of δ.",
        lambda comparison, theme, margin: _variation(comparison, theme, margin, of_delta=False),
    ),
    Kind(
        "delta",
        "When to stop pruning: δ",
        "{Metric} by the part of the epochs after which everything is trained (Fig. 3b of the "
        "paper). Bars are one standard deviation over the seeds.",
        "It needs runs of one rule with several values of δ and one of r.",
        lambda comparison, theme, margin: _variation(comparison, theme, margin, of_delta=True),
    ),
    Kind(
        "overhead",
        "Overhead against saving",
        "Training time saved per run, next to the time spent on deciding what to prune (Fig. 4b of "
        "the paper). Evaluation is counted in neither.",
        "It needs timed runs of full training and of a rule that prunes, from one machine.",
        lambda comparison, theme, _: _overhead(comparison, theme),
    ),
)


# Their parts --------------------------------------------------------------------------------------


Curve = tuple[Method, np.ndarray, np.ndarray]
"""A method, its kept fractions, its metric."""


def _dash(method: Method, comparison: Comparison) -> Any:  # one of matplotlib's many forms
    return MATCHED_DASH if method.match_forwards else _style(method, comparison).dash


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


def _full_colour(theme: Theme) -> str:
    return theme.colour_of(STYLES["full"])


def _reference(axes: Axes, comparison: Comparison, theme: Theme, margin: float) -> float | None:
    if comparison.full is None:
        return None
    reference(axes, comparison.full.mean, comparison.metric, theme, margin)
    return comparison.full.mean


def reference(axes: Axes, full: float, metric: Metric, theme: Theme, margin: float) -> None:
    """Draw a line at the metric of full training, and the margin on its worse side."""
    colour = _full_colour(theme)
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
