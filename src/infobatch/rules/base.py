"""The contract of every rule: scores in, a few groups out, each with the fraction to keep.

A rule that tells more than a few groups apart gives a probability per sample instead.

A rule never draws and never weighs. One function does both for all of them (`plan.draw`), so that
selecting and rescaling cannot disagree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.errors import check_fraction
from infobatch.groups import Groups, Selection

Memory = dict[str, Tensor]
"""What a rule remembers beyond the last losses: tensors by name, saved in checkpoints.

Names, dtypes and shapes are those of `Rule.init` throughout a run, so that all checkpoints have the
same form.
"""


class Rule(ABC):
    """Decides which samples an epoch may skip. Subclasses are frozen dataclasses of their settings.

    Scores are finite or NaN. A sample whose score is NaN must always be kept.
    """

    def __repr__(self) -> str:
        # A checkpoint knows a rule by this, so it must not name a place in memory, as Python's own
        # does for a rule that is no dataclass.
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        settings = ", ".join(f"{name}={value!r}" for name, value in public.items())
        return f"{type(self).__name__}({settings})"

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """True if the rule rescales and no group is skipped as a whole, so that E[weight] = 1."""

    @property
    def max_groups(self) -> int | None:
        """The largest number of groups the rule makes; None if it gives a probability per sample.

        `Every` reserves memory by it. A rule with more than 256 groups must override this.
        """
        return 256

    def init(self, num_samples: int) -> Memory:
        """The memory before training, which fixes its layout: `UCB().init(50_000)`."""
        return {}

    @abstractmethod
    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        """The groups of this epoch. It must change nothing: a second call returns the same."""

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        """The memory after an epoch in which `indices` were trained with `losses`.

        `scores` are still those that the epoch was planned with. `indices` are in the order in
        which they were trained. Return a new memory in the layout of `init`.
        """
        return memory


def check_layout(rule: Rule, before: Memory, after: Memory) -> None:
    """Raise if memory has changed its layout: `check_layout(rule, rule.init(9), memory)`."""
    for name in sorted(before.keys() | after.keys()):
        expected, found = _layout(before, name), _layout(after, name)
        if found != expected:
            raise ValueError(
                f"{rule!r} remembers {name!r} as {found}, expected {expected}: let init() give "
                "every tensor the layout that remember() keeps."
            )


def _layout(memory: Memory, name: str) -> str:
    if name not in memory:
        return "nothing"
    values = memory[name]
    if not isinstance(values, Tensor):
        return f"a {type(values).__name__}"
    return f"{values.dtype} of shape {tuple(values.shape)}"


def settle_ratio(rule: Rule) -> None:
    """Check the `prune_ratio` of a frozen rule, and keep it as a float."""
    ratio = check_fraction("prune_ratio", getattr(rule, "prune_ratio", None), one_allowed=False)
    settle(rule, prune_ratio=ratio)


def settle(rule: Rule, **settings: object) -> None:
    """Keep the checked settings of a frozen rule: `settle(rule, period=check_whole(...))`.

    A checkpoint knows a rule by its repr, in which 0.3 and np.float64(0.3) would differ.
    """
    for name, value in settings.items():
        object.__setattr__(rule, name, value)


def everything(scores: Tensor) -> Groups:
    """One group, all of it kept: `everything(scores)`."""
    return Groups(of=torch.zeros(len(scores), dtype=torch.uint8), keep=(1.0,))


def nothing_known(num_samples: int) -> Tensor:
    """A NaN for each sample: `nothing_known(50_000)`."""
    return torch.full((num_samples,), torch.nan, dtype=torch.float32)


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
