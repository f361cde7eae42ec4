"""Runs -> comparisons: the one place that says what is compared, and what came of it.

The table of the terminal, `results/tables.py`, the figures, the JSON and the page all read these
rows. Only runs with equal settings meet; they are grouped by method.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, stdev
from typing import Any

from infobatch_lab.fields import Value
from infobatch_lab.lines import Run
from infobatch_lab.metrics import Metric
from infobatch_lab.rules import default_ratio
from infobatch_lab.settings import default_delta
from infobatch_lab.statistics import Difference, difference
from infobatch_lab.styles import STYLES
from infobatch_lab.subsets import said_of_subset


@dataclass(frozen=True)
class MethodKey:
    """The identity of a method. Full training prunes nothing, so it has neither r nor delta."""

    rule: str
    prune_ratio: float | None = None
    delta: float | None = None
    shrink: str = "epoch"
    match_forwards: str | None = None
    """The rule whose forward passes full training was cut to; r and delta are then that rule's."""
    budget: float | None = None
    """The part of full training's steps, where steps were counted in place of epochs."""
    select: str | None = None
    """The method that chose the samples before training."""
    keep: float | None = None
    subset: str | None = None
    """The file of the samples that were chosen before training."""

    @property
    def chosen(self) -> str:
        """The samples that were chosen before training, in words; empty where there are all."""
        return said_of_subset(self.select, self.keep, self.subset)

    @property
    def matched_rule(self) -> MethodKey:
        """The method that full training was matched to, or the method itself."""
        if self.match_forwards is None:
            return self
        return replace(self, rule=self.match_forwards, match_forwards=None)

    @property
    def settings(self) -> list[str]:
        """The values of r, delta, shrink and budget, where they say something."""
        values = (("r", self.prune_ratio), ("δ", self.delta))
        shrink = ["smaller batches"] if self.shrink == "batch" else []
        budget = [] if self.budget is None else [f"{self.budget:.0%} of the steps"]
        return [f"{name} = {value:g}" for name, value in values if value is not None] + [
            *shrink,
            *budget,
        ]


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seed alone."""

    key: MethodKey
    runs: tuple[Run, ...]
    is_main: bool = True
    """Whether this is the one variant of its rule that is shown everywhere."""

    @property
    def rule(self) -> str:
        return self.key.rule

    @property
    def match_forwards(self) -> str | None:
        return self.key.match_forwards

    @property
    def family(self) -> str:
        """What its style in figures goes by: how its samples were chosen before, else its rule."""
        return self.key.select or self.key.chosen or self.rule

    @property
    def name(self) -> str:
        if self.key.chosen and not self.match_forwards:
            rule = [] if self.rule == "full" else [self.rule, *self.key.settings]
            return ", ".join([self.key.chosen, *rule])
        # The only variant of a rule needs no r and delta. How it was trained is said all the same.
        said = replace(self.key, prune_ratio=None, delta=None) if self.is_main else self.key
        name = ", ".join([self.match_forwards or self.rule, *said.settings])
        return f"full, matched to {name}\N{NO-BREAK SPACE}†" if self.match_forwards else name

    @property
    def short_name(self) -> str:
        """For tables and the crowded parts of a figure."""
        return f"full † ({self.match_forwards})" if self.match_forwards else self.name

    @property
    def values(self) -> dict[int, float]:
        """The metric of each seed."""
        return {run.seed: run.value for run in self.runs}

    @property
    def mean(self) -> float:
        return mean(self.values.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None for a single run."""
        return stdev(self.values.values()) if len(self.runs) > 1 else None

    @property
    def overhead(self) -> float | None:
        """The time that went into pruning, and into choosing samples before, as a part of the
        training time; None for full training.
        """
        training, spent = self.mean_of("train_seconds"), self.mean_of("pruning_seconds")
        if self.rule == "full":
            spent = None if not self.key.chosen else 0.0
        if self.key.chosen:
            choosing = self.mean_of("choosing_seconds")
            spent = None if spent is None or choosing is None else spent + choosing
        return None if spent is None or not training else spent / training

    def mean_of(self, name: str) -> float | None:
        """The mean of a number over the seeds, None where a run does not have it."""
        values = [getattr(run, name) for run in self.runs]
        return None if None in values else mean(values)


