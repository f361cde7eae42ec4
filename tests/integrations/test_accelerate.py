"""accelerate: the same samples in the same steps with the same weights as a plain loop."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor, nn
from torch.utils.data import Sampler, TensorDataset

import infobatch
from infobatch import InfoBatch, OrderError
from infobatch.integrations.accelerate import PreparedLoader
from infobatch.schedule import Schedule
from tests.conftest import same_state
from tests.integrations.launched import as_launched
from tests.ranks import on_ranks

NUM_EPOCHS = 6
BATCH_SIZE = 4


class Run(NamedTuple):
    batches: list[list[int]]
    """The samples of each batch of this process."""
    num_batches: list[int]
    """Of each epoch."""
    rates: list[float]
    """The learning rate after each step of the optimizer."""
    parameters: Tensor
    state: dict[str, Any]
    saved: float


def points() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(50, 3)
    return x, (x.sum(1) + torch.randn(50) > 0).long()


def train(
    *,
    accumulate: int = 1,
    rule: str = "mean",
    save_at: int = -1,
    folder: Path | None = None,
    resume: bool = False,
) -> Run:
    """A training loop with accelerate, as its documentation has it."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    x, y = points()
    model: Any = nn.Linear(3, 2)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    train_data = InfoBatch(TensorDataset(x, y, torch.arange(50)), NUM_EPOCHS, rule=rule)
    steps = ceil(ceil(50 / (BATCH_SIZE * accelerator.num_processes)) / accumulate)
    curve = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps * NUM_EPOCHS)
    schedule: Any = Schedule(curve, train_data, batch_size=BATCH_SIZE, accumulate=accumulate)
    batches: Any = infobatch.DataLoader(train_data, batch_size=BATCH_SIZE, sharded=False)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
    batches = PreparedLoader(batches, train_data)
    accelerator.register_for_checkpointing(train_data)
    if resume:
        accelerator.load_state(str(folder))
    criterion = nn.CrossEntropyLoss(reduction="none")
    seen: list[list[int]] = []
    rates = []
    num_batches = []
    for _ in range(train_data.epoch, NUM_EPOCHS):
        num_batches.append(len(batches))
        for inputs, targets, samples in batches:
            with accelerator.accumulate(model):
                loss = train_data.update(criterion(model(inputs), targets))
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            seen.append(samples.tolist())
            if accelerator.sync_gradients:
                rates.append(schedule.get_last_lr()[0])
            if len(seen) == save_at:
                train_data.sync()
                accelerator.save_state(str(folder))
    weights = accelerator.unwrap_model(model).weight.detach().clone()
    return Run(
        seen, num_batches, rates, weights, train_data.state_dict(), train_data.savings.fraction
    )


class PlanOrder(Sampler[int]):
    """The order of the pruner's epochs, for accelerate without the library."""

    pruner = infobatch.Pruner(50, NUM_EPOCHS, rule="full")

    def __iter__(self) -> Iterator[int]:
        return iter(self.pruner.plan.indices.tolist())

    def __len__(self) -> int:
        return 50

    def set_epoch(self, epoch: int) -> None:
        self.pruner.set_epoch(epoch)


