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
    LogLocator,
    MaxNLocator,
    PercentFormatter,
    StrMethodFormatter,
)
from matplotlib.transforms import Bbox

from infobatch_lab.report.comparisons import Comparison, Method

WIDTH = 4.3  # inches: with 10 pt text it still reads when shrunk to a phone
DPI = 200


@dataclass(frozen=True)
class Theme:
    """Colours of a page."""

    paper: str
    ink: str
    faint: str
    rules: dict[str, str]
    other_rules: tuple[str, ...]

    def colour(self, method: Method, comparison: Comparison) -> str:
        """The same for a rule in all figures."""
        if method.rule in self.rules:
            return self.rules[method.rule]
        strangers = sorted({m.rule for m in comparison.methods} - self.rules.keys())
        return self.other_rules[strangers.index(method.rule) % len(self.other_rules)]


# Hues and lightness after Okabe and Ito, told apart with any colour vision; each has a contrast of
# at least 3 to its paper.
LIGHT = Theme(
    paper="#ffffff",
    ink="#1f2328",
    faint="#d5d9de",
    rules={
        "full": "#1f2328",
        "mean": "#0072b2",
        "tiers": "#d55e00",
        "random-rescaled": "#4b3fa7",
        "above": "#2f93c8",
        "random": "#a67c00",
        "epsilon-greedy": "#00805d",
        "ucb": "#b8558f",
    },
    other_rules=("#6b7280", "#8b3a2b", "#5f7a00", "#7a4fc0"),
)
DARK = Theme(
    paper="#161b22",
    ink="#e6edf3",
    faint="#3a424d",
    rules={
        "full": "#e6edf3",
        "mean": "#56b4e9",
        "tiers": "#ff8a3d",
        "random-rescaled": "#a99cff",
        "above": "#9fdcff",
        "random": "#e6b422",
        "epsilon-greedy": "#2fc795",
        "ucb": "#e48cc0",
    },
    other_rules=("#9aa4b2", "#e2796a", "#b3cf3f", "#c5a3ff"),
)

MARKERS = {
    "full": "o", "mean": "s", "tiers": "^", "random-rescaled": "P", "above": "v", "random": "X",
    "epsilon-greedy": "D", "ucb": "*",
}  # fmt: skip
DASHES = {
    "full": "-", "mean": "-", "tiers": (0, (5, 1.5)), "random-rescaled": (0, (1, 1)),
    "above": (0, (4, 1, 1, 1)), "random": (0, (1.5, 1.5)), "epsilon-greedy": (0, (6, 2, 1.5, 2)),
    "ucb": (0, (3, 1, 1, 1, 1, 1)),
}  # fmt: skip
MATCHED_DASH = (0, (2, 3))


@dataclass(frozen=True)
class Drawing:
    """A figure of the page, or a sentence about what would make it."""

    name: str
    title: str
    text: str
    """What it shows; without an image, which runs would make it."""
    alt: str = ""
    light: bytes = b""
    dark: bytes = b""


Sketch = tuple[Figure, str] | None
"""A figure and its words for those who do not see it; None where the runs for it are missing."""


@dataclass(frozen=True)
class Kind:
    """One of the figures that a comparison may have."""

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
    images, alt = [], ""
    for theme in (LIGHT, DARK):
        with matplotlib.rc_context(_style(theme)):
            made = kind.sketch(comparison, theme, margin)
            if made is None:
                return Drawing(kind.name, kind.title, kind.needs)
            figure, words = made
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
            images.append(file.getvalue())
            alt = f"{kind.title}, {comparison.title}. {words}"
    return Drawing(kind.name, kind.title, kind.shows, alt, *images)


def _style(theme: Theme) -> dict[Any, Any]:
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


def _canvas(height: float, rows: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)
    return figure, list(axes[:, 0])


# The figures --------------------------------------------------------------------------------------


