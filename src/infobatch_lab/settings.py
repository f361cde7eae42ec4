"""The settings of a run: everything that decides its history, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, replace
from typing import Any

from infobatch import Pruner
from infobatch.selection import METHODS
from infobatch_lab import options, rules, tasks
from infobatch_lab.errors import UserError
from infobatch_lab.options import setting
from infobatch_lab.rules import DELTA
from infobatch_lab.subsets import said_of_subset, with_digest

OPTIMIZERS = {"sgd": 0.1, "adamw": 0.01, "radam": 0.01, "lars": 10.0, "lamb": 0.01}
"""Their names, and their learning rates where neither the user nor the data set gives one."""

SCHEDULES = ("onecycle", "cosine", "constant")
SHRINK = ("epoch", "batch")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run. Equal settings give equal histories on the same machine."""

    data: str = setting("Data set")
    rule: str = setting(
        "Rule, see `infobatch rules` [default: mean, or full on a subset]",
        default="mean",
        choices=(*rules.NAMES, rules.TRIED),
    )
    seed: int = setting(
        "Random seed",
        default=0,
        valid=lambda value: value >= 0,
        expected="a whole number of at least 0",
    )
    model: str = setting("Network")
    optimizer: str = setting("Optimizer", default="sgd", choices=tuple(OPTIMIZERS))
    schedule: str = setting("Learning-rate schedule", default="onecycle", choices=SCHEDULES)
    prune_ratio: float | None = setting(
        "Fraction to skip of what the rule may skip [default: per rule]", default=None
    )
    delta: float = setting("Fraction of the epochs that may prune", default=DELTA)
    epochs: int = setting("Epochs")
    batch_size: int = setting(
        "Batch size of all processes together",
        valid=lambda value: value >= 1,
        expected="a whole number of at least 1",
    )
    lr: float = setting(
        "Highest learning rate [default: per optimizer, or what suits the data set]",
        valid=lambda value: 0 < value < math.inf,
        expected="a finite number above 0",
    )
    shrink: str = setting(
        "Let pruned epochs have fewer batches, or smaller ones",
        default="epoch",
        choices=SHRINK,
    )
    budget: float | None = setting(
        "Fraction of full training's steps to train for, counting steps in place of epochs",
        default=None,
        valid=lambda value: 0 < value <= 1,
        expected="0 < budget <= 1",
    )
    select: str | None = setting(
        "Method that chooses a subset before training", default=None, choices=tuple(METHODS)
    )
    keep: float | None = setting(
        "Fraction of each class that `select` keeps",
        default=None,
        valid=lambda value: 0 < value <= 1,
        expected="0 < keep <= 1",
    )
    subset: str | None = setting(
        "File with the indices to train on, as `infobatch select` writes it", default=None
    )
    amp: bool = setting("Compute in bfloat16 where it is safe", default=False)
    compile: bool = setting("Compile the network", default=False)
    options: Any
    """The task's own settings, an instance of its `Options`."""
    match_forwards: str | None = None
    """The rule whose forward passes full training was cut to."""

    @property
    def name(self) -> str:
        """A name for files: readable, and different for different settings."""
        digest = hashlib.blake2b(json.dumps(asdict(self)).encode(), digest_size=4).hexdigest()
        data = "".join(c if c.isalnum() or c == "-" else "-" for c in self.data)[-40:]
        return f"{data}-{self.rule}-seed{self.seed}-{digest}"

    @property
    def ratio(self) -> float | None:
        """The prune ratio in use, of the rule or of the one it is matched to."""
        own = rules.default_ratio(self.match_forwards or self.rule)
        return own if self.prune_ratio is None else self.prune_ratio

    @property
    def label(self) -> str:
        """A name for people."""
        if self.match_forwards:
            return f"full † ({self.match_forwards})"
        if not self.has_subset:
            return self.rule
        words = said_of_subset(self.select, self.keep, self.subset)
        return words if self.rule == "full" else f"{words}, {self.rule}"

    @property
    def has_subset(self) -> bool:
        """Whether it trains on samples that were chosen before."""
        return self.select is not None or self.subset is not None


