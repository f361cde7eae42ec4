"""End to end: a real training on digits, with pruning and as one would write it without."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.table import Aim, Row, Section
from infobatch import InfoBatch
from infobatch_lab import models

NUM_EPOCHS = 16
BATCH = 32


def section(num_epochs: int = NUM_EPOCHS, turns: int = 6) -> Section:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only wait for each other with images this small
    plain: list[list[float]] = []
    pruned: list[list[float]] = []
    for _ in range(turns):  # the same two trainings each time: only the clock differs
        data = InfoBatch(digits(), num_epochs)
        trainings = plain_epochs(num_epochs), pruned_epochs(data, num_epochs)
        both = list(zip(*trainings, strict=True))  # epoch by epoch, in turns
        plain.append([seconds for seconds, _ in both])
        pruned.append([seconds for _, seconds in both])
    torch.set_num_threads(num_threads)
    best_plain, best_pruned = (
        sum(min(of_epoch) for of_epoch in zip(*times, strict=True)) for times in (plain, pruned)
    )
    samples_saved = data.savings.fraction
    time_saved = 1 - best_pruned / best_plain
    return Section(
        "End to end",
        f"Digits, resnet8, {num_epochs} epochs in batches of {BATCH}: a plain loop (shuffled "
        "DataLoader, `cross_entropy`) against the same loop with InfoBatch, on one thread, without "
        f"evaluation. They take turns epoch by epoch; the same two trainings ran {turns} times, "
        "and the best time of each epoch counts.",
        [
            Row("training", best_pruned, "s", {"a plain loop": best_plain}),
            Row("samples saved", 100 * samples_saved, "%"),
            Row("time saved", 100 * time_saved, "%"),
            Row(
                "time saved of samples saved",
                time_saved / samples_saved,
                "",
                aim=Aim(0.95, at_least=True),
            ),
        ],
    )


def digits() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images).float().reshape(-1, 1, 8, 8), torch.tensor(labels))


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = models.create("resnet8", 1, 10)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def plain_epochs(num_epochs: int) -> Iterator[float]:
    """Train; gives the seconds of each epoch."""
    model, optimizer = network()
    loader = DataLoader(digits(), batch_size=BATCH, shuffle=True)
    for _ in range(num_epochs):
        start = perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        yield perf_counter() - start


def pruned_epochs(data: InfoBatch[Any], num_epochs: int) -> Iterator[float]:
    """The same with InfoBatch."""
    model, optimizer = network()
    loader = DataLoader(data, batch_size=BATCH, sampler=data.sampler)
    for _ in range(num_epochs):
        start = perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            data.update(cross_entropy(model(x), y, reduction="none")).backward()
            optimizer.step()
        yield perf_counter() - start
