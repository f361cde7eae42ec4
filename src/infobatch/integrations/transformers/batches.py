"""The order of an epoch, for the Trainer's loader: sample by sample, or in smaller batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from torch.utils.data import Sampler

from infobatch import Plan


class PlanOrder(Sampler[int]):
    """The whole epoch, for all processes, even when resumed: the Trainer skips what is done."""

    def __init__(self, plan: Callable[[], Plan]) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[int]:
        return iter(self._plan().indices.tolist())

    def __len__(self) -> int:
        return len(self._plan())


class PlanBatches(Sampler[list[int]]):
    """The whole epoch in a given number of batches, for all processes, even when resumed.

    Their sizes vary from epoch to epoch, so accelerate, which shards them, finds no `batch_size`.
    """

    batch_size = None
    drop_last = False

    def __init__(self, plan: Callable[[], Plan], num_batches: int) -> None:
        self._plan, self._num_batches = plan, num_batches

    def bounds(self) -> list[int]:
        """Where each batch begins, and where the last one ends."""
        num_kept = len(self._plan())
        if num_kept < self._num_batches:
            raise ValueError(
                f'shrink is "batch", but {num_kept} samples are kept for {self._num_batches} '
                'batches: use larger batches, or shrink = "epoch".'
            )
        return [j * num_kept // self._num_batches for j in range(self._num_batches + 1)]

    def __iter__(self) -> Iterator[list[int]]:
        indices = self._plan().indices.tolist()
        return (indices[a:b] for a, b in pairwise(self.bounds()))

    def __len__(self) -> int:
        return self._num_batches
