"""Groups or probabilities in, this epoch's samples out: which, in which order, with which weight.

Notation of the paper: of the n samples of a group m are kept. Each stands for gamma = n/m samples,
and that is its weight (Eq. 6 to 8), so the weights of an epoch sum to the size of the data set.
With a probability p per sample a kept one stands for 1/p samples, and the weights sum to the size
of the data set in expectation. Without rescaling all weights are 1.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.groups import Groups, Probabilities, Selection

BLOCK = 1 << 15
"""How many samples are looked at together."""

FEW = 8
"""Up to this many groups are found with one pass each; more of them (classes) are sorted. Up to
this many distinct probabilities are drawn as groups; more of them one by one.
"""

Counts = Callable[[NDArray[np.integer], NDArray[np.integer]], NDArray[np.float32]]
"""How many samples some kept ones stand for, given their places among all that is kept, and their
indices.
"""


class Kept(NamedTuple):
    """What is left of a data set that was thinned."""

    samples: Tensor
    counts: Counts
    covers_all: bool
    """Whether each sample of the data set could have been kept."""


@dataclass(frozen=True, eq=False)
class Plan:
    """One epoch: the samples to train, in order, and their weights.

    >>> Plan(0, torch.tensor([2, 0]), torch.ones(2), num_samples=3).num_pruned
    1
    """

    epoch: int
    """The number of the epoch, counted from 0."""
    indices: Tensor
    """int64, in training order."""
    weights: Tensor
    """float32, one per index. Do not write to it: it may be one number, expanded."""
    num_samples: int
    """The size of the data set."""
    threshold: float | None = None
    """The number that scores were compared with, if the rule has one threshold."""
    rescaled: bool = True
    """Whether the weights make up for what is skipped; otherwise each of them is 1."""
    counts: Tensor | None = None
    """float32: how many samples of the data set each one stands for. The weights, if they make up
    for what is skipped. None if some samples could not be kept, so that none stands for them.
    """

    @property
    def num_pruned(self) -> int:
        """How many samples the epoch skips."""
        return self.num_samples - len(self)

    @cached_property
    def fingerprint(self) -> str:
        """A short text, equal for equal plans: it tells if another torch draws differently."""
        crc = zlib.crc32(self.indices.numpy().data)
        crc = zlib.crc32(np.ascontiguousarray(self.weights.numpy()).data, crc)
        return f"{self.epoch}:{len(self.indices)}:{crc:08x}"

    def __len__(self) -> int:
        return self.indices.shape[0]  # a step asks; len() of a tensor takes ten times as long


def draw(selection: Selection, seed: int, epoch: int) -> Plan:
    """Draw an epoch: `draw(Mean().groups(scores, {}, 3), seed=0, epoch=3)`.

    First the data set is thinned, group by group or sample by sample, then all that is kept is
    shuffled together: so the samples of a group are spread over the whole epoch.
    """
    selection.check()
    num_samples, order_rng = selection.num_samples, _generator("order", seed, epoch)
    if not selection.prunes:
        everything = torch.randperm(num_samples, generator=order_rng)
        ones = _ones(num_samples)
        return Plan(
            epoch,
            everything,
            weights=ones,
            num_samples=num_samples,
            threshold=selection.threshold,
            rescaled=selection.rescale,
            counts=ones,
        )
    drawn_in = epoch if selection.drawn_in is None else selection.drawn_in
    rng = _generator("draw", seed, drawn_in)
    kept = _thin(selection, rng)
    num_kept = len(kept.samples)
    if num_kept == 0:
        raise ValueError(f"the rule keeps no sample of epoch {epoch}: let it keep at least one.")
    order = torch.randperm(num_kept, generator=order_rng, dtype=kept.samples.dtype)
    indices = torch.empty(num_kept, dtype=torch.int64)
    counts = torch.empty(num_kept, dtype=torch.float32)
    for block in _blocks(num_kept):
        indices[block] = kept.samples.index_select(0, order[block])
        counts[block] = torch.from_numpy(kept.counts(order[block].numpy(), indices[block].numpy()))
    return Plan(
        epoch,
        indices,
        weights=counts if selection.rescale else _ones(num_kept),
        num_samples=num_samples,
        threshold=selection.threshold,
        rescaled=selection.rescale,
        counts=counts if kept.covers_all else None,
    )


def _ones(length: int) -> Tensor:
    return torch.ones(1, dtype=torch.float32).expand(length)  # one number in memory


def _thin(selection: Selection, rng: torch.Generator) -> Kept:
    if isinstance(selection, Groups):
        return _thin_groups(selection, rng)
    groups = _as_groups(selection)
    return _thin_one_by_one(selection, rng) if groups is None else _thin_groups(groups, rng)


def _thin_groups(groups: Groups, rng: torch.Generator) -> Kept:
    """What is kept, group after group."""
    sizes = _sizes(groups)
    shares = [_share(n, fraction) for n, fraction in zip(sizes, groups.keep, strict=True)]
    ends = np.cumsum(shares)
    count_of = np.ones(len(sizes), dtype=np.float32)
    samples = torch.empty(ends[-1], dtype=_index_dtype(sum(sizes)))
    for group, members in enumerate(_members(groups, sizes, samples.numpy().dtype)):
        n, m, end = sizes[group], shares[group], ends[group]
        kept = members if m == n else np.compress(_choose(m, n, rng), members)
        samples[end - m : end] = torch.from_numpy(kept)
        if m:
            count_of[group] = n / m
    covers_all = all(m > 0 for n, m in zip(sizes, shares, strict=True) if n > 0)
    if len(ends) > FEW:
        of = groups.of.numpy()
        return Kept(samples, lambda _, indices: count_of.take(of.take(indices)), covers_all)
    # The samples stand group after group, so the place that one comes from tells its group, which
    # is faster than a look-up as long as the groups are few.
    return Kept(samples, lambda places, _: count_of.take(_group_of(places, ends)), covers_all)


def _as_groups(probabilities: Probabilities) -> Groups | None:
    """A group for each value, where there are few; None where there are many."""
    p = probabilities.p.numpy()
    values = np.empty(0, dtype=np.float32)
    for block in _blocks(len(p)):
        values = np.union1d(values, p[block])
        if len(values) > FEW:
            return None
    of = np.empty(len(p), dtype=np.uint8)
    for block in _blocks(len(p)):
        of[block] = np.searchsorted(values, p[block])
    return Groups(torch.from_numpy(of), tuple(values.tolist()), probabilities.rescale)


def _thin_one_by_one(probabilities: Probabilities, rng: torch.Generator) -> Kept:
    """Systematic sampling: what is kept, and how to weigh it.

    The probabilities are laid end to end, in a random order and from a random start between 0 and
    1. A sample is kept if its stretch passes a whole number: with probability p, and the number
    kept is the sum of all p, rounded down or up.

    Fractions are counted in units of 2^-64, as unsigned integers that wrap at whole numbers. So
    the sums are exact however many samples there are, and passing a whole number is wrapping.
    """
    p = probabilities.p.numpy()
    total = float(np.add.reduce(p, dtype=np.float64))
    if total < 1 - 1e-6:  # float32 probabilities that should sum to 1 may be a little off
        raise ValueError(f"p sums to {total:g}, expected at least 1: an epoch needs a sample.")
    samples = torch.randperm(len(p), generator=rng, dtype=_index_dtype(len(p)))
    in_order, num_kept, position = samples.numpy(), 0, _start(rng)
    for block in _blocks(len(p)):
        chances = p.take(in_order[block])
        certain = chances == 1  # 2^64 would not fit, and what is certain needs no draw
        steps = np.where(certain, 0, chances * np.float32(2**64)).astype(np.uint64)
        positions = np.cumsum(steps) + position
        position = positions[-1]
        kept = in_order[block][(positions < steps) | certain]
        in_order[num_kept : num_kept + len(kept)] = kept  # at most where the block began
        num_kept += len(kept)

    covers_all = bool(np.minimum.reduce(p) > 0)
    return Kept(samples[:num_kept], lambda _, indices: np.reciprocal(p.take(indices)), covers_all)


def _index_dtype(num_samples: int) -> torch.dtype:
    """Half as wide as indices are, for half the memory traffic: that is what planning costs."""
    return torch.int32 if num_samples < 2**31 else torch.int64


def _blocks(length: int) -> Iterator[slice]:
    """Parts so small that the temporary arrays of one reuse the memory of the one before."""
    return (slice(start, start + BLOCK) for start in range(0, length, BLOCK))


def _share(n: int, fraction: float) -> int:
    """How many of n to keep: m = n(1 - r), rounded, but at least one unless the fraction is 0."""
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
        if len(sizes) <= 2**16:
            of = of.astype(np.uint16)  # which NumPy sorts in linear time
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
    group = np.zeros(len(places), dtype=np.uint8)
    for end in ends[:-1]:
        group += places >= end
    return group


def _keys(n: int, rng: torch.Generator) -> NDArray[np.int32]:
    keys: NDArray[np.int32] = torch.empty(n, dtype=torch.int32).random_(generator=rng).numpy()
    return keys


def _start(rng: torch.Generator) -> np.uint64:
    """A fraction of 1, in units of 2^-64."""
    bits = torch.empty(1, dtype=torch.int64).random_(-(2**63), None, generator=rng)
    return np.uint64(bits.numpy().view(np.uint64)[0])


def _generator(purpose: str, seed: int, epoch: int) -> torch.Generator:
    """A generator of its own; hashed, so that seed 1 epoch 0 is not seed 0 epoch 1."""
    digest = hashlib.blake2b(f"{purpose},{seed},{epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
