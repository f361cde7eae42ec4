"""Percentile tiers (InfoBatch, Section 3.1; the rule behind the paper's 41.3 % rows).

Cost: one selection (no sort) per tier. Unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from infobatch.errors import check_fraction
from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything, num_known


@dataclass(frozen=True)
class Tiers(Rule):
    """Skips a different fraction of the samples in each range of quantiles of the scores.

    Biased with `rescale=False`.

    >>> Tiers(((0.2, 0.75), (0.85, 0.5))) == Tiers()
    True
    """

    tiers: tuple[tuple[float, float], ...] = ((0.20, 0.75), (0.85, 0.50))
    """Pairs (quantile, r): from the quantile before to this one, the fraction r is skipped."""
    rescale: bool = True
    """Whether kept samples weigh more, to make up for what is skipped."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiers", tuple((float(q), float(r)) for q, r in self.tiers))
        quantiles = [quantile for quantile, _ in self.tiers]
        if not quantiles or quantiles != sorted(set(quantiles)):
            raise ValueError(
                f"tiers is {self.tiers!r}, expected (quantile, r) pairs with rising quantiles."
            )
        for quantile, prune_ratio in self.tiers:
            check_fraction("quantile", quantile, one_allowed=True)
            check_fraction("r", prune_ratio, one_allowed=False)

    @property
    def unbiased(self) -> bool:
        return self.rescale

    @property
    def max_groups(self) -> int:
        return len(self.tiers) + 1

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        num_seen = num_known(scores)
        if num_seen == 0:
            return everything(scores)
        values = scores.numpy()
        # Group t holds the scores in tier t; the last one those above all tiers, and the unseen.
        of = np.full(len(values), len(self.tiers), dtype=np.uint8)
        for quantile, _ in self.tiers:
            # Below the interpolated quantile are exactly the scores below the order statistic
            # above it. NaN sort last, beyond every place asked for.
            place = min(ceil(quantile * (num_seen - 1)), num_seen - 1)
            of -= values < np.partition(values, place)[place]
        return Groups(
            of=torch.from_numpy(of),
            keep=(*(1 - prune_ratio for _, prune_ratio in self.tiers), 1.0),
            rescale=self.rescale,
        )
