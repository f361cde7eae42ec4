"""Batches in which all samples have the same weight, for a loss that is one number.

Such a loss cannot be weighted sample by sample; multiplied by the one weight of its batch, it is.
Every rank has whole batches of its own, equally many: a repeat that evens out the ranks could not
be left out of a loss that is one number, unless it is alone in its batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.shard import Shard

MOST_WEIGHTS = 8
"""With more weights, batches would hold samples of one small group each."""


@dataclass(frozen=True)
class Bounds:
    """Where batches of any size begin and end: `Bounds([0, 3, 7])`."""

    bounds: list[int]

    @property
    def num_batches(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_positions(self) -> int:
        return self.bounds[-1]

    def bound(self, j: int) -> int:
        """Where batch j begins and batch j - 1 ends."""
        return self.bounds[min(j, self.num_batches)]


@dataclass(frozen=True, eq=False, kw_only=True)
class UniformShard(Shard):
    """A rank's own batches, which stand behind what is done and behind the other ranks'.

    A rank without a batch in the last step repeats one sample at weight 0.
    """

    order: Tensor
    """The entry of the plan that each entry of the epoch is: done, of other ranks, of this one."""
    batching: Bounds
    """The batches of this rank."""
    others: Bounds
    """For each of them, those of the other ranks in the same step."""

    def __len__(self) -> int:
        return self.batching.num_positions

    @cached_property
    def num_own(self) -> int:
        return self.end - self.start - self.others.num_positions

    @property
    def repeat(self) -> int:
        # The last of the other ranks' entries is trained in the last step, so it is the same one
        # before and after a resume.
        return self.end - self.num_own - 1

    def entries(self, positions: slice) -> slice:
        offset = self.end - self.num_own
        return slice(offset + positions.start, offset + positions.stop)

    def num_done(self, num_positions: int) -> int:
        """How many samples all ranks have trained when this one has done so many positions."""
        step = bisect_right(self.batching.bounds, num_positions) - 1
        return self.start + min(num_positions, self.num_own) + self.others.bound(step)

    def done(self, own: Tensor) -> Tensor:
        done = torch.zeros(self.end, dtype=torch.bool)
        done[self.entries(slice(0, self.num_own))] = own[: self.num_own]
        for j in range(self.batching.num_batches):
            is_done = own[self.batching.bound(j) : self.batching.bound(j + 1)].all()
            done[self.start + self.others.bound(j) : self.start + self.others.bound(j + 1)] = (
                is_done
            )
        return done


def uniform_shard(
    weights: Tensor,
    done: Tensor | None,
    batch_size: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    multiple: int = 1,
) -> UniformShard:
    """What is left of a plan with these weights, for one rank; `done` is trained already.

    The number of batches of all ranks is a multiple of `multiple`, where there is enough to split.

    >>> shard = uniform_shard(torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0]), None, batch_size=2)
    >>> shard.order.tolist(), shard.batching.bounds
    ([0, 2, 1, 3, 4], [0, 2, 4, 5])
    """
    batches, first_step = cut(weights.numpy(), batch_size, multiple), 0
    behind: NDArray[Any] = np.empty(0, dtype=np.int64)
    if done is not None:
        behind = np.flatnonzero(done.numpy())
        num_done = _num_done(batches, done.numpy())
        if num_done is not None and num_done % multiple == 0:
            batches, first_step = batches[num_done:], num_done // world_size
        else:  # the batches were others before the resume
            left = np.flatnonzero(~done.numpy())
            batches = [left[batch] for batch in cut(weights.numpy()[left], batch_size, multiple)]
    own, others, of_others, num_others = [], [], [], 0
    for step in range(-(-len(batches) // world_size)):
        together = batches[step * world_size : (step + 1) * world_size]
        # Ranks take turns: where weights alternate, none of them sees one weight only.
        turn = (rank + first_step + step) % world_size
        own += together[turn : turn + 1]
        of_step = together[:turn] + together[turn + 1 :]
        others += of_step
        num_others += sum(map(len, of_step))
        of_others.append(num_others)
    sizes = [len(batch) for batch in own] + [1] * (len(of_others) - len(own))
    return UniformShard(
        start=len(behind),
        end=len(weights),
        rank=rank,
        world_size=world_size,
        order=torch.from_numpy(np.concatenate([behind, *others, *own])),
        batching=Bounds([0, *accumulate(sizes)]),
        others=Bounds([0, *of_others]),
    )


def cut(weights: NDArray[np.float32], batch_size: int, multiple: int) -> list[NDArray[Any]]:
    """Batches of entries that have one weight each, in the order in which they are trained.

    Within a weight sizes differ by one at most. A batch stands where its middle entry stands in the
    plan, which is shuffled: so the batches of a weight are spread over the whole epoch.

    >>> [batch.tolist() for batch in cut(np.float32([1, 1, 2, 1, 2, 1]), batch_size=3, multiple=1)]
    [[0, 1], [2, 4], [3, 5]]
    """
    groups = [np.flatnonzero(weights == weight) for weight in _distinct(weights)]
    counts = _num_batches([len(group) for group in groups], batch_size, multiple)
    batches = [
        batch
        for group, count in zip(groups, counts, strict=True)
        for batch in np.array_split(group, count)
    ]
    return sorted(batches, key=lambda batch: int(batch[len(batch) // 2]))


def _num_done(batches: list[NDArray[Any]], done: NDArray[np.bool_]) -> int | None:
    """How many of the batches are done, where these are the first ones; else None."""
    is_done = [bool(done[batch].all()) for batch in batches]
    num_done = sum(is_done)
    is_front = all(is_done[:num_done]) and sum(map(len, batches[:num_done])) == done.sum()
    return num_done if is_front else None


def _distinct(weights: NDArray[np.float32]) -> list[np.float32]:
    """The different weights, in the order in which they come."""
    found: list[np.float32] = []
    while len(weights):
        if len(found) == MOST_WEIGHTS:
            raise ValueError(
                f"the epoch has more than {MOST_WEIGHTS} different weights, too many for batches "
                "of one weight each (uniform=True): use a rule that makes few groups (mean, tiers)."
            )
        found.append(weights[0])
        weights = weights[weights != weights[0]]
    return found


def _num_batches(sizes: Sequence[int], batch_size: int, multiple: int) -> list[int]:
    """How many batches to make of each weight: as few as possible, in all a multiple.

    Where all batches are of one sample there is nothing left to split, and the sum is what it is.
    """
    counts = [-(-size // batch_size) for size in sizes]
    while sum(counts) % multiple and sum(counts) < sum(sizes):
        largest = max(range(len(sizes)), key=lambda group: sizes[group] / counts[group])
        counts[largest] += 1
    return counts
