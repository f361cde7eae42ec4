"""Rules that were tried in the search for a better one: `--rules tried:noise-50` trains with one.

They are here so that anybody can repeat what results/TRIED.md says of them. A rule that earns its
place moves to `infobatch.rules`.

Most of them keep sample i with a probability p_i of its own, and weigh it 1/p_i. Among all rules
that keep as many samples, the noise of the gradient, sum(|g_i|^2 / p_i), is least if p_i is
proportional to |g_i|, the norm of the gradient of sample i. That norm is not known. The error
e_i = 1 - exp(-l_i) stands in for it: with the cross entropy l_i, the gradient at the logits has a
norm between e_i and sqrt(2) e_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.rules import (
    Focus,
    Mean,
    Memory,
    Probabilities,
    Random,
    Revisit,
    Rule,
    Selection,
    Tiers,
)

Floats = NDArray[np.float64]


def errors(losses: Floats) -> Floats:
    """e = 1 - exp(-l).

    >>> errors(np.array([0.0, np.log(4), np.inf])).round(2)
    array([0.  , 0.75, 1.  ])
    """
    return -np.expm1(-np.maximum(losses, 0))


def probabilities(sizes: Floats, cut: float, least: float) -> Floats:
    """Proportional to the sizes, 1 from `cut` on, and never below `least`.

    >>> probabilities(np.array([0.0, 0.2, 0.4, 0.8]), cut=0.4, least=0.25)
    array([0.25, 0.5 , 1.  , 1.  ])
    """
    return np.clip(sizes / cut, least, 1) if cut > 0 else np.ones_like(sizes)


def largest_cut(sizes: Floats, least: float, fits: Callable[[Floats], bool]) -> float:
    """The largest cut whose probabilities fit. A larger cut keeps fewer samples, with more noise.

    >>> sizes = np.array([0.0, 0.2, 0.4, 0.8])
    >>> round(largest_cut(sizes, 0.25, lambda p: p.mean() >= 0.5), 3)
    0.8
    """
    low, high = 0.0, float(sizes.max(initial=0)) / least
    if fits(probabilities(sizes, high, least)):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        if fits(probabilities(sizes, middle, least)):
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Proportional(Rule):
    """Skips the fraction `prune_ratio` of all samples, the more readily the smaller their error.

    >>> Proportional(0.5).unbiased
    True
    """

    prune_ratio: float = 0.5
    max_weight: float = 4.0
    """A sample is kept with a probability of at least 1 / max_weight."""
    rescale: bool = True
    """Whether kept samples weigh more, to make up for what is skipped."""
    of_losses: bool = False
    """Whether the loss itself stands for the size of a sample's gradient, in place of the error."""

    @property
    def unbiased(self) -> bool:
        return self.rescale

    @property
    def max_groups(self) -> None:
        return None

    def fits(self, sizes: Floats, p: Floats) -> bool:
        """Whether enough samples are kept."""
        return bool(p.mean() >= 1 - self.prune_ratio)

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        known = ~scores.isnan().numpy()
        p = np.ones(len(scores))
        if known.any():
            losses, least = scores.double().numpy()[known], 1 / self.max_weight
            sizes = np.maximum(losses, 0) if self.of_losses else errors(losses)
            cut = largest_cut(sizes, least, lambda p: self.fits(sizes, p))
            p[known] = probabilities(sizes, cut, least)
        return Probabilities(torch.from_numpy(p.astype(np.float32)), self.rescale)


@dataclass(frozen=True)
class Noise(Proportional):
    """Skips as many samples as it can while the noise of the gradient grows by `growth` at most.

    Before anything is learned all errors are alike, and it skips growth / (1 + growth) of the
    samples; it skips more as most errors become small.

    >>> Noise(growth=0.1).unbiased
    True
    """

    growth: float = 0.5

    def fits(self, sizes: Floats, p: Floats) -> bool:
        return bool((sizes**2 / p).sum() <= (1 + self.growth) * (sizes**2).sum())


@dataclass(frozen=True)
class OtherScores(Rule):
    """A rule that compares something else than the last losses."""

    rule: Rule

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    @property
    def max_groups(self) -> int | None:
        return self.rule.max_groups


@dataclass(frozen=True)
class OfErrors(OtherScores):
    """A rule that compares errors in place of losses.

    >>> OfErrors(Mean()).unbiased
    True
    """

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        of_samples = torch.from_numpy(errors(scores.double().numpy()))
        return self.rule.groups(of_samples.float(), memory, epoch)


@dataclass(frozen=True)
class Smoothed(OtherScores):
    """A rule that compares a moving average of each sample's losses in place of the last one.

    >>> Smoothed(Mean()).unbiased
    True
    """

    alpha: float = 0.5
    """How much the last loss counts."""

    def init(self, num_samples: int) -> Memory:
        return {"smooth": torch.full((num_samples,), torch.nan)}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        return self.rule.groups(torch.where(scores.isnan(), scores, memory["smooth"]), {}, epoch)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        smooth = memory["smooth"].clone()
        old = smooth[indices]
        new = torch.where(old.isnan(), losses, (1 - self.alpha) * old + self.alpha * losses)
        smooth[indices] = torch.where(new.isfinite(), new, old)
        return {"smooth": smooth}


