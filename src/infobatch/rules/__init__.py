"""The rules, by name: `RULES["mean"]()` gives one with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from infobatch.groups import Groups
from infobatch.rules.bandits import UCB, EpsilonGreedy
from infobatch.rules.base import Memory, Rule
from infobatch.rules.combinators import Every, PerClass, Until
from infobatch.rules.full import Full
from infobatch.rules.mean import Above, Mean
from infobatch.rules.random import Random
from infobatch.rules.tiers import Tiers

__all__ = [
    "RULES",
    "UCB",
    "Above",
    "EpsilonGreedy",
    "Every",
    "Full",
    "Groups",
    "Mean",
    "Memory",
    "PerClass",
    "Random",
    "Rule",
    "Tiers",
    "Until",
]


def _random_rescaled(prune_ratio: float = 0.5) -> Rule:
    return Random(prune_ratio, rescale=True)


def _epsilon_greedy(prune_ratio: float = 0.5) -> Rule:
    return Every(EpsilonGreedy(prune_ratio), period=10)


def _ucb(prune_ratio: float = 0.5) -> Rule:
    return Every(UCB(prune_ratio), period=10)


RULES: dict[str, Callable[..., Rule]] = {
    "above": Above,
    "epsilon-greedy": _epsilon_greedy,
    "full": Full,
    "mean": Mean,
    "random": Random,
    "random-rescaled": _random_rescaled,
    "tiers": Tiers,
    "ucb": _ucb,
}


def resolve(rule: Rule | str | None, prune_ratio: float | None) -> Rule:
    """The rule meant by `rule=` and `prune_ratio=`: `resolve("mean", 0.3) == Mean(0.3)`."""
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
    if prune_ratio is None:
        return RULES[name]()
    if "prune_ratio" not in signature(RULES[name]).parameters:
        raise ValueError(
            f"prune_ratio is {prune_ratio!r}, but {name!r} has its own ratios: leave it out."
        )
    return RULES[name](prune_ratio)
