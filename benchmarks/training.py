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
    seconds: list[list[tuple[float, ...]]] = []
    for _ in range(turns):  # the same three trainings each time: only the clock differs
        fewer, smaller = InfoBatch(digits(), num_epochs), InfoBatch(digits(), num_epochs)
        trainings = (
            plain_epochs(num_epochs),
            pruned_epochs(fewer, fewer.batches(BATCH), num_epochs),
            pruned_epochs(smaller, smaller.batches(BATCH, shrink="batch"), num_epochs),
        )
        seconds.append(list(zip(*trainings, strict=True)))  # epoch by epoch, in turns
    torch.set_num_threads(num_threads)
    plain, with_fewer, with_smaller = (
        sum(min(turn[epoch][place] for turn in seconds) for epoch in range(num_epochs))
        for place in range(3)
    )
    return Section(
        "End to end",
        f"Digits, resnet8, {num_epochs} epochs in batches of {BATCH}: a plain loop (shuffled "
        "DataLoader, `cross_entropy`) against the same loop with InfoBatch, with fewer batches and "
        'with smaller ones (`shrink="batch"`), on one thread, without evaluation. They take turns '
        f"epoch by epoch; the same three trainings ran {turns} times, and the best time of each "
        "epoch counts. Smaller batches pay for every step of full training.",
        [
            Row("training", with_fewer, "s", {"a plain loop": plain}),
            Row("samples saved", 100 * fewer.savings.fraction, "%"),
            Row("time saved", 100 * (1 - with_fewer / plain), "%"),
            Row(
                "time saved of samples saved",
                (1 - with_fewer / plain) / fewer.savings.fraction,
                "",
                aim=Aim(0.95, at_least=True),
            ),
            Row("training, smaller batches", with_smaller, "s", {"a plain loop": plain}),
            Row("samples saved, smaller batches", 100 * smaller.savings.fraction, "%"),
            Row("time saved, smaller batches", 100 * (1 - with_smaller / plain), "%"),
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


def pruned_epochs(data: InfoBatch[Any], batches: Any, num_epochs: int) -> Iterator[float]:
    """The same with InfoBatch."""
    model, optimizer = network()
    loader = DataLoader(data, batch_sampler=batches)
    for _ in range(num_epochs):
        start = perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            data.update(cross_entropy(model(x), y, reduction="none")).backward()
            optimizer.step()
        yield perf_counter() - start
