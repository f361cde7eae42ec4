"""The rules by name, one row each: `RULES["mean"](0.3)` makes one.

Whoever lists rules (the command line, the docs, a report) reads this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infobatch.rules.bandits import UCB, EpsilonGreedy
from infobatch.rules.base import Rule
from infobatch.rules.combinators import Every, Revisit
from infobatch.rules.focus import Focus
from infobatch.rules.full import Full
from infobatch.rules.ies import IES
from infobatch.rules.kakurenbo import Kakurenbo
from infobatch.rules.mean import Above, Mean
from infobatch.rules.random import Random
from infobatch.rules.rcap import RCAP
from infobatch.rules.rs2 import RS2
from infobatch.rules.seta import SeTa
from infobatch.rules.tiers import Tiers
from infobatch.rules.windows import Windows


@dataclass(frozen=True)
class NamedRule:
    """A row of the table of rules. Call it to make the rule.

    >>> RULES["mean"]()
    Mean(prune_ratio=0.5, rescale=True)
    >>> RULES["mean"](0.3).prune_ratio
    0.3
    """

    name: str
    """The name that `rule=` and the command line take."""
    make: Callable[..., Rule]
    """Makes the rule. It takes a prune ratio if `default_ratio` is not None."""
    skips: str
    """What an epoch skips, in 69 characters at most; r is the prune ratio."""
    paper: str
    """Where it was published."""
    cost: str
    """The cost of planning an epoch."""
    unbiased: bool
    """Whether the weights make up for what is skipped; see `Rule.unbiased`."""
    default_ratio: float | None = None
    """The prune ratio by default; None if the rule takes none."""

    def __call__(self, prune_ratio: float | None = None) -> Rule:
        if prune_ratio is None:
            return self.make()
        if self.default_ratio is None:
            raise ValueError(
                f"prune_ratio is {prune_ratio!r}, but {self.name!r} has its own ratios: "
                "leave it out."
            )
        return self.make(prune_ratio)


def _random_rescaled(prune_ratio: float = 0.5) -> Rule:
    return Random(prune_ratio, rescale=True)


def _epsilon_greedy(prune_ratio: float = 0.5) -> Rule:
    return Every(EpsilonGreedy(prune_ratio), period=10)


def _ucb(prune_ratio: float = 0.5) -> Rule:
    return Every(UCB(prune_ratio), period=10)


# Both rely on forwarding what they skip, in each epoch; trained again every sixth is our choice.
def _ies() -> Rule:
    return Revisit(IES(), period=5)


def _kakurenbo(prune_ratio: float = 0.3) -> Rule:
    return Revisit(Kakurenbo(prune_ratio), period=5)


_INFOBATCH = "InfoBatch, Qin et al., ICLR 2024"
_BANDITS = "Accelerating Deep Learning with Dynamic Data Pruning, Raju et al., 2021"

_ROWS = (
    NamedRule(
        name="above",
        make=Above,
        skips="the fraction r of the samples above the mean loss",
        paper=f"{_INFOBATCH}, Table 5",
        cost="two passes",
        unbiased=True,
        default_ratio=0.5,
    ),
    NamedRule(
        name="epsilon-greedy",
        make=_epsilon_greedy,
        skips="all but the highest average losses and a few at random, for 10 epochs",
        paper=_BANDITS,
        cost="one selection per decision, a float per sample",
        unbiased=False,
        default_ratio=0.5,
    ),
    NamedRule(
        name="focus",
        make=Focus,
        skips="90 % of the easy samples and no hard ones: together r of all",
        paper="this library; Selective-Backprop, Jiang et al., 2019, is akin to it",
        cost="one selection",
        unbiased=False,
        default_ratio=0.63,
    ),
    NamedRule(
        name="full",
        make=Full,
        skips="nothing",
        paper="training as it is without the library",
        cost="none",
        unbiased=True,
    ),
    NamedRule(
        name="ies",
        make=_ies,
        skips="the samples whose loss has stopped curving, at most 5 epochs in a row",
        paper="Instance-dependent Early Stopping, Yuan et al., ICLR 2025",
        cost="one pass, five numbers per sample",
        unbiased=False,
    ),
    NamedRule(
        name="kakurenbo",
        make=_kakurenbo,
        skips="the lowest losses, up to r, if confidently right; 5 epochs at most",
        paper="KAKURENBO, Nguyen et al., NeurIPS 2023",
        cost="one selection, a number per sample",
        unbiased=False,
        default_ratio=0.3,
    ),
    NamedRule(
        name="mean",
        make=Mean,
        skips="the fraction r of the samples below the mean loss: the default rule",
        paper=f"{_INFOBATCH}, Eq. 3",
        cost="two passes",
        unbiased=True,
        default_ratio=0.5,
    ),
    NamedRule(
        name="random",
        make=Random,
        skips="the fraction r of all samples, without rescaling",
        paper=f"{_INFOBATCH}, Table 1",
        cost="one pass",
        unbiased=False,
        default_ratio=0.5,
    ),
    NamedRule(
        name="random-rescaled",
        make=_random_rescaled,
        skips="the fraction r of all samples",
        paper=f"{_INFOBATCH}, Table 5",
        cost="one pass",
        unbiased=True,
        default_ratio=0.5,
    ),
    NamedRule(
        name="rcap",
        make=RCAP,
        skips="the fraction r of all samples, fewer of hard classes and hard samples",
        paper="RCAP, Hassan et al., UAI 2025",
        cost="an exponential per sample, a few passes",
        unbiased=False,
        default_ratio=0.5,
    ),
    NamedRule(
        name="rs2",
        make=RS2,
        skips="the fraction r of all samples, none twice before all were trained",
        paper="RS2, Okanovic et al., ICLR 2024",
        cost="one pass, a byte per sample",
        unbiased=False,
        default_ratio=0.5,
    ),
    NamedRule(
        name="seta",
        make=SeTa,
        skips="the fraction r of all samples, then easy or hard groups by turns",
        paper="SeTa, Zhou et al., CVPR 2025",
        cost="one sort",
        unbiased=False,
        default_ratio=0.1,
    ),
    NamedRule(
        name="tiers",
        make=Tiers,
        skips="75 % below the 20th percentile of losses, 50 % from there to the 85th",
        paper=f"{_INFOBATCH}, Section 3.1",
        cost="one selection per tier",
        unbiased=True,
    ),
    NamedRule(
        name="ucb",
        make=_ucb,
        skips="all but the highest upper confidence bounds of losses, for 10 epochs",
        paper=_BANDITS,
        cost="one selection per decision, two floats per sample",
        unbiased=False,
        default_ratio=0.5,
    ),
    NamedRule(
        name="windows",
        make=Windows,
        skips="the fraction r of samples below the mean of losses of the same age",
        paper="the idea of RePB, whose details are not public",
        cost="two passes, four bytes per sample",
        unbiased=True,
        default_ratio=0.5,
    ),
)

RULES: dict[str, NamedRule] = {row.name: row for row in _ROWS}


def resolve(rule: Rule | str | None, prune_ratio: float | None) -> Rule:
    """The rule that `rule=` and `prune_ratio=` name: `resolve("mean", 0.3) == Mean(0.3)`."""
    if isinstance(rule, Rule):
        if prune_ratio is not None:
            raise ValueError(
                f"prune_ratio is {prune_ratio!r}, but {rule!r} decides for itself: leave it out."
            )
        return rule
    name = "mean" if rule is None else rule
    if not isinstance(name, str):
        raise TypeError(f"rule is {rule!r}, expected a Rule or one of {', '.join(RULES)}.")
    if name not in RULES:
        raise ValueError(f"rule is {rule!r}, expected a Rule or one of {', '.join(RULES)}.")
    return RULES[name](prune_ratio)
