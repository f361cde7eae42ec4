"""Dataset quantization (Zhou et al., ICCV 2023): the same share of typical and of unusual samples.

Graph cut on the features chooses bin after bin of equal size from the samples that are left: the
first bins are typical, the last unusual. Then every bin gives an equal part of the budget, drawn
uniformly. Cost: O(n^2 d) in blocks of matrix products; memory O(n) beside a block.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from infobatch.selection.base import Chosen, draw, quotas
from infobatch.selection.graph_cut import cut
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import features

NUM_BINS = 10


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Draw equally from bins made by graph cut."""
    parts = bins(statistics, min(NUM_BINS, len(statistics)))
    shares = quotas(budget, [len(part) for part in parts])
    return Chosen(torch.cat([draw(p, num, rng) for p, num in zip(parts, shares, strict=True)]))


def bins(statistics: Statistics, num_bins: int) -> list[Tensor]:
    """The samples of each bin; sizes differ by one at most."""
    vectors = features(statistics)
    left = torch.arange(len(vectors))
    parts = []
    for size in quotas(len(left), [1] * num_bins):
        # The last bin is what is left, in whatever order.
        chosen = cut(vectors.take(left), size) if size < len(left) else torch.arange(len(left))
        parts.append(left[chosen])
        is_left = torch.ones(len(left), dtype=torch.bool)
        is_left[chosen] = False
        left = left[is_left]
    return parts
