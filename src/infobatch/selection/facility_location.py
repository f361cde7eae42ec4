"""Facility location (Mirzasoleiman et al., "Lazier Than Lazy Greedy", AAAI 2015, and before).

Greedy maximisation of sum_i max_{j chosen} s_ij with s = 0.5 + 0.5 cos of the features: every
sample has a chosen one that is like it. The value is at least 1 - 1/e of the best. A choice changes
gains only through the samples it covers better than before, so only their rows are looked at; a
sample is covered better about log k times. Cost: O(n^2 d log k) in blocks of matrix products, or
O(n^2 d) where the matrix fits a block; memory O(n) beside a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import (
    RowsOf,
    cosine_similarities,
    features,
    kept_if_small,
    rows_in_block,
    sums_of_rows,
)


class Cover(NamedTuple):
    """Chosen samples, and for each sample the place in `chosen` of the one it is most like."""

    chosen: Tensor
    owner: Tensor


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose greedily by how much better all samples are covered."""
    similarities = cosine_similarities(features(statistics))
    device = statistics.require("features").device
    return Chosen(cover(similarities, len(statistics), budget, device).chosen)


def cover(similarities_of: RowsOf, num_samples: int, budget: int, device: torch.device) -> Cover:
    """Maximise the sum of the similarities, all at least 0, to the most similar chosen sample.

    Similarities are symmetric: the row of a sample is also its column.
    """
    rows_of = kept_if_small(similarities_of, num_samples, device)
    gains = sums_of_rows(rows_of, num_samples, device)
    owner = torch.zeros(num_samples, dtype=torch.int64, device=device)
    covered: Tensor | None = None
    chosen: list[int] = []
    while len(chosen) < budget:
        index = gains.argmax()
        row = rows_of(index.view(1))[0]
        if covered is None:
            covered = torch.zeros_like(row)
        better = (row > covered).nonzero().squeeze(1)
        for block in better.split(rows_in_block(num_samples)):
            # A candidate no longer gains what it would have added between before and now.
            before, now = covered[block].unsqueeze(1), row[block].unsqueeze(1)
            lost = rows_of(block).clamp(before, now) - before
            gains -= lost.sum(0, dtype=torch.float64)
        covered[better], owner[better] = row[better], len(chosen)
        gains[index] = -torch.inf
        chosen.append(int(index))
    return Cover(torch.tensor(chosen), owner)
