"""Full training against InfoBatch on scikit-learn's digits: `make demo`, about a minute."""

from __future__ import annotations

import time
from statistics import mean, stdev

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch

NUM_EPOCHS, BATCH_SIZE, NUM_SEEDS = 40, 32, 5


def digits() -> tuple[TensorDataset, Tensor, Tensor]:
    """1,437 training images, and 360 to test with."""
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, labels, test_size=360, random_state=0)
    train_data = TensorDataset(torch.tensor(x).float().reshape(-1, 1, 8, 8), torch.tensor(y))
    return train_data, torch.tensor(x_test).float().reshape(-1, 1, 8, 8), torch.tensor(y_test)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def train(rule: str, seed: int) -> tuple[float, float, float]:
    """One run: its accuracy in percent, the part of the samples it saved, and its seconds."""
    torch.manual_seed(seed)
    raw, x_test, y_test = digits()
    model = network()
    train_data = infobatch.InfoBatch(raw, NUM_EPOCHS, rule=rule, seed=seed)
    loader = DataLoader(train_data, batch_size=BATCH_SIZE, sampler=train_data.sampler)
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_EPOCHS)
    start = time.perf_counter()
    for _ in range(NUM_EPOCHS):
        for x, y in loader:
            loss = train_data.update(criterion(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        accuracy = (model.eval()(x_test).argmax(1) == y_test).float().mean()
    return 100 * float(accuracy), train_data.savings.fraction, seconds


def main() -> None:
    print(f"digits, {NUM_EPOCHS} epochs, {NUM_SEEDS} seeds, test accuracy in %\n")
    print(f"{'':12}{'accuracy':>16}{'samples saved':>16}{'time saved':>12}")
    seconds_of_full = 0.0
    for name, rule in (("full", "full"), ("InfoBatch", "mean")):
        runs = [train(rule, seed) for seed in range(NUM_SEEDS)]
        accuracies, savings, seconds = zip(*runs, strict=True)
        seconds_of_full = seconds_of_full or sum(seconds)
        accuracy = f"{mean(accuracies):.2f} ± {stdev(accuracies):.2f}"
        saved, time_saved = mean(savings), 1 - sum(seconds) / seconds_of_full
        print(f"{name:12}{accuracy:>16}{saved:>16.1%}{time_saved:>12.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # for so small a network, threads cost more than they bring
    main()