def settings(data: str, **given: Any) -> Settings:
    """The settings of a run, checked; what is None or not given is what suits the data set.

    >>> settings("digits", rule="tiers", mixup=0.2).epochs
    40
    """
    recipe = tasks.find(data)
    given = {name: value for name, value in given.items() if value is not None}
    common, own = declared(Settings), declared(recipe.task.Options)
    if unknown := sorted(given.keys() - common.keys() - own.keys()):
        raise UserError(
            f"{unknown[0]} is no setting of {data}, whose task is {recipe.task.name}: leave it out."
        )
    if given.get("subset"):
        given["subset"] = with_digest(given["subset"])
    if {"select", "subset"} & given.keys():
        given.setdefault("rule", "full")
    values = {**recipe.defaults, **given}
    # A data set's own learning rate is for its own optimizer.
    optimizer = values.get("optimizer", common["optimizer"].default)
    if "lr" not in given and optimizer != recipe.defaults.get("optimizer", optimizer):
        values.pop("lr", None)
    values.setdefault("lr", OPTIMIZERS.get(optimizer, 1.0))
    chosen = Settings(
        data=data,
        options=recipe.task.Options(**{n: values[n] for n in own if n in values}),
        **{n: values[n] for n in common if n in values and n != "data"},
    )
    check(chosen)
    return canonical(chosen)


def default_delta(data: object) -> float:
    """The delta of a data set where none is given; the library's for one that is not known."""
    try:
        delta: float = tasks.find(str(data)).defaults.get("delta", DELTA)
    except UserError:
        return DELTA
    return delta


def declared(kind: type) -> dict[str, Field[Any]]:
    """The settings that a dataclass declares, by name."""
    return {field.name: field for field in fields(kind) if "help" in field.metadata}


def check(chosen: Settings) -> None:
    """Raise `UserError` for settings that no run can have."""
    options.check(chosen)
    options.check(chosen.options)
    task = tasks.find(chosen.data).task
    options.check_choice("model", chosen.model, task.models)
    check_subset(chosen, task)
    try:
        rule = rules.create(chosen.rule, chosen.prune_ratio)
        Pruner(1, chosen.epochs, delta=chosen.delta, rule=rule, seed=chosen.seed)
    except (TypeError, ValueError) as error:
        raise UserError(str(error).replace("num_epochs", "epochs")) from error


def check_subset(chosen: Settings, task: type[tasks.Task]) -> None:
    """Raise `UserError` if it is not clear which samples a run has."""
    if chosen.select is not None and chosen.subset is not None:
        raise UserError(f"select is {chosen.select!r} and subset is given: leave one of them out.")
    if (chosen.select is None) != (chosen.keep is None):
        raise UserError(
            f"select is {chosen.select!r} and keep is {chosen.keep!r}, expected both or none."
        )
    if chosen.select is not None and task.labelled is tasks.Task.labelled:
        raise UserError(
            f"select is {chosen.select!r}, but {chosen.data} ({task.name}) has no classes to "
            "choose by: choose indices yourself, and give subset."
        )


def canonical(chosen: Settings) -> Settings:
    """The same run under its one name: what changes nothing, or is the default, is not said."""
    is_full = chosen.rule == "full"
    own = rules.default_ratio(chosen.rule)
    return replace(
        chosen,
        prune_ratio=None if chosen.prune_ratio == own else chosen.prune_ratio,
        delta=DELTA if is_full else chosen.delta,
        shrink="epoch" if is_full else chosen.shrink,
    )


def settings_of(line: Mapping[str, Any]) -> Settings | None:
    """The settings of a finished run; None if its line does not say all of them, or names a data
    set or a rule that there is no more.
    """
    try:
        line = upgraded(line)
        recipe = tasks.find(line["data"])
        own = {name: line["options"][name] for name in declared(recipe.task.Options)}
        chosen = Settings(
            **{name: line[name] for name in declared(Settings)},
            options=recipe.task.Options(**own),
            match_forwards=line["match_forwards"] or None,
        )
        hash(chosen)  # a list in place of a value is none
    except (AttributeError, KeyError, TypeError, UserError):
        return None
    return canonical(chosen) if chosen.rule in rules.KNOWN else None


FORMAT_1_OPTIONS = ("label_smoothing", "mixup", "cutmix")


def upgraded(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line as today's version writes it.

    In format 1 every task was classification, and its options stood beside the other settings.
    Settings that came later than a line of format 2 have their defaults: a new setting must be
    off by default.
    """
    if line.get("format") == 1:
        own = {name: line[name] for name in FORMAT_1_OPTIONS if name in line}
        later = {"shrink": "epoch", **dict.fromkeys(("budget", "select", "keep", "subset"))}
        return {**later, "task": "classification", **line, "options": own}
    try:
        own = {**defaults_of(tasks.find(line["data"]).task.Options), **line["options"]}
    except (AttributeError, KeyError, TypeError, UserError):
        # A data set that is not known here, say of somebody's own loop, has no other defaults.
        return {"shrink": "epoch", "options": {}, **line}
    return {**defaults_of(Settings), **line, "options": own}


def defaults_of(kind: type) -> dict[str, Any]:
    """The settings of a dataclass that have a default."""
    return {n: f.default for n, f in declared(kind).items() if f.default is not MISSING}
