"""The loader in which indices ride in the batch: nothing about order can go wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from infobatch import DataLoader, InfoBatch, OrderError
from tests.conftest import Numbers, loss_of
from tests.test_samplers import WORKERS, check_scores, in_a_thread, reading_ahead, stock


def collate_to_dict(items: list[int]) -> dict[str, Tensor]:
    return {"samples": torch.tensor(items)}


@WORKERS
def test_the_batch_is_the_users_own_and_losses_reach_their_samples(
    data: InfoBatch[int], num_workers: int
) -> None:
    loader, plans = DataLoader(data, batch_size=8, num_workers=num_workers), []
    for epoch in range(3):
        plans.append(data.plan.indices)
        assert len(loader) == -(-len(data.plan) // 8)
        for samples in loader:
            assert isinstance(samples, Tensor)
            data.update(loss_of(samples, epoch))
        assert data.epoch == epoch + 1
    check_scores(data, plans)


def test_out_of_order(data: InfoBatch[int]) -> None:
    plan = data.plan.indices
    for samples in DataLoader(data, batch_size=8, num_workers=2, in_order=False):
        data.update(loss_of(samples))
    assert data.epoch == 1
    check_scores(data, [plan])


@WORKERS
def test_dropped_batches_are_harmless(data: InfoBatch[int], num_workers: int) -> None:
    loader, plan, reported = DataLoader(data, batch_size=8, num_workers=num_workers), data.plan, []
    for step, samples in enumerate(loader):
        if step not in (0, 4, len(loader) - 1):
            data.update(loss_of(samples))
            reported.append(samples)
    data.set_epoch(1)
    check_scores(data, [torch.cat(reported)])
    dropped = set(plan.indices.tolist()) - set(torch.cat(reported).tolist())
    assert dropped <= set(data.plan.indices.tolist())


@WORKERS
def test_reporting_twice_is_harmless(data: InfoBatch[int], num_workers: int) -> None:
    """Even the last batch of an epoch, whose first report closes it."""
    loader, plans = DataLoader(data, batch_size=8, num_workers=num_workers), []
    for epoch in range(3):
        plan = data.plan
        plans.append(plan.indices)
        for samples in loader:
            first = data.update(loss_of(samples, epoch))
            weights = data.batch_weights
            assert data.savings.num_trained <= sum(map(len, plans))
            assert torch.equal(data.update(loss_of(samples, epoch)), first)
            assert torch.equal(data.batch_weights, weights)
        assert data.epoch == epoch + 1
    check_scores(data, plans)


def test_micro_batches_may_be_reported_twice(data: InfoBatch[int]) -> None:
    """The second time a batch has closed its epoch, its weights are still its own."""
    loader, plans = DataLoader(data, batch_size=8), []
    for epoch in range(3):
        plan = data.plan
        plans.append(plan.indices)
        weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
        for samples in loader:
            for part in (*samples.split(3), *samples.split(3)):
                losses = loss_of(part, epoch)
                loss, weights = data.update(losses), data.batch_weights
                assert weights.tolist() == [weight_of[sample] for sample in part.tolist()]
                assert torch.allclose(loss, (weights * losses).mean())
        assert data.epoch == epoch + 1
    assert len(weight_of) < len(data.scores)
    check_scores(data, plans)
    with pytest.raises(OrderError, match="report one loss per sample"):
        data.update(torch.ones(9))


def test_dropping_one_and_reporting_others_twice_is_no_reading_ahead(data: InfoBatch[int]) -> None:
    for dropped in (0, 2):
        for step, samples in enumerate(DataLoader(data, batch_size=8)):
            if step != dropped:
                data.update(loss_of(samples))
                data.update(loss_of(samples))
        data.set_epoch(data.epoch + 1)
    assert data.epoch == 2


def test_on_a_device_what_is_reported_twice_counts_once(
    data: InfoBatch[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without access to the values: by the indices and losses of a device."""
    monkeypatch.setattr("infobatch.buffer.HostArrays", lambda *arrays: None)
    num_seen = 0
    for samples in DataLoader(data, batch_size=8):
        for part in (*samples.split(3), *samples.split(3)):
            data.update(loss_of(part))
        num_seen += len(samples)
        assert data.savings.num_trained == num_seen
    assert data.epoch == 1


