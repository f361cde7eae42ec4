"""`batches()`: its form, its two ways to shrink, and what lighter batches promise."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader, Sampler

import infobatch
from infobatch import InfoBatch, Pruner
from infobatch.schedule import Schedule
from tests.conftest import Numbers, loss_of, same_state, train_epoch
from tests.ranks import on_ranks

NUM_SAMPLES = 100


def lighter(data: InfoBatch[int], batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_sampler=data.batches(batch_size, shrink="batch", **options))


def pruned(num_samples: int = NUM_SAMPLES, rule: str = "mean", seed: int = 0) -> InfoBatch[int]:
    """In its second epoch, which skips samples."""
    data = InfoBatch(Numbers(num_samples), 10, rule=rule, seed=seed)
    train_epoch(data)
    assert data.plan.num_pruned > 0
    return data


# Its form ----------------------------------------------------------------------------------------


def test_it_is_a_batch_sampler() -> None:
    batches = InfoBatch(Numbers(20), 10).batches(8, drop_last=True)
    assert isinstance(batches, Sampler)
    assert (batches.batch_size, batches.drop_last, len(batches)) == (8, True, 2)
    batches.load_state_dict(batches.state_dict())
    batches.set_epoch(3)
    assert [len(batch) for batch in batches] == [8, 8]


def test_where_a_framework_counts_on_equal_sizes_it_finds_none() -> None:
    data = InfoBatch(Numbers(20), 10)
    assert data.batches(8, sharded=False).batch_size == 8
    assert data.batches(8, shrink="batch", sharded=False).batch_size is None
    assert data.batches(8, shrink="batch").batch_size == 8


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_a_copied_loader_reads_the_copied_run(copier: Any) -> None:
    data = InfoBatch(Numbers(20), 10)
    loader = copier(DataLoader(data, batch_sampler=data.batches(8, shrink="batch")))
    for samples in loader:
        loader.dataset.update(loss_of(samples))
    assert (data.epoch, loader.dataset.epoch) == (0, 1)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"batch_size": 0}, ValueError, "batch_size is 0, expected a whole number of at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size is 2.5"),
        ({"batch_size": 8, "shrink": "both"}, ValueError, "shrink is 'both', expected 'epoch'"),
    ],
)
def test_wrong_settings_are_named(
    options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        InfoBatch(Numbers(20), 10).batches(**options)


# As many steps as full training, lighter ---------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [7, 8, 10, 50])
def test_every_epoch_has_the_steps_of_a_plain_loader(batch_size: int, drop_last: bool) -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    loader = lighter(data, batch_size, drop_last=drop_last)
    plain = DataLoader(Numbers(NUM_SAMPLES), batch_size=batch_size, drop_last=drop_last)
    num_kept = []
    for epoch in range(10):
        plan = data.plan.indices
        num_kept.append(len(plan))
        assert len(loader) == len(plain)
        sizes, seen = [], []
        for samples in loader:
            data.update(loss_of(samples, epoch))
            sizes.append(len(samples))
            seen += samples.tolist()
        assert len(sizes) == len(plain)
        assert max(sizes) - min(sizes) <= 1
        share = len(plain) * batch_size / NUM_SAMPLES if drop_last else 1
        assert seen == plan[: round(len(plan) * share)].tolist()
        assert data.epoch == epoch + 1
    assert min(num_kept) < NUM_SAMPLES


@pytest.mark.parametrize("rule", ["mean", "tiers", "random-rescaled"])
def test_the_mean_weight_of_an_epoch_is_one(rule: str) -> None:
    data = pruned(rule=rule)
    plan = data.plan
    weights: list[float] = []
    for samples in lighter(data):
        data.update(loss_of(samples))
        weights += data.batch_weights.tolist()
    assert sum(weights) / len(weights) == pytest.approx(1, abs=1e-6)
    ratio = torch.tensor(weights) / plan.weights
    assert torch.allclose(ratio, torch.tensor(len(plan) / NUM_SAMPLES))


def test_a_rule_that_does_not_rescale_keeps_its_weights_of_one() -> None:
    data = pruned(rule="random")
    for samples in lighter(data):
        losses = loss_of(samples)
        assert torch.equal(data.update(losses), (losses * 1.0).mean())


def test_weights_before_and_after_update_include_the_factor() -> None:
    data = pruned()
    for samples in lighter(data):
        before = data.batch_weights
        loss = data.update(loss_of(samples))
        assert torch.equal(before, data.batch_weights)
        assert float(loss) == pytest.approx(float((before * loss_of(samples)).mean()))


def test_an_unpruned_epoch_is_the_plain_mean_to_the_last_bit() -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    for samples in lighter(data):
        losses = torch.rand(len(samples))
        assert torch.equal(data.update(losses), losses.mean())


@pytest.mark.parametrize("kind", ["stock", "ours", "indices"])
def test_in_every_way_to_report(kind: str) -> None:
    data = pruned()
    plan = data.plan
    weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    loader: Any = lighter(data)
    if kind == "ours":
        loader = infobatch.DataLoader(data, 8, shrink="batch", num_workers=2, in_order=False)
    for samples in loader:
        data.update(loss_of(samples), samples if kind == "indices" else None)
        expected = torch.tensor([weight_of[i] for i in samples.tolist()])
        assert torch.allclose(data.batch_weights, expected * len(plan) / NUM_SAMPLES)
    assert data.epoch == 2


def losses_of_steps(seed: int, parts: int = 1) -> Tensor:
    """The weighted loss of each step of a pruned epoch, in which sample i has loss i."""
    data = pruned(60, seed=seed)
    found = []
    for samples in lighter(data, 10):
        step = [
            data.update(part.float()) * len(part) / len(samples) for part in samples.chunk(parts)
        ]
        found.append(torch.stack(step).sum())
    return torch.stack(found)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_expected_loss_of_a_step_is_that_of_full_training(parts: int) -> None:
    """With micro-batches too; over many seeds, against the mean over all samples."""
    runs = torch.stack([losses_of_steps(seed, parts) for seed in range(400)])
    full = torch.arange(60.0).mean()
    error = runs.std(0) / len(runs) ** 0.5
    assert bool(((runs.mean(0) - full).abs() < 4.5 * error).all())


def test_batches_without_samples_are_refused_and_batches_of_one_warned_about_once() -> None:
    data = InfoBatch(Numbers(30), 10, prune_ratio=0.9)
    train_epoch(data)
    with pytest.raises(ValueError, match='shrink is "batch", but .* samples are kept, too few'):
        next(iter(lighter(data, 1)))
    data = InfoBatch(Numbers(30), 10, prune_ratio=0.9)
    train_epoch(data)
    loader = lighter(data, 3)
    with pytest.warns(RuntimeWarning, match="leaves batches of one sample of 3"):
        next(iter(loader))
    for _ in range(3):
        next(iter(loader))


def test_schedules_need_no_care_and_a_schedule_passes_through() -> None:
    plain, wrapped = (SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for _ in range(2))
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    loader = lighter(data)
    total = 10 * len(loader)
    curve = lr_scheduler.OneCycleLR(plain, 0.1, total_steps=total)
    schedule = Schedule(lr_scheduler.OneCycleLR(wrapped, 0.1, total), data, batch_size=8)
    for _ in range(10):
        for samples in loader:
            data.update(loss_of(samples))
            for optimizer, steps in ((plain, curve), (wrapped, schedule)):
                optimizer.step()
                steps.step()
            assert curve.get_last_lr() == schedule.get_last_lr()
    assert curve.last_epoch == schedule.last_epoch == total


# Resume ------------------------------------------------------------------------------------------


def steps(
    data: InfoBatch[int], num_epochs: int, batch_size: int = 8
) -> list[tuple[list[int], list[float], dict[str, Any]]]:
    history = []
    loader = lighter(data, batch_size)
    for _ in range(data.epoch, num_epochs):
        for samples in loader:
            data.update(loss_of(samples + 17 * data.epoch))
            history.append((samples.tolist(), data.batch_weights.tolist(), data.state_dict()))
    return history


def test_from_every_step_the_rest_is_the_same() -> None:
    whole = steps(InfoBatch(Numbers(61), 12), 4)
    for position, (_, _, state) in enumerate(whole):
        resumed = InfoBatch(Numbers(61), 12)
        resumed.load_state_dict(state)
        rest = steps(resumed, 4)
        assert [step[:2] for step in rest] == [step[:2] for step in whole[position + 1 :]]
        if rest:
            assert same_state(rest[-1][2], whole[-1][2])


@pytest.mark.parametrize("batch_size", [3, 8, 20])
def test_with_another_batch_size_the_steps_left_are_in_proportion(batch_size: int) -> None:
    data = pruned()
    state = steps(data, 2)[4][2]
    resumed = InfoBatch(Numbers(NUM_SAMPLES), 10)
    resumed.load_state_dict(state)
    num_kept, num_left = len(resumed.plan), len(resumed.sampler)
    num_steps = -(-NUM_SAMPLES // batch_size)
    loader = lighter(resumed, batch_size)
    assert len(loader) == pytest.approx(num_steps * num_left / num_kept, abs=1)
    seen = [sample for samples in loader for sample in samples.tolist()]
    assert seen == resumed.plan.indices[num_kept - num_left :].tolist()


# Many ranks --------------------------------------------------------------------------------------


def train_on_a_rank(batch_size: int) -> dict[str, Any]:
    data = pruned_on_ranks()
    plan, found = data.plan, []
    loader = lighter(data, batch_size)
    for samples in loader:
        losses = samples.float()
        loss = data.update(losses)
        found.append((samples.tolist(), data.batch_weights.tolist(), float(loss)))
    return {"plan": plan.indices.tolist(), "steps": found, "epoch": data.epoch}


def pruned_on_ranks() -> InfoBatch[int]:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    for samples in DataLoader(data, batch_sampler=data.batches(8)):
        data.update(loss_of(samples))
    assert data.epoch == 1
    return data


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_steps_of_full_training(tmp_path: Path, world_size: int) -> None:
    ranks = on_ranks(world_size, train_on_a_rank, tmp_path, 8)
    plan, num_full = ranks[0]["plan"], -(-NUM_SAMPLES // world_size)
    for rank in ranks:
        assert rank["epoch"] == 2
        assert len(rank["steps"]) == -(-num_full // 8)  # as with torch's DistributedSampler
        assert [len(step[0]) for step in rank["steps"]] == [
            len(step[0]) for step in ranks[0]["steps"]
        ]
    pairs = [
        pair
        for rank in ranks
        for samples, weights, _ in rank["steps"]
        for pair in zip(samples, weights, strict=True)
    ]
    real = [pair for pair in pairs if pair[1] > 0]
    assert sorted(sample for sample, _ in real) == sorted(plan)
    assert sum(weight for _, weight in real) == pytest.approx(len(plan), rel=1e-6)


def share_by_myself() -> list[int]:
    """As accelerate does: every rank takes every other batch of the whole epoch."""
    import torch.distributed as dist

    data = pruned_on_ranks()
    batches = list(data.batches(8, shrink="batch", sharded=False))
    assert len(batches) % 2 == 0
    for batch in batches[dist.get_rank() :: 2]:
        data.update(torch.tensor(batch).float(), batch)
    data.set_epoch(2)
    return [len(batch) for batch in batches]


def test_a_framework_that_shards_gets_equally_many_batches_for_each_rank(tmp_path: Path) -> None:
    one, other = on_ranks(2, share_by_myself, tmp_path)
    assert one == other
    assert len(one) == 14  # 13 in full training, and one more so that both ranks have seven


# What a worker receives --------------------------------------------------------------------------


class Weighed(Numbers):
    """Items are the size of what a worker received."""

    def __getitem__(self, index: int) -> int:
        return received


received = 0


class Noting(InfoBatch[int]):
    """Notes, where it is unpickled, how much came with it."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        global received
        received = len(pickle.dumps({k: v for k, v in state.items() if k != "dataset"}))
        super().__setstate__(state)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("num_samples", [1_000, 100_000])
