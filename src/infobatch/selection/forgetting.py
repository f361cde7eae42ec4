"""Forgetting events (Toneva et al., ICLR 2019): how often right turned into wrong.

The score of a sample is the number of visits at which it was wrong after being right at the visit
before. A sample that was never right counts as forgotten more often than any other. Cost: O(n) per
epoch of a training that carries a `Visits`.
"""

from __future__ import annotations

from torch import Tensor

from infobatch.selection.statistics import Statistics


def score(statistics: Statistics) -> Tensor:
    """The number of forgetting events, or the number of visits where nothing was ever learned."""
    correct = statistics.require("correct")
    events = ((correct[:, :-1] == 1) & (correct[:, 1:] == 0)).sum(1)
    never_learned = ~(correct == 1).any(1)
    # Between V visits there are at most V - 1 events, so V is more than any.
    events[never_learned] = correct.shape[1]
    return events.float()