@WORKERS
def test_micro_batches(data: InfoBatch[int], num_workers: int) -> None:
    plan = data.plan.indices
    for samples in DataLoader(data, batch_size=8, num_workers=num_workers):
        for part in samples.chunk(3):
            data.update(loss_of(part))
    assert data.epoch == 1
    check_scores(data, [plan])


@WORKERS
def test_a_break_and_drop_last(data: InfoBatch[int], num_workers: int) -> None:
    loader = DataLoader(data, batch_size=8, num_workers=num_workers, drop_last=True)
    plan = data.plan.indices
    for step, samples in enumerate(loader):
        if step == 2:
            break
        data.update(loss_of(samples))
    second = [samples for samples in loader if data.update(loss_of(samples, 1)) is not None]
    assert data.epoch == 2
    check_scores(data, [plan[:16], torch.cat(second)])


def test_batch_weights_before_and_after_update(data: InfoBatch[int]) -> None:
    loader = DataLoader(data, batch_size=8, num_workers=2)
    for samples in loader:
        data.update(loss_of(samples))
    plan = data.plan
    weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    for samples in loader:
        expected = torch.tensor([weight_of[i] for i in samples.tolist()])
        assert torch.equal(data.batch_weights, expected)
        data.update(loss_of(samples))
        assert torch.equal(data.batch_weights, expected)


def test_any_batch_sampler_over_the_plan(data: InfoBatch[int]) -> None:
    class Sorted(BatchSampler):
        """Batches of similar samples, as bucketing by length makes."""

        def __iter__(self) -> Any:
            indices = sorted(self.sampler)
            return (
                indices[i : i + self.batch_size] for i in range(0, len(indices), self.batch_size)
            )

    loader = DataLoader(data, batch_sampler=Sorted(data.sampler, 8, drop_last=False))
    for epoch in range(3):
        for samples in loader:
            assert samples.tolist() == sorted(samples.tolist())
            data.update(loss_of(samples, epoch))
    assert data.epoch == 3


def test_any_collate_function_and_data_set(data: InfoBatch[int]) -> None:
    for batch in DataLoader(data, batch_size=8, collate_fn=collate_to_dict, num_workers=1):
        assert batch.keys() == {"samples"}
        data.update(loss_of(batch["samples"]))
    assert data.epoch == 1


def without_multiples_of_five(items: list[int]) -> Tensor:
    return torch.tensor([item for item in items if item % 5])


def test_a_collate_function_that_leaves_samples_out_is_noticed(data: InfoBatch[int]) -> None:
    with pytest.raises(OrderError, match="a collate_fn that leaves samples out"):
        for samples in DataLoader(data, batch_size=8, collate_fn=without_multiples_of_five):
            data.update(loss_of(samples))
    assert bool(data.scores.isnan().all())


@pytest.mark.parametrize("num_samples", [96, 100])
@pytest.mark.parametrize("depth", [1, 3])
def test_reading_ahead_around_the_loader_is_noticed(num_samples: int, depth: int) -> None:
    data = InfoBatch(Numbers(num_samples), 10)
    with pytest.raises(OrderError, match="something reads ahead|samples are left"):
        for samples in reading_ahead(DataLoader(data, batch_size=8), depth):
            data.update(loss_of(samples))
        data.set_epoch(1)
    assert bool(data.scores.isnan().all())


@WORKERS
def test_a_thread_that_reads_ahead_around_the_loader_is_refused_at_once(
    data: InfoBatch[int], num_workers: int
) -> None:
    loader = DataLoader(data, batch_size=8, num_workers=num_workers)
    with pytest.raises(OrderError, match=r"another thread fetched this batch.*loader\.through"):
        for samples in in_a_thread(loader):
            data.update(loss_of(samples))
    assert data.num_reported == 0


@WORKERS
def test_a_thread_that_reads_ahead_inside_the_loader(num_workers: int) -> None:
    data = InfoBatch(Numbers(100), 10)
    loader, plans = DataLoader(data, batch_size=8, num_workers=num_workers), []
    for epoch in range(3):
        plans.append(data.plan.indices)
        for samples in loader.through(in_a_thread):
            data.update(loss_of(samples, epoch))
        assert data.epoch == epoch + 1
    check_scores(data, plans)


