"""Which batch is current, with torch's DataLoader: every case with 0 and with 2 workers.

With `batches()`, with `sampler` and torch's BatchSampler, and with BatchSamplers of other forms.

The data set returns its indices, so each test knows which samples a batch really holds, and after
an epoch every score must be the loss of its own sample.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    random_split,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import infobatch
from infobatch import InfoBatch, OrderError, Pruner
from infobatch.indexed import WithIndices
from tests.conftest import Numbers, loss_of, train_epoch

NUM_SAMPLES, BATCH = 100, 8
# A loop that is left early says that its losses are not recorded; what happens then is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:the losses of an epoch were not recorded")

WORKERS = pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
KINDS = pytest.mark.parametrize("kind", ["batches", "sampler", "by next", "by for", "all at once"])
TRACKED = pytest.mark.parametrize("kind", ["batches", "sampler", "by next", "by for"])
"""Without the one that draws everything before the first batch: nothing can be seen from that."""


class ByNext(BatchSampler):
    """Draws with `next()` from one iterator, as torch's did before 2.7."""

    def __iter__(self) -> Iterator[list[int]]:
        samples, batch = iter(self.sampler), []
        while True:
            try:
                batch.append(next(samples))
            except StopIteration:
                break
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch


class ByFor(BatchSampler):
    """Draws with a loop, as many do that are written by hand."""

    def __iter__(self) -> Iterator[list[int]]:
        batch = []
        for sample in self.sampler:
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch


