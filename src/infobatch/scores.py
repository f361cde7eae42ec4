"""What is remembered of every sample: its last loss, float32, NaN where there is none.

A score is either finite or NaN. A loss that is not finite is not information about the sample,
so it is stored as NaN: rules keep such a sample and leave it out of every threshold.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

NO_SCORE = torch.finfo(torch.float32).min
"""Recorded for a sample that was trained and has no loss: it keeps the score it had."""


def unseen(num_samples: int) -> Tensor:
    """The scores before training: `unseen(50_000)`."""
    return torch.full((num_samples,), torch.nan, dtype=torch.float32)


def merge(scores: Tensor, indices: Tensor, losses: Tensor) -> int:
    """Eq. 4, in place: trained samples take their new loss, the others keep their score.

    Returns how many of the losses were not finite: `merge(scores, plan.indices, losses)`.
    """
    finite = np.isfinite(losses.numpy())
    num_nonfinite = len(losses) - int(np.count_nonzero(finite))
    if num_nonfinite:
        losses = torch.where(torch.from_numpy(finite), losses, torch.nan)
    scores.scatter_(0, indices, losses)
    return num_nonfinite
