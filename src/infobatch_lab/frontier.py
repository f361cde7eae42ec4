"""Runs -> frontiers: is a pruned run better than a shorter full one at the same cost?

The line is what full training reaches with fewer samples: at each length the best of its methods,
and a straight line between lengths. A method is judged by its difference to the line at the number
of samples that it trained itself, seed by seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean
from typing import Any

import numpy as np

from infobatch_lab.comparison import (
    Comparison,
    Method,
    MethodKey,
    key_of,
    place_of,
    said,
    slug,
    titles,
)
from infobatch_lab.fields import Value
from infobatch_lab.lines import Run
from infobatch_lab.metrics import Metric
from infobatch_lab.rules import default_ratio
from infobatch_lab.settings import default_delta
from infobatch_lab.statistics import (
    LOSSLESS,
    UNDECIDED,
    WORSE,
    Difference,
    difference,
    with_need,
)

FREE = ("epochs", "batch_size", "lr")
"""The settings in which the runs of one frontier may differ, besides those of the method."""

ABOVE, BELOW = "above", "below"
PLACES = {LOSSLESS: ABOVE, WORSE: BELOW, UNDECIDED: UNDECIDED}
"""A verdict without any margin, said of the line. Above is better, also where less is better."""


@dataclass(frozen=True)
class Point:
    """Runs that differ in their seed alone."""

    method: Method
    epochs: int
    batch_size: int
    lr: float

    @property
    def settings(self) -> tuple[MethodKey, int, int]:
        """What was set, but for the learning rate."""
        return self.method.key, self.epochs, self.batch_size

    @property
    def num_trained(self) -> float:
        """The mean number of samples that a run trained."""
        return mean(run.num_trained for run in self.method.runs)


@dataclass(frozen=True)
class Frontier:
    """Full training at several lengths, and methods that are compared with it."""

    settings: dict[str, Value]
    full: tuple[Point, ...]
    """The longest first; of one length that with the most seeds, then the largest batch."""
    others: tuple[Point, ...]
    title: str = ""
    slug: str = ""

    @cached_property
    def whole(self) -> Point:
        """Full training at full length; the best, if it was run in several ways."""
        longest = [point for point in self.full if point.epochs == self.full[0].epochs]
        return best(longest, longest[0].method.runs[0].metric.sign)

    @property
    def metric(self) -> Metric:
        return self.whole.method.runs[0].metric

    @property
    def points(self) -> tuple[Point, ...]:
        return (*self.full, *self.others)

    @property
    def runs(self) -> list[Run]:
        return [run for point in self.points for run in point.method.runs]

    @property
    def resolution(self) -> float:
        """The smallest step of the metric; 0 where it is not known."""
        return 1 / self.whole.method.runs[0].num_test if self.metric.counts_samples else 0.0

    @cached_property
    def line(self) -> tuple[Point, ...]:
        """The best full training of each length, the shortest first."""
        by_length: dict[int, list[Point]] = defaultdict(list)
        for point in self.full:
            by_length[point.epochs].append(point)
        return tuple(best(by_length[n], self.metric.sign) for n in sorted(by_length))

    def line_at(self, num_trained: Mapping[int, float]) -> dict[int, float] | None:
        """The line of each seed at its number of samples; None where the line does not reach.

        Seeds that were not run at every length of the line are left out.
        """
        knots = [{run.seed: run for run in point.method.runs} for point in self.line]
        found = {}
        for seed in sorted(num_trained.keys() & set.intersection(*map(set, knots))):
            samples = [runs[seed].num_trained for runs in knots]
            if not samples[0] <= num_trained[seed] <= samples[-1]:
                return None
            values = [runs[seed].value for runs in knots]
            found[seed] = float(np.interp(num_trained[seed], samples, values))
        return found or None

    def rows(self, margin: float | None = None) -> list[FrontierRow]:
        """A row for each method; `margin` as it is shown, in the metric's unit."""
        shown = self.metric.margin if margin is None else margin
        return [FrontierRow(self, point, shown / self.metric.scale) for point in self.points]

    def name(self, point: Point) -> str:
        """What tells a point from the others."""
        key, parts = point.method.key, [point.method.rule]
        usual = None if key.rule == "full" else default_delta(self.settings["data"])
        if (key.prune_ratio, key.delta) != (default_ratio(key.rule), usual):
            parts += replace(key, shrink="epoch", budget=None).settings
        if key.shrink == "batch":
            parts.append("smaller batches")
        if key.budget is not None:
            parts.append(f"{key.budget:.0%} of the steps")
        if point.epochs != self.whole.epochs:
            parts.append(said("epochs", point.epochs))
        if point.batch_size != self.whole.batch_size:
            parts.append(f"batch {point.batch_size}")
        if len({p.lr for p in self.points if p.settings == point.settings}) > 1:
            parts.append(f"learning rate {point.lr:g}")
        return ", ".join(parts)

    def as_dict(self, margin: float | None = None) -> dict[str, Any]:
        """For a script. Values and differences are as in the lines of runs."""
        return {
            "title": self.title,
            "settings": self.settings,
            "metric": vars(self.metric),
            "methods": [row.as_dict() for row in self.rows(margin)],
        }


