"""From chosen indices to a data set that is ready to train on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import data
from torch.utils.data import Dataset

from infobatch.errors import check_fraction
from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics
from infobatch.selection.table import find

Item = TypeVar("Item", covariant=True)


class Subset(data.Subset[Item]):
    """Torch's `Subset` of the chosen samples, with their `weights` if the method has any."""

    indices: list[int]
    """The chosen samples, as positions in the data set."""

    def __init__(self, dataset: Dataset[Item], chosen: Chosen) -> None:
        super().__init__(dataset, chosen.indices.tolist())
        self.weights: Tensor | None = chosen.weights
        """One per sample of the subset, in its order; they sum to the size of the data set."""


def select(
    dataset: Dataset[Item] | Sequence[Item],
    method: str,
    keep: float,
    *,
    statistics: Statistics | None = None,
    per_class: bool = True,
    seed: int = 0,
) -> Subset[Item]:
    """Choose the fraction `keep` of a data set by a method of `METHODS`.

    With `per_class`, each class keeps this fraction of its samples. The classes are read from
    `statistics.labels`, or else from `dataset.targets`.

    >>> subset = select(range(100), "random", 0.3, per_class=False)
    >>> len(subset), subset.weights
    (30, None)
    """
    chooses, fraction = find(method), check_fraction("keep", keep, one_allowed=True)
    num_samples = len(dataset)  # type: ignore[arg-type]  # torch's Dataset declares no __len__
    if num_samples == 0:
        raise ValueError("dataset is empty, expected at least one sample.")
    if fraction == 0:
        raise ValueError("keep is 0, expected 0 < keep <= 1.")
    if statistics is None:
        statistics = Statistics(num_samples)
    if len(statistics) != num_samples:
        raise ValueError(
            f"statistics has {len(statistics)} samples, but the data set has {num_samples}: "
            "expected the statistics of this data set."
        )
    labels = _labels(dataset, statistics) if per_class else None
    rng = torch.Generator().manual_seed(seed)
    chosen = chooses(statistics, max(1, round(fraction * num_samples)), labels, rng)
    return Subset(dataset, chosen)  # type: ignore[arg-type]  # or a sequence


def _labels(dataset: Any, statistics: Statistics) -> Any:
    labels = statistics.labels if statistics.labels is not None else _targets(dataset)
    if labels is None:
        raise ValueError(
            "per_class is True, but neither statistics.labels nor dataset.targets is there: give "
            "statistics=Statistics(labels=...), or per_class=False."
        )
    return labels


def _targets(dataset: Any) -> Any:
    return getattr(dataset, "targets", None)
