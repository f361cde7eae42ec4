"""Facility location (Mirzasoleiman et al., "Lazier Than Lazy Greedy", AAAI 2015, and before).

Greedy maximisation of sum_i max_{j chosen} s_ij with s = 0.5 + 0.5 cos of the features: every
sample has a chosen one that is like it. The value is at least 1 - 1/e of the best. Gains only
shrink, so an old gain is an upper bound, and only samples whose bound is the largest are looked at
again (Minoux, 1978). Cost: O(n^2 d) once, then a few rows per choice; memory O(n) beside a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import (
    Rows,
    RowsOf,
    cosine_similarities,
    features,
    sums_of_rows,
)


class Cover(NamedTuple):
    """Chosen samples, and for each sample the place in `chosen` of the one it is most like."""

    chosen: Tensor
    owner: Tensor


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose greedily by how much better all samples are covered."""
    similarities = cosine_similarities(features(statistics))
    device = statistics.get("features").device
    return Chosen(cover(similarities, len(statistics), budget, device).chosen)


def cover(similarities_of: RowsOf, num_samples: int, budget: int, device: torch.device) -> Cover:
    """Maximise the sum of the similarities, all at least 0, to the most similar chosen sample."""
    rows = Rows(similarities_of, num_samples)
    bounds = sums_of_rows(similarities_of, num_samples, device)
    covered: Tensor | None = None
    owner = torch.zeros(num_samples, dtype=torch.int64, device=device)
    chosen: list[int] = []
    while len(chosen) < budget:
        index = int(bounds.argmax())
        row = rows.get(index, bounds)
        if covered is None:
            covered = torch.zeros_like(row)
        bounds[index] = (row - covered).clamp_(min=0).sum(dtype=torch.float64)
        if int(bounds.argmax()) != index:  # another may gain more: look at that one again
            continue
        owner[row > covered] = len(chosen)
        covered = torch.maximum(covered, row)
        bounds[index] = -torch.inf
        chosen.append(index)
    return Cover(torch.tensor(chosen), owner)
