"""CCS (Zheng et al., "Coverage-centric Coreset Selection", ICLR 2023): easy and hard samples alike.

Drops the hardest beta of the samples (probably mislabelled; fewer where the budget needs them),
splits the range of the remaining scores into 50 strata of equal width, and spreads the budget
evenly over the strata, beginning with the smallest: what a small stratum cannot use goes to the
others. Difficulty is EL2N here. Cost: O(n log n).
"""

from __future__ import annotations

import torch
from torch import Generator

from infobatch.selection.base import Chosen, draw, highest
from infobatch.selection.statistics import Statistics

BETA = 0.1
"""The part that is dropped. The paper tunes it: more, the smaller the budget."""
NUM_STRATA = 50


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Draw evenly from strata of difficulty, without the hardest samples."""
    difficulty = statistics.require("el2n")
    num_dropped = min(int(BETA * len(difficulty)), len(difficulty) - budget)
    is_left = torch.ones(len(difficulty), dtype=torch.bool, device=difficulty.device)
    is_left[highest(Statistics(scores=difficulty), num_dropped, rng).indices] = False
    left = is_left.nonzero().squeeze(1)
    lowest, width = difficulty[left].min(), difficulty[left].max() - difficulty[left].min()
    # The highest score belongs to the last stratum; equal scores are all in the first.
    places = ((difficulty[left] - lowest) / width * NUM_STRATA).nan_to_num(0)
    of = places.long().clamp_(max=NUM_STRATA - 1)
    strata = sorted((left[of == stratum] for stratum in of.unique()), key=len)
    chosen = []
    for place, members in enumerate(strata):
        share = budget // (len(strata) - place)
        chosen.append(draw(members, min(share, len(members)), rng))
        budget -= len(chosen[-1])
    return Chosen(torch.cat(chosen))
