"""A fresh uniform subset each epoch: the paper's Random*, and with rescaling its Table 5 row.

Cost: one pass. Biased in scale as Random* (weights of 1), unbiased with `rescale`. As with every
rule, samples never trained are kept, so the first epoch is a full one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, known, settle_ratio


@dataclass(frozen=True)
class Random(Rule):
    """Skips the fraction `prune_ratio` of all samples at random. Biased, unless `rescale=True`.

    >>> Random(0.3).unbiased
    False
    """

    prune_ratio: float = 0.5
    rescale: bool = False
    """Whether kept samples weigh more, to make up for what is skipped."""

    def __post_init__(self) -> None:
        settle_ratio(self)

    @property
    def unbiased(self) -> bool:
        return self.rescale

    @property
    def max_groups(self) -> int:
        return 2

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        return Groups(
            of=torch.from_numpy(known(scores).view(np.uint8)),
            keep=(1.0, 1 - self.prune_ratio),
            rescale=self.rescale,
        )
