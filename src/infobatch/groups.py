"""A rule's answer to the plan: how much to keep of each group, or of each sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LEAST = float(np.finfo(np.float32).tiny)
"""The smallest probability that can be made up for: its weight 1/p still is a float32."""


@dataclass(frozen=True)
class Groups:
    """A partition of the data set, and the fraction to keep of each part.

    >>> import torch
    >>> Groups(of=torch.tensor([0, 1, 1], dtype=torch.uint8), keep=(1.0, 0.5)).keep
    (1.0, 0.5)
    """

    of: Tensor
    """The group of each sample, as small integers from 0."""
    keep: tuple[float, ...]
    """The fraction to keep of each group."""
    rescale: bool = True
    """True: if m of the n samples of a group are kept, each weighs n/m. False: each weighs 1."""
    threshold: float | None = None
    """The number that scores were compared with, if there is one."""
    drawn_in: int | None = None
    """The epoch whose random draw is used; None for the current one. `Every` sets it."""

    @property
    def num_samples(self) -> int:
        """The size of the data set."""
        return len(self.of)

    @property
    def prunes(self) -> bool:
        """Whether a group may lose samples."""
        return any(fraction < 1 for fraction in self.keep)

    def check(self) -> None:
        """Raise if the groups are malformed: `groups.check()`."""
        if not all(0 <= fraction <= 1 for fraction in self.keep):
            raise ValueError(f"keep is {self.keep}, expected fractions from 0 to 1.")
        of = self.of.numpy()
        if of.ndim != 1 or of.dtype.kind not in "biu":
            raise ValueError(
                f"of has dtype {self.of.dtype} and {of.ndim} dimensions, expected one whole number "
                "per sample: a group of its own for samples without a score, not NaN."
            )
        if of.min() < 0 or of.max() >= len(self.keep):
            raise ValueError(
                f"of runs from {of.min()} to {of.max()}, expected groups from 0 to "
                f"{len(self.keep) - 1}: give keep a fraction for every group."
            )


@dataclass(frozen=True)
class Probabilities:
    """The probability of each sample to be kept.

    Up to eight different values are drawn like groups, with exact counts and weights n/m. With
    more, the number kept is within one of the sum of p, and a kept sample weighs 1/p.

    >>> Probabilities(torch.tensor([1.0, 0.5, 0.25])).prunes
    True
    """

    p: Tensor
    """float32; other floating-point numbers are converted."""
    rescale: bool = True
    """True: a kept sample weighs 1/p. False: it weighs 1."""
    threshold: float | None = None
    """The number that scores were compared with, if there is one."""
    drawn_in: int | None = None
    """The epoch whose random draw is used; None for the current one. `Every` sets it."""

    def __post_init__(self) -> None:
        if self.p.is_floating_point():
            object.__setattr__(self, "p", self.p.to(torch.float32))

    @property
    def num_samples(self) -> int:
        """The size of the data set."""
        return len(self.p)

    @property
    def prunes(self) -> bool:
        """Whether a sample may be skipped."""
        return bool(self.p.min() < 1)

    def check(self) -> None:
        """Raise if these are not probabilities: `probabilities.check()`."""
        if self.p.ndim != 1 or not self.p.is_floating_point():
            raise ValueError(
                f"p has dtype {self.p.dtype} and {self.p.ndim} dimensions, expected one "
                "floating-point number per sample."
            )
        p = self.p.numpy()
        lowest, highest = float(p.min()), float(p.max())  # NaN if one of them is
        # What is never kept cannot be made up for, so it is allowed only without rescaling.
        if not ((LEAST if self.rescale else 0) <= lowest and highest <= 1):
            raise ValueError(
                f"p runs from {lowest} to {highest}, expected probabilities from 0 to 1 (above 0 "
                "with rescale=True): give samples without a score 1, not NaN."
            )


Selection = Groups | Probabilities
"""What a rule returns."""
