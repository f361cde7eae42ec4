"""Margin (Coleman et al., "Selection via Proxy", ICLR 2020): -(p_1 - p_2).

p_1 and p_2 are a sample's largest and second largest probability. Cost: O(n c).
"""

from __future__ import annotations

from torch import Tensor

from infobatch.selection.statistics import Statistics


def score(statistics: Statistics) -> Tensor:
    """The negative of the gap between the two largest probabilities."""
    probabilities = statistics.require("probabilities")
    if probabilities.shape[1] < 2:
        raise ValueError("probabilities has one class, expected at least 2 to have a margin.")
    two = probabilities.topk(2).values
    return two[:, 1] - two[:, 0]
