"""Dataset pruning (Yang et al., ICLR 2023): drop samples whose influences cancel out.

Chooses the m = n - k samples to drop so that norm(sum of v_i / n) is small, where v = H^-1 g is the
influence of a sample on the parameters. The paper solves this by simulated annealing; here it is
greedy: drop argmin_x norm(sum of the dropped v + v_x), which is herding with a mean of 0. H and g
stand on the last layer (see `influence`). Cost: that of `influence`, then O(m n c d); memory
O(n c d).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator

from infobatch.selection.base import Chosen
from infobatch.selection.herding import follow
from infobatch.selection.influence import influences
from infobatch.selection.statistics import Statistics


def prepare(statistics: Statistics) -> Statistics:
    """Put each sample's influence, under the Hessian of all samples, in place of its features."""
    return replace(statistics, features=influences(statistics))


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Keep what is left when the samples that move the parameters least have been dropped."""
    vectors = statistics.require("features")
    nowhere = torch.zeros(vectors.shape[1], dtype=torch.float64, device=vectors.device)
    dropped = follow(vectors, nowhere, len(vectors) - budget)
    is_kept = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    is_kept[dropped] = False
    return Chosen(is_kept.nonzero().squeeze(1))
