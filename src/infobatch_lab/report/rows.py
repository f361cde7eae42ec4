"""What a comparison says, as plain numbers: for a script, and for other tables than the page's."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from infobatch_lab.report.comparisons import Comparison, Method
from infobatch_lab.report.statistics import Difference, judge


def results_of(comparison: Comparison, margin: float) -> dict[str, Any]:
    """The settings and a row for each method; accuracies and margins are fractions of 1."""
    differences = judge(comparison, margin)
    return {
        "title": comparison.title,
        "settings": comparison.settings,
        "margin": margin,
        "methods": [
            row(comparison, method, differences.get(method), margin)
            for method in comparison.methods
        ],
    }


def row(
    comparison: Comparison, method: Method, found: Difference | None, margin: float
) -> dict[str, Any]:
    """One method. What is not known is None."""
    accuracies = list(method.accuracies.values())
    seconds = comparison.seconds_saved(method)
    training, pruning = (
        method.mean_of(lambda run: run.train_seconds),
        method.mean_of(lambda run: run.pruning_seconds),
    )
    overhead = pruning / training if pruning is not None and training else None
    return {
        "method": method.name,
        "rule": method.rule,
        "prune_ratio": method.prune_ratio,
        "delta": method.delta,
        "match_forwards": method.match_forwards,
        "seeds": list(method.accuracies),
        "accuracy": mean(accuracies),
        "spread": stdev(accuracies) if len(accuracies) > 1 else None,
        "samples_saved": comparison.samples_saved(method),
        "time_saved": None if seconds is None else seconds[1] / seconds[0],
        "overhead": None if method.rule == "full" else overhead,
        "difference": None if found is None else found.mean,
        "interval": None if found is None or found.low is None else [found.low, found.high],
        "verdict": None if found is None else found.verdict(margin),
        "seeds_needed": None if found is None else found.num_needed,
    }
