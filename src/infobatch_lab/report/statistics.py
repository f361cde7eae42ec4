"""Is it lossless? The difference to full training, its confidence interval, and a verdict.

The interval is Student's, at 95 %: of the differences seed by seed where at least two seeds were
run with both methods, else Welch's of the two samples. Accuracies are multiples of one test
sample, so seeds may agree by chance alone: a variance is taken as at least that of rounding to
whole test samples, 1/12 of a test sample's square.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from infobatch_lab.report.comparisons import Comparison, Method

CONFIDENCE = 0.95
MOST_SEEDS = 10_000
"""How far to look for the number of seeds that would do."""


@dataclass(frozen=True)
class Difference:
    """A method's accuracy less that of full training."""

    mean: float
    low: float | None
    """The interval's lower end; None where there are too few seeds for an interval."""
    high: float | None
    is_paired: bool
    num_needed: int | None
    """Seeds of each method with which the interval would give a verdict, if the mean and the
    spread stayed as they are; None where it gives one, or where more than `MOST_SEEDS` would be
    needed."""

    def verdict(self, margin: float) -> str:
        """`lossless`, `worse` or `not shown`."""
        if self.low is None or self.high is None:
            return "not shown"
        if self.low > -margin:
            return "lossless"
        return "worse" if self.high < 0 else "not shown"


def judge(comparison: Comparison, margin: float) -> dict[Method, Difference]:
    """The difference of every method but full training, where there are runs of that."""
    full = comparison.full
    if full is None:
        return {}
    resolution = 1 / full.runs[0].num_test
    return {
        method: difference(method.accuracies, full.accuracies, margin, resolution=resolution)
        for method in comparison.methods
        if method is not full
    }


def difference(
    accuracies: Mapping[int, float],
    full: Mapping[int, float],
    margin: float,
    *,
    resolution: float,
) -> Difference:
    """Of two methods, each an accuracy per seed.

    >>> found = difference({0: 0.92, 1: 0.94, 2: 0.93}, {0: 0.91, 1: 0.91, 2: 0.91}, 0.005,
    ...                    resolution=1e-4)
    >>> f"{found.mean:.3f} from {found.low:.4f} to {found.high:.4f}"
    '0.020 from -0.0048 to 0.0448'
    >>> found.verdict(margin=0.005)
    'lossless'
    """
    shared = sorted(accuracies.keys() & full.keys())
    is_paired = len(shared) >= 2
    if is_paired:
        samples = [[accuracies[seed] - full[seed] for seed in shared]]
        mean = float(np.mean(samples[0]))
    else:
        samples = [list(accuracies.values()), list(full.values())]
        mean = float(np.mean(samples[0]) - np.mean(samples[1]))
    if min(map(len, samples)) < 2:
        return Difference(mean, None, None, is_paired, num_needed=None)
    variances = np.maximum([np.var(sample, ddof=1) for sample in samples], resolution**2 / 12)
    half = float(_half_width(variances, np.array([len(sample) for sample in samples])))
    found = Difference(mean, mean - half, mean + half, is_paired, num_needed=None)
    if found.verdict(margin) != "not shown":
        return found
    return replace(found, num_needed=_num_needed(mean, variances, margin))


def _half_width(variances: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Of the interval around a sum of independent means; the last axis is over the samples.

    With one sample this is Student's interval, with two it is Welch's.
    """
    parts = variances / sizes
    squared = parts.sum(-1)
    freedom = squared**2 / (parts**2 / (sizes - 1)).sum(-1)
    half: np.ndarray = stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(squared)
    return half


def _num_needed(mean: float, variances: np.ndarray, margin: float) -> int | None:
    """The smallest number of seeds with which this mean and spread would give a verdict."""
    sizes = np.arange(2, MOST_SEEDS + 1)
    half = _half_width(variances, sizes[:, None])
    decided = sizes[(mean - half > -margin) | (mean + half < 0)]
    return int(decided[0]) if len(decided) else None
