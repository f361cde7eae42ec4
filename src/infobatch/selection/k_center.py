"""K-Center greedy (Sener & Savarese, ICLR 2018): leave no sample far from a chosen one.

After a random start, each step chooses argmax_x min_{s chosen} norm(h_x - h_s), with features h.
Cost: O(k n d) in blocks of matrix products; memory O(n) beside a block.
"""

from __future__ import annotations

import torch
from torch import Generator

from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import Rows, RowsOf, features, squared_distances


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose the farthest sample, again and again."""
    return farthest_first(squared_distances(features(statistics)), len(statistics), budget, rng)


def farthest_first(distances_of: RowsOf, num_samples: int, budget: int, rng: Generator) -> Chosen:
    """Choose the sample farthest from all chosen, after a random one."""
    rows = Rows(distances_of, num_samples)
    chosen = [int(torch.randint(num_samples, (1,), generator=rng))]
    nearest = distances_of(torch.tensor(chosen))[0]
    nearest[chosen[0]] = -torch.inf  # never the farthest again, not even among duplicates
    for _ in range(budget - 1):
        index = int(nearest.argmax())
        torch.minimum(nearest, rows.get(index, nearest), out=nearest)
        nearest[index] = -torch.inf
        chosen.append(index)
    return Chosen(torch.tensor(chosen))
