"""Windows: scores are compared only with scores of about the same age.

The idea is that of RePB: a loss recorded early in an epoch comes from an older model than one
recorded late, so that comparing the two prunes by age as well as by difficulty. The details of RePB
are not public; this is the mean rule of InfoBatch inside windows, not a reproduction. An epoch is
divided into `num_windows` equal parts in the order of training. A score belongs to the window that
recorded it, and is compared with the mean of that window.

Cost: two passes, and four bytes per sample. Unbiased.

Not guaranteed: RePB rescales by how often a sample was trained so far; here the m kept of n weigh
n/m in each epoch, as for all rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from infobatch.errors import check_whole
from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything, known, settle, settle_ratio

NEVER = -1
"""The window of a score that no epoch has recorded."""


@dataclass(frozen=True)
class Windows(Rule):
    """Skips the fraction `prune_ratio` of the samples below the mean of their window.

    >>> Windows(0.5).unbiased
    True
    """

    prune_ratio: float = 0.5
    num_windows: int = 10
    """How many windows an epoch has."""

    def __post_init__(self) -> None:
        settle_ratio(self)
        settle(self, num_windows=check_whole("num_windows", self.num_windows, at_least=1))

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def max_groups(self) -> int:
        return 2

    def init(self, num_samples: int) -> Memory:
        return {"window": torch.full((num_samples,), NEVER, dtype=torch.int32)}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        seen = known(scores)
        if not seen.any():
            return everything(scores)
        windows = memory["window"].numpy() - NEVER
        values = np.where(seen, scores.numpy(), 0)
        sums = np.bincount(windows, weights=values)
        counts = np.bincount(windows, weights=seen)
        means = sums / np.maximum(counts, 1)
        below = seen & (values < means.take(windows))
        return Groups(of=torch.from_numpy(below.view(np.uint8)), keep=(1.0, 1 - self.prune_ratio))

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        places = torch.arange(len(indices)) * self.num_windows // max(1, len(indices))
        window = memory["window"].clone()
        window[indices] = (epoch * self.num_windows + places).to(torch.int32)
        return {"window": window}
