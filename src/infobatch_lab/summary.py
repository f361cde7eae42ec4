"""What a comparison says: a row for each setting, over its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from infobatch_lab.compare import as_full, match_of
from infobatch_lab.runs import Run
from infobatch_lab.settings import Settings, settings_of


@dataclass(frozen=True)
class Row:
    """A setting, over its seeds. Fractions of 1."""

    settings: Settings
    """Of its first seed; r and delta of a row of matched forward passes are those of its rule."""
    num_runs: int
    accuracy: float
    spread: float | None
    """The standard deviation of the accuracy; None for a single run."""
    samples_saved: float
    """Of those that full training sees, which was not cut to match forward passes."""
    time_saved: float | None
    """Of the training time of full training with the same seeds on the same machine; None where
    there is none."""
    overhead: float | None
    """The part of the training time that went into pruning; None for full training."""

    def as_dict(self) -> dict[str, Any]:
        """For a script: the settings that tell rows apart, and the numbers."""
        numbers = {name: value for name, value in vars(self).items() if name != "settings"}
        chosen = self.settings
        return {
            "rule": chosen.rule,
            "match_forwards": chosen.match_forwards,
            "optimizer": chosen.optimizer,
            "prune_ratio": chosen.ratio,
            "delta": chosen.delta,
            "epochs": chosen.epochs,
            **numbers,
        }


def summary(runs: Iterable[Run]) -> list[Row]:
    """A row for each setting, in the order in which they were first run."""
    finished = [(run, chosen) for run in runs if (chosen := settings_of(run)) is not None]
    seconds = {(chosen, machine_of(run)): run.get("train_seconds") for run, chosen in finished}
    uncut = uncut_settings(finished)
    by_setting: dict[Settings, list[Entry]] = {}
    for run, chosen in finished:
        for whole in uncut.get(chosen, [chosen]):
            entry = Entry(run, chosen, whole, seconds.get((as_full(whole), machine_of(run))))
            by_setting.setdefault(replace(whole, seed=0), []).append(entry)
    return [row(entries) for entries in by_setting.values()]


def machine_of(run: Run) -> str:
    """Where a run was done: the machine, and how many threads and processes of it."""
    return json.dumps(run.get("machine"))


@dataclass(frozen=True)
class Entry:
    """A run in a row, and what it is compared with."""

    run: Run
    chosen: Settings
    whole: Settings
    """Its settings before it was cut to the forward passes of a rule; r and delta are that
    rule's. Else its own."""
    full_seconds: float | None
    """What full training took with the same seed, settings and machine, uncut."""

    @property
    def samples_saved(self) -> float:
        num_trained: int = self.run["num_trained"]
        num_full: int = self.run["num_samples"] * self.whole.epochs
        return 1 - num_trained / num_full


def uncut_settings(finished: Iterable[tuple[Run, Settings]]) -> dict[Settings, list[Settings]]:
    """Of each cut run that may be among these, what it stands beside."""
    found: dict[Settings, list[Settings]] = {}
    for run, chosen in finished:
        if not chosen.match_forwards:
            whole = replace(chosen, rule="full", match_forwards=chosen.rule)
            found.setdefault(match_of(run, chosen), []).append(whole)
    return found


def row(entries: list[Entry]) -> Row:
    """One row."""
    runs = [entry.run for entry in entries]
    accuracies = [run["accuracy"] for run in runs]
    known = [
        (seconds, e.full_seconds)
        for e in entries
        if (seconds := e.run.get("train_seconds")) is not None and e.full_seconds
    ]
    seconds = sum(run.get("train_seconds") or 0 for run in runs)
    pruning_seconds = sum(run.get("pruning_seconds") or 0 for run in runs)
    first = entries[0]
    prunes = first.chosen.rule != "full"
    return Row(
        settings=replace(first.whole, epochs=first.chosen.epochs),
        num_runs=len(runs),
        accuracy=fmean(accuracies),
        spread=stdev(accuracies) if len(runs) > 1 else None,
        samples_saved=fmean(entry.samples_saved for entry in entries),
        time_saved=1 - sum(s for s, _ in known) / sum(f for _, f in known) if known else None,
        overhead=pruning_seconds / seconds if prunes and seconds else None,
    )
