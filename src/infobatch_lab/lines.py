"""The schema of a run: one line of JSON, and every field of it checked.

A line has the settings at its top level (the task's own under `options`), where the run comes from
(command, commit, versions, machine), how many samples it trained, its seconds, its metrics, and a
history by epoch. Lines of format 1, in which every task was classification, are still read.
Anybody may have written a line: what cannot be shown or computed with is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from infobatch_lab.fields import (
    UnreadableError,
    Value,
    list_of,
    name_of,
    number,
    number_or_nan,
    number_or_none,
    pairs,
    positive,
    positive_or_none,
    shown,
    text,
    text_or_none,
    value_of,
    whole,
    whole_or_none,
)
from infobatch_lab.metrics import ACCURACY, Metric
from infobatch_lab.settings import Settings, declared, settings_of, upgraded
from infobatch_lab.visible import short

FORMAT = 2
READABLE = (1, 2)

MOST_DECIMALS = 10

Line = dict[str, Any]
"""A run as it is written."""

METHOD = ("rule", "prune_ratio", "delta", "shrink", "budget", "select", "keep", "subset")
"""The settings that tell methods apart: all others must agree between runs that are compared."""

CROWDED = 1.1
"""A load per core above this one is more than the run's own threads make."""

COMPARED = tuple(n for n in declared(Settings) if n not in (*METHOD, "seed"))


@dataclass(frozen=True)
class LossHistogram:
    """The losses of one epoch: of all samples, of those kept, and weighted (the paper's Fig. 6)."""

    epoch: int
    edges: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    rescaled: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """A finished run, read and checked."""

    place: str
    """The file and line it was read from."""
    settings: Settings | None
    """None for a line that lacks some, or of a data set or rule that there is no more."""
    compared: tuple[tuple[str, Value], ...]
    """The settings that must agree between runs that are compared, by name."""
    metric: Metric
    rule: str
    seed: int
    prune_ratio: float | None
    delta: float | None
    shrink: str
    match_forwards: str | None
    budget: float | None
    """The part of full training's steps that it was trained for, where steps were counted."""
    select: str | None
    keep: float | None
    subset: str | None
    epochs: int
    num_samples: int
    num_test: int
    num_trained: int
    num_steps: int | None
    """The steps of the optimizer; None in a line of somebody's own loop."""
    value: float
    """The metric at the end."""
    train_seconds: float | None
    eval_seconds: float | None
    pruning_seconds: float | None
    collecting_seconds: float | None
    """The time that the statistics took by which the samples were chosen."""
    selecting_seconds: float | None
    kept_fractions: tuple[float, ...]
    """The fraction of the data that each epoch trained."""
    values: tuple[float, ...]
    """The metric after each epoch; NaN where it was not measured."""
    losses: LossHistogram | None
    command: str
    environment: tuple[tuple[str, str], ...]
    """Commit, versions and machine."""
    machine: str
    load: float | None
    """The machine's load per core, the larger of start and end; None where a line has none."""

    @property
    def seconds(self) -> float | None:
        """The seconds of training and evaluation."""
        return None if self.train_seconds is None else self.train_seconds + (self.eval_seconds or 0)

    @property
    def choosing_seconds(self) -> float | None:
        """The seconds that choosing its samples took; None where all are trained, or unknown."""
        if self.collecting_seconds is None or self.selecting_seconds is None:
            return None
        return self.collecting_seconds + self.selecting_seconds

    @property
    def is_crowded(self) -> bool:
        """Whether the machine had more work than cores, so that its seconds say little."""
        return self.load is not None and self.load > CROWDED

    @property
    def matched_epochs(self) -> int:
        """The epochs of full training with as many forward passes, to the nearest one."""
        return max(1, round(self.num_trained / self.num_samples))


# One line -----------------------------------------------------------------------------------------


