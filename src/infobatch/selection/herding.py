"""Herding (Welling, ICML 2009): the subset whose mean stays nearest to the mean of all.

Step t chooses argmin_x norm((t + 1) mu - sum of the chosen h - h_x), with features h and their mean
mu. The nearest is taken; taking the farthest, as a well-known implementation does, is far worse
than a random subset. Cost: O(k n d), a matrix-vector product per choice.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose greedily by the distance of the means."""
    features = statistics.require("features")
    return Chosen(follow(features, features.mean(0, dtype=torch.float64), budget))


def follow(vectors: Tensor, target: Tensor, budget: int) -> Tensor:
    """Choose vectors whose sum stays nearest to the multiples of `target`, greedily."""
    squared_norms = (vectors * vectors).sum(1)
    residual = torch.zeros_like(target)
    chosen = torch.empty(budget, dtype=torch.int64, device=vectors.device)
    is_chosen = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
    for step in range(budget):
        residual += target
        # norm(residual - h)^2 without the term that all candidates share
        distances = squared_norms - 2 * (vectors @ residual.to(vectors.dtype))
        index = distances.masked_fill_(is_chosen, torch.inf).argmin()
        chosen[step] = index
        is_chosen[index] = True
        residual -= vectors[index]
    return chosen