@dataclass(frozen=True)
class Comparison:
    """Methods with equal settings."""

    settings: dict[str, Value]
    methods: tuple[Method, ...]
    title: str = ""
    slug: str = ""

    @property
    def metric(self) -> Metric:
        return self.methods[0].runs[0].metric

    @property
    def full(self) -> Method | None:
        """Full training, which the others are compared with."""
        return next((m for m in self.methods if m.key == MethodKey("full")), None)

    @property
    def main_methods(self) -> list[Method]:
        return [method for method in self.methods if method.is_main]

    @property
    def num_full(self) -> int:
        """Samples that full training sees."""
        runs = [run for method in self.methods for run in method.runs]
        return max(run.num_samples * run.epochs for run in runs)  # matched runs have fewer epochs

    @property
    def machines(self) -> set[str]:
        return {run.machine for method in self.methods for run in method.runs}

    def margin(self, given: float | None) -> float:
        """The margin before scaling: the given one, else the metric's own."""
        shown = self.metric.margin if given is None else given
        return shown / self.metric.scale

    def samples_saved(self, method: Method) -> float:
        """As a fraction of full training."""
        return 1 - mean(run.num_trained for run in method.runs) / self.num_full

    def time_saved(self, method: Method) -> float | None:
        """As a fraction of full training."""
        seconds = self.seconds_saved(method)
        return None if seconds is None else seconds[1] / seconds[0]

    def seconds_saved(self, method: Method) -> tuple[float, float] | None:
        """The seconds of full training and those that were saved: means over the seeds that were
        run with both on one machine.
        """
        pairs = self.seconds(method)
        if not pairs:
            return None
        full, ours = (mean(seconds) for seconds in zip(*pairs, strict=True))
        return (full, full - ours) if full else None

    def seconds(self, method: Method) -> list[tuple[float, float]]:
        """Those of full training and of a method, for each seed run with both on one machine.

        The time of choosing samples is a part of the method's.
        """
        return [
            (full.train_seconds, run.train_seconds + (run.choosing_seconds or 0.0))
            for full, run in self.timed(method)
            if full.train_seconds is not None and run.train_seconds is not None
        ]

    def timed(self, method: Method) -> list[tuple[Run, Run]]:
        """The runs of full training and of a method whose times are compared, seed by seed."""
        full_of = {run.seed: run for run in self.full.runs} if self.full else {}
        return [
            (full, run)
            for run in method.runs
            if (full := full_of.get(run.seed)) is not None
            and full.machine == run.machine
            and None not in (full.train_seconds, run.train_seconds)
            and (run.choosing_seconds is not None or not method.key.chosen)
        ]

    def is_crowded(self, method: Method) -> bool:
        """Whether the machine had more work than cores while some of the compared runs were
        timed, so that the times may say more about that work.
        """
        return any(run.is_crowded for pair in self.timed(method) for run in pair)

    def difference(self, method: Method, margin: float) -> Difference | None:
        """To full training; None for full training itself, and where there are no runs of it."""
        if self.full is None or method is self.full:
            return None
        metric = self.metric
        return difference(
            method.values,
            self.full.values,
            margin,
            resolution=1 / self.full.runs[0].num_test if metric.counts_samples else 0.0,
            sign=metric.sign,
        )

    def rows(self, margin: float | None = None) -> list[Row]:
        """A row for each method; `margin` as it is shown, in the metric's unit."""
        return [Row(self, method, self.margin(margin)) for method in self.methods]

    def as_dict(self, margin: float | None = None) -> dict[str, Any]:
        """For a script. Values, differences and the margin are as in the lines of runs."""
        return {
            "title": self.title,
            "settings": self.settings,
            "metric": vars(self.metric),
            "margin": self.margin(margin),
            "methods": [row.as_dict() for row in self.rows(margin)],
        }


