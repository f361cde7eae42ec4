"""SeTa, Zhou et al., "Scale Efficient Training for Large Datasets", CVPR 2025.

A random (1 - r) n of the samples; 1-D k-means of their losses into K groups, in order of loss; of
these groups a window of round(alpha K), which starts at group t mod (K - window + 1) in epoch t and
so slides from easy to hard, again and again; all groups in epoch 0. In the last epochs ("partial
annealing") the random (1 - r) n alone. On CIFAR r = 0.1, K = 5, alpha = 0.9.

Cost: one sort and a few binary searches. Biased: groups outside the window are left out, and no
weight makes up for them.

Not guaranteed: here k-means sees all losses rather than those of the random part, since a rule
does not draw, and starts from evenly spaced quantiles. Annealing is the run's (`delta`), with all
samples; for the paper's partial one give `delta=1` and `random_from`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.errors import check_fraction, check_whole
from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything, num_known, settle, settle_ratio

MAX_ITERATIONS = 100


def cluster_borders(values: NDArray[np.float32], num_clusters: int) -> NDArray[np.float32]:
    """1-D k-means of sorted values: cluster j lies from border j - 1 to below border j.

    >>> cluster_borders(np.array([0, 1, 5, 6], dtype=np.float32), 2).tolist()
    [3.0]
    """
    # With sums up to each place, the mean of a cluster is two look-ups.
    sums = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    quantiles = (np.arange(num_clusters) + 0.5) / num_clusters
    centres = values[(quantiles * len(values)).astype(np.int64)].astype(np.float64)
    ends_before = None
    for _ in range(MAX_ITERATIONS):
        centres = np.unique(centres)
        # As exact as the values, so that these need not be widened to be compared.
        borders = ((centres[1:] + centres[:-1]) / 2).astype(np.float32)
        ends = np.concatenate(([0], np.searchsorted(values, borders), [len(values)]))
        sizes = np.diff(ends)
        if ends_before is not None and np.array_equal(ends, ends_before):
            break
        ends_before = ends
        centres = (np.diff(sums[ends]) / np.maximum(sizes, 1))[sizes > 0]
    # Where the iterations ran out, a cluster may be empty: it is left to its neighbour.
    return borders[(sizes[:-1] > 0) & (ends[1:-1] < len(values))]


@dataclass(frozen=True)
class SeTa(Rule):
    """Skips `prune_ratio` of all samples, and those whose loss is outside a window. Biased.

    >>> SeTa(0.1).unbiased
    False
    """

    prune_ratio: float = 0.1
    num_groups: int = 5
    """The number of groups of similar loss, K in the paper."""
    window: float = 0.9
    """The paper's alpha: the part of the groups that an epoch trains."""
    random_from: float | None = None
    """From this epoch on, only the random part is skipped; None for never."""

    def __post_init__(self) -> None:
        settle_ratio(self)
        num_groups = check_whole("num_groups", self.num_groups, at_least=1)
        if num_groups > 255:
            raise ValueError(f"num_groups is {num_groups}, expected at most 255.")
        window = check_fraction("window", self.window, one_allowed=True)
        random_from = None if self.random_from is None else float(self.random_from)
        settle(self, num_groups=num_groups, window=window, random_from=random_from)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def max_groups(self) -> int:
        return self.num_groups + 1

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        num_seen = num_known(scores)
        if num_seen == 0:
            return everything(scores)
        values = scores.numpy()
        borders = cluster_borders(np.sort(values)[:num_seen], self.num_groups)  # NaN sort last
        num_groups = len(borders) + 1
        of = np.zeros(len(values), dtype=np.uint8)
        for border in borders:
            of += values >= border
        of[np.isnan(values)] = num_groups
        in_window = self._window(num_groups, epoch)
        keep = [1 - self.prune_ratio if g in in_window else 0.0 for g in range(num_groups)]
        return Groups(of=torch.from_numpy(of), keep=(*keep, 1.0), rescale=False)

    def _window(self, num_groups: int, epoch: int) -> range:
        if epoch == 0 or (self.random_from is not None and epoch >= self.random_from):
            return range(num_groups)
        size = max(1, round(self.window * num_groups))
        start = epoch % (num_groups - size + 1)
        return range(start, start + size)