def test_a_worker_receives_no_state_per_sample(context: str, num_samples: int) -> None:
    data = Noting(Weighed(num_samples), 10)
    half = data.plan.indices[: num_samples // 2]
    data.update(torch.rand(len(half)), half)
    loader = DataLoader(
        data,
        sampler=range(4),
        batch_size=4,
        num_workers=1,
        multiprocessing_context=context,
    )
    (sizes,) = list(loader)
    assert 0 < int(sizes.max()) < 1_000
    whole = pickle.loads(pickle.dumps(data))
    assert same_state(whole.state_dict(), data.state_dict())
    assert same_state(copy.deepcopy(data).state_dict(), data.state_dict())


def test_in_a_worker_there_is_nothing_to_report_to() -> None:
    copied = InfoBatch(Numbers(5), 3)
    copied.__setstate__({**copied.__getstate__(), "_own": None})
    assert len(copied) == 5
    with pytest.raises(infobatch.OrderError, match="a copy inside a DataLoader worker"):
        copied.update(torch.ones(5))


# The attributes of torch's classes ---------------------------------------------------------------


def test_samplers_and_schedules_have_the_attributes_of_the_classes_they_claim_to_be() -> None:
    data = InfoBatch(Numbers(20), 10)
    torchs: Any = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0)
    assert all(hasattr(data.sampler, name) for name in vars(torchs))
    assert (data.sampler.num_replicas, data.sampler.rank, data.sampler.total_size) == (1, 0, 20)
    plain = torch.utils.data.BatchSampler(range(20), 8, drop_last=False)
    assert all(hasattr(data.batches(8), name) for name in vars(plain))
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    for curve in (
        lr_scheduler.CosineAnnealingLR(optimizer, 30),
        lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.LinearLR(optimizer)], [5]
        ),
    ):
        schedule = Schedule(curve, data, batch_size=8)
        assert all(hasattr(schedule, name) for name in vars(curve))
        assert schedule.optimizer is optimizer
        assert copy.deepcopy(schedule).get_last_lr() == schedule.get_last_lr()


