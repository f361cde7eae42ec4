"""The figure of a frontier: the metric against samples trained, with the line of full training."""

from __future__ import annotations

from statistics import mean

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from infobatch_lab.frontier import Frontier, FrontierRow
from infobatch_lab.report.canvas import (
    Drawing,
    Sketch,
    Theme,
    canvas,
    metric_axis,
    reference,
    rendered,
    short_name,
)
from infobatch_lab.report.labels import label_points
from infobatch_lab.styles import STYLES, style_of

SHOWS = (
    "The line is full training at several lengths, each with the better of two batch sizes: the "
    "usual one, and a smaller one that keeps the number of steps. The other size is a hollow mark. "
    "A method above the line is better than training less. Its mark is filled for epochs with "
    "fewer batches, and hollow for epochs with smaller ones. Bars are 95 % intervals of the "
    "difference to the line: if a bar does not reach the line, the verdict is clear. The "
    "band is the margin of full training."
)


def draw_frontier(frontier: Frontier, margin: float | None) -> Drawing:
    """Draw it; a frontier has all that the figure needs."""
    words = frontier.metric.words
    title = f"{words[0].upper()}{words[1:]} against samples trained"
    made = rendered(lambda theme: _sketch(frontier, theme, margin))
    assert made is not None
    description, light, dark = made
    return Drawing(
        "frontier", title, SHOWS, f"{title}, {frontier.title}. {description}", light, dark
    )


def _sketch(frontier: Frontier, theme: Theme, margin: float | None) -> Sketch:
    figure, (axes,) = canvas(3.8)
    rows = frontier.rows(margin)
    _draw_line(axes, frontier, theme)
    labels = [_draw_point(axes, row, theme) for row in rows]
    reference(axes, frontier.whole.method.mean, frontier.metric, theme, rows[0].margin)
    axes.set(xlabel="samples trained", ylabel=short_name(frontier.metric.words))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.margins(0.12, 0.16)
    metric_axis(axes, frontier.metric)
    label_points(figure, axes, labels, level=frontier.whole.method.mean)
    texts = (
        f"{row.name}: {frontier.metric.full_text(row.point.method.mean)} with {row.samples:.0%} of "
        "the samples" + (f", {row.place}" if row.place else "")
        for row in rows
    )
    return figure, "; ".join(texts) + "."


def _draw_line(axes: Axes, frontier: Frontier, theme: Theme) -> None:
    """The mean over the seeds that all lengths have: the line that verdicts refer to."""
    values = [point.method.values for point in frontier.line]
    shared = set.intersection(*map(set, values))
    heights = [mean(of[seed] for seed in shared or of) for of in values]
    samples = [point.num_trained for point in frontier.line]
    axes.plot(samples, heights, color=theme.colour_of(STYLES["full"]), zorder=2)


def _draw_point(axes: Axes, row: FrontierRow, theme: Theme) -> tuple[float, float, float, str]:
    """Draw a mark with its bar; returns what `label_points` wants to know of it."""
    point, found = row.point, row.to_line
    style = style_of(point.method.rule, {p.method.rule for p in row.frontier.points})
    is_full = point in row.frontier.full
    is_filled = row.is_on_line if is_full else point.method.key.shrink == "epoch"
    half = 0.0 if found is None or found.high is None else found.high - found.mean
    samples, value, colour = point.num_trained, point.method.mean, theme.colour_of(style)
    axes.errorbar(
        samples,
        value,
        yerr=half or None,
        fmt=style.marker,
        markersize=5 if is_full else 8,
        markerfacecolor=colour if is_filled else theme.paper,
        color=colour,
        ecolor=(colour, 0.45),
        elinewidth=1.4,
        zorder=3,
    )
    name = "" if is_full and point is not row.frontier.whole else point.method.rule
    return samples, value, half, name
