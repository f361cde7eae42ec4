"""Contextual diversity (Agarwal et al., ECCV 2020): k-center where predictions are the points.

The distance is the symmetric divergence KL(p, q) + KL(q, p) = sum_c (p_c - q_c)(log p_c - log q_c)
of the softmax outputs, with log(p + epsilon) so that a probability of 0 has a distance. Cost:
O(k n c) in blocks of matrix products; memory O(n) beside a block.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from infobatch.selection.base import Chosen
from infobatch.selection.k_center import farthest_first
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import RowsOf

EPSILON = 1e-8


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose the sample whose prediction is farthest from all chosen, again and again."""
    distances = symmetric_divergences(statistics.require("probabilities"))
    return farthest_first(distances, len(statistics), budget, rng)


def symmetric_divergences(probabilities: Tensor) -> RowsOf:
    """Rows of the symmetric divergences between predictions."""
    logs = (probabilities + EPSILON).log()
    own = (probabilities * logs).sum(1)
    points, others = torch.cat([probabilities, logs], 1), torch.cat([logs, probabilities], 1)

    def rows_of(indices: Tensor) -> Tensor:
        rows = own + own[indices].unsqueeze(1) - points[indices] @ others.T
        return rows.clamp_(min=0)

    return rows_of
