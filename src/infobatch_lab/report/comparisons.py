"""Runs -> comparisons: only runs with equal settings meet, grouped by method."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from statistics import mean

from infobatch import Pruner
from infobatch.rules import RULES
from infobatch_lab.report.runs import SETTINGS, Run, Value

DELTA: float = signature(Pruner).parameters["delta"].default
"""The part of the epochs that may prune, where nothing else is said."""

ORDER = ("full", "mean", "tiers", "random-rescaled", "above", "random", "epsilon-greedy", "ucb")


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seed alone."""

    rule: str
    prune_ratio: float | None
    delta: float | None
    match_forwards: str | None
    """The rule whose forward passes full training was cut to; r and delta are then that rule's."""
    runs: tuple[Run, ...]
    is_main: bool = True
    """The one setting of its rule that is shown everywhere; the others are variations of it."""

    @property
    def name(self) -> str:
        settings = [] if self.is_main else self.settings
        name = ", ".join([self.match_forwards or self.rule, *settings])
        return f"full, matched to {name}\N{NO-BREAK SPACE}†" if self.match_forwards else name

    @property
    def short_name(self) -> str:
        """For the crowded parts of a figure."""
        return f"full † ({self.match_forwards})" if self.match_forwards else self.name

    @property
    def settings(self) -> list[str]:
        """The values of r and delta, where the rule has them."""
        values = (("r", self.prune_ratio), ("δ", self.delta))
        return [f"{name} = {value:g}" for name, value in values if value is not None]

    @property
    def accuracies(self) -> dict[int, float]:
        """The accuracy of each seed."""
        return {run.seed: run.accuracy for run in self.runs}

    def mean_of(self, value: Callable[[Run], float | None]) -> float | None:
        """The mean over the seeds, None where a run does not have it."""
        values = [value(run) for run in self.runs]
        known = [v for v in values if v is not None]
        return mean(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class Comparison:
    """Methods with equal settings."""

    settings: dict[str, Value]
    methods: tuple[Method, ...]
    title: str = ""
    slug: str = ""

    @property
    def full(self) -> Method | None:
        """What the others are compared with."""
        return next((m for m in self.methods if m.rule == "full" and not m.match_forwards), None)

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

    def samples_saved(self, method: Method) -> float:
        """As a fraction of full training."""
        return 1 - mean(run.num_trained for run in method.runs) / self.num_full

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
        """Those of full training and of a method, for each seed run with both on one machine."""
        full_of = {run.seed: run for run in self.full.runs} if self.full else {}
        return [
            (full.train_seconds, run.train_seconds)
            for run in method.runs
            if (full := full_of.get(run.seed)) is not None
            and full.machine == run.machine
            and full.train_seconds is not None
            and run.train_seconds is not None
        ]


MethodKey = tuple[str, float | None, float | None, str | None]
Tables = dict[tuple[Value, ...], dict[MethodKey, dict[int, Run]]]


def compare(runs: Sequence[Run]) -> tuple[list[Comparison], list[str]]:
    """The comparisons that these runs allow, and a note for each run that is there twice."""
    tables: Tables = defaultdict(lambda: defaultdict(dict))
    notes = []
    # Runs cut to another rule's forward passes come last: they go where that rule's runs are.
    for run in sorted(runs, key=lambda run: run.match_forwards is not None):
        for settings, key in _matches(run, tables) or [(run.settings, _key(run))]:
            seeds = tables[settings][key]
            if run.seed in seeds:
                older = seeds[run.seed].place
                notes.append(f"{older} is left out: {run.place} is the same run again.")
            seeds[run.seed] = run
    comparisons = [
        Comparison(dict(zip(SETTINGS, settings, strict=True)), _methods(table))
        for settings, table in tables.items()
    ]
    return _titled(comparisons), notes


def _key(run: Run) -> MethodKey:
    if run.match_forwards:
        return "full", None, None, run.match_forwards
    if run.rule == "full":  # it prunes nothing, whatever r and delta say
        return "full", None, None, None
    ratio = own_ratio(run.rule) if run.prune_ratio is None else run.prune_ratio
    return run.rule, ratio, run.delta, None


def own_ratio(rule: str) -> float | None:
    """The ratio of a rule where none is given; None for one without, or an unknown one.

    >>> own_ratio("mean")
    0.5
    """
    own = signature(RULES[rule]).parameters.get("prune_ratio") if rule in RULES else None
    return own.default if own else None


def _matches(run: Run, tables: Tables) -> list[tuple[tuple[Value, ...], MethodKey]]:
    """Where a run of matched forward passes belongs: beside each run that it is the match of.

    That run has the same seed and the same settings but for the epochs, and trained as many
    samples, to the nearest epoch.
    """
    return [
        (settings, ("full", prune_ratio, delta, run.match_forwards))
        for settings, table in tables.items()
        if _but_for_epochs(settings) == _but_for_epochs(run.settings)
        for (rule, prune_ratio, delta, match_forwards), seeds in table.items()
        if match_forwards is None
        and rule == run.match_forwards
        and run.seed in seeds
        and abs(seeds[run.seed].num_trained - run.num_trained) <= run.num_samples / 2
    ]


def _but_for_epochs(settings: tuple[Value, ...]) -> tuple[Value, ...]:
    place = SETTINGS.index("epochs")
    return settings[:place] + settings[place + 1 :]


def _methods(table: dict[MethodKey, dict[int, Run]]) -> tuple[Method, ...]:
    def is_main(key: MethodKey) -> bool:
        if key[3]:  # as what it is matched to
            key = key[3], key[1], key[2], None
        rivals = [other for other in table if other[0] == key[0] and other[3] is None]
        if key not in rivals:
            return True
        return key == max(rivals, key=lambda other: (_is_default(other), len(table[other])))

    def place(method: Method) -> tuple[bool, int, str, str, float, float]:
        known = ORDER.index(method.rule) if method.rule in ORDER else len(ORDER)
        settings = method.prune_ratio or 0.0, method.delta or 0.0
        return not method.is_main, known, method.rule, method.match_forwards or "", *settings

    methods = (
        Method(*key, runs=tuple(seeds[seed] for seed in sorted(seeds)), is_main=is_main(key))
        for key, seeds in table.items()
    )
    return tuple(sorted(methods, key=place))


def _is_default(key: MethodKey) -> bool:
    rule, prune_ratio, delta, _ = key
    return rule in RULES and delta == DELTA and prune_ratio == own_ratio(rule)


def _titled(comparisons: list[Comparison]) -> list[Comparison]:
    """With titles that tell them apart, the largest first."""

    def varies(name: str) -> bool:
        return len({repr(comparison.settings[name]) for comparison in comparisons}) > 1

    shown = [n for n in SETTINGS if n in ("data", "model", "optimizer", "epochs") or varies(n)]
    comparisons = sorted(
        comparisons,
        key=lambda c: (c.full is None, -sum(len(method.runs) for method in c.methods)),
    )
    titled = []
    for number, comparison in enumerate(comparisons, start=1):
        title = " · ".join(
            part for name in shown if (part := in_words(name, comparison.settings[name]))
        )
        slug = f"{number}-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]
        titled.append(replace(comparison, title=title, slug=slug))
    return titled


def in_words(name: str, value: Value) -> str:
    """A setting as a reader says it: `in_words("epochs", 20)` is "20 epochs"."""
    if value is None:
        return "" if name != "model" else "unknown model"
    if name in ("data", "model", "optimizer"):
        return str(value)
    if name in ("amp", "compile"):
        return name if value else f"no {name}"
    number = f"{value:,}" if isinstance(value, int) else str(value)
    if name == "epochs":
        return f"{number} epochs" if value != 1 else "1 epoch"
    if name in ("num_samples", "num_test"):
        return f"{number} {'training' if name == 'num_samples' else 'test'} samples"
    return f"{name.replace('_', ' ')} {number}"
