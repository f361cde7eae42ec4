"""RCAP, Hassan et al., "Robust, Class-Aware, Probabilistic Dynamic Dataset Pruning", UAI 2025.

Losses are clipped to [0, log c], c the number of classes. Of the (1 - r) n samples of an epoch, a
class gets a quota in proportion to sqrt(importance x prior): its mean clipped loss, and its part of
the data set; never more than the class has. Inside a class, samples are drawn in proportion to
exp(loss / beta), the softmax of the clipped losses.

Cost: an exponential per sample, and a few passes. Biased: hard samples and hard classes are trained
more often, and no weight makes up for it.

Not guaranteed: the paper draws a class's quota exactly and one by one; here each sample gets the
probability min(1, lambda exp(loss / beta)) with the quota as their sum, so that the quotas hold in
expectation and the number of samples for the whole data set. The authors' code takes as importance
the softmax of the samples trained last. Without labels all samples are one class, clipped as if
there were ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.groups import Probabilities, Selection
from infobatch.rules.base import Memory, Rule, everything, known, settle, settle_ratio
from infobatch.rules.classes import Classes

Floats = NDArray[np.float64]

LEAST_IMPORTANCE = 1e-9
"""For classes without any loss, so that they stay comparable."""


def share_out(total: float, weights: Floats, most: Floats) -> Floats:
    """Divide a total in proportion to weights, but give nobody more than their most.

    >>> share_out(6, np.array([1.0, 1.0, 4.0]), np.array([9.0, 9.0, 2.0])).tolist()
    [2.0, 2.0, 2.0]
    """
    full = np.zeros(len(weights), dtype=np.bool_)
    while not full.all():
        factor = max(0.0, total - most[full].sum()) / weights[~full].sum()
        shares = np.where(full, most, factor * weights)
        above = shares > most
        if not above.any():
            return shares
        full |= above  # what they cannot take goes to the others, who may then be full too
    return most


@dataclass(frozen=True)
class RCAP(Rule):
    """Skips the fraction `prune_ratio`, fewer of hard classes and of hard samples. Biased.

    >>> RCAP(0.5, labels=[0, 0, 1]).classes
    2 classes, checksum 6f6bcabe
    """

    prune_ratio: float = 0.5
    labels: InitVar[Tensor | Sequence[int] | None] = None
    """The class of each sample; without them all samples are one class."""
    beta: float = 1.0
    """The temperature: the smaller it is, the more the hard samples of a class are preferred."""
    classes: Classes | None = field(init=False)
    """The labels, divided into classes; None without labels."""

    def __post_init__(self, labels: Tensor | Sequence[int] | None) -> None:
        settle_ratio(self)
        if not self.beta > 0:
            raise ValueError(f"beta is {self.beta!r}, expected a number above 0.")
        settle(self, beta=float(self.beta))
        object.__setattr__(self, "classes", None if labels is None else Classes.of(labels))

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> None:
        return None

    @property
    def clip(self) -> float:
        """The loss of a network that knows nothing, log c; higher ones count as much."""
        num_classes = 10 if self.classes is None else max(2, self.classes.num_classes)
        return float(np.log(num_classes))

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        seen = known(scores)
        num_seen = int(np.count_nonzero(seen))
        if num_seen == 0:
            return everything(scores)
        losses = np.clip(scores.numpy(), 0, self.clip).astype(np.float64)
        parts = [part[seen[part]] for part in self._members(len(scores))]
        parts = [part for part in parts if len(part)]
        sizes = np.array([len(part) for part in parts], dtype=np.float64)
        means = np.array([losses[part].mean() for part in parts])
        importance = np.maximum(means, LEAST_IMPORTANCE)
        num_kept = max(1.0, num_seen * (1 - self.prune_ratio))
        quotas = share_out(num_kept, np.sqrt(importance * sizes / num_seen), sizes)
        p = np.ones(len(scores), dtype=np.float32)  # where there is no score
        for part, quota in zip(parts, quotas, strict=True):
            # Less the clip, which changes no proportion, and above 0 for a small beta too.
            weights = np.exp(np.maximum((losses[part] - self.clip) / self.beta, -600))
            p[part] = share_out(quota, weights, np.ones(len(part)))
        return Probabilities(torch.from_numpy(p), rescale=False)

    def _members(self, num_samples: int) -> list[NDArray[np.int64]]:
        if self.classes is None:
            return [np.arange(num_samples)]
        self.classes.check(num_samples)
        return [members.numpy() for members in self.classes.members]