@dataclass(frozen=True)
class Row:
    """A method in a comparison, with everything that tables show of it."""

    comparison: Comparison
    method: Method
    margin: float
    """Before scaling."""

    @cached_property
    def difference(self) -> Difference | None:
        return self.comparison.difference(self.method, self.margin)

    @property
    def is_reference(self) -> bool:
        return self.method is self.comparison.full

    @property
    def verdict(self) -> str | None:
        return None if self.difference is None else self.difference.verdict(self.margin)

    @property
    def samples_saved(self) -> float:
        return self.comparison.samples_saved(self.method)

    @property
    def time_saved(self) -> float | None:
        return self.comparison.time_saved(self.method)

    @property
    def is_crowded(self) -> bool:
        """Whether its time saved is to be read with caution."""
        return not self.is_reference and self.comparison.is_crowded(self.method)

    def as_dict(self) -> dict[str, Any]:
        """For a script; what is not known is None."""
        method, key, found = self.method, self.method.key, self.difference
        return {
            "method": method.name,
            "rule": key.rule,
            "prune_ratio": key.prune_ratio,
            "delta": key.delta,
            "shrink": key.shrink,
            "match_forwards": key.match_forwards,
            "budget": key.budget,
            "select": key.select,
            "keep": key.keep,
            "subset": key.subset,
            "optimizer": self.comparison.settings.get("optimizer"),
            "epochs": method.runs[0].epochs,
            "seeds": list(method.values),
            "num_runs": len(method.runs),
            self.comparison.metric.name: method.mean,
            "spread": method.spread,
            "samples_saved": self.samples_saved,
            "time_saved": self.time_saved,
            "is_crowded": self.is_crowded,
            "overhead": method.overhead,
            "collecting_seconds": method.mean_of("collecting_seconds"),
            "selecting_seconds": method.mean_of("selecting_seconds"),
            "difference": None if found is None else found.mean,
            "interval": None if found is None or found.low is None else [found.low, found.high],
            "verdict": self.verdict,
            "seeds_needed": None if found is None else found.num_needed,
        }


# Putting runs together ----------------------------------------------------------------------------

Compared = tuple[tuple[str, Value], ...]
Tables = dict[Compared, dict[MethodKey, dict[int, Run]]]


def compare(runs: Sequence[Run]) -> tuple[list[Comparison], list[str]]:
    """The comparisons that these runs allow, and a note for each run that is there twice."""
    tables: Tables = defaultdict(lambda: defaultdict(dict))
    notes = []
    # Runs cut to another rule's forward passes come last: they go where that rule's runs are.
    for run in sorted(runs, key=lambda run: run.match_forwards is not None):
        for compared, key in _matches(run, tables) or [(run.compared, key_of(run))]:
            seeds = tables[compared][key]
            if run.seed in seeds:
                older = seeds[run.seed].place
                notes.append(f"{older} is left out: {run.place} is the same run again.")
            seeds[run.seed] = run
    comparisons = [
        Comparison(dict(compared), _methods(table, dict(compared)["data"]))
        for compared, table in tables.items()
    ]
    return _titled(comparisons), notes


def key_of(run: Run) -> MethodKey:
    """The method of a run."""
    if run.match_forwards or run.rule == "full":
        key = MethodKey("full", match_forwards=run.match_forwards)
    else:
        ratio = default_ratio(run.rule) if run.prune_ratio is None else run.prune_ratio
        key = MethodKey(run.rule, ratio, run.delta, run.shrink)
    return replace(key, budget=run.budget, select=run.select, keep=run.keep, subset=run.subset)


def _matches(run: Run, tables: Tables) -> list[tuple[Compared, MethodKey]]:
    """Where a run of matched forward passes belongs: beside each run that it is the match of.

    That run has the same seed, and the same settings but for the epochs.
    """
    return [
        (compared, replace(key, rule="full", match_forwards=key.rule))
        for compared, table in tables.items()
        if _but_for_epochs(compared) == _but_for_epochs(run.compared)
        for key, seeds in table.items()
        if key.match_forwards is None
        and key.rule == run.match_forwards
        and run.seed in seeds
        and seeds[run.seed].matched_epochs == run.epochs
    ]


def _but_for_epochs(compared: Compared) -> Compared:
    return tuple(pair for pair in compared if pair[0] != "epochs")


