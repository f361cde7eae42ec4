"""What a run is: everything that decides its history, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from infobatch import Pruner
from infobatch.rules import RULES, Mean, Rule
from infobatch_lab.errors import UserError
from infobatch_lab.report import comparisons
from infobatch_lab.report.comparisons import DELTA

OPTIMIZERS = {"sgd": 0.1, "adamw": 0.01, "radam": 0.01, "lars": 10.0, "lamb": 0.01}
"""Their names, and the learning rates they get where none is given."""

SCHEDULES = ("onecycle", "cosine", "constant")

UNSCALED = "mean-unscaled"
"""The mean rule without rescaling, an ablation of the paper's Table 4."""

EXPERIMENT_RULES = (*RULES, UNSCALED)


@dataclass(frozen=True)
class Defaults:
    """What suits a data set, where nothing else is asked for."""

    model: str
    epochs: int
    batch_size: int


DEFAULTS = {
    "digits": Defaults("tiny", 40, 32),
    "mnist": Defaults("convnet", 16, 128),
    "fashion-mnist": Defaults("convnet", 16, 128),
    "cifar10": Defaults("resnet8-pooled", 16, 128),
    "cifar100": Defaults("resnet8-pooled", 16, 128),
}
FOLDER_DEFAULTS = Defaults("resnet18", 30, 64)


@dataclass(frozen=True)
class Settings:
    """One run. Equal settings give equal histories on the same machine."""

    data: str
    rule: str
    seed: int
    model: str
    optimizer: str
    schedule: str
    prune_ratio: float | None
    delta: float
    epochs: int
    batch_size: int
    lr: float
    label_smoothing: float
    mixup: float
    cutmix: float
    amp: bool
    compile: bool
    match_forwards: str | None = None

    @property
    def name(self) -> str:
        """A name for files: readable, and different for different settings."""
        digest = hashlib.blake2b(json.dumps(asdict(self)).encode(), digest_size=4).hexdigest()
        data = "".join(c if c.isalnum() or c == "-" else "-" for c in self.data)[-40:]
        return f"{data}-{self.rule}-seed{self.seed}-{digest}"

    @property
    def ratio(self) -> float | None:
        """The prune ratio of the rule, or of the one it is matched to: its own, where none was
        given; None for one without.
        """
        own = own_ratio(self.match_forwards or self.rule)
        return own if self.prune_ratio is None else self.prune_ratio

    @property
    def label(self) -> str:
        """A name for people."""
        return f"full † ({self.match_forwards})" if self.match_forwards else self.rule


def settings(
    data: str,
    *,
    rule: str = "mean",
    seed: int = 0,
    model: str | None = None,
    optimizer: str = "sgd",
    schedule: str = "onecycle",
    prune_ratio: float | None = None,
    delta: float = DELTA,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    label_smoothing: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    amp: bool = False,
    compile: bool = False,
) -> Settings:
    """Settings with what suits the data set where nothing is given, checked.

    >>> settings("digits", rule="tiers").epochs
    40
    """
    if data not in DEFAULTS and not data.startswith("folder:"):
        raise UserError(f"data is {data!r}, expected one of {', '.join(DEFAULTS)} or folder:PATH.")
    defaults = DEFAULTS.get(data, FOLDER_DEFAULTS)
    chosen = Settings(
        data=data,
        rule=rule,
        seed=seed,
        model=model or defaults.model,
        optimizer=optimizer,
        schedule=schedule,
        prune_ratio=prune_ratio,
        delta=delta,
        epochs=defaults.epochs if epochs is None else epochs,
        batch_size=defaults.batch_size if batch_size is None else batch_size,
        lr=OPTIMIZERS.get(optimizer, 1.0) if lr is None else lr,
        label_smoothing=label_smoothing,
        mixup=mixup,
        cutmix=cutmix,
        amp=amp,
        compile=compile,
    )
    check(chosen)
    return canonical(chosen)


def check(chosen: Settings) -> None:
    """Refuse what no run can have."""
    for name, known in (
        ("rule", EXPERIMENT_RULES),
        ("optimizer", tuple(OPTIMIZERS)),
        ("schedule", SCHEDULES),
    ):
        if getattr(chosen, name) not in known:
            given = getattr(chosen, name)
            raise UserError(f"{name} is {given!r}, expected one of {', '.join(known)}.")
    for name, ok, expected in (
        ("batch_size", chosen.batch_size >= 1, "a whole number of at least 1"),
        ("seed", chosen.seed >= 0, "a whole number of at least 0"),
        ("lr", 0 < chosen.lr < math.inf, "a finite number above 0"),
        ("label_smoothing", 0 <= chosen.label_smoothing < 1, "0 <= label_smoothing < 1"),
        ("mixup", chosen.mixup >= 0, "a number of at least 0"),
        ("cutmix", chosen.cutmix >= 0, "a number of at least 0"),
    ):
        if not ok:
            raise UserError(f"{name} is {getattr(chosen, name)}, expected {expected}.")
    try:
        Pruner(1, chosen.epochs, delta=chosen.delta, rule=rule_of(chosen), seed=chosen.seed)
    except (TypeError, ValueError) as error:
        raise UserError(str(error).replace("num_epochs", "epochs")) from error


def rule_of(chosen: Settings) -> Rule:
    """The rule that is meant, with its ratio."""
    if chosen.rule == UNSCALED:
        ratio = own_ratio(UNSCALED) if chosen.prune_ratio is None else chosen.prune_ratio
        assert ratio is not None
        return Mean(ratio, rescale=False)
    return Pruner(1, 1, chosen.prune_ratio, rule=chosen.rule).rule


def own_ratio(rule: str) -> float | None:
    """The ratio of a rule where none is given; None for one without: `own_ratio("mean")`."""
    return comparisons.own_ratio("mean" if rule == UNSCALED else rule)


def canonical(chosen: Settings) -> Settings:
    """The same run under its one name: what changes nothing, or is the rule's own, is not said."""
    return replace(
        chosen,
        prune_ratio=None if chosen.prune_ratio == own_ratio(chosen.rule) else chosen.prune_ratio,
        delta=DELTA if chosen.rule == "full" else chosen.delta,
    )


def settings_of(run: dict[str, Any]) -> Settings | None:
    """The settings that a run was done with; None for a run that does not say all of them, or of
    a rule that there is no more.
    """
    names = [field.name for field in fields(Settings)]
    if not set(names) <= run.keys() or run["rule"] not in EXPERIMENT_RULES:
        return None
    return canonical(Settings(**{name: run[name] for name in names}))
