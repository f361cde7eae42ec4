"""IES, Yuan et al., "Instance-dependent Early Stopping", ICLR 2025.

A sample is mastered, and dropped, while the mean of its last three |second differences|
l_t - 2 l_(t-1) + l_(t-2) is below a threshold: 1e-3 on CIFAR-10, 2e-3 on CIFAR-100.

Cost: one pass, and four floats per sample. Biased: what is dropped is not made up for.

Not guaranteed: the paper forwards the dropped samples in each epoch without training them, so that
they can come back at once. That saves the backward passes only, and a rule sees only the losses of
trained samples: without being trained, a sample stays dropped for good. Wrap the rule in `Revisit`,
which trains dropped samples again after some epochs; the table's `ies` is. The differences are then
those between visits. Where all samples are mastered, all are trained once more: an epoch cannot be
empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything, settle

NUM_PREVIOUS = 4
"""Three second differences take five losses; the last of them is the score."""


@dataclass(frozen=True)
class IES(Rule):
    """Skips the samples whose loss has stopped curving from visit to visit. Biased.

    >>> IES(threshold=2e-3).unbiased
    False
    """

    threshold: float = 1e-3
    """A sample is skipped while its mean |second difference| is below it."""

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise ValueError(f"threshold is {self.threshold!r}, expected a number above 0.")
        settle(self, threshold=float(self.threshold))

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return 2

    def init(self, num_samples: int) -> Memory:
        return {"previous": torch.full((num_samples, NUM_PREVIOUS), torch.nan, dtype=torch.float32)}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        # NaN, where fewer than five losses are known, is not below the threshold.
        mastered = self._mean_second_difference(scores, memory) < self.threshold
        if bool(mastered.all()):
            return everything(scores)
        return Groups(of=mastered.to(torch.uint8), keep=(1.0, 0.0), rescale=False)

    def _mean_second_difference(self, scores: Tensor, memory: Memory) -> Tensor:
        newest_first = (scores, *memory["previous"].unbind(dim=1))
        total = torch.zeros_like(scores)
        for new, middle, old in zip(newest_first, newest_first[1:], newest_first[2:], strict=False):
            total += (new - 2 * middle + old).abs()
        return total / (NUM_PREVIOUS - 1)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        previous = memory["previous"].clone()
        # A score that is NaN is passed on, so that a sample with one starts anew.
        older = previous[indices, :-1]
        previous[indices] = torch.cat((scores[indices, None], older), dim=1)
        return {"previous": previous}
