"""All of the hard samples and a few of the others, without rescaling: a rule of this library.

Of n samples, the h n with the highest losses are hard, and all of them are kept. Of the others the
fraction e (`easy`) is kept. So the fraction skipped (`prune_ratio`) is r = (1 - h)(1 - e). With
t (`trim`) above 0, the t n highest losses count as easy, because their labels may be wrong, and the
h n below them are hard.

Selective-Backprop (Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers",
2019) also trains hard samples more often without giving them a smaller weight. It chooses inside
each batch, after a forward pass of all its samples.

Cost: one selection (no sort), or two with t > 0. Biased: a hard sample counts 1/e times as much as
an easy one. With t = 0, samples with wrong labels are among the hard ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infobatch.errors import check_fraction
from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything, known, settle, settle_ratio
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
    """The fraction of all samples, those with the highest losses, that counts as easy. Set it to
    the part of the labels that may be wrong. Leave it at 0 if classes are rare: their losses are
    high too."""

    def __post_init__(self) -> None:
        settle_ratio(self)
        settle(self, easy=check_fraction("easy", self.easy, one_allowed=False))
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
        settle(self, trim=check_fraction("trim", self.trim, one_allowed=False))
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
        return 3 if self.trim else 2

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        cut, skipped = 1 - self.hard, 1 - self.easy
        if not (self.trim and self.hard):
            return Tiers(((cut, skipped),), rescale=False).groups(scores, memory, epoch)
        seen = torch.from_numpy(known(scores))
        num_seen = int(seen.sum())
        if num_seen == 0:
            return everything(scores)
        # Easy, hard, and on top what is not trusted.
        tiers = ((max(0.0, cut - self.trim), skipped), (1 - self.trim, 0.0))
        of = Tiers(tiers, rescale=False).groups(scores, memory, epoch).of
        num_top = int(((of == 2) & seen).sum())
        # Equal losses may put more samples on top than are to be trimmed. They cannot be told
        # apart, so they are kept at the rate of so many hard and so many easy ones.
        surplus = num_top - round(self.trim * num_seen)
        num_hard = min(max(surplus, 0), round(self.hard * num_seen))
        top = (num_hard + (num_top - num_hard) * self.easy) / num_top
        of = torch.where(seen, of, 1).to(torch.uint8)  # what was never seen is kept
        return Groups(of, keep=(self.easy, 1.0, top), rescale=False)
