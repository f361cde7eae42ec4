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
    """float32, aligned with `indices`."""
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
        crc = zlib.crc32(self.weights.numpy().data, zlib.crc32(self.indices.numpy().data))
        return f"{self.epoch}:{len(self.indices)}:{crc:08x}"

    def __len__(self) -> int:
        return self.indices.shape[0]  # a step asks; len() of a tensor takes ten times as long


def draw(groups: Groups, seed: int, epoch: int) -> Plan:
    """Draw an epoch: `draw(Mean().groups(scores, {}, 3), seed=0, epoch=3)`.

    First each group is thinned to its share, then what is kept of all of them is shuffled together:
    so the samples of a group are spread over the whole epoch.
    """
    groups.check()
    drawn_in = epoch if groups.drawn_in is None else groups.drawn_in
    draw_rng = _generator("draw", seed, drawn_in)
    kept, weight_of = [], np.ones(len(groups.keep), dtype=np.float32)
    for group, members in enumerate(_members(groups)):
        n = len(members)
        m = max(round(n * groups.keep[group]), 1) if n and groups.keep[group] > 0 else 0
        kept.append(members if m == n else np.compress(_choose(m, n, draw_rng), members))
        if groups.rescale and m:
            weight_of[group] = n / m
    ends = np.cumsum([len(part) for part in kept])
    if ends[-1] == 0:
        raise ValueError(f"the rule keeps no sample of epoch {epoch}: let it keep at least one.")
    samples = torch.from_numpy(np.concatenate(kept))
    del kept, members  # some bytes per sample that are not needed any more
    order = torch.randperm(
        len(samples), generator=_generator("order", seed, epoch), dtype=samples.dtype
    )
    indices = torch.empty(len(samples), dtype=torch.int64)
    weights = torch.empty(len(samples), dtype=torch.float32)
    for block in _blocks(len(samples)):
        indices[block] = samples.index_select(0, order[block])
        # The samples stand group after group, so the place that one comes from tells its group.
        group_at = _group_of(order[block].numpy(), ends)
        weights[block] = torch.from_numpy(weight_of.take(group_at))
    return Plan(epoch, indices, weights, len(groups.of), groups.threshold)


def _blocks(length: int) -> Iterator[slice]:
    """Parts small enough that what is computed for one uses the memory of the one before."""
    return (slice(start, start + BLOCK) for start in range(0, length, BLOCK))


def _members(groups: Groups) -> Iterator[NDArray[np.integer]]:
    """The samples of each group; half as wide as indices are, for half the memory traffic."""
    of = groups.of.numpy()
    narrow: type[np.int32 | np.int64] = np.int32 if len(of) < 2**31 else np.int64
    if len(groups.keep) > FEW:
        ends = np.cumsum(np.bincount(of, minlength=len(groups.keep)))
        yield from np.split(np.argsort(of, kind="stable").astype(narrow), ends[:-1])
        return
    for group in range(len(groups.keep)):
        num_members = sum(int(np.count_nonzero(of[b] == group)) for b in _blocks(len(of)))
        members, end = np.empty(num_members, dtype=narrow), 0
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
