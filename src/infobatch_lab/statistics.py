"""Is it lossless? The difference to full training, its confidence interval, and a verdict.

The interval is Student's, at 95 %: of the differences seed by seed where at least two seeds were
run with both methods, else Welch's of the two samples. A metric that counts test samples moves in
steps, so seeds may agree by chance alone: a variance is taken as at least that of rounding to
whole test samples, 1/12 of a test sample's square.

Only the quantile is scipy's: the tests of scipy.stats that give an interval take samples, so they
can neither take a variance with such a floor nor say what another number of seeds would give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean as mean_of

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
MOST_SEEDS = 100
"""The search for the number of seeds that would decide ends here: nobody trains more."""

LOSSLESS, WORSE, UNDECIDED = "lossless", "worse", "undecided"


@dataclass(frozen=True)
class Difference:
    """A method's metric less that of full training, in the metric's own direction."""

    mean: float
    low: float | None
    """The interval's lower end; None where there are too few seeds for an interval."""
    high: float | None
    is_paired: bool
    sign: int = 1
    """1 where more is better, -1 where less is."""
    num_needed: int | None = None
    """Seeds of each method with which the interval would give a verdict, if the mean and the
    spread stayed as they are; None where it gives one, or where more than `MOST_SEEDS` would be
    needed."""

    def verdict(self, margin: float) -> str:
        """`lossless` if the loss is less than the margin, `worse` if there is one, or `undecided`.

        >>> Difference(-0.1, -0.3, 0.1, is_paired=True).verdict(margin=0.5)
        'lossless'
        >>> Difference(0.4, 0.2, 0.6, is_paired=True, sign=-1).verdict(margin=0.5)
        'worse'
        """
        if self.low is None or self.high is None:
            return UNDECIDED
        least, most = sorted((self.sign * self.low, self.sign * self.high))
        if least > -margin:
            return LOSSLESS
        return WORSE if most < 0 else UNDECIDED

    @property
    def need(self) -> str:
        """What an undecided verdict lacks; only for an undecided one.

        >>> Difference(-0.1, -0.9, 0.7, is_paired=True, num_needed=12).need
        'needs 12 seeds of both'
        """
        if self.low is None:
            return "needs at least 2 seeds of both"
        if self.num_needed is None:
            return f"needs over {MOST_SEEDS} seeds of both"
        return f"needs {self.num_needed} seeds of both"


def with_need(verdict: str | None, found: Difference | None) -> str:
    """A verdict as tables show it: an undecided one says what it lacks.

    >>> with_need(UNDECIDED, Difference(-0.1, -0.9, 0.7, is_paired=True, num_needed=12))
    'undecided (needs 12 seeds of both)'
    """
    if found is None or verdict != UNDECIDED:
        return verdict or ""
    return f"{verdict} ({found.need})"


def difference(
    values: Mapping[int, float],
    full: Mapping[int, float],
    margin: float,
    *,
    resolution: float = 0.0,
    sign: int = 1,
) -> Difference:
    """The difference of two methods, each a value per seed.

    >>> found = difference({0: 0.92, 1: 0.94, 2: 0.93}, {0: 0.91, 1: 0.91, 2: 0.91}, 0.005)
    >>> f"{found.mean:.3f} from {found.low:.4f} to {found.high:.4f}"
    '0.020 from -0.0048 to 0.0448'
    >>> found.verdict(margin=0.005)
    'lossless'
    """
    shared = sorted(values.keys() & full.keys())
    is_paired = len(shared) >= 2
    if is_paired:
        samples = [[values[seed] - full[seed] for seed in shared]]
        mean = float(np.mean(samples[0]))
    else:
        samples = [list(values.values()), list(full.values())]
        mean = float(np.mean(samples[0]) - np.mean(samples[1]))
    if min(map(len, samples)) < 2:
        return Difference(mean, None, None, is_paired, sign)
    # A metric without known steps has a floor too, far below anything shown: no 0 / 0.
    floor = max(resolution**2 / 12, (1e-12 * max(1.0, abs(mean_of(full.values())))) ** 2)
    variances = np.maximum([np.var(sample, ddof=1) for sample in samples], floor)
    half = float(_half_width(variances, np.array([len(sample) for sample in samples])))
    found = Difference(mean, mean - half, mean + half, is_paired, sign)
    if found.verdict(margin) != UNDECIDED:
        return found
    return replace(found, num_needed=_num_needed(sign * mean, variances, margin))


def _half_width(variances: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The half width of the interval around a sum of independent means; the last axis is over the
    samples. With one sample this is Student's interval, with two it is Welch's.
    """
    parts = variances / sizes
    squared = parts.sum(-1)
    freedom = squared**2 / (parts**2 / (sizes - 1)).sum(-1)
    half: np.ndarray = stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(squared)
    return half


def _num_needed(gain: float, variances: np.ndarray, margin: float) -> int | None:
    """The smallest number of seeds with which this gain and spread would give a verdict."""
    sizes = np.arange(2, MOST_SEEDS + 1)
    half = _half_width(variances, sizes[:, None])
    decided = sizes[(gain - half > -margin) | (gain + half < 0)]
    return int(decided[0]) if len(decided) else None
