"""Least confidence (Coleman et al., "Selection via Proxy", ICLR 2020): -max_c p_c.

Cost: O(n c). The least confident samples are kept, not the most confident ones.
"""

from __future__ import annotations

from torch import Tensor

from infobatch.selection.statistics import Statistics


def score(statistics: Statistics) -> Tensor:
    """The negative of the largest probability."""
    return -statistics.require("probabilities").amax(1)
