"""A rank's part of an epoch, and the batches it is cut into. Pure arithmetic.

Rank r of W has the entries r, r + W, r + 2W, ... of what is left of the plan, so a step of all
ranks together is a run of the plan, whatever their number. Where the entries do not divide evenly,
the last ranks repeat one sample at weight 0: all ranks take equally many steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Every `world_size`-th entry of an epoch from `start` on; equal counts on all ranks.

    >>> shard = Shard(start=0, end=5, rank=1, world_size=2)
    >>> len(shard), shard.num_own, shard.entries(slice(0, 2))
    (3, 2, slice(1, 5, 2))
    """

    start: int
    """Entries before it were trained before a resume."""
    end: int
    """The number of entries in the epoch."""
    rank: int = 0
    world_size: int = 1

    def __len__(self) -> int:
        return -(-(self.end - self.start) // self.world_size)

    @cached_property
    def num_own(self) -> int:
        """How many positions are not a repeat; the repeat, if there is one, comes last."""
        return len(range(self.start + self.rank, self.end, self.world_size))

    @cached_property
    def is_everything(self) -> bool:
        """Whether positions and entries are the same."""
        return self.start == 0 and self.world_size == 1

    @property
    def repeat(self) -> int:
        """The entry whose sample evens out the ranks, at weight 0.

        The first one: it is never a rank's own where a repeat is needed, and it is the same before
        and after a resume, since layers that look at the whole batch see it too.
        """
        return 0

    def entries(self, positions: slice) -> slice:
        """The entries of the epoch at these positions of the shard."""
        offset, step = self.start + self.rank, self.world_size
        return slice(offset + positions.start * step, offset + positions.stop * step, step)

    def done(self, own: Tensor) -> Tensor:
        """Which entries are done if all ranks are as far as this one, with these positions."""
        done = torch.zeros(self.end, dtype=torch.bool)
        done[self.start :] = own.repeat_interleave(self.world_size)[: self.end - self.start]
        return done


@dataclass(frozen=True)
class Batching:
    """Where the batches of a shard begin and end: batch j has positions bound(j) to bound(j + 1).

    >>> by_size(10, 4).bounds, by_size(10, 4, drop_last=True).bounds
    ([0, 4, 8, 10], [0, 4, 8])
    """

    num_batches: int
    num_positions: int
    """How many positions the batches cover."""
    step: int
    per: int = 1
    first: int = 0
    offset: int = 0

    def bound(self, j: int) -> int:
        """Where batch j begins and batch j - 1 ends."""
        position = (self.first + j) * self.step // self.per - self.offset
        if position > self.num_positions:
            return self.num_positions
        return position if position > 0 else 0

    @property
    def bounds(self) -> list[int]:
        """All of them: `by_size(10, 4).bounds`."""
        return [self.bound(j) for j in range(self.num_batches + 1)]


def by_size(num_positions: int, batch_size: int, *, drop_last: bool = False) -> Batching:
    """Batches of one size; the last one may be smaller: `by_size(10, 4)`."""
    if drop_last:
        num_batches = num_positions // batch_size
        return Batching(num_batches, num_batches * batch_size, batch_size)
    return Batching(-(-num_positions // batch_size), num_positions, batch_size)


def steps_of(num_positions: int, batch_size: int, *, drop_last: bool = False) -> int:
    """How many batches a plain loader makes of so many samples: `steps_of(10, 4) == 3`."""
    return by_size(num_positions, batch_size, drop_last=drop_last).num_batches


def by_steps(num_positions: int, num_steps: int, *, done: int = 0) -> Batching:
    """`num_steps` batches whose sizes differ by one at most: `by_steps(10, 4)`.

    After a resume `done` of the positions are behind us. The bounds stay where they were, so that
    a resumed epoch has the batches of the uninterrupted one; a batch that was cut in two by
    another batch size or number of ranks is finished first.

    >>> by_steps(10, 4).bounds, by_steps(10, 4, done=5).bounds
    ([0, 2, 5, 7, 10], [0, 2, 5])
    """
    # The last bound i * num_positions // num_steps that is not beyond `done`.
    first = ((done + 1) * num_steps - 1) // num_positions
    return Batching(
        num_steps - first, num_positions - done, num_positions, num_steps, first, offset=done
    )
