"""A loop with accelerate, on scikit-learn's digits, on one process or many.

`python examples/accelerate_digits.py`, or
`accelerate launch --cpu --num-processes 2 examples/accelerate_digits.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.integrations.accelerate import PreparedLoader
from infobatch.schedule import Schedule


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(arguments)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = (
        torch.tensor(part)
        for part in train_test_split(images / 16, labels, test_size=360, random_state=0)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss(reduction="none")

    train_data = infobatch.InfoBatch(TensorDataset(x.float(), y), options.epochs)
    loader = infobatch.DataLoader(train_data, batch_size=16, sharded=False)
    test_loader = DataLoader(TensorDataset(x_test.float(), y_test), batch_size=64)
    num_steps = options.epochs * -(-len(x) // (16 * 2 * accelerator.num_processes))
    curve = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    schedule = Schedule(curve, train_data, batch_size=16, accumulate=2)
    model, optimizer, loader, test_loader, schedule = accelerator.prepare(
        model, optimizer, loader, test_loader, schedule
    )
    batches = PreparedLoader(loader, train_data)
    accelerator.register_for_checkpointing(train_data)

    for _ in range(train_data.epoch, options.epochs):
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = train_data.update(criterion(model(inputs), targets))
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    model.eval()
    num_right = 0
    for inputs, targets in test_loader:
        with torch.no_grad():
            right = model(inputs).argmax(1) == targets
        num_right += int(accelerator.gather_for_metrics(right).sum())
    accuracy, saved = num_right / len(x_test), train_data.savings.fraction
    accelerator.print(f"accuracy {accuracy:.1%}, {saved:.1%} of the samples saved")
    accelerator.end_training()
    return accuracy


if __name__ == "__main__":
    main()
