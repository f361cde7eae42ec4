"""All of the hard samples and a few of the others, without rescaling: a rule of this library.

Of n samples, the h n with the highest losses are all kept, and of the others the fraction e. So the
fraction r is skipped if r = (1 - h)(1 - e).

Selective-Backprop (Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers",
2019) trains hard samples more often too, and gives them no smaller weight for it; it draws inside
of each batch, after a forward pass of all samples.

Cost: one selection (no sort). Biased: hard samples count more than in full training, by up to 1/e,
and among them those whose labels are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infobatch.errors import check_fraction
from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, settle_ratio
from infobatch.rules.tiers import Tiers


@dataclass(frozen=True)
class Focus(Rule):
    """Skips the fraction `prune_ratio` of all samples, none of the hardest. Biased.

    >>> round(Focus(0.63, easy=0.1).hard, 3)
    0.3
    """

    prune_ratio: float = 0.63
    easy: float = 0.1
    """The fraction kept of the samples that are not among the hardest."""

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

    @property
    def hard(self) -> float:
        """The part of all samples that counts as hard: `Focus().hard`."""
        return max(0.0, 1 - self.prune_ratio / (1 - self.easy))  # rounding may end below 0

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return 2

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        tiers = Tiers(((1 - self.hard, 1 - self.easy),), rescale=False)
        return tiers.groups(scores, memory, epoch)
