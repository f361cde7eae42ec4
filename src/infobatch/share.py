"""What one rank trains of a plan: every so-many-th place of it, equally many on all ranks.

So a step of all ranks together is a run of the plan, whatever their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from infobatch.plan import Plan


@dataclass(frozen=True, eq=False)
class Share:
    """The samples of one rank, in order; where it has one less than others, a repeat at weight 0.

    >>> plan = Plan(0, torch.tensor([4, 2, 0]), torch.ones(3), num_samples=5)
    >>> Share(plan, rank=1, num_ranks=2).indices, Share(plan, rank=1, num_ranks=2).weights
    (tensor([2, 4]), tensor([1., 0.]))
    """

    plan: Plan
    done: Tensor | None = None
    """Which places of the plan were trained before a resume; they are not shared out again."""
    rank: int = 0
    num_ranks: int = 1

    @cached_property
    def _to_do(self) -> Tensor | slice:
        """The places of the plan that are shared out, in order."""
        return slice(None) if self.done is None else (~self.done).nonzero().squeeze(1)

    @cached_property
    def num_to_do(self) -> int:
        """How many samples all ranks have before them."""
        return len(self.plan) if isinstance(self._to_do, slice) else len(self._to_do)

    @cached_property
    def places(self) -> Tensor | slice:
        """The places of the plan that are this rank's, in order."""
        if isinstance(self._to_do, slice):
            return slice(self.rank, None, self.num_ranks)
        return self._to_do[self.rank :: self.num_ranks]

    def __len__(self) -> int:
        return -(-self.num_to_do // self.num_ranks)

    @property
    def num_own(self) -> int:
        """How many of them are not a repeat: the first ones."""
        return len(range(self.rank, self.num_to_do, self.num_ranks))

    @property
    def is_padded(self) -> bool:
        return self.num_own < len(self)

    @cached_property
    def indices(self) -> Tensor:
        """int64, in training order."""
        own = self.plan.indices[self.places].contiguous()
        # The plan's first sample: nobody's or rank 0's, which never needs a repeat, and the same
        # before and after a resume, since layers that look at the whole batch see it too.
        return torch.cat([own, self.plan.indices[:1]]) if self.is_padded else own

    @cached_property
    def weights(self) -> Tensor:
        """float32, aligned with `indices`."""
        own = self.plan.weights[self.places]
        return torch.cat([own, own.new_zeros(1)]) if self.is_padded else own

    def done_on_all_ranks(self, reported: Tensor) -> Tensor:
        """Which places are trained if every rank is as far as this one: `reported` by its own."""
        done = (
            torch.zeros(len(self.plan), dtype=torch.bool)
            if self.done is None
            else self.done.clone()
        )
        done[self._to_do] = reported.repeat_interleave(self.num_ranks)[: self.num_to_do]
        return done
