"""Entropy (Coleman et al., "Selection via Proxy", ICLR 2020): -sum_c p_c log p_c.

Cost: O(n c). The samples with the largest entropy are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infobatch.selection.statistics import Statistics


def score(statistics: Statistics) -> Tensor:
    """The entropy of the predicted probabilities; 0 log 0 is 0."""
    entropies: Tensor = torch.special.entr(statistics.require("probabilities")).sum(1)
    return entropies
