"""EL2N (Paul et al., "Deep Learning on a Data Diet", NeurIPS 2021): norm(p - y).

The score is the norm of the error (softmax less the one-hot label), averaged over several models
that were trained for a few epochs (`collect_runs`). Cost: a forward pass per sample and model.
"""

from __future__ import annotations

from torch import Tensor

from infobatch.selection.statistics import Statistics


def score(statistics: Statistics) -> Tensor:
    """The norm of each sample's error, as it was collected."""
    return statistics.require("el2n")
