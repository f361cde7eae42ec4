"""The rules, by name: `RULES["mean"]()` gives one with its defaults."""

from __future__ import annotations

from infobatch.groups import Groups, Probabilities, Selection
from infobatch.rules.bandits import UCB, EpsilonGreedy
from infobatch.rules.base import Memory, Rule, check_layout
from infobatch.rules.combinators import Every, PerClass, Until
from infobatch.rules.full import Full
from infobatch.rules.mean import Above, Mean
from infobatch.rules.random import Random
from infobatch.rules.table import RULES, NamedRule, resolve
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
    "NamedRule",
    "PerClass",
    "Probabilities",
    "Random",
    "Rule",
    "Selection",
    "Tiers",
    "Until",
    "check_layout",
    "resolve",
]
