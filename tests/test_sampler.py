"""Which batch is in hand, with the stock DataLoader: every case with 0 and with 2 workers.

The data set returns its indices, so each test knows which samples a batch really holds, and after
an epoch every score must be the loss of its own sample.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from infobatch import InfoBatch, OrderError
from tests.conftest import Numbers, loss_of, train_epoch

NUM_SAMPLES, BATCH = 100, 8
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def stock(data: InfoBatch[Any], num_workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        data,
        batch_size=BATCH,
        sampler=data.sampler,
        num_workers=num_workers,
        **options,
    )


def train(data: InfoBatch[int], batches: Iterable[Tensor]) -> None:
    for samples in batches:
        data.update(loss_of(samples, data.epoch))


def check_scores(data: InfoBatch[int], plans: list[Tensor]) -> None:
    """Every sample has the loss of the last epoch that trained it."""
    expected = torch.full((data.num_samples,), torch.nan)
    for epoch, indices in enumerate(plans):
        expected[indices] = loss_of(indices, epoch)
    assert torch.equal(data.scores.nan_to_num(-1), expected.nan_to_num(-1))


def run_epochs(data: InfoBatch[int], loader: Iterable[Tensor], num_epochs: int) -> None:
    plans = []
    for epoch in range(num_epochs):
        assert data.epoch == epoch
        plans.append(data.plan.indices)
        train(data, loader)
    assert data.epoch == num_epochs
    check_scores(data, plans)
    assert data.savings.fraction > 0


class Tensors:
    """A loader whose batches are lists, as tensors."""

    def __init__(self, loader: Iterable[list[int]]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Tensor]:
        return map(torch.tensor, self.loader)


@WORKERS
def test_losses_reach_their_samples(data: InfoBatch[int], num_workers: int) -> None:
    run_epochs(data, stock(data, num_workers), 4)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_in_worker_processes_of_every_kind(data: InfoBatch[int], context: str) -> None:
    loader = stock(data, 2, multiprocessing_context=context, persistent_workers=True)
    run_epochs(data, loader, 3)


@WORKERS
@pytest.mark.parametrize("prefetch_factor", [1, 5])
def test_with_any_prefetch(data: InfoBatch[int], num_workers: int, prefetch_factor: int) -> None:
    options = {"prefetch_factor": prefetch_factor} if num_workers else {}
    run_epochs(data, stock(data, num_workers, **options), 3)


def test_with_a_raw_data_set_and_without_batches() -> None:
    raw = Numbers(30)
    data = InfoBatch(raw, 10)
    run_epochs(data, DataLoader(raw, batch_size=4, sampler=data.sampler), 3)
    single = InfoBatch(raw, 10)
    loader = DataLoader(single, batch_size=None, sampler=single.sampler, collate_fn=lambda i: [i])
    run_epochs(single, Tensors(loader), 3)


def test_an_epoch_ends_and_its_indices_are_the_plan(data: InfoBatch[int]) -> None:
    seen = torch.cat(list(stock(data, 0)))
    assert torch.equal(seen, data.plan.indices)


# Nothing advances by asking ----------------------------------------------------------------------


@WORKERS
def test_a_peek_costs_nothing(data: InfoBatch[int], num_workers: int) -> None:
    loader, plan = stock(data, num_workers), data.plan
    for _ in range(3):
        next(iter(loader))
    iter(data.sampler), iter(data.sampler), len(loader), data.sampler, data.savings
    assert data.epoch == 0
    assert data.plan is plan
    run_epochs(data, loader, 2)
    next(iter(loader))
    assert data.epoch == 2


@WORKERS
def test_len_is_right_before_the_next_epoch_starts(data: InfoBatch[int], num_workers: int) -> None:
    loader = stock(data, num_workers)
    for _ in range(4):
        announced = len(loader)
        assert announced == sum(
            1 for samples in loader if data.update(loss_of(samples)) is not None
        )
    assert len(loader) < 13


def test_two_samplers_are_one(data: InfoBatch[int]) -> None:
    assert data.sampler is data.sampler
    assert isinstance(data.sampler, Sampler)


# Look-ahead --------------------------------------------------------------------------------------


def reading_ahead(loader: Iterable[Tensor], depth: int = 1) -> Iterator[Tensor]:
    """As accelerate and CUDA prefetchers do: the next batch is fetched before this one is used."""
    batches = iter(loader)
    queue = list(islice(batches, depth))
    for batch in batches:
        queue.append(batch)
        yield queue.pop(0)
    yield from queue


@WORKERS
@pytest.mark.parametrize("depth", [1, 3])
def test_look_ahead(data: InfoBatch[int], num_workers: int, depth: int) -> None:
    loader = stock(data, num_workers)
    plans = []
    for _ in range(3):
        plans.append(data.plan.indices)
        train(data, reading_ahead(loader, depth))
    check_scores(data, plans)


def test_a_second_loader_does_not_disturb(data: InfoBatch[int]) -> None:
    other = InfoBatch(Numbers(NUM_SAMPLES), 10, seed=5)
    plan, other_plan = data.plan.indices, other.plan.indices
    for samples, other_samples in zip(stock(data, 0), stock(other, 2), strict=True):
        data.update(loss_of(samples))
        other.update(loss_of(other_samples))
    check_scores(data, [plan])
    check_scores(other, [other_plan])


# Micro-batches, accumulation, break, drop_last ---------------------------------------------------


@WORKERS
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_micro_batches(data: InfoBatch[int], num_workers: int, parts: int) -> None:
    loader = stock(data, num_workers)
    micro = (part for _ in range(3) for s in loader for part in s.chunk(parts))
    plans: list[Tensor] = []
    for samples in micro:
        if len(plans) == data.epoch:
            plans.append(data.plan.indices)
        data.update(loss_of(samples, data.epoch))
    assert data.epoch == 3
    check_scores(data, plans)


@WORKERS
def test_an_early_break_keeps_what_was_not_reached(data: InfoBatch[int], num_workers: int) -> None:
    loader, plan = stock(data, num_workers), data.plan.indices
    train(data, islice(loader, 3))
    assert data.epoch == 0
    next_plan_samples = next(iter(loader))  # a new iteration after an update closes the epoch
    assert data.epoch == 1
    reached = plan[: 3 * BATCH]
    check_scores(data, [reached])
    assert set(plan[3 * BATCH :].tolist()) <= set(data.plan.indices.tolist())
    assert torch.equal(next_plan_samples, data.plan.indices[:BATCH])


@WORKERS
def test_a_break_in_front_of_update_is_legal_too(data: InfoBatch[int], num_workers: int) -> None:
    loader, plan = stock(data, num_workers), data.plan.indices
    for step, samples in enumerate(loader):
        if step == 3:
            break
        data.update(loss_of(samples))
    data.set_epoch(1)
    check_scores(data, [plan[: 3 * BATCH]])


def test_a_break_at_the_last_batch_is_legal(data: InfoBatch[int]) -> None:
    """It holds 4 samples, for which the sampler has run dry already."""
    loader, plan = stock(data, 0), data.plan.indices
    for samples in loader:
        if len(samples) < BATCH:
            break
        data.update(loss_of(samples))
    data.set_epoch(1)
    check_scores(data, [plan[:96]])


@WORKERS
def test_drop_last(data: InfoBatch[int], num_workers: int) -> None:
    loader = stock(data, num_workers, drop_last=True)
    plans = []
    for epoch in range(4):
        data.set_epoch(epoch)
        plans.append(data.plan.indices[: len(data.plan) // BATCH * BATCH])
        assert len(loader) == len(plans[-1]) // BATCH
        train(data, loader)
    data.set_epoch(4)
    check_scores(data, plans)


@WORKERS
def test_drop_last_without_set_epoch(data: InfoBatch[int], num_workers: int) -> None:
    """The last whole batch closes the epoch, so the next length is known before it starts."""
    loader, plans = stock(data, num_workers, drop_last=True), []
    for epoch in range(3):
        assert data.epoch == epoch
        plans.append(data.plan.indices[: len(loader) * BATCH])
        train(data, loader)
    check_scores(data, plans)


def test_drop_last_that_leaves_nothing_is_refused() -> None:
    data = InfoBatch(Numbers(5), 10)
    with pytest.raises(ValueError, match="drop_last leaves nothing of an epoch of 5 samples"):
        train(data, stock(data, 0, drop_last=True))


# What cannot be is refused -----------------------------------------------------------------------


def untouched(data: InfoBatch[int]) -> Callable[[], bool]:
    scores, epoch, plan = data.scores, data.epoch, data.plan
    return lambda: (
        torch.equal(scores.nan_to_num(-1), data.scores.nan_to_num(-1))
        and data.epoch == epoch
        and data.plan is plan
    )


def skipping(loader: Iterable[Tensor], *skipped: int) -> Iterator[Tensor]:
    return (batch for step, batch in enumerate(loader) if step not in skipped)


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_batch_dropped_in_the_middle_is_an_error_at_once(
    data: InfoBatch[int], num_workers: int, step: int, drop_last: bool
) -> None:
    same, reported = untouched(data), 0
    with pytest.raises(OrderError, match="8 samples were fetched and never reported"):
        for samples in skipping(stock(data, num_workers, drop_last=drop_last), step):
            data.update(loss_of(samples))
            reported += 1
    assert reported == step
    assert same()


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("dropped", ["first", "last", "last but one"])
@pytest.mark.parametrize("closing", ["set_epoch", "iteration"])
@pytest.mark.parametrize(("num_samples", "batch_size"), [(100, 8), (96, 8), (9, 1)])
def test_a_batch_dropped_at_an_end_is_an_error_when_the_epoch_ends(
    num_workers: int,
    drop_last: bool,
    dropped: str,
    closing: str,
    num_samples: int,
    batch_size: int,
) -> None:
    data = InfoBatch(Numbers(num_samples), 10)
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=batch_size,
        sampler=data.sampler,
        num_workers=num_workers,
        drop_last=drop_last,
    )
    same = untouched(data)
    step = {"first": 0, "last": len(loader) - 1, "last but one": len(loader) - 2}[dropped]
    with pytest.raises(OrderError, match="never reported|more than are left"):
        train(data, skipping(loader, step))
        if closing == "set_epoch":
            data.set_epoch(1)
        else:
            next(iter(loader))
    assert same()


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
def test_part_of_the_last_batch_dropped_is_noticed(num_workers: int, drop_last: bool) -> None:
    data = InfoBatch(Numbers(64), 10)
    parts = [part for s in stock(data, num_workers, drop_last=drop_last) for part in s.split(4)]
    data = InfoBatch(Numbers(64), 10)
    for number, _ in enumerate(stock(data, num_workers, drop_last=drop_last)):
        for part in parts[2 * number : 2 * number + 2][: 1 if number == 7 else 2]:
            data.update(loss_of(part))
    with pytest.raises(OrderError, match="4 of 64 samples were never reported"):
        data.set_epoch(1)


@WORKERS
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_batch_reported_twice_is_an_error_at_once(
    data: InfoBatch[int], num_workers: int, step: int
) -> None:
    same = untouched(data)
    with pytest.raises(OrderError, match="more than are left of the batch in hand"):
        for number, samples in enumerate(stock(data, num_workers)):
            data.update(loss_of(samples))
            if number == step:
                data.update(loss_of(samples))
    assert same()


@WORKERS
def test_a_batch_reported_twice_at_the_end_never_passes(
    data: InfoBatch[int], num_workers: int
) -> None:
    loader, same = stock(data, num_workers), untouched(data)
    with pytest.raises(OrderError, match="more than are left|no batch is in hand"):
        for step, samples in enumerate(loader):
            data.update(loss_of(samples))
            if step == len(loader) - 2:
                data.update(loss_of(samples))
    assert same()


@WORKERS
def test_part_of_a_batch_left_out_is_noticed(data: InfoBatch[int], num_workers: int) -> None:
    with pytest.raises(OrderError, match="2 samples were fetched and never reported"):
        train(data, (samples[:6] for samples in stock(data, num_workers)))


@WORKERS
def test_losses_of_the_wrong_length_are_refused_at_once(
    data: InfoBatch[int], num_workers: int
) -> None:
    samples = next(batches := iter(stock(data, num_workers)))
    with pytest.raises(OrderError, match="losses has 16 entries"):
        data.update(loss_of(samples.repeat(2)))
    data.update(loss_of(samples))  # nothing was lost by the refusal
    train(data, batches)
    assert data.epoch == 1


def test_mixed_iterations_are_refused(data: InfoBatch[int]) -> None:
    loader = stock(data, 0)
    with pytest.raises(OrderError, match="two iterations over the same sampler are mixed"):
        list(zip(loader, loader, strict=False))


def test_going_on_after_a_peek_in_mid_epoch_is_refused(data: InfoBatch[int]) -> None:
    loader = stock(data, 0)
    batches = iter(loader)
    train(data, islice(batches, 2))
    next(iter(loader))
    with pytest.raises(OrderError, match="two iterations"):
        next(batches)


def test_without_the_sampler_there_is_no_batch_in_hand(data: InfoBatch[int]) -> None:
    with pytest.raises(OrderError, match=r"no batch is in hand: give the loader sampler="):
        train(data, DataLoader(data, batch_size=BATCH, shuffle=True))
    with pytest.raises(OrderError, match="no batch is in hand"):
        data.batch_weights  # noqa: B018


class Forever(Sampler[list[int]]):
    """The sampler of loaders that keep their workers busy across epochs (timm, ultralytics)."""

    def __init__(self, batches: BatchSampler) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self.batches


@pytest.mark.parametrize("num_samples", [20, 100])
def test_an_infinite_loader_is_refused(num_samples: int) -> None:
    data = InfoBatch(Numbers(num_samples), 10)
    batches = Forever(BatchSampler(data.sampler, BATCH, drop_last=False))
    loader = DataLoader(data, batch_sampler=batches, num_workers=2)
    with pytest.raises(OrderError, match="replace an infinite loader"):
        train(data, islice(loader, 40))
    assert data.epoch <= 1


def test_another_sampler_leaves_the_pruner_alone(data: InfoBatch[int]) -> None:
    """A validation pass over the training data, say."""
    list(DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data)))
    run_epochs(data, stock(data, 0), 2)


# Loaders with a batch sampler of their own --------------------------------------------------------


def stateful(data: InfoBatch[int], num_workers: int, **options: Any) -> Any:
    return StatefulDataLoader(
        data, batch_size=BATCH, sampler=data.sampler, num_workers=num_workers, **options
    )


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
def test_torchdatas_loader(data: InfoBatch[int], num_workers: int, drop_last: bool) -> None:
    loader, plans = stateful(data, num_workers, drop_last=drop_last), []
    for epoch in range(3):
        data.set_epoch(epoch)
        num_trained = len(data.plan) // BATCH * BATCH if drop_last else len(data.plan)
        plans.append(data.plan.indices[:num_trained])
        train(data, loader)
    data.set_epoch(3)
    check_scores(data, plans)


def test_torchdatas_loader_resumed_with_less_than_a_batch_left(data: InfoBatch[int]) -> None:
    """It does not show that it drops the rest, which would be all of every iteration."""
    for samples in stateful(data, 0, drop_last=True):
        data.update(loss_of(samples))
    num_left = len(data.scores) % BATCH
    assert data.epoch == 0
    assert num_left > 0
    resumed = copy.deepcopy(data)
    loader = stateful(resumed, 0, drop_last=True)
    assert list(loader) == list(loader) == []
    with pytest.warns(RuntimeWarning, match=rf"over the {num_left} samples .* set_epoch\(1\)"):
        assert list(loader) == []
    resumed.set_epoch(1)
    train(resumed, loader)
    assert resumed.num_reported > 0


@WORKERS
def test_torchdatas_loader_reported_twice(data: InfoBatch[int], num_workers: int) -> None:
    steps = 0
    with pytest.raises(OrderError, match="16 losses were reported for a batch of 8|more than are"):
        for samples in stateful(data, num_workers):
            data.update(loss_of(samples))
            if steps == 0:
                data.update(loss_of(samples))
            steps += 1
    assert steps <= 1


@WORKERS
def test_torchdatas_loader_with_a_batch_dropped(data: InfoBatch[int], num_workers: int) -> None:
    with pytest.raises(OrderError, match="8 samples were fetched and never reported"):
        train(data, skipping(stateful(data, num_workers), 2))


# Weights of the batch in hand --------------------------------------------------------------------


@WORKERS
def test_batch_weights_after_update(data: InfoBatch[int], num_workers: int) -> None:
    loader = stock(data, num_workers)
    train(data, loader)
    plan = data.plan
    weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    assert set(weight_of.values()) != {1.0}
    for samples in loader:
        loss = data.update(loss_of(samples))
        expected = torch.tensor([weight_of[i] for i in samples.tolist()])
        assert torch.equal(data.batch_weights, expected)
        assert float(loss) == pytest.approx(float((expected * loss_of(samples)).mean()))


@pytest.mark.parametrize("epoch", [0, 1])  # a full one, and one that prunes
def test_batch_weights_are_the_users_own(epoch: int) -> None:
    """A loop that masks samples out may write into them: the plan stays as it is."""
    data = InfoBatch(Numbers(64), 10)
    while data.epoch < epoch:
        train_epoch(data)
    plan = data.plan
    before = plan.weights.clone()
    for samples in DataLoader(data, batch_size=8, sampler=data.sampler):
        data.batch_weights.fill_(0)
        data.update(loss_of(samples))
        data.batch_weights[0] = 0
    assert torch.equal(plan.weights, before)


def test_batch_weights_before_update(data: InfoBatch[int]) -> None:
    loader = stock(data, 0)
    for _ in range(3):
        for samples in loader:
            before = data.batch_weights
            data.update(loss_of(samples))
            assert torch.equal(before, data.batch_weights)


def test_batch_weights_before_update_are_refused_where_they_could_be_wrong(
    data: InfoBatch[int],
) -> None:
    for _ in stock(data, 2):
        with pytest.raises(OrderError, match=r"call update\(losses\) first"):
            data.batch_weights  # noqa: B018
        break
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    batches = iter(stateful(data, 2))
    samples = next(batches)
    with pytest.raises(OrderError, match=r"call update\(losses\) first"):
        data.batch_weights  # noqa: B018
    data.update(loss_of(samples))
    next(batches)
    with pytest.raises(OrderError, match=r"call update\(losses\) first"):
        data.batch_weights  # noqa: B018


def test_frameworks_that_share_out_samples_can_tell_a_share_from_a_whole_plan() -> None:
    sampler = InfoBatch(Numbers(10), num_epochs=5).sampler
    assert isinstance(sampler, DistributedSampler)
    assert not isinstance(sampler.unsharded, DistributedSampler)
