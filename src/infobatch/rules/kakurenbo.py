"""KAKURENBO, Nguyen et al., "Adaptively Hiding Samples in Deep Neural Network Training", NeurIPS
2023.

Epoch e hides the fraction F_e of the samples with the lowest losses, except those that were not
predicted right with a confidence of at least 0.7. F_e is F = 0.3, times 1, 0.8, 0.6 and 0.4 from 0,
30, 60 and 80 % of the epochs on (0, 60, 120 and 160 of 200). The learning rate is multiplied by
1 / (1 - F_e): see `learning_rate_factor`.

With the cross entropy as loss, the confidence in the right class is p_y = exp(-loss), and
p_y >= 0.7 means that the prediction is right: so the loss alone tells. It does not with label
smoothing or mixing.

Cost: one selection. Biased: what is hidden is not made up for by weights.

Not guaranteed: the paper forwards the hidden samples at the end of each epoch, so that they come
back as soon as their loss rises. A rule sees only the losses of trained samples. Wrap it in
`Revisit`, which trains hidden samples again after some epochs; the table's `kakurenbo` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from infobatch.errors import check_fraction, check_whole
from infobatch.groups import Groups
from infobatch.rules.bandits import highest
from infobatch.rules.base import Memory, Rule, settle, settle_ratio

STAGES = ((0.8, 0.4), (0.6, 0.6), (0.3, 0.8))
"""From which part of the epochs on F is multiplied by what; by 1 before."""


@dataclass(frozen=True)
class Kakurenbo(Rule):
    """Skips the samples with the lowest losses, if their prediction is confidently right. Biased.

    >>> Kakurenbo(0.3, num_epochs=100).learning_rate_factor(epoch=0)
    1.4285714285714286
    """

    prune_ratio: float = 0.3
    """The largest fraction of the samples that an epoch hides."""
    confidence: float = 0.7
    """Only samples that are predicted right with this probability are hidden."""
    num_epochs: int = 200
    """The length of training. Later epochs hide less."""

    def __post_init__(self) -> None:
        settle_ratio(self)
        settle(
            self,
            confidence=check_fraction("confidence", self.confidence, one_allowed=True),
            num_epochs=check_whole("num_epochs", self.num_epochs, at_least=1),
        )

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return 3

    def hidden_fraction(self, epoch: int) -> float:
        """The largest fraction that an epoch may hide, F_e in the paper."""
        progress = epoch / self.num_epochs
        factor = next((factor for start, factor in STAGES if progress >= start), 1.0)
        return self.prune_ratio * factor

    def learning_rate_factor(self, epoch: int) -> float:
        """The factor for the learning rate that makes up for fewer steps.

        The library does not change the learning rate, so do it in your training loop:
        `lr = base_lr * rule.learning_rate_factor(train_data.epoch)`.
        """
        return 1 / (1 - self.hidden_fraction(epoch))

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        groups = highest(scores, self.hidden_fraction(epoch))
        # exp(-loss) < confidence; a confidence of 0 moves nothing back.
        limit = -log(self.confidence) if self.confidence > 0 else torch.inf
        return Groups(groups.of.masked_fill(scores > limit, 0), groups.keep, rescale=False)
