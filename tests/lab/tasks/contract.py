"""What every task must hold, on a few samples: `check_contract(task, settings, tmp_path)`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from infobatch import InfoBatch
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.seeding import generator, seed_of
from infobatch_lab.settings import Settings
from infobatch_lab.tasks import Task
from infobatch_lab.training import (
    Progress,
    Stopped,
    curve_of,
    loader_and_schedule,
    optimizer_of,
    own_random_numbers,
    train,
)


def check_contract(task: Task, chosen: Settings, folder: Path) -> None:
    """All of it. Use a small network, some dozens of samples and two or three epochs."""
    check_losses(task, chosen)
    check_evaluation(task, chosen)
    check_resume(task, chosen, folder)
    check_full_is_a_plain_loop(task, replace(chosen, rule="full"), folder)


def first_batch(task: Task, chosen: Settings) -> Any:
    data: InfoBatch[Any] = InfoBatch(task.train, chosen.epochs, seed=chosen.seed)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    loader, _ = loader_and_schedule(data, chosen, optimizer, collate=task.collate)
    return next(iter(loader))


def check_losses(task: Task, chosen: Settings) -> None:
    """One finite loss per sample; every trained parameter has a gradient; `rng` decides all."""
    batch = first_batch(task, chosen)
    torch.manual_seed(0)
    network = task.network(chosen).train()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    num_samples = min(chosen.batch_size, len(task.train))  # type: ignore[arg-type]
    draws = []
    for _ in range(2):
        network.load_state_dict(state)
        torch.manual_seed(1)  # what a network draws by itself: dropout
        losses, scores = task.batch_losses(network, batch, chosen, generator("test"))
        assert losses.shape[:1] == (num_samples,)
        assert losses.isfinite().all()
        assert scores is None or scores.shape == (num_samples,)
        draws.append(losses)
    assert draws[0].equal(draws[1])
    draws[1].sum().backward()
    without = [n for n, p in network.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


def check_evaluation(task: Task, chosen: Settings) -> None:
    """The metric is there at the end, finite, and the same again."""
    torch.manual_seed(0)
    network = task.network(chosen).eval()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(task.evaluate(network, chosen, final=True))
    assert found[0] == found[1]
    assert math.isfinite(found[0][task.metric.name])
    assert task.num_test > 0


def check_resume(task: Task, chosen: Settings, folder: Path) -> None:
    """A run that is stopped in its second epoch goes on to the last bit."""
    whole = train(chosen, task, Checkpoint(folder / "whole.pt"))
    assert isinstance(whole, dict)
    checkpoint = Checkpoint(folder / "stopped.pt", resume=True, every=0)
    heard: list[Progress] = []
    stopped = train(
        chosen,
        task,
        checkpoint,
        stop=lambda: heard[-1].epoch >= 1,
        report=heard.append,
    )
    assert isinstance(stopped, Stopped)
    torch.rand(7)
    done = train(chosen, task, checkpoint, figures=folder / "figures")
    assert isinstance(done, dict)
    assert done["history"] == whole["history"]
    assert done[task.metric.name] == whole[task.metric.name]
    assert done["metric"]["name"] == task.metric.name


def check_full_is_a_plain_loop(task: Task, chosen: Settings, folder: Path) -> None:
    """Written out as anyone would, without weights, scores and schedules of ours; to the bit."""
    run = train(chosen, task, Checkpoint(folder / "full.pt"))
    assert isinstance(run, dict)

    order: InfoBatch[Any] = InfoBatch(task.train, chosen.epochs, rule="full", seed=chosen.seed)
    torch.manual_seed(chosen.seed)
    network = task.network(chosen)
    optimizer = optimizer_of(chosen, network)
    num_samples = order.num_samples
    steps_per_epoch = -(-num_samples // chosen.batch_size)
    curve = curve_of(chosen, optimizer, chosen.epochs * steps_per_epoch)
    expected = []
    for epoch in range(chosen.epochs):
        order.set_epoch(epoch)
        batches = [part.tolist() for part in order.plan.indices.split(chosen.batch_size)]
        loader: DataLoader[Any] = DataLoader(
            task.train, batch_sampler=batches, collate_fn=task.collate, generator=torch.Generator()
        )
        total, position = 0.0, 0
        network.train()
        for batch in loader:
            rng = generator("augment", chosen.seed, epoch, position, 0)
            torch.manual_seed(seed_of("network", chosen.seed, epoch, position, 0))
            losses, _ = task.batch_losses(network, batch, chosen, rng)
            loss = losses.flatten(1).mean(1).mean() if losses.dim() > 1 else losses.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.step()
            total += float(loss.detach() * len(losses))
            position += len(losses)
        expected.append(total / num_samples)
    assert [line["train_loss"] for line in run["history"]] == expected
    # The losses do not show the last step, but the metric does.
    with own_random_numbers("evaluate", chosen.seed, chosen.epochs - 1):
        metrics = task.evaluate(network.eval(), chosen, final=True)
    assert run[task.metric.name] == metrics[task.metric.name]
