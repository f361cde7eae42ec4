"""Training that counts steps, not epochs: pruning ends at delta of the budget."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader

from infobatch import InfoBatch, Pruner, StateError
from infobatch.schedule import Schedule
from tests.conftest import Numbers, loss_of, same_state


def train(data: InfoBatch[int], num_steps: int) -> list[tuple[int, int, bool]]:
    """The epoch, the step it began with, and whether it prunes, of each epoch begun."""
    epochs, step = [], 0
    loader = DataLoader(data, batch_size=8, sampler=data.sampler)
    while step < num_steps:
        epochs.append((data.epoch, step, data.plan.num_pruned > 0))
        for samples in loader:
            data.update(loss_of(samples, data.epoch))
            step += 1
            if step == num_steps:
                break
    return epochs


@pytest.mark.parametrize(("num_steps", "delta"), [(100, 0.85), (60, 0.5), (90, 1.0), (90, 0.0)])
def test_an_epoch_prunes_if_it_begins_before_delta_of_the_budget(
    num_steps: int, delta: float
) -> None:
    data = InfoBatch(Numbers(100), num_steps=num_steps, delta=delta)
    epochs = train(data, num_steps)
    assert [epoch for epoch, _, _ in epochs] == list(range(len(epochs)))
    for epoch, began, prunes in epochs:
        assert prunes == (epoch > 0 and began < delta * num_steps)
    assert len(epochs) > num_steps / 13 or delta == 0  # 13 steps in a full epoch


def test_past_its_budget_a_run_trains_on_everything() -> None:
    data = InfoBatch(Numbers(100), num_steps=40, delta=1)
    assert [prunes for _, began, prunes in train(data, 90) if began >= 40] == [False] * 4


@pytest.mark.parametrize("stop", [1, 13, 20, 44, 60])
def test_a_resumed_run_anneals_at_the_same_step(stop: int) -> None:
    def make() -> InfoBatch[int]:
        return InfoBatch(Numbers(100), num_steps=80, delta=0.6)

    whole, data, resumed = make(), make(), make()
    train(whole, 80)
    train(data, stop)
    resumed.load_state_dict(data.state_dict())
    assert same_state(resumed.state_dict(), data.state_dict())
    train(resumed, 80 - stop)
    assert same_state(resumed.state_dict(), whole.state_dict())


def test_one_length_is_asked_for_and_refused_by_another() -> None:
    for lengths in ({}, {"num_epochs": 3, "num_steps": 3}):
        with pytest.raises(TypeError, match="num_steps .*expected one of them"):
            Pruner(10, **lengths)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_steps is 0, expected a whole number of at least 1"):
        Pruner(10, num_steps=0)
    with pytest.raises(StateError, match="the checkpoint has num_steps 40, this run 30"):
        Pruner(10, num_steps=30).load_state_dict(Pruner(10, num_steps=40).state_dict())
    with pytest.raises(StateError, match="the checkpoint has num_epochs 30, this run None"):
        Pruner(10, num_steps=30).load_state_dict(Pruner(10, num_epochs=30).state_dict())


def test_a_schedule_over_the_budget_needs_no_wrapper() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    curve = lr_scheduler.CosineAnnealingLR(optimizer, 100)
    with pytest.raises(ValueError, match="step it without a Schedule"):
        Schedule(curve, Pruner(10, num_steps=100), batch_size=2)
