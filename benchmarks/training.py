"""End to end: a real training on digits, with pruning and as one would write it without."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.table import Aim, Row, Section
from infobatch import InfoBatch
from infobatch.experiments import models

NUM_EPOCHS = 16
BATCH = 32


@dataclass(frozen=True)
class Outcome:
    seconds: float
    saved: float = 0.0
    """Of the samples."""


def section(num_epochs: int = NUM_EPOCHS, turns: int = 5) -> Section:
    plain, pruned = [], []
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only wait for each other with images this small
    for _ in range(turns):  # the same training each time: only the clock differs
        plain.append(train(num_epochs, prune=False))
        pruned.append(train(num_epochs, prune=True))
    torch.set_num_threads(num_threads)
    best_plain = min(outcome.seconds for outcome in plain)
    best_pruned = min(outcome.seconds for outcome in pruned)
    samples_saved = pruned[0].saved
    time_saved = 1 - best_pruned / best_plain
    return Section(
        "End to end",
        f"Digits, resnet8, {num_epochs} epochs in batches of {BATCH}: a plain loop (shuffled "
        "DataLoader, `cross_entropy`) against the same loop with InfoBatch, on one thread, in "
        f"turns, the best of {turns} each; without evaluation.",
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


def train(num_epochs: int, *, prune: bool) -> Outcome:
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images).float().reshape(-1, 1, 8, 8), torch.tensor(labels))
    model = models.create("resnet8", 1, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = perf_counter()
    if not prune:
        loader = DataLoader(data, batch_size=BATCH, shuffle=True)
        for _ in range(num_epochs):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
        return Outcome(perf_counter() - start)
    train_data = InfoBatch(data, num_epochs)
    loader = DataLoader(train_data, batch_size=BATCH, sampler=train_data.sampler)
    for _ in range(num_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            train_data.update(cross_entropy(model(x), y, reduction="none")).backward()
            optimizer.step()
    return Outcome(perf_counter() - start, train_data.savings.fraction)
