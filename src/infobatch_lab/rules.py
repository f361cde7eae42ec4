"""The rules an experiment can name: those of the library's table, and one ablation."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from inspect import signature
from typing import Any

from infobatch import Pruner
from infobatch.rules import RULES, Mean, Rule

UNSCALED = "mean-unscaled"
"""The mean rule without rescaling, an ablation of the paper's Table 4."""

NAMES = (*RULES, UNSCALED)

DELTA = Pruner(1, 1).delta
"""The library's default for the part of the epochs that may prune."""


@dataclass(frozen=True)
class RuleFacts:
    """A row of the table of rules."""

    rule: str
    unbiased: bool
    paper: str
    cost: str
    skips: str
    default_ratio: float | None
    """None for a rule without a ratio, or with ratios of its own."""


def facts(name: str) -> RuleFacts:
    """A row of the library's table of rules: only this function reads that table."""
    row: Any = RULES[name]
    if hasattr(row, "default_ratio"):
        return RuleFacts(name, row.unbiased, row.paper, row.cost, row.skips, row.default_ratio)
    # Until the library's table says it itself, the head of a rule's file does.
    rule = row()
    origin: Rule = getattr(rule, "rule", rule)
    head = " ".join((sys.modules[type(origin).__module__].__doc__ or "").split())
    about, _, rest = head.partition(" Cost: ")
    own = signature(row).parameters.get("prune_ratio")
    return RuleFacts(
        rule=name,
        unbiased=rule.unbiased,
        paper=about.rstrip("."),
        cost=re.split(r"\.(?: |$)", rest)[0],
        skips=(type(origin).__doc__ or "").split("\n")[0],
        default_ratio=own.default if own else None,
    )


def default_ratio(name: str) -> float | None:
    """The ratio of a rule where none is given; None for one without, or an unknown one.

    >>> default_ratio("mean"), default_ratio("mean-unscaled"), default_ratio("full")
    (0.5, 0.5, None)
    """
    known = "mean" if name == UNSCALED else name
    return facts(known).default_ratio if known in RULES else None


def create(name: str, prune_ratio: float | None = None) -> Rule:
    """The rule of this name, with its own ratio where none is given."""
    if name == UNSCALED:
        ratio = default_ratio(UNSCALED) if prune_ratio is None else prune_ratio
        assert ratio is not None
        return Mean(ratio, rescale=False)
    return Pruner(1, 1, prune_ratio, rule=name).rule
