"""Times that can be compared: tasks take turns, so that a slow moment meets all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
import torch
from torch import Tensor


def best_times(
    turns: int, tasks: Mapping[str, Callable[[], object]], *, touch: int = 0
) -> dict[str, float]:
    """The best time of each task, in seconds.

    Before each, untimed, `touch` bytes of memory are written to and freed.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(turns):
        for name, task in tasks.items():
            np.ones(touch, dtype=np.uint8)
            start = perf_counter()
            task()
            times[name].append(perf_counter() - start)
    return {name: min(taken) for name, taken in times.items()}


def exponential(length: int) -> Tensor:
    """Losses as they are late in training: most of them small, a long tail."""
    return torch.empty(length).exponential_(generator=torch.Generator().manual_seed(1))


def permute(length: int) -> Tensor:
    """The least that any epoch costs: a random order."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(1))
