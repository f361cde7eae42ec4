"""What a rule hands to the plan: a partition of the data set, and how much to keep of each part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """A partition of the data set, and the fraction to keep of each part.

    >>> import torch
    >>> Groups(of=torch.tensor([0, 1, 1], dtype=torch.uint8), keep=(1.0, 0.5)).keep
    (1.0, 0.5)
    """

    of: Tensor
    """The group of each sample, as small integers."""
    keep: tuple[float, ...]
    """The fraction to keep of each group."""
    rescale: bool = True
    """Whether the m kept of n weigh n/m, or 1."""
    threshold: float | None = None
    """What the scores were compared with, where it is one number."""
    drawn_in: int | None = None
    """The epoch whose draw is used, where a selection is held; else the current one."""

    def check(self) -> None:
        """Refuse groups that are none: `groups.check()`."""
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