@dataclass(frozen=True)
class FrontierRow:
    """A method beside the line, with everything that tables show of it."""

    frontier: Frontier
    point: Point
    margin: float
    """Before scaling."""

    @property
    def name(self) -> str:
        return self.frontier.name(self.point)

    @property
    def samples(self) -> float:
        """Those trained, as a fraction of full training."""
        return self.point.num_trained / self.frontier.whole.num_trained

    @property
    def is_on_line(self) -> bool:
        return self.point in self.frontier.line

    @cached_property
    def to_full(self) -> Difference | None:
        """The difference to full training at full length; None for that itself."""
        if self.point is self.frontier.whole:
            return None
        return self._difference(
            self.point.method.values, self.frontier.whole.method.values, self.margin
        )

    @cached_property
    def to_line(self) -> Difference | None:
        """The difference to the line at as many samples; None for full training, which makes the
        line, and for what trained less than the shortest full training.
        """
        if self.point in self.frontier.full:
            return None
        runs = self.point.method.runs
        line = self.frontier.line_at({run.seed: run.num_trained for run in runs})
        if line is None:
            return None
        # Only seeds that have both: a difference to the line is always one of pairs.
        return self._difference({run.seed: run.value for run in runs if run.seed in line}, line, 0)

    @property
    def seeds(self) -> str:
        """How many there are, and how many of them the line has, if it lacks some."""
        own = self.point.method.values.keys()
        shared = own & set.intersection(*(set(p.method.values) for p in self.frontier.line))
        if self.to_line is None or len(shared) == len(own):
            return str(len(own))
        return f"{len(own)} ({len(shared)} on the line)"

    @property
    def is_out_of_reach(self) -> bool:
        """Whether a run of it trained fewer samples than the shortest full training."""
        shortest = min(run.num_trained for run in self.frontier.line[0].method.runs)
        return any(run.num_trained < shortest for run in self.point.method.runs)

    @property
    def verdict(self) -> str | None:
        """Whether it is lossless, beside full training at full length."""
        return None if self.to_full is None else self.to_full.verdict(self.margin)

    @property
    def place(self) -> str | None:
        """`above` the line, `below` it, or `undecided`."""
        return None if self.to_line is None else PLACES[self.to_line.verdict(0.0)]

    def _difference(
        self, values: Mapping[int, float], other: Mapping[int, float], margin: float
    ) -> Difference:
        resolution, sign = self.frontier.resolution, self.frontier.metric.sign
        return difference(values, other, margin, resolution=resolution, sign=sign)

    def as_dict(self) -> dict[str, Any]:
        """For a script; what is not known is None."""
        point, key = self.point, self.point.method.key
        return {
            "method": self.name,
            "rule": key.rule,
            "prune_ratio": key.prune_ratio,
            "delta": key.delta,
            "shrink": key.shrink,
            "epochs": point.epochs,
            "batch_size": point.batch_size,
            "lr": point.lr,
            "seeds": list(point.method.values),
            self.frontier.metric.name: point.method.mean,
            "spread": point.method.spread,
            "samples": self.samples,
            "is_on_line": self.is_on_line,
            "difference_to_line": None if self.to_line is None else self.to_line.mean,
            "interval_to_line": _interval(self.to_line),
            "place": self.place,
            "difference": None if self.to_full is None else self.to_full.mean,
            "interval": _interval(self.to_full),
            "verdict": self.verdict,
        }


def _interval(found: Difference | None) -> list[float] | None:
    if found is None or found.low is None or found.high is None:
        return None
    return [found.low, found.high]


# As text ------------------------------------------------------------------------------------------


