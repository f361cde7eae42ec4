"""A whole epoch's host cost: plan, indices, a step for each batch, the merge at the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, Sampler, WeightedRandomSampler

from benchmarks.planning import plan_once
from benchmarks.steps import pruner_with_scores
from benchmarks.table import Aim, Row, Section
from benchmarks.timing import best_times, exponential
from infobatch import Pruner
from infobatch.rules import Mean

SIZES = (50_000, 1_280_000, 14_000_000)
BATCH = 256


def section(sizes: Sequence[int] = SIZES) -> Section:
    return Section(
        "An epoch",
        f"All that the host does for an epoch of the mean rule in batches of {BATCH}, but for "
        "data and network: plan, indices, `update` for each batch, the merge. Against "
        "`RandomSampler` and `losses.mean()`, and torch's `WeightedRandomSampler` with the same, "
        "both on N samples.",
        [row for size in sizes for row in rows_of(size)],
    )


def rows_of(size: int) -> list[Row]:
    losses = exponential(BATCH).requires_grad_()
    turns = max(3, min(30, 10_000_000 // size))
    pruners = [pruner_with_scores(size) for _ in range(turns)]
    likelihood = exponential(size)
    times = best_times(
        turns,
        {
            "ours": partial(train_pruned, pruners, losses),
            "RandomSampler": lambda: train_plain(RandomSampler(range(size)), losses),
            "WeightedRandomSampler": lambda: train_plain(
                WeightedRandomSampler(likelihood, size),  # type: ignore[arg-type]
                losses,
            ),
        },
    )
    ours = times.pop("ours")
    scores = exponential(size)
    planning = best_times(turns, {"plan": lambda: plan_once(Mean(), scores, {})})["plan"]
    closing = min(seconds_to_close(pruner_with_scores(size)) for _ in range(3))
    return [
        Row(
            f"an epoch, N = {size:,}",
            ours,
            "s",
            times,
            Aim(1.2 if size < 1_000_000 else 0.8, "RandomSampler"),
        ),
        Row(f"of it the plan, N = {size:,}", planning, "s"),
        Row(f"of it the merge at its end, N = {size:,}", closing, "s"),
    ]


def seconds_to_close(pruner: Pruner) -> float:
    """What the last update of an epoch takes."""
    indices = iter(pruner.sampler)
    num_before = len(pruner.plan) - 1
    for _ in range(num_before):
        next(indices)
    pruner.update(exponential(num_before))
    next(indices)
    start = perf_counter()
    pruner.update(torch.ones(1))
    seconds = perf_counter() - start
    assert pruner.epoch == 2
    return seconds


def train_pruned(pruners: list[Pruner], losses: Tensor) -> None:
    pruner = pruners.pop()
    for batch in pruner.batches(BATCH):
        pruner.update(losses if len(batch) == BATCH else losses[: len(batch)])


def train_plain(sampler: Sampler[int], losses: Tensor) -> None:
    for batch in BatchSampler(sampler, BATCH, drop_last=False):
        torch.mean(losses if len(batch) == BATCH else losses[: len(batch)])
