"""The rules an experiment can name: those of the library's table, one ablation, and candidates."""

from __future__ import annotations

from infobatch import Pruner
from infobatch.rules import RULES, Mean, Rule
from infobatch_lab.candidates import CANDIDATES

UNSCALED = "mean-unscaled"
"""The mean rule without rescaling, an ablation of the paper's Table 4."""

NAMES = (*RULES, UNSCALED)

TRIED = "tried:"
"""Before the name of a candidate."""

KNOWN = frozenset((*NAMES, *(TRIED + name for name in CANDIDATES)))
"""The names of all rules and candidates."""

DELTA = Pruner(1, 1).delta
"""The library's default for the part of the epochs that may prune."""


def default_ratio(name: str) -> float | None:
    """The ratio of a rule where none is given; None for one without, or an unknown one.

    >>> default_ratio("mean"), default_ratio("mean-unscaled"), default_ratio("full")
    (0.5, 0.5, None)
    """
    known = "mean" if name == UNSCALED else name
    return RULES[known].default_ratio if known in RULES else None


def create(name: str, prune_ratio: float | None = None) -> Rule:
    """The rule of this name, with its own ratio where none is given."""
    if name.startswith(TRIED):
        return _candidate(name, prune_ratio)
    if name == UNSCALED:
        ratio = default_ratio(UNSCALED) if prune_ratio is None else prune_ratio
        assert ratio is not None
        return Mean(ratio, rescale=False)
    return Pruner(1, 1, prune_ratio, rule=name).rule


def _candidate(name: str, prune_ratio: float | None) -> Rule:
    wanted = name.removeprefix(TRIED)
    if wanted not in CANDIDATES:
        raise ValueError(f"rule is {name!r}, expected {TRIED} with one of {', '.join(CANDIDATES)}.")
    if prune_ratio is not None:
        raise ValueError(f"prune_ratio is {prune_ratio!r}, but {name} has its own: leave it out.")
    return CANDIDATES[wanted]
