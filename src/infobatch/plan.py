"""Groups in, this epoch's samples out: which, in which order, with which weight.

Notation of the paper: of the n samples of a group m are kept and weigh gamma = n/m (Eq. 6 to 8),
so the weights of an epoch sum to the size of the data set.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.groups import Groups


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
        return self.num_samples - len(self.indices)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal plans; notices a torch that draws differently."""
        crc = zlib.crc32(self.weights.numpy().data, zlib.crc32(self.indices.numpy().data))
        return f"{self.epoch}:{len(self.indices)}:{crc:08x}"

    def __len__(self) -> int:
        return len(self.indices)


def draw(groups: Groups, seed: int, epoch: int) -> Plan:
    """Draw an epoch: `draw(Mean().groups(scores, {}, 3), seed=0, epoch=3)`.

    One random permutation both shuffles and draws. The members of a group stand in it in random
    order, so leaving out those of fixed ranks leaves out a uniformly random subset; and as these
    ranks are evenly spaced, the kept ones stay spread over the whole epoch.
    """
    drawn_in = epoch if groups.drawn_in is None else groups.drawn_in
    order = _permutation(len(groups.of), seed, drawn_in)
    if all(fraction == 1 for fraction in groups.keep):
        indices, weights = order.long(), torch.ones(len(order))
    else:
        group_at = groups.of.index_select(0, order).numpy()
        kept, weight_of = _thin(group_at, groups)
        indices = torch.from_numpy(np.compress(kept, order.numpy()).astype(np.int64))
        weights = torch.from_numpy(weight_of.take(np.compress(kept, group_at)))
    if len(indices) == 0:
        raise ValueError(f"the rule keeps no sample of epoch {epoch}: let it keep at least one.")
    if drawn_in != epoch:
        order = _permutation(len(indices), seed, epoch)
        indices, weights = indices.index_select(0, order), weights.index_select(0, order)
    return Plan(epoch, indices, weights, num_samples=len(groups.of), threshold=groups.threshold)


def _thin(
    group_at: NDArray[np.integer], groups: Groups
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Which places of the permutation are kept, and what the kept of each group weigh."""
    kept = np.ones(len(group_at), dtype=np.bool_)
    weight_of = np.ones(len(groups.keep), dtype=np.float32)
    for group, places in _places_of_groups(group_at, groups.keep):
        n = len(places)
        m = max(round(n * groups.keep[group]), 1) if groups.keep[group] > 0 else 0
        if m < n:
            skipped = np.arange(n - m) * n // (n - m)
            kept[places[skipped]] = False
            if groups.rescale and m:
                weight_of[group] = n / m
    return kept, weight_of


def _places_of_groups(
    group_at: NDArray[np.integer], keep: tuple[float, ...]
) -> list[tuple[int, NDArray[np.intp]]]:
    """The places of every group that is not kept whole, in rising order."""
    thinned = [group for group, fraction in enumerate(keep) if fraction < 1]
    if len(thinned) <= 8:
        return [(group, np.flatnonzero(group_at == group)) for group in thinned]
    # With many groups (classes) a pass for each would be slow: one stable sort finds them all.
    by_group = np.argsort(group_at, kind="stable")
    ends = np.cumsum(np.bincount(group_at, minlength=len(keep)))
    return [(group, by_group[ends[group - 1] if group else 0 : ends[group]]) for group in thinned]


def _permutation(length: int, seed: int, epoch: int) -> Tensor:
    """A permutation that depends on (seed, epoch) alone and touches no global generator."""
    # Hashed, so that seed 1 epoch 0 is not seed 0 epoch 1.
    digest = hashlib.blake2b(f"{seed},{epoch}".encode(), digest_size=8).digest()
    rng = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    # Half as wide is half the memory traffic, which is what a permutation costs.
    dtype = torch.int32 if length < 2**31 else torch.int64
    return torch.randperm(length, generator=rng, dtype=dtype)
