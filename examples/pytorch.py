"""A plain PyTorch loop on scikit-learn's digits, with InfoBatch: `python examples/pytorch.py`."""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import infobatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    num_epochs = parser.parse_args().epochs

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels))
    to_train, to_test = random_split(digits, [0.8, 0.2])

    train_data = infobatch.InfoBatch(to_train, num_epochs)
    loader = DataLoader(train_data, batch_sampler=train_data.batches(32))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs)

    for epoch in range(num_epochs):
        for x, y in loader:
            loss = train_data.update(criterion(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        print(epoch, train_data.metrics)

    with torch.no_grad():
        x, y = next(iter(DataLoader(to_test, batch_size=len(to_test))))
        accuracy = (model(x).argmax(1) == y).float().mean()
    print(f"accuracy {accuracy:.1%}, {train_data.savings.fraction:.0%} of the samples saved")


if __name__ == "__main__":
    main()
