"""The figure of subsets: what each method loses at each pruned share, beside the rules."""

from __future__ import annotations

from matplotlib.ticker import FuncFormatter, MaxNLocator

from infobatch_lab.comparison import Comparison
from infobatch_lab.report.canvas import Drawing, Sketch, Theme, canvas, rendered
from infobatch_lab.shares import lines_by_share, shares_of
from infobatch_lab.styles import STYLES

MARKS = tuple(STYLES[name] for name in ("mean", "random", "tiers", "ucb", "epsilon-greedy"))
"""How shares look, the smallest first."""

TITLE = "Chosen once, or in every epoch"
SHOWS = (
    "The difference to full training. Above are methods that choose their samples once, below are "
    "rules that choose in every epoch and save about as much; the best first. Each mark is one "
    "pruned fraction. Bars are 95 % intervals over the seeds; the band is the margin."
)


def draw_subsets(comparison: Comparison, margin: float) -> list[Drawing]:
    """The figure, where several methods were compared with full training."""
    made = rendered(lambda theme: _sketch(comparison, theme, margin))
    if made is None:
        return []
    words, light, dark = made
    return [Drawing("subsets", TITLE, SHOWS, f"{TITLE}, {comparison.title}. {words}", light, dark)]


def _sketch(comparison: Comparison, theme: Theme, margin: float) -> Sketch:
    lines, shares = lines_by_share(comparison), shares_of(comparison)
    if comparison.full is None or sum(line.is_static for line in lines) < 2:
        return None
    metric = comparison.metric
    figure, (axes,) = canvas(1.2 + 0.32 * len(lines))
    for place, line in enumerate(lines):
        for number, share in enumerate(shares):
            row = line.row_of.get(share)
            if row is None or row.difference is None:
                continue
            style, found = MARKS[number % len(MARKS)], row.difference
            axes.errorbar(
                metric.scale * found.mean,
                place + 0.22 * (number - (len(shares) - 1) / 2),
                xerr=0 if found.high is None else metric.scale * (found.high - found.mean),
                fmt=style.marker,
                markersize=4.5,
                color=theme.colour_of(style),
                elinewidth=1,
            )
    for number, share in enumerate(shares):  # empty marks for the legend
        style = MARKS[number % len(MARKS)]
        axes.plot([], [], style.marker, color=theme.colour_of(style), label=f"{share:.0%} pruned")
    num_static = sum(line.is_static for line in lines)
    if num_static < len(lines):
        axes.axhline(num_static - 0.5, color=theme.ink, linewidth=0.8)
    axes.axvline(0, color=theme.ink, linewidth=0.8)
    axes.axvspan(-metric.sign * metric.scale * margin, 0, color=theme.ink, alpha=0.09, linewidth=0)
    axes.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=9)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(metric.difference_title)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    figure.legend(loc="outside upper left", ncols=len(shares), frameon=False, fontsize=9)
    words = (
        f"{line.name} at {share:.0%}: {metric.signed(row.difference.mean)}"
        for line in lines
        for share, row in line.row_of.items()
        if row.difference is not None
    )
    return figure, "; ".join(words) + "."
