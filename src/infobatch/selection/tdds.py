"""TDDS (Zhang et al., "Spanning Training Progress", CVPR 2024): how unsteadily a sample moves.

K_t = sum_c abs(p_{t+1,c} log(p_{t+1,c} / p_{t,c})) is how far a prediction moves from one epoch to
the next. In each window of J epochs, D is the norm of K - mean(K). The score is the sum over the
windows of beta (1 - beta)^age D, where the last window has age 0; beta = 0.9. So the last windows
decide: it is made for trainings that are cut off early. Cost: O(n c) per epoch of a training that
carries a `Visits`, which keeps one row of probabilities per sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infobatch.selection.statistics import Statistics

WINDOW = 10
"""Epochs in a window, J."""
BETA = 0.9


def score(statistics: Statistics) -> Tensor:
    """The weighted sum over all windows; visits that some samples did not have are left out."""
    changes = statistics.require("changes")
    changes = changes[:, ~changes.isnan().any(0)]
    num_changes = changes.shape[1]
    if num_changes < 2:
        raise ValueError(
            f"changes has {num_changes} columns known of all samples, expected at least 2: visit "
            "every sample in at least three epochs."
        )
    windows = changes.unfold(1, min(WINDOW - 1, num_changes), 1)
    scores = torch.zeros(len(changes), dtype=torch.float64, device=changes.device)
    for window in windows.unbind(1):
        deviation = window - window.mean(1, keepdim=True)
        scores = (1 - BETA) * scores + BETA * deviation.norm(dim=1)
    return scores