def _methods(table: dict[MethodKey, dict[int, Run]], data: Value) -> tuple[Method, ...]:
    def rank(key: MethodKey) -> tuple[bool, int]:
        """First the rule as it is without any options, then the variant with the most seeds."""
        default = MethodKey(key.rule, default_ratio(key.rule), default_delta(data))
        return key == default, len(table[key])

    def is_main(key: MethodKey) -> bool:
        key = key.matched_rule
        if key.chosen:
            return False
        if key.rule == "full":
            return True  # with fewer steps it is what others are compared with too
        rivals = [
            k for k in table if k.rule == key.rule and k.match_forwards is None and not k.chosen
        ]
        return key not in rivals or key == max(rivals, key=rank)

    methods = (
        Method(key, runs=tuple(seeds[seed] for seed in sorted(seeds)), is_main=is_main(key))
        for key, seeds in table.items()
    )
    return tuple(sorted(methods, key=place_of))


def place_of(method: Method) -> tuple[Any, ...]:
    """The place of a method in tables, to sort by."""
    key, order = method.key, list(STYLES)
    known = order.index(key.rule) if key.rule in order else len(order)
    variant = key.prune_ratio or 0.0, key.delta or 0.0, key.shrink != "epoch", key.budget or 0.0
    chosen = key.subset or "", key.select or "", -(key.keep or 0.0)
    return not method.is_main, chosen, known, key.rule, key.match_forwards or "", *variant


CROWD_MARK = "\N{DOUBLE DAGGER}"
CROWDED = "The machine had more work than cores during some of these runs: do not rely on the time."
NO_REFERENCE = (
    "Full training is not among these runs, so there is no verdict: train it too, with "
    "`--rules full` and without `--budget`."
)
SEVERAL_MACHINES = (
    "These runs come from several machines, or used different numbers of threads: times are "
    "compared only between runs that agree in both."
)


# Titles -------------------------------------------------------------------------------------------

ALWAYS_IN_TITLE = ("data", "model", "optimizer", "epochs")


def _titled(comparisons: list[Comparison]) -> list[Comparison]:
    """With titles that tell them apart, the largest first."""
    comparisons = sorted(
        comparisons,
        key=lambda c: (c.full is None, -sum(len(method.runs) for method in c.methods)),
    )
    found = titles([comparison.settings for comparison in comparisons])
    return [
        replace(comparison, title=title, slug=slug(number, title))
        for number, (comparison, title) in enumerate(zip(comparisons, found, strict=True), start=1)
    ]


def titles(settings: Sequence[Mapping[str, Value]]) -> list[str]:
    """A title for each of these settings: the main ones, and those in which it differs from others
    that are equal in the main ones.

    >>> titles([{"data": "digits", "lr": 0.1}, {"data": "digits", "lr": 0.2}, {"data": "mnist"}])
    ['digits · lr 0.1', 'digits · lr 0.2', 'mnist']
    """

    def main_ones(values: Mapping[str, Value]) -> tuple[Value, ...]:
        return tuple(values.get(name) for name in ALWAYS_IN_TITLE)

    found = []
    for values in settings:
        alike = [other for other in settings if main_ones(other) == main_ones(values)]
        names = dict.fromkeys(name for other in alike for name in other)
        varied = [n for n in names if len({repr(other.get(n)) for other in alike}) > 1]
        parts = (said(n, values.get(n)) for n in (*ALWAYS_IN_TITLE, *varied) if n in names)
        found.append(" · ".join(part for part in parts if part))
    return found


def slug(number: int, title: str) -> str:
    """A title as a name of files and anchors: `slug(1, "digits · tiny")` is "1-digits-tiny"."""
    return f"{number}-{slug_of(title)}"


def slug_of(text: str) -> str:
    """A text with nothing but letters, digits and hyphens: it may come from anybody's file."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]


def said(name: str, value: Value) -> str:
    """A setting as a reader says it.

    >>> said("epochs", 20), said("amp", False), said("mixup", 0.2)
    ('20 epochs', 'no amp', 'mixup 0.2')
    """
    if value is None:
        return "" if name != "model" else "unknown model"
    if name in ("data", "model", "optimizer"):
        return str(value)
    if isinstance(value, bool):
        return name if value else f"no {name}"
    number = f"{value:,}" if isinstance(value, int) else str(value)
    if name == "epochs":
        return f"{number} epochs" if value != 1 else "1 epoch"
    if name in ("num_samples", "num_test"):
        return f"{number} {'training' if name == 'num_samples' else 'test'} samples"
    return f"{name.replace('_', ' ')} {number}"
