"""The rules, by name: `RULES["mean"]()` gives one with its defaults."""

from __future__ import annotations

from infobatch.groups import Groups, Probabilities, Selection
from infobatch.rules.bandits import UCB, EpsilonGreedy
from infobatch.rules.base import Memory, Rule, check_layout
from infobatch.rules.combinators import Every, PerClass, Revisit, Until
from infobatch.rules.focus import Focus
from infobatch.rules.full import Full
from infobatch.rules.ies import IES
from infobatch.rules.kakurenbo import Kakurenbo
from infobatch.rules.mean import Above, Mean
from infobatch.rules.random import Random
from infobatch.rules.rcap import RCAP
from infobatch.rules.rs2 import RS2
from infobatch.rules.seta import SeTa
from infobatch.rules.table import RULES, NamedRule, resolve
from infobatch.rules.tiers import Tiers
from infobatch.rules.windows import Windows

__all__ = [
    "IES",
    "RCAP",
    "RS2",
    "RULES",
    "UCB",
    "Above",
    "EpsilonGreedy",
    "Every",
    "Focus",
    "Full",
    "Groups",
    "Kakurenbo",
    "Mean",
    "Memory",
    "NamedRule",
    "PerClass",
    "Probabilities",
    "Random",
    "Revisit",
    "Rule",
    "SeTa",
    "Selection",
    "Tiers",
    "Until",
    "Windows",
    "check_layout",
    "resolve",
]
