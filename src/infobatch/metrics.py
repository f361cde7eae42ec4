"""The metrics of a finished epoch, in a few passes over what it trained.

With l the loss and w the weight of a kept sample, n/m the number of samples that it stands for, K
of N samples kept, and H the score that a sample had when the epoch was planned:

    loss            sum(n/m l) / N           the mean loss over all samples (Eq. 6 and 7: w = n/m)
    gradient_noise  sum(w^2 l) / sum(w l)    by how much the weights raise the gradient's variance
    skipped_loss    1 - sum(H, kept) / sum(H, all)    the part of the loss that was skipped
    loss_left       loss / loss of the first epoch    how much of it is still to be learned
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.epoch import EpochLosses
from infobatch.plan import BLOCK, Plan


@dataclass(frozen=True)
class EpochMetrics:
    """The metrics of the last finished epoch; None where a value is not known.

    >>> EpochMetrics(loss=0.5, first_loss=2.0).loss_left
    0.25
    """

    loss: float | None = None
    """The mean loss over all samples, those that were skipped included."""
    first_loss: float | None = None
    """The same of the first epoch of the run."""
    gradient_noise: float | None = None
    """By how much the weights raise the variance of the gradient; 1 where all weights are 1."""
    skipped_loss: float | None = None
    """The part of the loss that the skipped samples carry, by their scores."""

    @property
    def loss_left(self) -> float | None:
        """The part of the first epoch's loss that is left."""
        if self.loss is None or self.loss < 0 or not self.first_loss or self.first_loss < 0:
            return None
        return self.loss / self.first_loss

    def as_dict(self) -> dict[str, float]:
        """What is known, under the names of `InfoBatch.metrics`."""
        values = {
            "infobatch/loss": self.loss,
            "infobatch/loss_left": self.loss_left,
            "infobatch/skipped_loss": self.skipped_loss,
            "infobatch/gradient_noise": self.gradient_noise,
        }
        return {name: value for name, value in values.items() if value is not None}


def pack(metrics: EpochMetrics) -> Tensor:
    """As a tensor of constant size, for a checkpoint; NaN for None: `pack(metrics)`."""
    values = [torch.nan if value is None else value for value in astuple(metrics)]
    return torch.tensor(values, dtype=torch.float64)


def unpack(packed: Tensor) -> EpochMetrics:
    """What was packed: `unpack(pack(metrics)) == metrics`."""
    return EpochMetrics(*(None if value != value else value for value in packed.tolist()))


PACKED_SIZE = len(fields(EpochMetrics))


def mean_loss(plan: Plan, reported: EpochLosses) -> float | None:
    """The mean loss over all samples of the data set, from those that were trained.

    In a whole epoch it is sum(n/m l) / N, whose expectation is the mean over all N samples, also
    where a rule does not rescale. If nothing is skipped, it equals the mean loss of full training.
    The entries of a plan are in random order: a part of them, where an epoch was broken off or
    losses are not finite, stands for all. None if some samples could not be kept: nothing is known
    of them.

    >>> counts = torch.tensor([1.0, 2.0])
    >>> plan = Plan(1, torch.tensor([2, 0]), torch.ones(2), num_samples=3, counts=counts)
    >>> mean_loss(plan, EpochLosses(torch.tensor([5.0, 0.5])))
    2.0
    """
    if plan.counts is None:
        return None
    total, num_finite = 0.0, 0
    for loss, count in _finite_blocks(plan.counts, reported):
        total += float(np.add.reduce(loss * count))
        num_finite += len(loss)
    if num_finite == 0:
        return None
    return total / (plan.num_samples * num_finite / len(plan))


def gradient_noise(plan: Plan, reported: EpochLosses) -> float | None:
    """By how much the weights raise the variance of an epoch's gradient: sum(w^2 l) / sum(w l).

    A sample with gradient g that is kept with probability p weighs w = 1/p. So it adds g^2 / p to
    the second moment of the gradient, in expectation, and g^2 in full training (Eq. 13 and 14).
    This assumes that g^2 is proportional to the loss. At the network's output that is so for a
    squared error, and a bound for any smooth loss that is never below 0. Then the variance grows by
    sum(l/p) / sum(l) over all samples, and the kept ones estimate both sums: each stands for w
    samples.

    Appendix B.3 looks at one kept sample. Its squared noise-to-signal ratio changes by the factor
    gradient_noise * K/N. That factor is 1 if samples are skipped at random (Eq. 15), and below 1 if
    samples with small gradients are skipped (Eq. 19).

    >>> plan = Plan(1, torch.tensor([2, 0]), torch.tensor([1.0, 2.0]), num_samples=3)
    >>> gradient_noise(plan, EpochLosses(torch.tensor([3.0, 0.5])))
    1.25
    """
    first, second = 0.0, 0.0
    for loss, weight in _finite_blocks(plan.weights, reported):
        if np.minimum.reduce(loss, initial=0) < 0:
            return None  # no measure of a gradient
        weighted = loss * weight
        first += float(np.add.reduce(weighted))
        second += float(np.add.reduce(weighted * weight))
    return second / first if first > 0 else None


def skipped_loss(plan: Plan, scores: Tensor) -> float | None:
    """The part of the loss that skipped samples carry, by the scores the epoch was planned with.

    >>> plan = Plan(1, torch.tensor([2, 0]), torch.tensor([1.0, 2.0]), num_samples=3)
    >>> skipped_loss(plan, scores=torch.tensor([0.5, 1.0, 2.5]))
    0.25
    """
    if plan.num_pruned == 0:
        return 0.0
    values, indices, total, kept = scores.numpy(), plan.indices.numpy(), 0.0, 0.0
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        if np.fmin.reduce(block, initial=0) < 0:
            return None  # a fraction of the sum means nothing if its terms differ in sign
        total += float(np.nansum(block, dtype=np.float64))
    for start in range(0, len(indices), BLOCK):
        kept += float(np.nansum(values.take(indices[start : start + BLOCK]), dtype=np.float64))
    # If all scores are 0, there is no fraction to give; rounding may leave it a little below 0.
    return max(0.0, 1 - kept / total) if total > 0 else None


def _finite_blocks(
    factors: Tensor, reported: EpochLosses
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float32]]]:
    """The finite losses and their factors, a block at a time, in the little memory of a block."""
    losses, known, own = reported.losses.numpy(), reported.known.numpy(), factors.numpy()
    for start in range(0, len(losses), BLOCK):
        block = slice(start, start + BLOCK)
        used = known[block] & np.isfinite(losses[block])
        yield losses[block][used].astype(np.float64), own[block][used]