def parse(content: str, place: str) -> Run:
    """One line as a run, or `UnreadableError`."""
    try:
        line = json.loads(content, object_pairs_hook=_object)
    except UnreadableError:
        raise
    except json.JSONDecodeError:
        raise UnreadableError("it is no complete JSON, perhaps half-written") from None
    except ValueError:  # Python's own limit
        raise UnreadableError("it has a whole number of thousands of digits") from None
    except RecursionError:
        raise UnreadableError("its objects are nested too deeply") from None
    if not isinstance(line, dict):
        raise UnreadableError("it is no JSON object")
    return run_of(line, place)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which no key may come twice."""
    found = dict(members)
    if len(found) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnreadableError(f"it has {short(twice)} twice")
    return found


def run_of(line: Line, place: str = "") -> Run:
    """A line that was just written, or read, as a run."""
    if line.get("format") not in READABLE:
        readable = " or ".join(map(str, READABLE))
        raise UnreadableError(f"format is {short(line.get('format'))}, expected {readable}")
    record = upgraded(line)
    metric = _metric(record.get("metric"))
    value = number(record, metric.name)
    if metric.counts_samples and not 0 <= value <= 1:
        raise UnreadableError(f"{metric.name} is {value}, expected a fraction of 1")
    history = [epoch for epoch in list_of(record, "history") if isinstance(epoch, dict)]
    machine = pairs(record, "machine")
    own = record.get("options")
    if not isinstance(own, dict):
        raise UnreadableError(f"options is {short(own)}, expected an object")
    text(record, "data")
    compared = {name: value_of(record, name) for name in COMPARED}
    compared |= {name_of(name): value_of(own, name) for name in sorted(own)}
    counts = {name: whole(record, name, at_least=1) for name in ("num_samples", "num_test")}
    return Run(
        place=place,
        settings=settings_of(line),
        compared=tuple((compared | counts | {"metric": metric.name}).items()),
        metric=metric,
        rule=text(record, "rule"),
        seed=whole(record, "seed"),
        prune_ratio=number_or_none(record, "prune_ratio"),
        delta=number_or_none(record, "delta"),
        shrink=text(record, "shrink"),
        match_forwards=text_or_none(record, "match_forwards"),
        budget=positive_or_none(record, "budget"),
        select=text_or_none(record, "select"),
        keep=positive_or_none(record, "keep"),
        subset=text_or_none(record, "subset"),
        epochs=whole(record, "epochs", at_least=1),
        **counts,
        num_trained=whole(record, "num_trained", at_least=1),
        num_steps=whole_or_none(record, "num_steps"),
        value=value,
        train_seconds=positive_or_none(record, "train_seconds"),
        eval_seconds=positive_or_none(record, "eval_seconds"),
        pruning_seconds=positive_or_none(record, "pruning_seconds"),
        collecting_seconds=positive_or_none(record, "collecting_seconds"),
        selecting_seconds=positive_or_none(record, "selecting_seconds"),
        kept_fractions=tuple(positive(epoch, "kept_fraction") for epoch in history),
        values=tuple(number_or_nan(epoch, metric.name) for epoch in history),
        losses=_losses(record.get("loss_distribution")),
        command=shown(record.get("command") or "unknown"),
        environment=(
            ("commit", shown(record.get("commit") or "unknown")),
            *pairs(record, "versions"),
            *machine,
        ),
        machine=", ".join(value for _, value in machine),
        load=_load(record),
    )


def _load(record: Mapping[str, Any]) -> float | None:
    """The machine's load per core. Lines have it since it is recorded, and the cores always."""
    load, machine = record.get("load"), record.get("machine")
    if not isinstance(load, dict) or not isinstance(machine, dict) or not machine.get("cores"):
        return None
    found = [positive(load, name) for name in ("start", "end") if load.get(name) is not None]
    return max(found) / whole(machine, "cores", at_least=1) if found else None


def _metric(value: Any) -> Metric:
    """As the line describes it: a page needs no task to show its runs."""
    if value is None:
        return ACCURACY
    if not isinstance(value, dict):
        raise UnreadableError(f"metric is {short(value)}, expected an object with a name")
    given: dict[str, Any] = {"name": text(value, "name")}
    for name in ("unit", "label"):
        given[name] = text(value, name) if value.get(name) else ""
    for name in ("higher_is_better", "counts_samples"):
        if name in value and not isinstance(value[name], bool):
            raise UnreadableError(f"metric has {name} {short(value[name])}, expected true or false")
    for name in ("scale", "margin"):
        if name in value and not number(value, name) > 0:
            raise UnreadableError(f"metric has {name} {value[name]}, expected a number above 0")
    if "decimals" in value and whole(value, "decimals") > MOST_DECIMALS:
        raise UnreadableError(f"metric has decimals {value['decimals']}, expected 0 to 10")
    rest = ("higher_is_better", "counts_samples", "scale", "margin", "decimals")
    return Metric(**given, **{name: value[name] for name in rest if name in value})


def _losses(value: Any) -> LossHistogram | None:
    if not isinstance(value, dict):
        return None
    edges, *counts = (
        tuple(number({name: item}, name) for item in list_of(value, name))
        for name in ("edges", "before", "after", "rescaled")
    )
    if any(len(edges) != len(bins) + 1 for bins in counts):
        raise UnreadableError("loss_distribution has not one edge more than bins")
    if len(edges) < 2 or any(right <= left for left, right in pairwise(edges)):
        raise UnreadableError("loss_distribution has edges that do not rise")
    if min(min(bins) for bins in counts) < 0:
        raise UnreadableError("loss_distribution has a bin below 0")
    return LossHistogram(whole(value, "epoch"), edges, *counts)
