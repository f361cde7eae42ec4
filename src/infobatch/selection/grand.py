"""GraNd (Paul et al., "Deep Learning on a Data Diet", NeurIPS 2021): norm of the gradient.

The score is the norm of the gradient of a sample's loss by all parameters, averaged over several
models that were trained for a few epochs (`collect_runs`). Cost: a backward pass per sample and
model.
"""

from __future__ import annotations

from torch import Tensor

from infobatch.selection.statistics import Statistics


def score(statistics: Statistics) -> Tensor:
    """The norm of each sample's gradient, as it was collected."""
    return statistics.require("grand")
