"""The paper's rule (InfoBatch, Qin et al., ICLR 2024, Eq. 3), and its mirror image of Table 5.

Cost: one pass for the mean, one for the comparison. Unbiased, unless `rescale` is off (Table 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything, num_known, settle_ratio


def mean_of_known(scores: Tensor) -> float | None:
    """The mean of the scores that are there, in float64: `mean_of_known(scores)`."""
    num_seen = num_known(scores)
    if num_seen == 0:
        return None
    # NumPy's sum does not depend on the number of threads, so every process gets the same mean.
    values = scores.numpy()
    total = np.add.reduce(values, dtype=np.float64)
    if num_seen < len(scores):
        total = np.nansum(values, dtype=np.float64)
    return float(total / num_seen)


@dataclass(frozen=True)
class Mean(Rule):
    """Skips the fraction `prune_ratio` of the samples whose score is below the mean.

    Biased with `rescale=False`.

    >>> Mean(0.5).unbiased
    True
    """

    prune_ratio: float = 0.5
    rescale: bool = True
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
        threshold = mean_of_known(scores)
        if threshold is None:
            return everything(scores)
        pruned = self._is_pruned(scores.numpy(), np.float64(threshold))
        return Groups(
            of=torch.from_numpy(pruned.view(np.uint8)),
            keep=(1.0, 1 - self.prune_ratio),
            rescale=self.rescale,
            threshold=threshold,
        )

    def _is_pruned(self, values: NDArray[np.float32], threshold: np.float64) -> NDArray[np.bool_]:
        return values < threshold


@dataclass(frozen=True)
class Above(Mean):
    """Skips the fraction `prune_ratio` of the samples whose score is above the mean (Table 5).

    Biased with `rescale=False`.

    >>> Above(0.5).unbiased
    True
    """

    def _is_pruned(self, values: NDArray[np.float32], threshold: np.float64) -> NDArray[np.bool_]:
        return values > threshold
