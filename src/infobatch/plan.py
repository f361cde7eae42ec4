"""Groups in, this epoch's samples out: which, in which order, with which weight.

Notation of the paper: of the n samples of a group m are kept and weigh gamma = n/m (Eq. 6 to 8),
so the weights of an epoch sum to the size of the data set.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.groups import Groups

BLOCK = 1 << 15
"""How many samples are looked at together."""

FEW = 8
"""So many groups are told apart by a pass for each; more of them (classes) by sorting."""


@dataclass(frozen=True, eq=False)
class Plan:
    """One epoch: the samples to train, in order, and their weights.

    >>> Plan(0, torch.tensor([2, 0]), torch.ones(2), num_samples=3).num_pruned
    1
    """

    epoch: int
    indices: Tensor
    """int64, in training order."""
    weights: Tensor
    """float32, aligned with `indices`; not to be written to, it may be one number expanded."""
    num_samples: int
    """The size of the data set."""
    threshold: float | None = None
    """What the scores were compared with, where the rule has one threshold."""

    @property
    def num_pruned(self) -> int:
        return self.num_samples - len(self)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal plans; notices a torch that draws differently."""
        crc = zlib.crc32(self.indices.numpy().data)
        crc = zlib.crc32(np.ascontiguousarray(self.weights.numpy()).data, crc)
        return f"{self.epoch}:{len(self.indices)}:{crc:08x}"

    def __len__(self) -> int:
        return self.indices.shape[0]  # a step asks; len() of a tensor takes ten times as long


def draw(groups: Groups, seed: int, epoch: int) -> Plan:
    """Draw an epoch: `draw(Mean().groups(scores, {}, 3), seed=0, epoch=3)`.

    First each group is thinned to its share, then what is kept of all of them is shuffled together:
    so the samples of a group are spread over the whole epoch.
    """
    groups.check()
    num_samples, order_rng = len(groups.of), _generator("order", seed, epoch)
    if set(groups.keep) == {1.0}:
        everything = torch.randperm(num_samples, generator=order_rng)
        all_one = torch.ones(1, dtype=torch.float32).expand(num_samples)  # one number in memory
        return Plan(epoch, everything, all_one, num_samples, groups.threshold)
    drawn_in = epoch if groups.drawn_in is None else groups.drawn_in
    samples, ends, weight_of = _thin(groups, _generator("draw", seed, drawn_in))
    if len(samples) == 0:
        raise ValueError(f"the rule keeps no sample of epoch {epoch}: let it keep at least one.")
    order = torch.randperm(len(samples), generator=order_rng, dtype=samples.dtype)
    indices = torch.empty(len(samples), dtype=torch.int64)
    weights = torch.empty(len(samples), dtype=torch.float32)
    for block in _blocks(len(samples)):
        indices[block] = samples.index_select(0, order[block])
        # The samples stand group after group, so the place that one comes from tells its group.
        group_at = _group_of(order[block].numpy(), ends)
        weights[block] = torch.from_numpy(weight_of.take(group_at))
    return Plan(epoch, indices, weights, num_samples, groups.threshold)


def _thin(
    groups: Groups, rng: torch.Generator
) -> tuple[Tensor, NDArray[np.integer], NDArray[np.float32]]:
    """What is kept, group after group; where each group ends, and what its samples weigh."""
    sizes = _sizes(groups)
    shares = [_share(n, fraction) for n, fraction in zip(sizes, groups.keep, strict=True)]
    ends = np.cumsum(shares)
    weight_of = np.ones(len(sizes), dtype=np.float32)
    # Half as wide as indices are, for half the memory traffic: that is what planning costs.
    samples = torch.empty(ends[-1], dtype=torch.int32 if sum(sizes) < 2**31 else torch.int64)
    for group, members in enumerate(_members(groups, sizes, samples.numpy().dtype)):
        n, m, end = sizes[group], shares[group], ends[group]
        kept = members if m == n else np.compress(_choose(m, n, rng), members)
        samples[end - m : end] = torch.from_numpy(kept)
        if groups.rescale and m:
            weight_of[group] = n / m
    return samples, ends, weight_of


def _blocks(length: int) -> Iterator[slice]:
    """Parts small enough that what is computed for one uses the memory of the one before."""
    return (slice(start, start + BLOCK) for start in range(0, length, BLOCK))


def _share(n: int, fraction: float) -> int:
    """How many of n to keep: m = n(1 - r), rounded, at least one of what is kept at all."""
    return max(round(n * fraction), 1) if n and fraction > 0 else 0


def _sizes(groups: Groups) -> list[int]:
    """The number of samples in each group."""
    of, num_groups = groups.of.numpy(), len(groups.keep)
    if num_groups > FEW:
        return [int(size) for size in np.bincount(of, minlength=num_groups)]
    return [
        sum(int(np.count_nonzero(of[block] == group)) for block in _blocks(len(of)))
        for group in range(num_groups)
    ]


def _members(
    groups: Groups, sizes: list[int], dtype: np.dtype[Any]
) -> Iterator[NDArray[np.integer]]:
    """The samples of each group, one group after the other."""
    of = groups.of.numpy()
    if len(sizes) > FEW:
        by_group = np.argsort(of, kind="stable").astype(dtype)
        yield from np.split(by_group, np.cumsum(sizes)[:-1])
        return
    for group, size in enumerate(sizes):
        members, end = np.empty(size, dtype=dtype), 0
        for block in _blocks(len(of)):
            found = np.flatnonzero(of[block] == group)
            members[end : end + len(found)] = found + block.start
            end += len(found)
        yield members


def _choose(m: int, n: int, rng: torch.Generator) -> NDArray[np.bool_]:
    """A uniformly random choice of m of n: those with the m smallest of n random numbers."""
    if m == 0:
        return np.zeros(n, dtype=np.bool_)
    keys = _keys(n, rng)
    cut = np.partition(keys, m - 1)[m - 1]
    chosen: NDArray[np.bool_] = keys < cut
    tied = np.flatnonzero(keys == cut)
    num_missing = m - int(np.count_nonzero(chosen))
    chosen[tied[torch.randperm(len(tied), generator=rng)[:num_missing].numpy()]] = True
    return chosen


def _group_of(places: NDArray[np.integer], ends: NDArray[np.integer]) -> NDArray[np.integer]:
    """The group of each place, given where the groups end."""
    if len(ends) > FEW:
        return np.searchsorted(ends, places, side="right")
    group = np.zeros(len(places), dtype=np.uint8)
    for end in ends[:-1]:
        group += places >= end
    return group


def _keys(n: int, rng: torch.Generator) -> NDArray[np.int32]:
    keys: NDArray[np.int32] = torch.empty(n, dtype=torch.int32).random_(generator=rng).numpy()
    return keys


def _generator(purpose: str, seed: int, epoch: int) -> torch.Generator:
    """A generator of its own; hashed, so that seed 1 epoch 0 is not seed 0 epoch 1."""
    digest = hashlib.blake2b(f"{purpose},{seed},{epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
