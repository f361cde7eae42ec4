"""The contract of every rule: scores in, a few groups out, each with the fraction to keep.

A rule never draws and never weighs. One function does both for all of them (`plan.draw`), so that
selecting and rescaling cannot disagree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.groups import Groups

Memory = dict[str, Tensor]
"""What a rule remembers beyond the last loss; plain tensors, saved with the rest."""


class Rule(ABC):
    """Puts every sample into a group. Subclasses are frozen dataclasses of their settings.

    Scores are finite or NaN; a sample whose score is NaN must always be kept.
    """

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """True if the rule rescales and no group is skipped as a whole, so that E[weight] = 1."""

    @abstractmethod
    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        """The groups of this epoch. Pure: asked twice, it answers the same."""

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        """The memory after an epoch in which `indices` were trained with `losses`.

        `scores` are still those the epoch was planned with.
        """
        return memory


def everything(scores: Tensor) -> Groups:
    """One group, all of it kept: `everything(scores)`."""
    return Groups(of=torch.zeros(len(scores), dtype=torch.uint8), keep=(1.0,))


def known(scores: Tensor) -> NDArray[np.bool_]:
    """Which scores are there: `known(scores).sum()`."""
    values = scores.numpy()
    is_known: NDArray[np.bool_] = values == values  # not so for NaN alone
    return is_known


def num_known(scores: Tensor) -> int:
    """How many scores are there: `num_known(scores)`."""
    return int(np.count_nonzero(known(scores)))


def moving_average(old: Tensor, new: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) old + alpha new, or new where there is no old: `moving_average(u, l, 0.8)`."""
    return torch.where(torch.isnan(old), new, (1 - alpha) * old + alpha * new)
