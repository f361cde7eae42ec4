"""A step: what `update` costs in place of `losses.mean()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.table import Aim, Row, Section
from benchmarks.timing import exponential
from infobatch import Pruner

BATCHES = (32, 128, 1024)
NUM_STEPS = 600
ROUNDS = 7


def section(batches: Sequence[int] = BATCHES, num_steps: int = NUM_STEPS) -> Section:
    rows = [
        row_of(batch_size, num_steps, by_index=by_index)
        for by_index in (False, True)
        for batch_size in batches
    ]
    return Section(
        "A step",
        "One `update(losses)` of a pruned epoch on the host, against `losses.mean()` and "
        "`(losses * w).mean()`; each right after a linear layer and a cross entropy that made its "
        f"losses, as in a training step. Medians of {num_steps:,} steps in which the three take "
        f"turns, the best of {ROUNDS} such rounds.",
        rows,
    )


def row_of(batch_size: int, num_steps: int, *, by_index: bool) -> Row:
    pruner = pruner_with_scores(2 * batch_size * num_steps * ROUNDS)
    batches = iter(pruner.batches(batch_size, drop_last=True))
    rounds = [
        medians(pruner, batches, batch_size, num_steps, by_index=by_index) for _ in range(ROUNDS)
    ]
    best = {name: min(times[name] for times in rounds) for name in rounds[0]}
    ours = best.pop("update")
    aim = Aim(6.0 if by_index else 3.0, "losses.mean()")
    how = "by index" if by_index else "in order"
    return Row(f"{how}, batch of {batch_size:,}", ours, "s", best, aim)


def medians(
    pruner: Pruner,
    batches: Iterator[list[int]],
    batch_size: int,
    num_steps: int,
    *,
    by_index: bool,
) -> dict[str, float]:
    """Of each reduction, in seconds."""
    model, weights = nn.Linear(16, 10), torch.ones(batch_size)
    x, y = torch.rand(batch_size, 16), torch.zeros(batch_size, dtype=torch.int64)
    indices: Tensor | None = None
    reductions: dict[str, Callable[[Tensor], Tensor]] = {
        "update": lambda losses: pruner.update(losses, indices),
        "losses.mean()": lambda losses: losses.mean(),
        "(losses * w).mean()": lambda losses: (losses * weights).mean(),
    }
    times: dict[str, list[float]] = {name: [] for name in reductions}
    for batch in islice(batches, num_steps):
        indices = torch.tensor(batch) if by_index else None
        for name, reduce in reductions.items():
            losses = cross_entropy(model(x), y, reduction="none")
            start = perf_counter()
            reduce(losses)
            times[name].append(perf_counter() - start)
    return {name: median(taken) for name, taken in times.items()}


def pruner_with_scores(size: int) -> Pruner:
    """A pruner after a first epoch, reported at once."""
    pruner = Pruner(size, num_epochs=100)
    pruner.update(exponential(size), pruner.plan.indices)
    return pruner
