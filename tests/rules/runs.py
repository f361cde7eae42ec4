"""A run of a rule on losses at random."""

from __future__ import annotations

import torch

from infobatch import Pruner


def savings_of_a_run(rule: str, num_epochs: int) -> float:
    """The fraction of samples that a run saves: `savings_of_a_run("tiers", 200)`."""
    pruner = Pruner(1000, num_epochs, rule=rule)
    rng = torch.Generator().manual_seed(0)
    for _ in range(num_epochs):
        indices = pruner.plan.indices
        pruner.update(torch.rand(len(indices), generator=rng), indices)
    return pruner.savings.fraction
