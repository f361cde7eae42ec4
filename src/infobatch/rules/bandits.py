"""Dynamic baselines of Raju et al., "Accelerating Deep Learning with Dynamic Data Pruning" (2021).

Cost: one selection (no sort) per decision, a float or two per sample. Biased: what is not selected
is not made up for. The paper holds a selection for T = 10 epochs (`Every`) and does not anneal
(`delta=1`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from infobatch.errors import check_fraction
from infobatch.groups import Groups
from infobatch.rules.base import (
    Memory,
    Rule,
    everything,
    moving_average,
    nothing_known,
    num_known,
    settle,
    settle_ratio,
)


def highest(values: Tensor, prune_ratio: float, epsilon: float = 0.0) -> Groups:
    """Of the known values, keep the highest, and at random a part `epsilon` of what is kept.

    >>> highest(torch.tensor([1.0, 2.0, 3.0, 4.0]), prune_ratio=0.5).keep
    (1.0, 1.0, 0.0)
    """
    num_seen = num_known(values)
    num_kept = max(1, round(num_seen * (1 - prune_ratio)))
    num_greedy = round(num_kept * (1 - epsilon))
    if num_seen == 0:
        return everything(values)
    array = values.numpy()
    if num_greedy:
        place = num_seen - num_greedy
        cut = np.partition(array, place)[place]
    else:
        cut = np.float32(np.inf)
    tied, below = array == cut, array < cut
    num_tied, num_below = int(np.count_nonzero(tied)), int(np.count_nonzero(below))
    num_tied_kept = num_greedy - (num_seen - num_tied - num_below)
    num_tied_left = num_tied - num_tied_kept
    # Of those not among the highest, tied or below, the same part at random; whole numbers of each,
    # so that they add up.
    num_random = num_kept - num_greedy
    random_of_tied = round(num_random * num_tied_left / max(1, num_tied_left + num_below))
    random_of_below = num_random - random_of_tied
    return Groups(
        of=torch.from_numpy(tied + 2 * below.view(np.uint8)),
        keep=(
            1.0,
            (num_tied_kept + random_of_tied) / max(1, num_tied),
            random_of_below / max(1, num_below),
        ),
        rescale=False,
    )


@dataclass(frozen=True)
class EpsilonGreedy(Rule):
    """Keeps the highest moving averages of the loss, and a part `epsilon` at random. Biased.

    >>> EpsilonGreedy(0.5).unbiased
    False
    """

    prune_ratio: float = 0.5
    """The fraction of the samples that an epoch skips."""
    epsilon: float = 0.1
    """The part of the kept samples that is drawn at random."""
    alpha: float = 0.8
    """How much the last loss counts in the moving average."""

    def __post_init__(self) -> None:
        settle_ratio(self)
        settle(
            self,
            epsilon=check_fraction("epsilon", self.epsilon, one_allowed=True),
            alpha=check_fraction("alpha", self.alpha, one_allowed=True),
        )

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return 3

    def init(self, num_samples: int) -> Memory:
        return {"u": nothing_known(num_samples)}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        return highest(_of_known(scores, memory["u"]), self.prune_ratio, self.epsilon)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        indices, losses = _finite(indices, losses)
        u = memory["u"].clone()
        u[indices] = moving_average(u[indices], losses, self.alpha)
        return {"u": u}


@dataclass(frozen=True)
class UCB(Rule):
    """Keeps the highest upper confidence bounds u + c * var of the loss. Biased.

    >>> UCB(0.5).unbiased
    False
    """

    prune_ratio: float = 0.5
    """The fraction of the samples that an epoch skips."""
    c: float = 1.0
    """How much the variance of the loss counts."""
    alpha: float = 0.8
    """How much the last loss counts in the moving average."""

    def __post_init__(self) -> None:
        settle_ratio(self)
        alpha = check_fraction("alpha", self.alpha, one_allowed=True)
        settle(self, c=float(self.c), alpha=alpha)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return 3

    def init(self, num_samples: int) -> Memory:
        var = torch.zeros(num_samples, dtype=torch.float32)
        return {"u": nothing_known(num_samples), "var": var}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        bound = memory["u"] + self.c * memory["var"]
        return highest(_of_known(scores, bound), self.prune_ratio)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        indices, losses = _finite(indices, losses)
        u = memory["u"].clone()
        var = memory["var"].clone()
        u_before = u[indices]
        surprise = torch.nan_to_num(losses - u_before, nan=0.0) ** 2
        var[indices] = (1 - self.alpha) * var[indices] + self.alpha * surprise
        u[indices] = moving_average(u_before, losses, self.alpha)
        return {"u": u, "var": var}


def _finite(indices: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    finite = torch.isfinite(losses)
    return (indices, losses) if bool(finite.all()) else (indices[finite], losses[finite])


def _of_known(scores: Tensor, values: Tensor) -> Tensor:
    """The values of the samples with a score; the score itself where nothing is remembered yet."""
    values = torch.where(torch.isnan(values), scores, values)
    return torch.where(torch.isnan(scores), torch.nan, values)