# A collate function that reorders ----------------------------------------------------------------


def longest_first(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Sorts a batch, as packed sequences need it, and takes the indices along."""
    pairs = sorted(pairs, key=lambda pair: -((pair[1] * 7) % 13))
    return torch.tensor([index for index, _ in pairs]), torch.tensor([item for _, item in pairs])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_function_that_reorders_sees_the_indices(num_workers: int) -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    loader = DataLoader(
        data.with_indices(),
        batch_sampler=data.batches(8),
        collate_fn=longest_first,
        num_workers=num_workers,
    )
    for indices, samples in loader:
        assert indices.tolist() != sorted(indices.tolist())
        data.update(loss_of(samples), indices)
    assert torch.equal(data.scores, loss_of(torch.arange(NUM_SAMPLES)))


def test_bounds_are_those_of_the_plan() -> None:
    """floor(jK/S) to floor((j + 1)K/S), written out once."""
    pruner = Pruner(20, 10)
    pruner.update(loss_of(pruner.plan.indices), pruner.plan.indices)
    kept, sizes = len(pruner.plan), [len(batch) for batch in pruner.batches(4, shrink="batch")]
    bounds = [j * kept // 5 for j in range(6)]
    assert sizes == [b - a for a, b in pairwise(bounds)]


class Reporting:
    """A collate_fn that reports losses, which belongs into the training loop."""

    def __init__(self, data: InfoBatch[int]) -> None:
        self.data = data

    def __call__(self, items: list[int]) -> str:
        try:
            self.data.update(torch.rand(len(items)), items)
        except infobatch.OrderError as error:
            return str(error)
        return "no error"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_real_worker_cannot_report(method: str) -> None:
    data = InfoBatch(Numbers(8), 3)
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_sampler=data.batches(4),
        num_workers=1,
        collate_fn=Reporting(data),
        multiprocessing_context=method,
    )
    said = list(loader)
    assert len(said) == 2
    assert all("a copy inside a DataLoader worker" in sentence for sentence in said)
