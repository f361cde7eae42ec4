"""A schedule that steps per batch stays on the curve of full training while epochs shrink."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from infobatch import InfoBatch
from infobatch.schedule import Schedule
from tests.conftest import Numbers, loss_of

NUM_SAMPLES, NUM_EPOCHS, BATCH = 100, 12, 8


class Mine(LRScheduler):
    """A user's own."""

    def get_lr(self) -> list[Any]:
        return [base / (1 + self.last_epoch) ** 0.5 for base in self.base_lrs]


def sequential(optimizer: Optimizer, steps: int) -> LRScheduler:
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=steps // 5)
    decay = lr_scheduler.CosineAnnealingLR(optimizer, steps - steps // 5)
    return lr_scheduler.SequentialLR(optimizer, [warmup, decay], [steps // 5])


def chained(optimizer: Optimizer, steps: int) -> LRScheduler:
    decay = lr_scheduler.CosineAnnealingLR(optimizer, steps)
    return lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.999), decay])


CURVES: dict[str, Callable[[Optimizer, int], LRScheduler]] = {
    "OneCycleLR": lambda o, n: lr_scheduler.OneCycleLR(o, 0.5, total_steps=n),
    "CosineAnnealingLR": lr_scheduler.CosineAnnealingLR,
    "LambdaLR": lambda o, n: lr_scheduler.LambdaLR(o, lambda step: 1 - step / (n + 1)),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "PolynomialLR": lambda o, n: lr_scheduler.PolynomialLR(o, n, power=2),
    "WarmRestarts": lambda o, n: lr_scheduler.CosineAnnealingWarmRestarts(o, n // 4),
    "Mine": lambda o, n: Mine(o),
}
FALLING = ["CosineAnnealingLR", "LambdaLR", "PolynomialLR", "Mine"]


def an_optimizer() -> SGD:
    return SGD([torch.zeros(1, requires_grad=True)], lr=0.3, momentum=0.9)


def steps_of(num_samples: int, drop_last: bool, accumulate: int) -> int:
    """Counted, not computed."""
    batches = list(range(0, num_samples, BATCH))
    if drop_last and num_samples % BATCH:
        batches.pop()
    return len(batches[::accumulate])


def full_training(name: str, drop_last: bool = False, accumulate: int = 1) -> list[float]:
    """The learning rate at the end of each epoch."""
    optimizer, steps = an_optimizer(), steps_of(NUM_SAMPLES, drop_last, accumulate)
    scheduler, rates = CURVES[name](optimizer, steps * NUM_EPOCHS), []
    for _ in range(NUM_EPOCHS):
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


class Run:
    def __init__(self, name: str, drop_last: bool = False, accumulate: int = 1) -> None:
        self.accumulate = accumulate
        self.data = InfoBatch(Numbers(NUM_SAMPLES), NUM_EPOCHS)
        self.optimizer = an_optimizer()
        total = steps_of(NUM_SAMPLES, drop_last, accumulate) * NUM_EPOCHS
        self.schedule = Schedule(
            CURVES[name](self.optimizer, total),
            self.data,
            batch_size=BATCH,
            drop_last=drop_last,
            accumulate=accumulate,
        )
        self.loader = DataLoader(
            self.data, batch_size=BATCH, sampler=self.data.sampler, drop_last=drop_last
        )

    def epoch(self) -> list[float]:
        """Train one, and note the learning rate after each step."""
        rates = []
        num_batches = len(self.loader)
        for number, samples in enumerate(self.loader, 1):
            self.data.update(loss_of(samples))
            if number % self.accumulate == 0 or number == num_batches:
                self.optimizer.step()
                self.schedule.step()
                rates.append(self.optimizer.param_groups[0]["lr"])
        return rates


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", CURVES)
def test_at_every_epochs_end_the_rate_is_that_of_full_training(
    name: str, drop_last: bool, accumulate: int
) -> None:
    run = Run(name, drop_last, accumulate)
    rates = []
    for epoch in range(NUM_EPOCHS):
        run.data.set_epoch(epoch)
        rates.append(run.epoch()[-1])
    assert rates == full_training(name, drop_last, accumulate)
    run.data.set_epoch(NUM_EPOCHS)
    assert run.data.savings.fraction > 0.2


@pytest.mark.parametrize("name", FALLING)
def test_between_epochs_it_never_goes_up(name: str) -> None:
    run = Run(name)
    rates = [rate for _ in range(NUM_EPOCHS) for rate in run.epoch()]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) > 0.9 * len(rates)


def test_past_the_last_epoch_it_stays_at_its_end() -> None:
    run = Run("OneCycleLR")  # which refuses to be stepped beyond its end
    for _ in range(NUM_EPOCHS + 2):
        last = run.epoch()[-1]
    assert last == full_training("OneCycleLR")[-1]


def test_a_new_schedule_on_data_that_were_trained_before_follows_its_curve() -> None:
    run = Run("CosineAnnealingLR")
    for _ in range(5):
        run.epoch()
    again = Run("CosineAnnealingLR")
    again.data = run.data
    again.loader = run.loader
    total = steps_of(NUM_SAMPLES, False, 1) * NUM_EPOCHS
    curve = CURVES["CosineAnnealingLR"](again.optimizer, total)
    again.schedule = Schedule(curve, run.data, batch_size=BATCH)
    run.data.set_epoch(0)
    assert [again.epoch()[-1] for _ in range(3)] == full_training("CosineAnnealingLR")[:3]


