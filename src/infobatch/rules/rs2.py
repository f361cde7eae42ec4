"""RS2, Okanovic et al., "Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning",
ICLR 2024, without replacement.

A permutation of the n samples is walked in chunks of k = (1 - r) n, one per epoch, and shuffled
anew when it is used up. Here an epoch draws k of the samples that the current round has not
trained yet, and fills up from the others when fewer than k are left: the same distribution, from a
byte per sample in place of a permutation.

Cost: one pass, and a byte per sample. Biased: an epoch leaves out what the round has trained, and
its weights are 1. Over a whole round every sample is trained once.

Not guaranteed: the paper's first epoch is a chunk like the others, but here samples never trained
are kept, so the first epoch is a full one. The ratio of 0.5 is ours, the one of Random*; the
paper's headline keeps 10 % per epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything, known, settle_ratio

KEPT, LEFT, USED = 0, 1, 2


@dataclass(frozen=True)
class RS2(Rule):
    """Trains 1 - `prune_ratio` of all samples, none twice before all were trained. Biased.

    >>> RS2(0.9).unbiased
    False
    """

    prune_ratio: float = 0.5

    def __post_init__(self) -> None:
        settle_ratio(self)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return 3

    def init(self, num_samples: int) -> Memory:
        return {"used": torch.zeros(num_samples, dtype=torch.bool)}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        seen, used = known(scores), memory["used"].numpy()
        if not seen.any():
            return everything(scores)
        of = np.where(seen, np.where(used, USED, LEFT), KEPT).astype(np.uint8)
        num_left = int(np.count_nonzero(of == LEFT))
        num_used = int(np.count_nonzero(of == USED))
        num_kept = max(1, round((num_left + num_used) * (1 - self.prune_ratio)))
        from_left = min(num_kept, num_left)
        from_used = num_kept - from_left
        return Groups(
            of=torch.from_numpy(of),
            keep=(1.0, from_left / max(1, num_left), from_used / max(1, num_used)),
            rescale=False,
        )

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        before = memory["used"]
        used = before.clone()
        used[indices] = True
        is_over = bool((used | torch.isnan(scores)).all())
        if is_over:
            # The next round has begun with those that were trained although the last had had them.
            used = torch.zeros_like(before)
            used[indices[before[indices]]] = True
        return {"used": used}
