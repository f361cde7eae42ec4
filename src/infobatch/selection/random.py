"""A uniform draw, made once: the baseline that every method has to beat.

Cost: one permutation. It keeps each sample with probability k / n.
"""

from __future__ import annotations

import torch
from torch import Generator

from infobatch.selection.base import Chosen, draw
from infobatch.selection.statistics import Statistics


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Draw uniformly without replacement."""
    return Chosen(draw(torch.arange(len(statistics)), budget, rng))