class AllAtOnce(BatchSampler):
    """Draws everything, then cuts it."""

    def __iter__(self) -> Iterator[list[int]]:
        samples = list(self.sampler)
        for start in range(0, len(samples), self.batch_size):
            batch = samples[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


FORMS: dict[str, type[BatchSampler]] = {
    "by next": ByNext, "by for": ByFor, "all at once": AllAtOnce
}  # fmt: skip


def stock(
    data: InfoBatch[Any],
    num_workers: int,
    kind: str = "batches",
    *,
    batch_size: int = BATCH,
    drop_last: bool = False,
    **options: Any,
) -> DataLoader[Any]:
    """torch's DataLoader over the plan."""
    if kind == "sampler":
        options |= {"batch_size": batch_size, "drop_last": drop_last, "sampler": data.sampler}
    elif kind == "batches":
        options |= {"batch_sampler": data.batches(batch_size, drop_last=drop_last)}
    else:
        options |= {"batch_sampler": FORMS[kind](data.sampler, batch_size, drop_last)}
    return DataLoader(data, num_workers=num_workers, **options)


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
@KINDS
def test_losses_reach_their_samples(data: InfoBatch[int], num_workers: int, kind: str) -> None:
    run_epochs(data, stock(data, num_workers, kind), 4)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_in_worker_processes_of_every_kind(data: InfoBatch[int], context: str) -> None:
    loader = stock(data, 2, multiprocessing_context=context, persistent_workers=True)
    run_epochs(data, loader, 3)


@WORKERS
@pytest.mark.parametrize("prefetch_factor", [1, 5])
def test_with_any_prefetch(data: InfoBatch[int], num_workers: int, prefetch_factor: int) -> None:
    options: dict[str, Any] = {"prefetch_factor": prefetch_factor} if num_workers else {}
    run_epochs(data, stock(data, num_workers, **options), 3)


def test_with_a_raw_data_set_and_without_batches() -> None:
    raw = Numbers(30)
    data = InfoBatch(raw, 10)
    run_epochs(data, DataLoader(raw, batch_size=4, sampler=data.sampler), 3)
    single = InfoBatch(raw, 10)
    loader = DataLoader(single, batch_size=None, sampler=single.sampler, collate_fn=lambda i: [i])
    run_epochs(single, Tensors(loader), 3)


@KINDS
def test_an_epoch_ends_and_its_indices_are_the_plan(data: InfoBatch[int], kind: str) -> None:
    seen = torch.cat(list(stock(data, 0, kind)))
    assert torch.equal(seen, data.plan.indices)


# Nothing advances by asking ----------------------------------------------------------------------


@WORKERS
@KINDS
def test_a_peek_costs_nothing(data: InfoBatch[int], num_workers: int, kind: str) -> None:
    loader, plan = stock(data, num_workers, kind), data.plan
    for _ in range(3):
        next(iter(loader))
    iter(data.sampler), iter(data.sampler), len(loader), data.sampler, data.savings
    assert data.epoch == 0
    assert data.plan is plan
    run_epochs(data, loader, 2)
    next(iter(loader))
    assert data.epoch == 2


@WORKERS
@KINDS
def test_len_is_right_before_the_next_epoch_starts(
    data: InfoBatch[int], num_workers: int, kind: str
) -> None:
    loader = stock(data, num_workers, kind)
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
@KINDS
@pytest.mark.parametrize("depth", [1, 3])
def test_look_ahead(data: InfoBatch[int], num_workers: int, kind: str, depth: int) -> None:
    loader = stock(data, num_workers, kind)
    plans = []
    for _ in range(3):
        plans.append(data.plan.indices)
        train(data, reading_ahead(loader, depth))
    check_scores(data, plans)


def test_a_loop_that_is_left_while_something_reads_ahead_is_not_recorded_and_says_so(
    data: InfoBatch[int],
) -> None:
    for _ in range(2):
        for step, samples in enumerate(reading_ahead(stock(data, 0))):
            data.update(loss_of(samples))
            if step == 3:
                break
        with pytest.warns(RuntimeWarning, match="losses of an epoch were not recorded"):
            next(iter(stock(data, 0)))
        assert data.scores.isnan().all()


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
@KINDS
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_micro_batches(data: InfoBatch[int], num_workers: int, kind: str, parts: int) -> None:
    loader = stock(data, num_workers, kind)
    micro = (part for _ in range(3) for s in loader for part in s.chunk(parts))
    plans: list[Tensor] = []
    for samples in micro:
        if len(plans) == data.epoch:
            plans.append(data.plan.indices)
        data.update(loss_of(samples, data.epoch))
    assert data.epoch == 3
    check_scores(data, plans)


@WORKERS
@TRACKED
def test_an_early_break_keeps_what_was_not_reached(
    data: InfoBatch[int], num_workers: int, kind: str
) -> None:
    loader, plan = stock(data, num_workers, kind), data.plan.indices
    train(data, islice(loader, 3))
    assert data.epoch == 0
    next_plan_samples = next(iter(loader))  # a new iteration after an update closes the epoch
    assert data.epoch == 1
    reached = plan[: 3 * BATCH]
    check_scores(data, [reached])
    assert set(plan[3 * BATCH :].tolist()) <= set(data.plan.indices.tolist())
    assert torch.equal(next_plan_samples, data.plan.indices[:BATCH])


@WORKERS
@TRACKED
def test_a_break_in_front_of_update_is_legal_too(
    data: InfoBatch[int], num_workers: int, kind: str
) -> None:
    loader, plan = stock(data, num_workers, kind), data.plan.indices
    for step, samples in enumerate(loader):
        if step == 3:
            break
        data.update(loss_of(samples))
    data.set_epoch(1)
    check_scores(data, [plan[: 3 * BATCH]])


@WORKERS
@pytest.mark.parametrize("is_ours", [False, True])
def test_of_a_batch_that_was_reported_in_part_nothing_is_kept(
    data: InfoBatch[int], num_workers: int, is_ours: bool
) -> None:
    """Nobody can know which part it was: a `collate_fn` may leave out the first samples."""
    loader = DataLoader if not is_ours else infobatch.DataLoader
    options = {"batch_size": BATCH} if is_ours else {"batch_sampler": data.batches(BATCH)}
    plan = data.plan.indices
    for step, samples in enumerate(loader(data, num_workers=num_workers, **options)):
        if step == 3:
            data.update(loss_of(samples[2:]))
            break
        data.update(loss_of(samples))
    next(iter(stock(data, 0)))  # a new loop closes the epoch
    assert data.epoch == 1
    check_scores(data, [plan[: 3 * BATCH]])
    assert set(plan[3 * BATCH :].tolist()) <= set(data.plan.indices.tolist())


@TRACKED
def test_a_break_at_the_last_batch_is_legal(data: InfoBatch[int], kind: str) -> None:
    """It holds 4 samples, for which the sampler has run dry already."""
    loader, plan = stock(data, 0, kind), data.plan.indices
    for samples in loader:
        if len(samples) < BATCH:
            break
        data.update(loss_of(samples))
    data.set_epoch(1)
    check_scores(data, [plan[:96]])


@WORKERS
@TRACKED
@pytest.mark.parametrize("num_left", [1, 2, 3, 5])
@pytest.mark.parametrize("is_fetched", [False, True])
def test_after_ctrl_c_among_the_last_batches_a_new_loop_simply_works(
    data: InfoBatch[int], num_workers: int, kind: str, num_left: int, is_fetched: bool
) -> None:
    """Workers have fetched the rest by then, so that the sampler has run dry."""
    loader, plan = stock(data, num_workers, kind), data.plan.indices
    num_steps = len(loader) - num_left
    with pytest.raises(KeyboardInterrupt):
        for step, samples in enumerate(loader):
            if is_fetched and step == num_steps:
                raise KeyboardInterrupt
            data.update(loss_of(samples))
            if not is_fetched and step == num_steps - 1:
                raise KeyboardInterrupt
    second = []
    for samples in loader:
        second.append(samples)
        data.update(loss_of(samples, 1))
    assert data.epoch == 2
    known = ~data.scores.isnan()
    expected = torch.where(known, loss_of(torch.arange(100)), torch.nan)
    expected[torch.cat(second)] += 1
    assert torch.equal(data.scores.nan_to_num(-1), expected.nan_to_num(-1))
    if kind == "batches":  # where batches begin and end is known, so nothing is lost
        reached = plan[: num_steps * BATCH]
        assert set(reached.tolist()) <= set(known.nonzero().squeeze(1).tolist())


@WORKERS
@KINDS
def test_drop_last(data: InfoBatch[int], num_workers: int, kind: str) -> None:
    loader = stock(data, num_workers, kind, drop_last=True)
    plans = []
    for epoch in range(4):
        data.set_epoch(epoch)
        plans.append(data.plan.indices[: len(data.plan) // BATCH * BATCH])
        assert len(loader) == len(plans[-1]) // BATCH
        train(data, loader)
    data.set_epoch(4)
    check_scores(data, plans)


@WORKERS
@pytest.mark.parametrize("kind", ["batches", "sampler"])
def test_drop_last_without_set_epoch(data: InfoBatch[int], num_workers: int, kind: str) -> None:
    """The last whole batch closes the epoch, so the next length is known before it starts."""
    loader, plans = stock(data, num_workers, kind, drop_last=True), []
    for epoch in range(3):
        assert data.epoch == epoch
        plans.append(data.plan.indices[: len(loader) * BATCH])
        train(data, loader)
    check_scores(data, plans)


@pytest.mark.parametrize("kind", ["batches", "sampler"])
def test_drop_last_that_leaves_nothing_is_refused(kind: str) -> None:
    data = InfoBatch(Numbers(5), 10)
    with pytest.raises(ValueError, match="drop_last leaves nothing of an epoch of 5 samples"):
        train(data, stock(data, 0, kind, drop_last=True))


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
@TRACKED
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_batch_dropped_in_the_middle_is_an_error_at_once(
    data: InfoBatch[int], num_workers: int, kind: str, step: int, drop_last: bool
) -> None:
    same, reported = untouched(data), 0
    with pytest.raises(OrderError, match="8 samples were fetched and never reported"):
        for samples in skipping(stock(data, num_workers, kind, drop_last=drop_last), step):
            data.update(loss_of(samples))
            reported += 1
    assert reported == step
    assert same()


@WORKERS
@pytest.mark.parametrize("kind", ["batches", "sampler"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("dropped", ["first", "last", "last but one"])
@pytest.mark.parametrize("closing", ["set_epoch", "iteration"])
@pytest.mark.parametrize(("num_samples", "batch_size"), [(100, 8), (96, 8), (9, 1)])
def test_a_batch_dropped_at_an_end_is_noticed_when_the_epoch_ends(
    num_workers: int,
    kind: str,
    drop_last: bool,
    dropped: str,
    closing: str,
    num_samples: int,
    batch_size: int,
) -> None:
    data = InfoBatch(Numbers(num_samples), 10)
    loader = stock(data, num_workers, kind, batch_size=batch_size, drop_last=drop_last)
    same, plan = untouched(data), data.plan.indices
    step = {"first": 0, "last": len(loader) - 1, "last but one": len(loader) - 2}[dropped]

    def run() -> None:
        train(data, skipping(loader, step))
        if closing == "set_epoch":
            data.set_epoch(1)
        else:
            next(iter(loader))

    is_partial = dropped == "last" and num_samples % batch_size > 0 and not drop_last
    looks_like_a_break = (
        # Workers have fetched the last batches by then; with `sampler` it shows no more which of
        # them were handed out.
        (num_workers and closing == "iteration" and dropped == "last")
        or (num_workers and closing == "iteration" and kind == "sampler" and dropped != "first")
        or (kind == "sampler" and is_partial)
    )
    if not looks_like_a_break:
        with pytest.raises(OrderError, match="never reported|more than"):
            run()
        assert same()
        train(data, loader)  # a new loop works, and ends an epoch that an update had refused
        assert data.epoch == (1 if dropped != "last but one" else data.epoch)
        return
    run()
    known = ~data.scores.isnan()
    assert torch.equal(data.scores[known], loss_of(torch.arange(num_samples))[known])
    if kind == "batches":
        assert set(plan[: step * batch_size].tolist()) == set(known.nonzero().squeeze(1).tolist())


@WORKERS
@pytest.mark.parametrize("kind", ["batches", "sampler"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_part_of_the_last_batch_dropped_is_noticed(
    num_workers: int, kind: str, drop_last: bool
) -> None:
    data = InfoBatch(Numbers(64), 10)
    for number, samples in enumerate(stock(data, num_workers, kind, drop_last=drop_last)):
        for part in samples.split(4)[: 1 if number == 7 else 2]:
            data.update(loss_of(part))
    with pytest.raises(OrderError, match="4 of 64 samples were never reported"):
        data.set_epoch(1)


@WORKERS
@TRACKED
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_batch_reported_twice_is_an_error_by_the_next_update(
    data: InfoBatch[int], num_workers: int, kind: str, step: int
) -> None:
    same, last = untouched(data), 0
    with pytest.raises(
        OrderError, match="more than are left of the current batch|losses were reported"
    ):
        for number, samples in enumerate(stock(data, num_workers, kind)):
            last = number
            data.update(loss_of(samples))
            if number == step:
                data.update(loss_of(samples))
    assert last == step or (last == step + 1 and kind in FORMS)
    assert same()


@WORKERS
@KINDS
def test_a_batch_reported_twice_at_the_end_never_passes(
    data: InfoBatch[int], num_workers: int, kind: str
) -> None:
    loader, same = stock(data, num_workers, kind), untouched(data)
    with pytest.raises(OrderError, match="more than are left|no batch is waiting for its losses"):
        for step, samples in enumerate(loader):
            data.update(loss_of(samples))
            if step == len(loader) - 2:
                data.update(loss_of(samples))
    assert same()


@WORKERS
@TRACKED
def test_part_of_a_batch_left_out_is_noticed(
    data: InfoBatch[int], num_workers: int, kind: str
) -> None:
    with pytest.raises(OrderError, match="2 samples were fetched and never reported"):
        train(data, (samples[:6] for samples in stock(data, num_workers, kind)))


@WORKERS
@pytest.mark.parametrize("kind", ["batches", "sampler"])
def test_losses_of_the_wrong_length_are_refused_at_once(
    data: InfoBatch[int], num_workers: int, kind: str
) -> None:
    samples = next(batches := iter(stock(data, num_workers, kind)))
    with pytest.raises(OrderError, match="losses has 16 entries"):
        data.update(loss_of(samples.repeat(2)))
    data.update(loss_of(samples))  # nothing was lost by the refusal
    train(data, batches)
    assert data.epoch == 1


def test_mixed_iterations_are_refused(data: InfoBatch[int]) -> None:
    loader = stock(data, 0)
    with pytest.raises(OrderError, match="another iteration began"):
        list(zip(loader, loader, strict=False))


@WORKERS
@KINDS
def test_after_a_peek_in_mid_epoch_nothing_moves_and_the_next_update_says_so(
    data: InfoBatch[int], num_workers: int, kind: str
) -> None:
    loader, plan = stock(data, num_workers, kind), data.plan.indices
    batches = iter(loader)
    train(data, islice(batches, 2))
    peeked = next(iter(loader))
    assert data.epoch == 0
    assert data.num_reported == 2 * BATCH
    assert torch.equal(peeked, plan[:BATCH])
    third = next(batches)
    assert torch.equal(third, plan[2 * BATCH : 3 * BATCH])
    with pytest.raises(OrderError, match="a second iteration over the training data began"):
        data.update(loss_of(third))
    assert data.num_reported == 2 * BATCH
    del batches  # the loop is over
    if kind != "all at once":  # of which all was drawn: a break looks like dropped batches
        next(iter(loader))
        assert data.epoch == 1


def test_with_persistent_workers_a_peek_in_mid_epoch_ends_it(data: InfoBatch[int]) -> None:
    """torch has one iterator then, and a peek sets it back to the start."""
    loader = stock(data, 1, persistent_workers=True)
    train(data, islice(loader, 2))
    next(iter(loader))
    assert data.epoch == 1


def test_a_loop_that_only_a_reference_cycle_keeps_alive_is_over(data: InfoBatch[int]) -> None:
    loader = stock(data, 0)
    holder: list[Any] = [iter(loader)]
    holder.append(holder)
    data.update(loss_of(next(holder[0])))
    del holder
    train(data, loader)
    assert data.epoch == 2


def test_without_the_sampler_there_is_no_batch_in_hand(data: InfoBatch[int]) -> None:
    with pytest.raises(
        OrderError, match=r"no batch is waiting for its losses: give the loader batch_sampler="
    ):
        train(data, DataLoader(data, batch_size=BATCH, shuffle=True))
    with pytest.raises(OrderError, match="no batch is waiting for its losses"):
        data.batch_weights  # noqa: B018


def in_a_thread(loader: Iterable[Any], depth: int = 2) -> Iterator[Any]:
    """As prefetchers do that run beside the training loop."""
    queue: Queue[Any] = Queue(depth)

    def fetch() -> None:
        for batch in loader:
            queue.put(batch)
        queue.put(None)

    Thread(target=fetch, daemon=True).start()
    while (batch := queue.get()) is not None:
        yield batch


@KINDS
def test_batches_that_another_thread_fetches_are_refused_at_once(
    data: InfoBatch[int], kind: str
) -> None:
    with pytest.raises(OrderError, match="another thread fetches the batches.* give update"):
        train(data, in_a_thread(stock(data, 0, kind)))
    assert data.num_reported == 0
    by_index = InfoBatch(Numbers(NUM_SAMPLES), 10)
    plan = by_index.plan.indices
    for samples in in_a_thread(stock(by_index, 0, kind)):
        by_index.update(loss_of(samples), samples)
    check_scores(by_index, [plan])


def test_a_loader_without_order_is_refused_at_once(data: InfoBatch[int]) -> None:
    with pytest.raises(OrderError, match="in_order of the DataLoader is False"):
        train(data, stock(data, 2, in_order=False))
    assert data.num_reported == 0


@WORKERS
@pytest.mark.parametrize("kind", ["batches", "sampler"])
def test_a_subset_of_it_with_its_sampler_is_refused(num_workers: int, kind: str) -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    order = {"sampler": data.sampler} if kind == "sampler" else {"batch_sampler": data.batches(8)}
    for subset in (Subset(data, range(99, -1, -1)), *random_split(data, [80, 20])):
        loader: DataLoader[Any] = DataLoader(subset, num_workers=num_workers, **order)
        with pytest.raises(OrderError, match="a Subset of this InfoBatch.*take the subset first"):
            next(iter(loader))
    (subset, _) = random_split(Numbers(NUM_SAMPLES), [80, 20])
    wrapped = InfoBatch(subset, 10)
    for samples in stock(wrapped, num_workers, kind):
        wrapped.update(loss_of(samples))
    assert wrapped.epoch == 1


def ordered_by(data: InfoBatch[int] | Pruner, kind: str) -> dict[str, Any]:
    """What makes a DataLoader read in the order of `data`."""
    return {"sampler": data.sampler} if kind == "sampler" else {"batch_sampler": data.batches(8)}


@pytest.mark.parametrize("kind", ["batches", "sampler"])
def test_a_subset_inside_a_wrapper_is_refused_too(kind: str) -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    subset = WithIndices(Subset(data, range(99, -1, -1)))
    loader: DataLoader[Any] = DataLoader(subset, **ordered_by(data, kind))
    with pytest.raises(OrderError, match="a Subset of this InfoBatch"):
        next(iter(loader))
    wrapped: DataLoader[Any] = DataLoader(WithIndices(data), **ordered_by(data, kind))
    for indices, samples in wrapped:
        assert torch.equal(indices, samples)
        data.update(loss_of(samples))
    assert data.epoch == 1


@pytest.mark.parametrize("kind", ["batches", "sampler"])
def test_its_order_over_other_data_is_refused(kind: str) -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    sentence = "a data set of 150 samples, but its batches are made for 100 samples"
    others: list[Any] = [Numbers(150), ConcatDataset([data, Numbers(50)])]
    for other in others:
        loader: DataLoader[Any] = DataLoader(other, **ordered_by(data, kind))
        with pytest.raises(OrderError, match=sentence):
            next(iter(loader))
    assert data.epoch == 0


class Unsized(Numbers):
    """A user's own, of which nobody needs the length."""

    def __len__(self) -> int:
        raise NotImplementedError


class AsPlanned(InfoBatch[int]):
    """A subclass whose length is that of the epoch."""

    def __len__(self) -> int:
        return len(self.plan)


@pytest.mark.parametrize("kind", ["batches", "sampler"])
def test_data_of_no_or_another_length_may_be_the_same_data(kind: str) -> None:
    pruner, of_plan = Pruner(NUM_SAMPLES, 10), AsPlanned(Numbers(NUM_SAMPLES), 10)
    for data, read in ((pruner, Unsized(NUM_SAMPLES)), (of_plan, of_plan)):
        for epoch in range(3):
            for samples in DataLoader(read, **ordered_by(data, kind)):
                data.update(loss_of(samples))
            assert data.epoch == epoch + 1
    assert len(of_plan) < NUM_SAMPLES


class TwoViews(Sampler[list[int]]):
    """Reads each sample of a batch from data in which it stands twice."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield [view for index in batch for view in (2 * index, 2 * index + 1)]


def test_a_sampler_that_translates_our_indices_may_read_other_data(data: InfoBatch[int]) -> None:
    plan = data.plan.indices
    loader = DataLoader(
        Numbers(2 * NUM_SAMPLES), batch_sampler=TwoViews(data.batches(BATCH)), num_workers=0
    )
    for views in loader:
        data.update(loss_of(views[::2] // 2))
    assert data.epoch == 1
    check_scores(data, [plan])


@WORKERS
@pytest.mark.parametrize("kind", ["batches", "sampler"])
@pytest.mark.parametrize("set_epoch", [False, True])
def test_epochs_that_report_nothing_are_warned_about_once(
    data: InfoBatch[int], num_workers: int, kind: str, set_epoch: bool
) -> None:
    if kind == "sampler" and num_workers:
        pytest.skip("what workers have fetched ahead looks like a peek")
    loader = stock(data, num_workers, kind)
    for _ in loader:
        pass
    go_on = partial(data.set_epoch, 1) if set_epoch else lambda: next(iter(loader))
    with pytest.warns(RuntimeWarning, match=r"without update\(losses\) nothing is pruned"):
        go_on()
    for epoch in range(2, 4):
        for _ in loader:
            pass
        if set_epoch:
            data.set_epoch(epoch)


class Forever(Sampler[list[int]]):
    """The sampler of loaders that keep their workers busy across epochs (timm, ultralytics)."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self.batches


@WORKERS
@pytest.mark.parametrize("kind", ["batches", "sampler"])
@pytest.mark.parametrize("num_samples", [20, 100])
def test_an_infinite_loader_is_refused(num_samples: int, num_workers: int, kind: str) -> None:
    data = InfoBatch(Numbers(num_samples), 10)
    once = data.batches(BATCH) if kind == "batches" else BatchSampler(data.sampler, BATCH, False)
    loader = DataLoader(data, batch_sampler=Forever(once), num_workers=num_workers)
    if (
        num_workers == 0
    ):  # it does not read ahead, so the next epoch is planned before it is fetched
        for samples in islice(loader, 40):
            data.update(loss_of(samples))
        assert data.epoch > 1
        return
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


def test_a_batch_sampler_that_drops_the_little_that_a_resume_has_left(data: InfoBatch[int]) -> None:
    """It does not show that it drops the rest, which would be all of every iteration."""
    train(data, stock(data, 0, "by next", drop_last=True))
    num_left = len(data.scores) % BATCH
    assert data.epoch == 0
    assert num_left > 0
    resumed = copy.deepcopy(data)
    loader = stock(resumed, 0, "by next", drop_last=True)
    assert list(loader) == []
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


# Weights of the current batch --------------------------------------------------------------------


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


def test_batch_weights_before_update_with_workers(data: InfoBatch[int]) -> None:
    train_epoch(data)
    plan = data.plan
    weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    for samples in stock(data, 2):
        assert data.batch_weights.tolist() == [weight_of[i] for i in samples.tolist()]
        data.update(loss_of(samples))
    assert data.epoch == 2


def test_batch_weights_before_update_are_refused_where_they_could_be_wrong(
    data: InfoBatch[int],
) -> None:
    for loader in (stock(data, 2, "sampler"), reading_ahead(stock(data, 0))):
        for _ in loader:
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
