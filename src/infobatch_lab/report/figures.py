"""The paper's figures, from the user's own runs: which there are, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infobatch_lab.comparison import Comparison, slug_of
from infobatch_lab.report.canvas import Drawing, Sketch, Theme, rendered
from infobatch_lab.report.curves import kept_by_epoch, progress
from infobatch_lab.report.ends import (
    loss_histograms,
    metric_by_samples,
    overhead_and_saving,
    variation,
)


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
    name = kind.name.replace("{metric}", slug_of(comparison.metric.name))
    title, shows = (
        text.replace("{metric}", words).replace("{Metric}", words[0].upper() + words[1:])
        for text in (kind.title, kind.shows)
    )
    made = rendered(lambda theme: kind.sketch(comparison, theme, margin))
    if made is None:
        return Drawing(name, title, kind.needs)
    description, light, dark = made
    return Drawing(name, title, shows, f"{title}, {comparison.title}. {description}", light, dark)


KINDS = (
    Kind(
        "{metric}-by-samples",
        "{Metric} against samples trained",
        "The {metric} of each method after the last epoch, and the number of samples it trained "
        "for that. Bars are one standard deviation over the seeds; small "
        "hollow marks are other values of r and δ; the band is the margin of full training.",
        "It needs runs of at least two methods.",
        metric_by_samples,
    ),
    Kind(
        "progress",
        "{Metric} during training",
        "{Metric} during training, by samples trained so far; means over the seeds. The first "
        "epochs may be outside the picture.",
        "It needs runs with a history of their epochs.",
        lambda comparison, theme, _: progress(comparison, theme),
    ),
    Kind(
        "kept-by-epoch",
        "Kept fraction and {metric} by epoch",
        "How much of the data each epoch trains, and the {metric} after it; means over the seeds "
        "(Fig. 4d of the paper's first version).",
        "It needs runs of a rule that prunes, with a history of their epochs.",
        lambda comparison, theme, _: kept_by_epoch(comparison, theme),
    ),
    Kind(
        "losses",
        "What pruning does to the losses",
        "The losses of one epoch in the middle of training: of all samples, of the kept ones, and "
        "of the kept ones counted with their weights, which should look like the first (Fig. 6 of "
        "the paper). The line repeats the first; the last bar holds the long tail.",
        "It needs a run of a rule that prunes, with a loss_distribution.",
        lambda comparison, theme, _: loss_histograms(comparison, theme),
    ),
    Kind(
        "prune-ratio",
        "How much to prune: r",
        "{Metric} by the fraction of the prunable samples that is skipped (Fig. 3a of the "
        "paper). Bars are one standard deviation over the seeds.",
        "It needs runs of one rule with several values of r and one of δ.",
        lambda comparison, theme, margin: variation(comparison, theme, margin, of_delta=False),
    ),
    Kind(
        "delta",
        "When to stop pruning: δ",
        "{Metric} by the fraction of the epochs after which every sample is trained (Fig. 3b of "
        "the paper). Bars are one standard deviation over the seeds.",
        "It needs runs of one rule with several values of δ and one of r.",
        lambda comparison, theme, margin: variation(comparison, theme, margin, of_delta=True),
    ),
    Kind(
        "overhead",
        "Overhead against saving",
        "Training time saved per run, next to the time spent on deciding what to prune (Fig. 4b of "
        "the paper). Evaluation is counted in neither.",
        "It needs timed runs of full training and of a rule that prunes, from one machine.",
        lambda comparison, theme, _: overhead_and_saving(comparison, theme),
    ),
)
