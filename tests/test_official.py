"""A script in the shape of the example of the authors' package runs with two lines changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infobatch import InfoBatch
from infobatch.official import INSTEAD
from tests.conftest import Numbers

SCRIPT = """
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from infobatch import InfoBatch

num_epoch, ratio, delta, batch_size = 8, 0.5, 0.875, 32
torch.manual_seed(0)
x = torch.randn(300, 6)
y = (x.sum(1) + torch.randn(300) > 0).long()

trainset = InfoBatch(TensorDataset(x, y), num_epoch, ratio, delta)
trainloader = DataLoader(trainset, batch_size, shuffle=False, sampler=trainset.sampler)
net = nn.Linear(6, 2)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
train_acc = []


def train(epoch, lr_scheduler):
    correct = total = 0
    for inputs, targets in trainloader:
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        trainset.update(loss)
        loss = torch.mean(loss)
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        total += len(targets)
        correct += (outputs.argmax(1) == targets).sum().item()
    train_acc.append(correct / total)


OneCycleLR(optimizer, 0.2, steps_per_epoch=len(trainloader), epochs=num_epoch)
for epoch in range(num_epoch):
    steps = len(trainloader)
    train(
        epoch,
        OneCycleLR(
            optimizer, 0.2, steps_per_epoch=steps, epochs=num_epoch, last_epoch=epoch * steps - 1
        ),
    )
saved = trainset.get_pruned_count()
"""

CHANGES = {
    "        trainset.update(loss)\n": "        loss = trainset.update(loss)\n",
    "saved = trainset.get_pruned_count()\n": (
        "saved = trainset.savings.num_full - trainset.savings.num_trained\n"
    ),
}


def run(script: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(script, "example.py", "exec", dont_inherit=True), namespace)
    return namespace


def changed(script: str) -> str:
    for line, new in CHANGES.items():
        assert script.count(line) == 1
        script = script.replace(line, new)
    return script


def test_with_two_lines_changed_the_example_trains_with_weights_and_tells_what_it_saved() -> None:
    found = run(changed(SCRIPT))
    data: InfoBatch[Any] = found["trainset"]
    assert data.epoch == 8
    assert found["saved"] == 8 * 300 - data.savings.num_trained
    assert 0.15 < found["saved"] / (8 * 300) < 0.45
    assert found["train_acc"][-1] > 0.7
    # The same training, each batch weighed by hand.
    by_hand = SCRIPT.replace(
        "loss = torch.mean(loss)", "loss = (loss * trainset.batch_weights).mean()"
    )
    expected = run(by_hand.replace("saved = trainset.get_pruned_count()\n", ""))
    for one, other in zip(found["net"].parameters(), expected["net"].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_unchanged_it_ends_with_a_sentence_about_the_name() -> None:
    with pytest.raises(AttributeError, match="get_pruned_count is a name of the authors' package"):
        run(SCRIPT)


VALUES = {
    "get_pruned_count": 0,
    "keep_ratio": 0.5,
    "mean_score": 4.0,
    "num_epoch": 3,
    "num_pruned_samples": 0,
    "save_num": 0,
    "stop_prune": 2.625,
    "total_save": 0,
}
"""Of the names that were numbers, after the full first epoch below."""


@pytest.mark.parametrize("name", sorted(VALUES))
def test_what_to_write_instead_gives_the_same_number(name: str) -> None:
    train_data = InfoBatch(Numbers(9), 3)
    train_data.update(torch.arange(9.0)[train_data.plan.indices], train_data.plan.indices)
    value = eval(INSTEAD[name].removeprefix("write "), {"train_data": train_data})
    assert value == VALUES[name]