def columns(metric: Metric) -> tuple[str, ...]:
    """The heads of the table that `results/tables.py` and the page share."""
    unit = f", {metric.difference_unit}" if metric.difference_unit else ""
    return (
        "method",
        "learning rate",
        metric.title,
        "samples",
        f"difference to the line{unit} (95 %)",
        "line",
        f"{metric.difference_title} (95 %)",
        "verdict",
        "seeds",
    )


def cells(row: FrontierRow) -> tuple[str, ...]:
    """A row of that table."""
    metric, method = row.frontier.metric, row.point.method
    spread = "" if method.spread is None else f" ± {metric.text(method.spread)}"
    place = "on the line" if row.is_on_line else with_need(row.place, row.to_line)
    return (
        row.name,
        f"{row.point.lr:g}",
        f"{metric.text(method.mean)}{spread}",
        f"{row.samples:.1%}",
        _signed(metric, row.to_line),
        place,
        _signed(metric, row.to_full),
        with_need(row.verdict, row.to_full),
        row.seeds,
    )


def _signed(metric: Metric, found: Difference | None) -> str:
    if found is None:
        return ""
    interval = _interval(found)
    ends = "" if interval is None else f" ({' to '.join(map(metric.signed, interval))})"
    return metric.signed(found.mean) + ends


# Putting runs together ----------------------------------------------------------------------------


def best(points: Sequence[Point], sign: int) -> Point:
    """The point with the best mean over the seeds that its rivals have too.

    It is chosen once for all seeds: the best of each seed would pick lucky runs, and lift the line
    above what any of the methods reaches. A point with half of the seeds of another or fewer is no
    rival: a single run may be lucky too, and verdicts would lose the seeds that it does not have.
    """
    most = max(len(point.method.runs) for point in points)
    rivals = [point for point in points if 2 * len(point.method.runs) > most]
    shared = set.intersection(*(set(point.method.values) for point in rivals))
    if not shared:
        return max(rivals, key=lambda point: len(point.method.runs))
    return max(rivals, key=lambda p: sign * mean(p.method.values[seed] for seed in shared))


Group = dict[tuple[MethodKey, tuple[Any, ...]], dict[int, Run]]


def find_frontiers(runs: Sequence[Run]) -> list[Frontier]:
    """The frontiers in these runs: where a file has full training at several lengths.

    Full training with a budget of steps makes no line: it has the epochs of full training and not
    its samples. Full training that was cut to another rule's forward passes, and runs on a subset
    that was chosen before, are left to the comparison.
    """
    groups: dict[tuple[Any, ...], Group] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        if run.match_forwards is None and not key_of(run).chosen:
            file, _, _ = run.place.rpartition(":")
            fixed = tuple(pair for pair in run.compared if pair[0] not in FREE)
            free = tuple(dict(run.compared)[name] for name in FREE)
            groups[file, fixed][key_of(run), free][run.seed] = run
    found = [_frontier(dict(fixed), group) for (_, fixed), group in groups.items()]
    frontiers = [f for f in found if f is not None]
    return [
        replace(frontier, title=f"{title} · frontier", slug=slug(number, f"frontier {title}"))
        for number, (frontier, title) in enumerate(
            zip(frontiers, titles([f.settings for f in frontiers]), strict=True), start=1
        )
    ]


def _frontier(settings: dict[str, Value], group: Group) -> Frontier | None:
    points = [
        Point(Method(key, tuple(seeds[seed] for seed in sorted(seeds))), *free)
        for (key, free), seeds in group.items()
    ]
    full = [point for point in points if point.method.key == MethodKey("full")]
    if len({point.epochs for point in full}) < 2:
        return None

    def order(point: Point) -> tuple[Any, ...]:
        return -point.epochs, -len(point.method.runs), -point.batch_size, point.lr

    others = [point for point in points if point not in full]
    others.sort(key=lambda point: (place_of(point.method), order(point)))
    return Frontier(settings, tuple(sorted(full, key=order)), tuple(others))


def without_pieces(
    comparisons: Sequence[Comparison], frontiers: Sequence[Frontier]
) -> list[Comparison]:
    """The comparisons but those that are only a piece of a frontier, and compare nothing."""
    known = {id(run) for frontier in frontiers for run in frontier.runs}

    def is_piece(comparison: Comparison) -> bool:
        compares = comparison.full is not None and len(comparison.methods) > 1
        return not compares and all(id(r) in known for m in comparison.methods for r in m.runs)

    return [comparison for comparison in comparisons if not is_piece(comparison)]