def train_without_the_library(*, accumulate: int) -> Tensor:
    """The same loop with a stock loader and loss; the parameters."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    x, y = points()
    model: Any = nn.Linear(3, 2)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    steps = ceil(ceil(50 / (BATCH_SIZE * accelerator.num_processes)) / accumulate)
    total = steps * NUM_EPOCHS * accelerator.num_processes  # accelerate steps once per process
    curve: Any = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=total)
    batches: Any = torch.utils.data.DataLoader(TensorDataset(x, y), BATCH_SIZE, sampler=PlanOrder())
    model, optimizer, batches, curve = accelerator.prepare(model, optimizer, batches, curve)
    criterion = nn.CrossEntropyLoss()
    for _ in range(NUM_EPOCHS):
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                accelerator.backward(criterion(model(inputs), targets))
                optimizer.step()
                curve.step()
                optimizer.zero_grad()
    weights: Tensor = accelerator.unwrap_model(model).weight.detach().clone()
    return weights


def plain_loop(
    *, accumulate: int = 1, num_ranks: int = 1
) -> tuple[list[list[list[int]]], list[float], Tensor]:
    """The same in one process without accelerate: batches per rank, rates, parameters."""
    x, y = points()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pruner = infobatch.Pruner(50, NUM_EPOCHS)
    full_steps = ceil(ceil(50 / (BATCH_SIZE * num_ranks)) / accumulate)
    seen: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    rates = [0.5]
    for epoch in range(NUM_EPOCHS):
        plan = pruner.plan
        weight_of = torch.zeros(50).scatter(0, plan.indices, plan.weights)
        num_batches = -(-len(plan) // (BATCH_SIZE * num_ranks))
        indices = plan.indices
        if num_ranks > 1:  # repeats from the start make the batches even
            indices = torch.cat([indices, indices])[: num_batches * BATCH_SIZE * num_ranks]
        dealt = indices.split(BATCH_SIZE)
        losses_of = [torch.full((50,), -torch.inf) for _ in range(num_ranks)]
        num_steps = -(-num_batches // accumulate)
        for number in range(num_batches):
            for rank in range(num_ranks):
                batch = dealt[number * num_ranks + rank]
                losses = nn.functional.cross_entropy(model(x[batch]), y[batch], reduction="none")
                loss = (weight_of[batch] * losses).mean()
                (loss / accumulate / num_ranks).backward()
                losses_of[rank][batch] = losses.detach()
                seen[rank].append(batch.tolist())
            if (number + 1) % accumulate == 0 or number + 1 == num_batches:
                optimizer.param_groups[0]["lr"] = rates[-1]
                optimizer.step()
                optimizer.zero_grad()
                step = number // accumulate + 1
                done = epoch * full_steps + full_steps * step // num_steps
                rates.append(0.5 * (1 - done / (NUM_EPOCHS * full_steps)))
        merged = torch.stack(losses_of).amax(0)
        pruner.update(merged[plan.indices], plan.indices)
    return seen, rates[1:], model.weight.detach()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_trains_as_a_plain_loop_does(accumulate: int) -> None:
    (batches,), rates, parameters = plain_loop(accumulate=accumulate)
    run = train(accumulate=accumulate)
    assert run.batches == batches
    assert run.rates == pytest.approx(rates)
    assert run.rates[-1] == 0
    torch.testing.assert_close(run.parameters, parameters)
    assert run.saved > 0.1


def test_full_is_what_accelerate_does_alone() -> None:
    full = train(accumulate=3, rule="full")
    torch.testing.assert_close(
        full.parameters, train_without_the_library(accumulate=3), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("save_at", [2, 13, 19])  # within the first epoch, at its end, in the next
def test_a_resumed_run_ends_as_if_nothing_had_happened(tmp_path: Path, save_at: int) -> None:
    whole = train(save_at=save_at, folder=tmp_path)
    resumed = train(folder=tmp_path, resume=True)
    assert resumed.batches == whole.batches[save_at:]
    assert resumed.rates == whole.rates[save_at:]
    assert torch.equal(resumed.parameters, whole.parameters)
    assert same_state(resumed.state, whole.state)


def test_a_loader_without_indices_is_refused() -> None:
    data = InfoBatch(TensorDataset(*points()), NUM_EPOCHS)
    loader = torch.utils.data.DataLoader(data, sampler=data.sampler)
    with pytest.raises(TypeError, match="whose batches have no indices, expected what"):
        PreparedLoader(Accelerator(cpu=True).prepare(loader), data)


def test_a_stateful_loader_is_refused() -> None:
    """After a resume it would skip what the pruner has left out already."""
    AcceleratorState._reset_state(True)
    data = InfoBatch(TensorDataset(*points()), NUM_EPOCHS)
    loader = infobatch.DataLoader(data, batch_size=BATCH_SIZE, sharded=False)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True)
    )
    with pytest.raises(ValueError, match="use_stateful_dataloader is True"):
        PreparedLoader(accelerator.prepare(loader), data)


def test_without_accelerate_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "infobatch.integrations.accelerate")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install infobatch\[accelerate\]"):
        importlib.import_module("infobatch.integrations.accelerate")


def test_a_peek_costs_nothing() -> None:
    data = InfoBatch(TensorDataset(*points()), NUM_EPOCHS)
    loader: Any = infobatch.DataLoader(data, batch_size=BATCH_SIZE, sharded=False)
    loader = PreparedLoader(Accelerator(cpu=True).prepare(loader), data)
    assert len(list(loader)) == len(loader) == 13
    assert data.epoch == 0
    with pytest.raises(OrderError):
        data.set_epoch(0)
        data.update(torch.ones(3))


def test_an_epoch_that_is_cut_short_is_followed_by_the_next() -> None:
    data = InfoBatch(TensorDataset(*points()), NUM_EPOCHS)
    loader: Any = infobatch.DataLoader(data, batch_size=BATCH_SIZE, sharded=False)
    loader = PreparedLoader(Accelerator(cpu=True).prepare(loader), data)
    for epoch in range(NUM_EPOCHS):
        for number, (x, _) in enumerate(loader):
            assert data.epoch == epoch
            data.update(x.abs().sum(1))
            if number == 2:
                break


def in_two_processes(folder: Path) -> dict[str, Any]:
    as_launched()
    return {
        "mean": train(accumulate=2, save_at=9, folder=folder),
        "resumed in an epoch": train(accumulate=2, folder=folder, resume=True),
        "at an end": train(accumulate=2, save_at=7, folder=folder / "end"),
        "resumed at an end": train(accumulate=2, folder=folder / "end", resume=True),
        "full": train(accumulate=2, rule="full").parameters,
        "alone": train_without_the_library(accumulate=2),
        "gathered": gather_metrics(),
        "lighter": train_lighter(),
    }


def train_lighter() -> dict[str, Any]:
    """Batches of our own, which accelerate shards, as many as full training has."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True)
    data = InfoBatch(TensorDataset(*points(), torch.arange(50)), NUM_EPOCHS)
    loader: Any = infobatch.DataLoader(data, BATCH_SIZE, shrink="batch", sharded=False)
    loader = PreparedLoader(accelerator.prepare(loader), data)
    plans: list[list[int]] = []
    seen: list[list[tuple[int, float]]] = []
    num_steps: list[int] = []
    for _ in range(NUM_EPOCHS):
        plans.append(data.plan.indices.tolist())
        seen.append([])
        num_steps.append(0)
        for x, _, samples in loader:
            data.update(x.abs().sum(1))
            seen[-1] += list(zip(samples.tolist(), data.batch_weights.tolist(), strict=True))
            num_steps[-1] += 1
    return {"plans": plans, "seen": seen, "steps": num_steps, "epoch": data.epoch}


