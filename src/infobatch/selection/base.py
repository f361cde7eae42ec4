"""The contract of every method, and what all of them share: quotas, classes, the highest scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from infobatch.errors import check_whole
from infobatch.selection.statistics import Statistics, check_finite


class Chosen(NamedTuple):
    """The chosen samples in the order in which they were chosen, and their weights.

    If samples were chosen per class, one class comes after the other.
    """

    indices: Tensor
    """The chosen samples, as positions in the data set."""
    weights: Tensor | None = None
    """One per chosen sample; None if the method has no weights."""


Choose = Callable[[Statistics, int, Generator], Chosen]
Prepare = Callable[[Statistics], Statistics]


@dataclass(frozen=True)
class Method:
    """A way to choose `budget` samples: `METHODS["herding"](statistics, 100, labels, rng)`.

    `choose` gets the statistics of the samples to choose from: all of them, or those of one class.
    If it needs a number that is computed over all samples, `prepare` adds it to the statistics.
    """

    name: str
    """The name that `select` takes."""
    choose: Choose
    paper: str
    """Where it was published."""
    needs: tuple[str, ...]
    """The fields of `Statistics` that it reads."""
    cost: str
    """For n samples, k of them chosen, d features, c classes."""
    keeps: str
    """One line on the samples it keeps."""
    prepare: Prepare | None = None

    def __call__(
        self,
        statistics: Statistics,
        budget: int,
        labels: Tensor | Sequence[int] | None = None,
        rng: Generator | None = None,
    ) -> Chosen:
        """Choose `budget` samples; with `labels`, the same fraction of each class."""
        budget = check_whole("budget", budget, at_least=1)
        num_samples = len(statistics)
        if budget > num_samples:
            raise ValueError(f"budget is {budget}, expected at most the {num_samples} samples.")
        check_finite(statistics, self.needs)
        rng = torch.Generator().manual_seed(0) if rng is None else rng
        with torch.no_grad():
            if self.prepare is not None:
                statistics = self.prepare(statistics)
            if labels is None:
                return self._choose(statistics, budget, rng)
            return self._choose_per_class(
                statistics, budget, _check_labels(labels, statistics), rng
            )

    def _choose(self, statistics: Statistics, budget: int, rng: Generator) -> Chosen:
        indices, weights = self.choose(statistics, budget, rng)
        return Chosen(indices.cpu(), None if weights is None else weights.cpu())

    def _choose_per_class(
        self, statistics: Statistics, budget: int, labels: Tensor, rng: Generator
    ) -> Chosen:
        found, sizes = labels.unique(return_counts=True)
        # Stable, so that inside a class the lowest index stays the lowest and ties are decided
        # as they are over all.
        classes = labels.argsort(stable=True).split(sizes.tolist())
        indices, weights = [], []
        shares = quotas(budget, sizes.tolist())
        for label, members, quota in zip(found.tolist(), classes, shares, strict=True):
            if quota == 0:
                continue
            chosen = self._choose(_of_class(statistics, label, members), quota, rng)
            indices.append(members[chosen.indices])
            if chosen.weights is not None:
                weights.append(chosen.weights)
        return Chosen(torch.cat(indices), torch.cat(weights) if weights else None)


def _of_class(statistics: Statistics, label: int, members: Tensor) -> Statistics:
    """The statistics of a class. Its validation set is that of the class too, if it has one."""
    part = statistics.take(members)
    if part.validation is None or part.validation.labels is None:
        return part
    same = (part.validation.labels == label).nonzero().flatten()
    return replace(part, validation=part.validation.take(same)) if len(same) else part


def by_score(
    name: str,
    score: Callable[[Statistics], Tensor],
    paper: str,
    needs: tuple[str, ...],
    cost: str,
    keeps: str,
) -> Method:
    """A method that keeps the samples with the highest scores, computed once over all."""

    def prepare(statistics: Statistics) -> Statistics:
        return Statistics(scores=score(statistics))

    return Method(name, highest, paper, needs, cost, keeps, prepare)


def highest(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """The samples with the highest scores; of equal ones those with the lowest index."""
    return Chosen(statistics.require("scores").sort(descending=True, stable=True).indices[:budget])


def quotas(budget: int, sizes: Sequence[int]) -> list[int]:
    """Divide a budget in proportion to sizes, never giving a group more than it has.

    What rounding down leaves over goes to the largest remainders, of equal ones to the first.

    >>> quotas(5, [6, 3, 1])
    [3, 2, 0]
    """
    total = sum(sizes)
    shares = [budget * size // total for size in sizes]
    remainders = [budget * size % total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda group: -remainders[group])
    for group in by_remainder[: budget - sum(shares)]:
        shares[group] += 1
    return shares


def draw(candidates: Tensor, num: int, rng: Generator) -> Tensor:
    """Draw `num` of the candidates uniformly without replacement."""
    order = torch.randperm(len(candidates), generator=rng)[:num]
    return candidates[order.to(candidates.device)]


def _check_labels(labels: Tensor | Sequence[int], statistics: Statistics) -> Tensor:
    """As a tensor with one class per sample, or raise."""
    checked = Statistics(labels=labels).require("labels")  # type: ignore[arg-type]  # made a tensor
    if len(checked) != len(statistics):
        raise ValueError(
            f"labels has {len(checked)} entries, expected one for each of the {len(statistics)} "
            "samples."
        )
    return checked.cpu()
