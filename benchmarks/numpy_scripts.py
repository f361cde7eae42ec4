"""Each rule as one would write it down in NumPy, with weights and a shuffled epoch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Epoch = tuple[NDArray[np.int64], Floats]


def mean(scores: Floats, rng: np.random.Generator) -> Epoch:
    is_low = scores < scores.mean()
    low = np.flatnonzero(is_low)
    kept = rng.choice(low, len(low) // 2, replace=False)
    weights = np.where(is_low, np.float32(len(low) / len(kept)), np.float32(1))
    indices = np.concatenate([np.flatnonzero(~is_low), kept])
    rng.shuffle(indices)
    return indices, weights[indices]


def tiers(scores: Floats, rng: np.random.Generator) -> Epoch:
    lower, upper = np.quantile(scores, [0.2, 0.85])
    weights = np.ones(len(scores), dtype=np.float32)
    parts = [np.flatnonzero(scores >= upper)]
    for is_in, keep in ((scores < lower, 0.25), ((scores >= lower) & (scores < upper), 0.5)):
        tier = np.flatnonzero(is_in)
        kept = rng.choice(tier, round(len(tier) * keep), replace=False)
        weights[tier] = len(tier) / len(kept)
        parts.append(kept)
    indices = np.concatenate(parts)
    rng.shuffle(indices)
    return indices, weights[indices]


def random(scores: Floats, rng: np.random.Generator) -> Epoch:
    indices = rng.permutation(len(scores))[: len(scores) // 2]
    return indices, np.ones(len(indices), dtype=np.float32)


def epsilon_greedy(scores: Floats, rng: np.random.Generator) -> Epoch:
    num_kept = len(scores) // 2
    num_greedy = round(0.9 * num_kept)
    by_score = np.argpartition(-scores, num_greedy)
    others = rng.choice(by_score[num_greedy:], num_kept - num_greedy, replace=False)
    indices = np.concatenate([by_score[:num_greedy], others])
    rng.shuffle(indices)
    return indices, np.ones(len(indices), dtype=np.float32)


def ucb(scores: Floats, rng: np.random.Generator) -> Epoch:
    variances = np.zeros_like(scores)
    num_kept = len(scores) // 2
    indices = np.argpartition(-(scores + variances), num_kept)[:num_kept]
    rng.shuffle(indices)
    return indices, np.ones(len(indices), dtype=np.float32)


SCRIPTS: dict[str, Callable[[Floats, np.random.Generator], Epoch]] = {
    "mean": mean,
    "tiers": tiers,
    "random": random,
    "epsilon-greedy": epsilon_greedy,
    "ucb": ucb,
}
