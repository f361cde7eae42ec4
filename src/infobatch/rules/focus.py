"""All of the hard samples and a few of the others, without rescaling: a rule of this library.

Of n samples, the h n with the highest losses are all kept, and of the others the fraction e. So the
fraction r is skipped if r = (1 - h)(1 - e). If t n labels may be wrong, the t n samples with the
highest losses count as easy, and the next h n are the hard ones.

Selective-Backprop (Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers",
2019) also trains hard samples more often without giving them a smaller weight. It chooses inside
each batch, after a forward pass of all its samples.

Cost: one selection (no sort), or two with t > 0. Biased: hard samples count more than in full
training, by up to 1/e, and with t = 0 those whose labels are wrong are among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infobatch.errors import check_fraction
from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, settle_ratio
from infobatch.rules.tiers import Tiers


@dataclass(frozen=True)
class Focus(Rule):
    """Skips the fraction `prune_ratio` of all samples, but none of the hard ones. Biased.

    >>> round(Focus(0.63, easy=0.1).hard, 3)
    0.3
    """

    prune_ratio: float = 0.63
    easy: float = 0.1
    """The fraction kept of the samples that are not hard."""
    trim: float = 0.0
    """This fraction of all samples, those with the highest losses, counts as easy. Set it to the
    part of the labels that may be wrong."""

    def __post_init__(self) -> None:
        settle_ratio(self)
        object.__setattr__(self, "easy", check_fraction("easy", self.easy, one_allowed=False))
        if self.easy == 0:
            raise ValueError(
                "easy is 0, expected 0 < easy < 1: a sample that is never trained again would keep "
                "its score for ever."
            )
        if self.prune_ratio + self.easy > 1:
            raise ValueError(
                f"prune_ratio is {self.prune_ratio}, expected at most {1 - self.easy:g}: the "
                f"fraction {self.easy} of the easy samples is always kept (easy={self.easy})."
            )
        object.__setattr__(self, "trim", check_fraction("trim", self.trim, one_allowed=False))
        if self.trim + self.hard > 1 + 1e-9:  # rounding may end above 1
            raise ValueError(
                f"trim is {self.trim}, expected at most {1 - self.hard:g}: the fraction "
                f"{self.hard:g} of all samples counts as hard (prune_ratio={self.prune_ratio})."
            )

    @property
    def hard(self) -> float:
        """The part of all samples that counts as hard: `Focus().hard`."""
        return max(0.0, 1 - self.prune_ratio / (1 - self.easy))  # rounding may end below 0

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return 4 if self.trim else 2

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        skipped, trusted = 1 - self.easy, 1 - self.trim
        if self.trim and self.hard:
            tiers = ((max(0.0, trusted - self.hard), skipped), (trusted, 0.0))
            found = Tiers(tiers, rescale=False).groups(scores, memory, epoch)
            if bool((found.of < 2).any()):  # else all losses are equal, and none is suspicious
                of = torch.where(scores.isnan(), 3, found.of).to(torch.uint8)
                return Groups(of, keep=(self.easy, 1.0, self.easy, 1.0), rescale=False)
        tier = (1 - self.hard, skipped)
        return Tiers((tier,), rescale=False).groups(scores, memory, epoch)