@WORKERS
@pytest.mark.parametrize("num_samples", [96, 100])
@pytest.mark.parametrize("depth", [1, 3])
def test_reading_ahead_inside_the_loader(num_workers: int, num_samples: int, depth: int) -> None:
    data = InfoBatch(Numbers(num_samples), 10)
    loader, plans = DataLoader(data, batch_size=8, num_workers=num_workers), []
    for epoch in range(3):
        plans.append(data.plan.indices)
        for samples in loader.through(lambda batches: reading_ahead(batches, depth)):
            data.update(loss_of(samples, epoch))
        assert data.epoch == epoch + 1
    check_scores(data, plans)


def test_a_peek_with_this_loader_leaves_the_stock_one_alone(data: InfoBatch[int]) -> None:
    next(iter(DataLoader(data, batch_size=8)))
    plan = data.plan.indices
    for samples in stock(data, 0):
        data.update(loss_of(samples))
    check_scores(data, [plan])


def test_an_iteration_outlived_by_its_epoch_is_refused(data: InfoBatch[int]) -> None:
    batches = iter(DataLoader(data, batch_size=8))
    data.update(loss_of(next(batches)))
    data.set_epoch(1)
    with pytest.raises(OrderError, match="the epoch was closed"):
        next(batches)


class Columns(Numbers):
    """Fetches a batch as columns, which a collate function takes as they are."""

    def __getitems__(self, indices: list[int]) -> dict[str, list[int]]:
        return {"samples": indices, "targets": [i % 3 for i in indices]}


def test_a_data_set_that_fetches_columns() -> None:
    data = InfoBatch(Columns(20), 5)
    loader = DataLoader(data, batch_size=4, collate_fn=lambda columns: columns)
    assert loader.dataset.classes == ["a", "b", "c"]  # type: ignore[attr-defined]
    for batch in loader:
        data.update(loss_of(torch.tensor(batch["samples"])))
    assert data.epoch == 1


def test_misuse_is_named(data: InfoBatch[int]) -> None:
    with pytest.raises(TypeError, match="dataset is a Numbers, expected an InfoBatch"):
        DataLoader(Numbers(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size is None"):
        DataLoader(data, batch_size=None)  # type: ignore[arg-type]
    samples = next(iter(DataLoader(data, batch_size=8)))
    with pytest.raises(OrderError, match="losses has 16 entries, but 8 samples are left"):
        data.update(loss_of(samples.repeat(2)))
    for wrong in (torch.tensor([]), torch.tensor(3)):
        with pytest.raises(ValueError, match="a tensor of at least one sample"):
            data.hand_out(wrong)


def test_weights_are_those_of_the_indices_that_were_given(data: InfoBatch[int]) -> None:
    data.load_scores(loss_of(torch.arange(data.num_samples)))
    weight_of = dict(zip(data.plan.indices.tolist(), data.plan.weights.tolist(), strict=True))
    assert len(set(weight_of.values())) > 1
    for samples in DataLoader(data, batch_size=8):
        ordered = samples.sort().values  # as a loop does that sorts its batch
        data.update(loss_of(ordered), ordered)
        # Also after the last batch, which ends the epoch.
        assert data.batch_weights.tolist() == [weight_of[i] for i in ordered.tolist()]
    assert data.epoch == 1


def test_weights_of_samples_that_the_epoch_does_not_train_are_refused(data: InfoBatch[int]) -> None:
    data.load_scores(loss_of(torch.arange(data.num_samples)))
    skipped = sorted(set(range(data.num_samples)) - set(data.plan.indices.tolist()))
    data.hand_out(torch.tensor(skipped[:3]))
    with pytest.raises(OrderError, match="not in the plan of epoch 0"):
        data.batch_weights  # noqa: B018


@pytest.mark.parametrize(
    "option",
    [{"batch_size": 7}, {"drop_last": True}, {"shrink": "batch"}, {"sharded": False},
     {"uniform": True}],
)  # fmt: skip
def test_what_a_batch_sampler_decides_is_not_ignored(
    data: InfoBatch[int], option: dict[str, Any]
) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=f"{name} is .* beside a batch_sampler, which decides it"):
        DataLoader(data, batch_sampler=data.batches(4), **option)