@dataclass(frozen=True)
class Aged(OtherScores):
    """A rule that trusts a score the less the older it is: old scores move to the mean of all.

    >>> Aged(Mean()).unbiased
    True
    """

    half_life: float = 2.0
    """After so many epochs without a visit, a score is halfway to the mean."""

    def init(self, num_samples: int) -> Memory:
        return {"trained_in": torch.zeros(num_samples, dtype=torch.int32)}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        skipped = (epoch - 1 - memory["trained_in"]).clamp(min=0)
        trust = 0.5 ** (skipped / self.half_life)
        mean = scores.double().nanmean().float()
        return self.rule.groups(torch.lerp(mean.expand_as(scores), scores, trust), {}, epoch)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        trained_in = memory["trained_in"].clone()
        trained_in[indices] = epoch
        return {"trained_in": trained_in}


@dataclass(frozen=True)
class TwoSteps(OtherScores):
    """A rule, and from epoch `at` on a gentler one: annealing in two steps.

    >>> TwoSteps(Tiers(), GENTLE_TIERS, at=70).unbiased
    True
    """

    gentler: Rule
    at: int

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        return (self.rule if epoch < self.at else self.gentler).groups(scores, memory, epoch)


@dataclass(frozen=True)
class Fading(OtherScores):
    """A rule whose ratio stays for half of the epochs, and then falls to zero in equal steps.

    Noise in the gradient does least harm while the learning rate is high, and most at the end. So
    most samples are skipped at first, and almost none in the last epochs; use it with `--delta 1`.

    >>> Fading(Proportional(0.6), epochs=16).unbiased
    True
    """

    rule: Proportional | Random
    epochs: int

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        left = min(max(2 * (1 - epoch / self.epochs), 0), 1)
        faded = replace(self.rule, prune_ratio=left * self.rule.prune_ratio)
        return faded.groups(scores, memory, epoch)


GENTLE_TIERS = Tiers(((0.20, 0.50), (0.85, 0.25)))
"""Skips half to two thirds as much as `tiers`."""

STRONG_TIERS = Tiers(((0.50, 0.75), (0.85, 0.50)))
"""Skips 55 % of the samples, with the weights of `tiers`."""

TIERS_62 = Tiers(((0.66, 0.75), (0.91, 0.50)))
"""Skips 62 % of the samples, with the weights of `tiers`: half of those of 16 epochs."""

FOCUS_62 = Tiers(((0.69, 0.90),), rescale=False)
"""From this came the rule `focus`, which keeps the hardest 30 % in place of 31 %."""

FOCUS_RESCALED = Tiers(((0.70, 0.90),))
"""`focus` with weights of 10 for the easy samples that are kept, and so without bias."""

CANDIDATES: dict[str, Rule] = {
    "noise-20": Noise(growth=0.2),
    "noise-50": Noise(growth=0.5),
    "noise-50-weights-2": Noise(growth=0.5, max_weight=2.0),
    "noise-100": Noise(growth=1.0),
    "proportional-40": Proportional(0.4),
    "proportional-40-weights-2": Proportional(0.4, max_weight=2.0),
    "proportional-40-weights-3": Proportional(0.4, max_weight=3.0),
    "proportional-50": Proportional(0.5),
    "proportional-60": Proportional(0.6),
    "proportional-62": Proportional(0.62),
    "proportional-75": Proportional(0.75, max_weight=8.0),
    "proportional-80": Proportional(0.8, max_weight=8.0),
    "unscaled-57": Proportional(0.57, rescale=False),
    "unscaled-57-least-10": Proportional(0.57, max_weight=10.0, rescale=False),
    "unscaled-62": Proportional(0.62, rescale=False),
    "unscaled-62-least-10": Proportional(0.62, max_weight=10.0, rescale=False),
    "unscaled-losses-62": Proportional(0.62, rescale=False, of_losses=True),
    "unscaled-70-least-10": Proportional(0.70, max_weight=10.0, rescale=False),
    "errors-mean": OfErrors(Mean()),
    "smoothed-tiers": Smoothed(Tiers()),
    "revisit-tiers": Revisit(Tiers(), period=2),
    "aged-tiers": Aged(Tiers()),
    "strong-tiers": STRONG_TIERS,
    "tiers-62": TIERS_62,
    "focus-62": FOCUS_62,
    "focus-rescaled": FOCUS_RESCALED,
    "focus-trimmed-10": Focus(trim=0.1),
    "focus-trimmed": Focus(trim=0.2),
    "focus-trimmed-30": Focus(trim=0.3),
    "two-steps-10": TwoSteps(STRONG_TIERS, GENTLE_TIERS, at=10),
    "two-steps-70": TwoSteps(STRONG_TIERS, GENTLE_TIERS, at=70),
    "fading-16": Fading(Proportional(0.68), epochs=16),
    "fading-100": Fading(Proportional(0.65), epochs=100),
    "fading-random-16": Fading(Random(0.68, rescale=True), epochs=16),
    "fading-random-100": Fading(Random(0.65, rescale=True), epochs=100),
}
"""By name. `revisit-tiers` trains each sample in every third epoch at least. `two-steps-10` is for
trainings of 16 epochs with `--delta 0.9375`, and `two-steps-70` for 100 epochs with `--delta 0.95`.
`proportional-75` and `-80` are for twice the epochs with twice the batch: hard samples are then
seen twice as often as in full training.

`fading-16` and `fading-100` skip half of all samples in a training of 16 or 100 epochs, with
`--delta 1`. Those with `random` skip as many, whatever their losses, and so show what the choice of
samples is worth.
"""
