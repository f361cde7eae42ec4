"""Graph cut (Iyer et al., "Submodular Combinatorial Information Measures", ALT 2021).

Each step chooses the largest gain lambda sum_i s_ix - 2 sum_{j chosen} s_jx, where i runs over the
class and s = 0.5 + 0.5 cos of the last layer's gradients; lambda = 1: typical samples that are
unlike those chosen. The gradients stand on the last layer and are never formed (see `Vectors`).
Cost: O(k n (c + d)) in blocks of matrix products; memory O(n) beside a block.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import Rows, Vectors, cosine_similarities, gradients


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose greedily by the gain of the cut between the last layer's gradients."""
    return Chosen(cut(gradients(statistics), budget))


def cut(vectors: Vectors, budget: int) -> Tensor:
    """Choose vectors greedily, like all and unlike those chosen."""
    rows = Rows(cosine_similarities(vectors), len(vectors))
    gains = vectors.normalized().products_with_sum() * 0.5 + 0.5 * len(vectors)
    chosen = []
    for _ in range(budget):
        index = int(gains.argmax())
        gains.sub_(rows.get(index, gains), alpha=2)
        gains[index] = -torch.inf
        chosen.append(index)
    return torch.tensor(chosen)