def _accuracy_by_samples(comparison: Comparison, theme: Theme, margin: float) -> Sketch:
    if len(comparison.methods) < 2:
        return None
    figure, (axes,) = _canvas(3.6)
    words, labels = [], []
    for method in reversed(comparison.methods):  # the main ones on top
        colour = theme.colour(method, comparison)
        accuracy, spread = _mean_and_spread(list(method.accuracies.values()))
        bar = spread if method.is_main else 0.0
        samples = comparison.num_full * (1 - comparison.samples_saved(method))
        axes.errorbar(
            samples,
            accuracy,
            yerr=bar or None,
            fmt=MARKERS.get(method.rule, "h"),
            markersize=8 if method.is_main else 5,
            markerfacecolor=colour if method.is_main and not method.match_forwards else theme.paper,
            color=colour,
            ecolor=(colour, 0.45),
            elinewidth=1.4,
            zorder=3 if method.is_main else 2,
        )
        labels.append((samples, accuracy, bar, method.short_name if method.is_main else ""))
        if method.is_main:
            words.append(f"{method.name}: {accuracy:.2%} with {samples:,.0f} samples")
    level = _reference(axes, comparison, theme, margin)
    axes.set(xlabel="samples trained", ylabel="test accuracy")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.margins(0.16, 0.16)
    _percent(axes)
    _label_points(figure, axes, labels, level=level)
    return figure, "; ".join(reversed(words)) + "."