def test_an_epoch_cut_short_is_made_up_for() -> None:
    run = Run("CosineAnnealingLR")
    run.epoch()
    for samples in run.loader:
        run.data.update(loss_of(samples))
        run.optimizer.step()
        run.schedule.step()
        break
    assert run.epoch()[-1] == full_training("CosineAnnealingLR")[2]


@pytest.mark.parametrize("name", CURVES)
def test_resumed_from_any_step_it_goes_on_the_same(name: str) -> None:
    whole, states = Run(name), []
    rates = []
    for _ in range(4):
        for samples in whole.loader:
            whole.data.update(loss_of(samples))
            whole.optimizer.step()
            whole.schedule.step()
            rates.append(whole.schedule.get_last_lr())
            states.append(
                copy.deepcopy(
                    (
                        whole.data.state_dict(),
                        whole.optimizer.state_dict(),
                        whole.schedule.state_dict(),
                    )
                )
            )
    for position in range(0, len(states), 5):
        resumed = Run(name)
        data, optimizer, schedule = states[position]
        resumed.data.load_state_dict(data)
        resumed.optimizer.load_state_dict(optimizer)
        resumed.schedule.load_state_dict(schedule)
        assert resumed.schedule.get_last_lr() == rates[position]
        while resumed.data.epoch < 4:
            resumed.epoch()
        assert resumed.schedule.get_last_lr() == rates[-1]


@pytest.mark.parametrize("name", [*FALLING, "ChainedScheduler"])
def test_the_wrapped_scheduler_may_be_loaded_after_it_was_wrapped(name: str) -> None:
    """A checkpoint of a run without the library holds only that one."""
    before, expected = Run(name), full_training(name)
    for _ in range(4):
        before.epoch()
    after = Run(name)
    after.data.load_state_dict(before.data.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.schedule.scheduler.load_state_dict(before.schedule.scheduler.state_dict())
    rates = [after.epoch()[-1] for _ in range(4)]
    assert rates == pytest.approx(expected[4:8])


def test_a_chained_scheduler_that_was_stepped_before_goes_on() -> None:
    run = Run("ChainedScheduler")
    steps = steps_of(NUM_SAMPLES, False, 1)
    for _ in range(3 * steps):
        run.optimizer.step()
        run.schedule.scheduler.step()
    run.schedule = Schedule(run.schedule.scheduler, run.data, batch_size=BATCH)
    run.data.set_epoch(3)
    assert run.epoch()[-1] == pytest.approx(full_training("ChainedScheduler")[3])


def test_it_is_a_torch_scheduler() -> None:
    run = Run("CosineAnnealingLR")
    assert isinstance(run.schedule, LRScheduler)
    assert run.schedule.optimizer is run.optimizer
    assert run.schedule.get_last_lr() == [0.3]


def test_what_needs_no_schedule_is_refused() -> None:
    optimizer, data = an_optimizer(), InfoBatch(Numbers(10), 3)
    with pytest.raises(TypeError, match="scheduler is a ReduceLROnPlateau"):
        Schedule(lr_scheduler.ReduceLROnPlateau(optimizer), data, batch_size=2)
    with pytest.raises(ValueError, match="batch_size is 0"):
        Schedule(CURVES["Mine"](optimizer, 5), data, batch_size=0)


@pytest.mark.parametrize("shrink", ["epoch", "batch"])
@pytest.mark.parametrize("num_calls", [1, 2, 3])
def test_a_step_that_is_called_once_per_process_counts_once(shrink: Any, num_calls: int) -> None:
    data, optimizer = InfoBatch(Numbers(NUM_SAMPLES), NUM_EPOCHS), an_optimizer()
    total = steps_of(NUM_SAMPLES, False, 1) * NUM_EPOCHS
    schedule = Schedule(CURVES["CosineAnnealingLR"](optimizer, total), data, batch_size=BATCH)
    loader = DataLoader(data, batch_sampler=data.batches(BATCH, shrink=shrink))
    for _ in range(NUM_EPOCHS):
        for samples in loader:
            data.update(loss_of(samples))
            optimizer.step()
            for _ in range(num_calls):  # as accelerate does
                schedule.step()
    assert schedule.last_epoch == total


def test_the_first_step_after_a_rollback_counts() -> None:
    data, optimizer = InfoBatch(Numbers(NUM_SAMPLES), NUM_EPOCHS), an_optimizer()
    schedule = Schedule(CURVES["LambdaLR"](optimizer, 1000), data, batch_size=BATCH)
    loader = DataLoader(data, batch_sampler=data.batches(BATCH, shrink="batch"))
    for number, samples in enumerate(loader):
        if number == 2:
            saved = copy.deepcopy(schedule.state_dict()), data.state_dict()
        if number == 3:
            break
        data.update(loss_of(samples))
        optimizer.step()
        schedule.step()
    schedule.load_state_dict(saved[0])  # before the pruner, as a framework may do
    data.load_state_dict(saved[1])
    before = schedule.last_epoch
    data.update(loss_of(next(iter(loader))))
    optimizer.step()
    schedule.step()
    assert schedule.last_epoch == before + 1