def gather_metrics() -> list[bool]:
    data = InfoBatch(TensorDataset(*points(), torch.arange(50)), NUM_EPOCHS)
    accelerator = Accelerator(cpu=True)
    loader: Any = infobatch.DataLoader(data, batch_size=7, sharded=False)
    loader = PreparedLoader(accelerator.prepare(loader), data)
    equal = []
    for _ in range(NUM_EPOCHS):
        kept, gathered = data.plan.indices.tolist(), []
        for x, _, samples in loader:
            data.update(x.abs().sum(1))
            gathered += accelerator.gather_for_metrics(samples).tolist()
        equal.append(gathered == kept)
    return equal


def test_metrics_are_gathered_of_every_sample_once() -> None:
    assert gather_metrics() == [True] * NUM_EPOCHS


def check_lighter(ranks: list[dict[str, Any]]) -> None:
    """Every sample of a plan is trained once, in the steps of full training, at mean weight 1."""
    num_steps = ceil(ceil(50 / BATCH_SIZE) / len(ranks))
    for epoch, plan in enumerate(ranks[0]["plans"]):
        seen = [pair for rank in ranks for pair in rank["seen"][epoch]]
        assert sorted(sample for sample, _ in seen) == sorted(plan)
        assert sum(weight for _, weight in seen) / len(plan) == pytest.approx(1, abs=1e-6)
        assert {rank["steps"][epoch] for rank in ranks} == {num_steps}
    assert min(len(plan) for plan in ranks[0]["plans"]) < 50
    assert {rank["epoch"] for rank in ranks} == {NUM_EPOCHS}


def test_lighter_batches_keep_the_steps_of_full_training() -> None:
    check_lighter([train_lighter()])


def test_two_processes_train_as_a_plain_loop_does(tmp_path: Path) -> None:
    batches, rates, parameters = plain_loop(accumulate=2, num_ranks=2)
    ranks = on_ranks(2, in_two_processes, tmp_path, tmp_path / "state")
    check_lighter([found["lighter"] for found in ranks])
    for rank, found in enumerate(ranks):
        run = found["mean"]
        assert run.batches == batches[rank]
        assert run.rates == pytest.approx(rates)
        torch.testing.assert_close(run.parameters, parameters)
        assert run.saved > 0.1
        assert found["resumed at an end"].batches == run.batches[7:]
        assert torch.equal(found["resumed at an end"].parameters, run.parameters)
        assert same_state(found["resumed at an end"].state, run.state)
        # Within an epoch: up to its last batch, where accelerate repeats what is left's first ones.
        num_left = run.num_batches[1] - 3
        assert num_left > 0
        assert found["resumed in an epoch"].batches[:num_left] == run.batches[9 : 9 + num_left]
        torch.testing.assert_close(found["full"], found["alone"], rtol=0, atol=1e-7)
        assert found["gathered"] == [True] * NUM_EPOCHS
