"""timm's loaders, mixing and schedulers around a pruned epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from timm.data import Mixup
from timm.data.loader import MultiEpochsDataLoader, PrefetchLoader
from timm.scheduler import CosineLRScheduler
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch import InfoBatch, OrderError, mixing
from tests.conftest import Numbers, loss_of

NUM_SAMPLES, NUM_EPOCHS, BATCH = 90, 8, 8

# Without normalisation, so that an image still says which sample it is.
Prefetched = partial(
    PrefetchLoader, mean=(0.0,), std=(1 / 255,), channels=1, device=torch.device("cpu")
)


def images() -> TensorDataset:
    """Image i is i everywhere, and its class i mod 3."""
    numbers = torch.arange(NUM_SAMPLES)
    return TensorDataset(numbers.float().view(-1, 1, 1, 1).expand(-1, 1, 4, 4), numbers % 3)


def prefetched_inside(numbered: Any) -> Iterator[Any]:
    waiting: deque[Tensor] = deque()

    def pairs() -> Iterator[Any]:
        for indices, batch in numbered:
            waiting.append(indices)
            yield batch

    for batch in Prefetched(pairs()):
        yield waiting.popleft(), batch


def epoch_of(data: InfoBatch[Any], kind: str) -> Iterator[Any]:
    """The batches of an epoch, through timm's loader that reads ahead."""
    if kind == "inside":
        loader = infobatch.DataLoader(data, batch_size=BATCH, drop_last=True)
        yield from loader.through(prefetched_inside)
    else:
        workers = 2 if kind == "workers" else 0
        yield from Prefetched(
            DataLoader(
                data, batch_size=BATCH, sampler=data.sampler, num_workers=workers, drop_last=True
            )
        )


@pytest.mark.parametrize("kind", ["stock", "workers", "inside"])
def test_losses_reach_their_samples_through_a_loader_that_reads_ahead(kind: str) -> None:
    data = InfoBatch(images(), NUM_EPOCHS)
    expected = torch.full((NUM_SAMPLES,), float("nan"))
    for epoch in range(3):
        whole_batches = len(data.plan) // BATCH * BATCH
        plan, seen = data.plan.indices[:whole_batches], []
        for x, _ in epoch_of(data, kind):
            samples = x[:, 0, 0, 0].round().long()
            data.update(loss_of(samples, epoch))
            seen.append(samples)
        assert torch.equal(torch.cat(seen), plan)
        expected[plan] = loss_of(plan, epoch)
        torch.testing.assert_close(data.scores, expected, equal_nan=True)
    assert data.savings.fraction > 0


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_scores_of_mixed_images_reach_their_samples(mode: str) -> None:
    """A model that knows class 0 only: its samples err least, whatever they are mixed with."""
    data = InfoBatch(images(), NUM_EPOCHS)
    mixup = Mixup(mixup_alpha=0.3, cutmix_alpha=0.3, mode=mode, num_classes=3)
    scores_of = torch.full((NUM_SAMPLES,), float("nan"))
    for x, y in epoch_of(data, "stock"):
        samples = x[:, 0, 0, 0].round().long()
        assert torch.equal(samples % 3, y)
        x, soft_targets = mixup(x, y)
        logits = torch.randn(len(y), 3)
        mixed = mixing.from_timm(mixup, soft_targets, y)
        losses, scores = mixed.losses_and_scores(logits)
        data.update(losses, scores=scores)
        # The slow way: the two images that hold sample i are i and its mirror image.
        errors = (soft_targets - logits.softmax(1)).abs()
        for place, sample in enumerate(samples.tolist()):
            mirror = len(y) - 1 - place
            scores_of[sample] = errors[place, y[place]] + errors[mirror, y[place]]
    torch.testing.assert_close(data.scores, scores_of, equal_nan=True)


def test_a_scheduler_per_update_ends_each_epoch_where_full_training_does() -> None:
    def rates(rule: str) -> list[float]:
        data = InfoBatch(Numbers(NUM_SAMPLES), NUM_EPOCHS, rule=rule)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        updates_per_epoch = -(-NUM_SAMPLES // BATCH)
        total = NUM_EPOCHS * updates_per_epoch
        schedule = CosineLRScheduler(optimizer, total, t_in_epochs=False, warmup_t=20)
        found = []
        for epoch in range(NUM_EPOCHS):
            for samples in DataLoader(data, batch_size=BATCH, sampler=data.sampler):
                data.update(loss_of(samples, epoch))
                done = data.epoch + data.num_reported / len(data.plan)
                schedule.step_update(round(done * updates_per_epoch))
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates("mean") == rates("full")


@pytest.mark.parametrize("num_samples", [NUM_SAMPLES, 20])
def test_an_infinite_loader_with_workers_is_refused_in_a_sentence(num_samples: int) -> None:
    data = InfoBatch(Numbers(num_samples), NUM_EPOCHS)
    loader = MultiEpochsDataLoader(data, batch_size=BATCH, sampler=data.sampler, num_workers=2)
    with pytest.raises(OrderError, match="replace an infinite loader .* by a stock DataLoader"):
        for epoch in range(2):
            for samples in loader:
                data.update(loss_of(samples, epoch))


def test_an_infinite_loader_without_workers_follows_the_plan() -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), NUM_EPOCHS)
    loader = MultiEpochsDataLoader(data, batch_size=BATCH, sampler=data.sampler)
    for epoch in range(NUM_EPOCHS):
        plan, seen = data.plan.indices, []
        for samples in loader:
            data.update(loss_of(samples, epoch))
            seen.append(samples)
        assert torch.equal(torch.cat(seen), plan)


def test_a_scheduler_per_epoch_needs_nothing() -> None:
    def rates(data: InfoBatch[int]) -> list[float]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
        schedule = CosineLRScheduler(optimizer, 6, warmup_t=2, warmup_lr_init=0.01)
        loader = DataLoader(data, batch_size=8, sampler=data.sampler)
        seen = []
        for epoch in range(6):
            for samples in loader:
                data.update(loss_of(samples, epoch))
                optimizer.step()
            schedule.step(epoch + 1)
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    pruned, full = InfoBatch(Numbers(100), 6), InfoBatch(Numbers(100), 6, rule="full")
    assert rates(pruned) == rates(full)
    assert pruned.savings.fraction > 0.1
