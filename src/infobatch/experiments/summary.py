"""What a comparison says: a row for each setting, over its seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from infobatch.experiments.runs import Run
from infobatch.experiments.settings import Settings, settings_of


@dataclass(frozen=True)
class Row:
    """A setting, over its seeds. Fractions of 1."""

    settings: Settings
    """Of its first seed."""
    num_runs: int
    accuracy: float
    spread: float | None
    """The standard deviation of the accuracy; None for a single run."""
    samples_saved: float
    time_saved: float | None
    """Of the training time of full training on the same seeds; None where there is none."""
    overhead: float
    """The part of the training time that went into planning and bookkeeping."""

    def as_dict(self) -> dict[str, Any]:
        """For a script: the settings that tell rows apart, and the numbers."""
        numbers = {name: value for name, value in vars(self).items() if name != "settings"}
        chosen = self.settings
        return {
            "rule": chosen.rule,
            "match_forwards": chosen.match_forwards,
            "optimizer": chosen.optimizer,
            "prune_ratio": chosen.prune_ratio,
            "delta": chosen.delta,
            "epochs": chosen.epochs,
            **numbers,
        }


def summary(runs: Iterable[Run]) -> list[Row]:
    """A row for each setting, in the order in which they were first run."""
    by_setting: dict[Settings, list[Run]] = {}
    full: dict[Settings, float] = {}
    for run in runs:
        chosen = settings_of(run)
        if chosen is None:
            continue
        # Seeds may end with a different number of epochs where forwards are matched.
        epochs = 0 if chosen.match_forwards else chosen.epochs
        by_setting.setdefault(replace(chosen, seed=0, epochs=epochs), []).append(run)
        if chosen.rule == "full" and not chosen.match_forwards:
            full[chosen] = run["train_seconds"]
    return [row(of_setting, full) for of_setting in by_setting.values()]


def row(runs: list[Run], full: dict[Settings, float]) -> Row:
    """One row, given the seconds of full training."""
    accuracies = [run["accuracy"] for run in runs]
    pairs = [(run["train_seconds"], full_seconds(run, full)) for run in runs]
    known = [(seconds, of_full) for seconds, of_full in pairs if of_full is not None]
    seconds = sum(run["train_seconds"] for run in runs)
    first = settings_of(runs[0])
    assert first is not None
    return Row(
        settings=first,
        num_runs=len(runs),
        accuracy=fmean(accuracies),
        spread=stdev(accuracies) if len(runs) > 1 else None,
        samples_saved=fmean(saved(run) for run in runs),
        time_saved=1 - sum(s for s, _ in known) / sum(f for _, f in known) if known else None,
        overhead=sum(run["pruning_seconds"] for run in runs) / seconds if seconds else 0.0,
    )


def full_seconds(run: Run, full: dict[Settings, float]) -> float | None:
    """What full training took with the same seed and settings."""
    chosen = settings_of(run)
    assert chosen is not None
    if chosen.match_forwards:
        return None
    return full.get(replace(chosen, rule="full", prune_ratio=None, delta=0.875))


def saved(run: Run) -> float:
    """The fraction of samples that was not trained."""
    fraction: float = run["samples_saved"]
    return fraction