def _progress(comparison: Comparison, theme: Theme) -> Sketch:
    curves = _curves(comparison)
    if not curves:
        return None
    figure, (axes,) = _canvas(3.6)
    ends, lowest = [], []
    for method, kept, accuracy in curves:
        colour = theme.colour(method, comparison)
        samples = np.cumsum(kept) * method.runs[0].num_samples
        axes.plot(samples, accuracy, color=colour, linestyle=_dash(method))
        axes.plot(samples[-1], accuracy[-1], MARKERS.get(method.rule, "h"), color=colour, ms=6)
        ends.append((float(samples[-1]), float(accuracy[-1]), method.short_name, colour))
        lowest.append(float(np.nanmin(accuracy[len(accuracy) // 4 :])))
    highest = max(float(np.nanmax(accuracy)) for _, _, accuracy in curves)
    room = 0.06 * (highest - min(lowest)) or 0.01
    axes.set(xlabel="samples trained so far", ylabel="test accuracy")
    axes.set_ylim(min(lowest) - room, highest + room)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    _percent(axes)
    _label_ends(axes, ends)
    words = (f"{name} ends at {y:.2%} after {x:,.0f} samples" for x, y, name, _ in ends)
    return figure, "; ".join(words) + "."


def _kept_by_epoch(comparison: Comparison, theme: Theme) -> Sketch:
    curves = _curves(comparison)
    if all(np.min(kept) == 1 for _, kept, _ in curves):
        return None
    figure, (top, bottom) = _canvas(4.6, rows=2)
    lines, words, lowest = [], [], []
    for method, kept, accuracy in curves:
        colour, epochs = theme.colour(method, comparison), np.arange(1, len(kept) + 1)
        style: dict[str, Any] = {"color": colour, "linestyle": _dash(method)}
        top.plot(epochs, kept, **style)
        bottom.plot(epochs, accuracy, **style)
        lines.append(Line2D([], [], label=method.name, **style))
        words.append(f"{method.name} keeps {np.mean(kept):.0%} on average")
        lowest.append(float(np.nanmin(accuracy[len(accuracy) // 4 :])))
    highest = max(float(np.nanmax(accuracy)) for _, _, accuracy in curves)
    room = 0.06 * (highest - min(lowest)) or 0.01
    top.set(ylabel="kept", ylim=(0, 1.05))
    top.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bottom.set(xlabel="epoch", ylabel="test accuracy")
    bottom.set_ylim(min(lowest) - room, highest + room)
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    _percent(bottom)
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
    figure, axes = _canvas(4.8, rows=3)
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
    """Accuracy by r at the main delta of each rule, or by delta at its main r."""
    figure, (axes,) = _canvas(3.4)
    words, ends = [], []
    for main in comparison.main_methods:
        same = [
            m
            for m in comparison.methods
            if m.rule == main.rule
            and m.match_forwards is None
            and (m.prune_ratio == main.prune_ratio if of_delta else m.delta == main.delta)
        ]
        by_value = {m.delta if of_delta else m.prune_ratio: m for m in same}
        points = sorted((value, m) for value, m in by_value.items() if value is not None)
        if len(points) < 2:
            continue
        colour = theme.colour(main, comparison)
        values = [value for value, _ in points]
        means, spreads = zip(
            *(_mean_and_spread(list(m.accuracies.values())) for _, m in points), strict=True
        )
        axes.errorbar(
            values,
            means,
            yerr=spreads,
            color=colour,
            marker=MARKERS.get(main.rule, "h"),
            linestyle=_dash(main),
            markersize=6,
            elinewidth=1.2,
        )
        ends.append((values[-1], means[-1], main.rule, colour))
        words += [f"{main.rule} at {v:g}: {a:.2%}" for v, a in zip(values, means, strict=True)]
    if not ends:
        return None
    full = _reference(axes, comparison, theme, margin)
    axes.margins(0.06, 0.12)
    axes.set(xlabel="δ" if of_delta else "r", ylabel="test accuracy")
    _percent(axes)
    if full is not None:
        ends.append((axes.get_xlim()[1], full, "full", theme.rules["full"]))
    _label_ends(axes, ends)
    return figure, "; ".join(words) + "."


def _overhead(comparison: Comparison, theme: Theme) -> Sketch:
    rows = []
    for method in comparison.main_methods:
        seconds = comparison.seconds_saved(method)
        overhead = method.mean_of(lambda run: run.pruning_seconds)
        if method.rule != "full" and seconds is not None and overhead is not None:
            rows.append((method, seconds[1], overhead))
    if not rows:
        return None
    figure, (axes,) = _canvas(1.0 + 0.55 * len(rows))
    for place, (method, saved, overhead) in enumerate(rows):
        colour = theme.colour(method, comparison)
        axes.barh(place - 0.16, saved, height=0.3, color=colour)
        axes.barh(place + 0.16, overhead, height=0.3, facecolor=theme.paper, edgecolor=theme.ink)
        for offset, value, verb in (
            (-0.16, saved, "saves" if saved >= 0 else "loses"),
            (0.16, overhead, "costs"),
        ):
            axes.annotate(
                f"{verb} {_duration(abs(value))}",
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
        "accuracy-by-samples",
        "Accuracy against samples trained",
        "Where each method ends: its accuracy after the last epoch, and what it trained to get "
        "there. Upper left is better. Bars are one standard deviation over the seeds; small "
        "hollow marks are other values of r and δ; the band is the margin below full training.",
        "It needs runs of at least two methods.",
        _accuracy_by_samples,
    ),
    Kind(
        "progress",
        "The way there",
        "Accuracy as training goes on, by samples trained so far; means over the seeds. The first "
        "epochs are below the picture.",
        "It needs runs with a history of their epochs.",
        lambda comparison, theme, _: _progress(comparison, theme),
    ),
    Kind(
        "kept-by-epoch",
        "Kept fraction and accuracy by epoch",
        "How much of the data each epoch trains, and the accuracy after it; means over the seeds "
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
        "Accuracy by the part of the prunable samples that is skipped (Fig. 3a of the paper). Bars "
        "are one standard deviation over the seeds.",
        "It needs runs of one rule with several values of r and one of δ.",
        lambda comparison, theme, margin: _variation(comparison, theme, margin, of_delta=False),
    ),
    Kind(
        "delta",
        "When to stop pruning: δ",
        "Accuracy by the part of the epochs after which everything is trained (Fig. 3b of the "
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


def _curves(comparison: Comparison) -> list[tuple[Method, np.ndarray, np.ndarray]]:
    """The kept fraction and the accuracy of each epoch, means over the seeds of a method."""
    curves = []
    for method in comparison.main_methods:
        # Matched runs may differ by an epoch; a mean is over those of the most common length.
        length = mode(len(run.kept_fractions) for run in method.runs)
        runs = [run for run in method.runs if len(run.kept_fractions) == length]
        if length:
            kept = np.mean([run.kept_fractions for run in runs], axis=0)
            accuracy = np.mean([run.accuracies for run in runs], axis=0)
            measured = ~np.isnan(accuracy)
            if measured.any():
                steps = np.arange(length)
                accuracy = np.interp(steps, steps[measured], accuracy[measured])
                curves.append((method, kept, accuracy))
    return curves


def _mean_and_spread(accuracies: Sequence[float]) -> tuple[float, float]:
    spread = np.std(accuracies, ddof=1) if len(accuracies) > 1 else 0.0
    return float(np.mean(accuracies)), float(spread)


def _dash(method: Method) -> Any:  # one of the many ways to tell matplotlib
    return MATCHED_DASH if method.match_forwards else DASHES.get(method.rule, "-")


def _reference(axes: Axes, comparison: Comparison, theme: Theme, margin: float) -> float | None:
    """A line at the accuracy of full training, and the margin below it."""
    if comparison.full is None:
        return None
    full, _ = _mean_and_spread(list(comparison.full.accuracies.values()))
    axes.axhline(full, color=theme.rules["full"], linewidth=0.9, zorder=1)
    axes.axhspan(full - margin, full, color=theme.rules["full"], alpha=0.09, linewidth=0)
    return full


def _percent(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, max(1.0, low)) if high > 1 else high)
    decimals = 1 if high - low < 0.06 else 0
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=decimals))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))


def _duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names right of the picture, each joined to the end of its line and none on another."""
    low, high = axes.get_ylim()
    heights = spread_out([(y - low) / (high - low) for _, y, _, _ in ends], gap=0.075)
    for (x, y, name, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 2},
        )


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1, at least a gap apart and as near to the wanted ones as that allows.

    >>> [round(place, 3) for place in spread_out([0.5, 0.1, 0.5], gap=0.2)]
    [0.4, 0.1, 0.6]
    """
    # Neighbours that are too close become one block around their mean, which may touch the next.
    blocks: list[list[int]] = []
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        blocks.append([index])
        while len(blocks) > 1 and _start(blocks[-1], places, gap) < (
            _start(blocks[-2], places, gap) + gap * len(blocks[-2]) - 1e-9
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    spread = [0.0] * len(places)
    for block in blocks:
        for rank, index in enumerate(block):
            spread[index] = _start(block, places, gap) + gap * rank
    return spread


def _start(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    length = gap * (len(block) - 1)
    wanted = sum(places[index] for index in block) / len(block) - length / 2
    return max(0.0, min(wanted, 1 - length))


def _label_points(
    figure: Figure,
    axes: Axes,
    points: Sequence[tuple[float, float, float, str]],
    *,
    level: float | None,
) -> None:
    """A name beside each point, where it covers the least of points, bars, names and the line."""
    figure.draw_without_rendering()  # so that the extents are known
    figure.set_layout_engine("none")
    frame = axes.get_window_extent()
    taken = []
    if level is not None:
        _, height = axes.transData.transform((0, level))
        taken.append(Bbox.from_extents(frame.x0, height - 2, frame.x1, height + 2))
    for x, y, bar, _ in points:
        (left, low), (_, high) = axes.transData.transform([(x, y - bar), (x, y + bar)])
        _, middle = axes.transData.transform((x, y))
        taken.append(Bbox.from_extents(left - 8, middle - 8, left + 8, middle + 8))
        taken.append(Bbox.from_extents(left - 2, low, left + 2, high))
    pixels = figure.dpi / 72
    for x, y, name in ((x, y, name) for x, y, _, name in points if name):
        text = axes.annotate(name, (x, y), (0, 0), textcoords="offset points", va="center", size=9)
        at_mark = text.get_window_extent()
        options = []
        for rank, (dx, dy) in enumerate(PLACES):
            left = pixels * dx - (at_mark.width if dx < 0 else 0)
            box = at_mark.translated(left, pixels * dy)
            cost = sum(_overlap(box, other) for other in taken)
            cost += 10 * (box.width * box.height - _overlap(box, frame))
            options.append((cost, rank, box))
        _, rank, box = min(options, key=lambda option: option[:2])
        taken.append(box)
        text.set(position=PLACES[rank], ha="left" if PLACES[rank][0] > 0 else "right")
        if abs(PLACES[rank][1]) > 9:  # too far to be told whose it is
            axes.annotate(
                "",
                (x, y),
                PLACES[rank],
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": text.get_color()},
            )


PLACES = [
    (side * dx, dy)
    for dx in (10, 22, 34)
    for dy in (0, 9, -9, 18, -18, 27, -27, 40, -40, 55, -55)
    for side in (1, -1)
]
"""Where a name may stand, in points from its mark; the first that covers nothing wins."""


def _overlap(one: Bbox, other: Bbox) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(width, 0.0) * max(height, 0.0))
