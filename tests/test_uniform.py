"""`batches(uniform=True)`: a loss that is one number, in batches of one weight each."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader

import infobatch
from infobatch import InfoBatch, OrderError
from infobatch.rules import Mean, PerClass
from infobatch.schedule import Schedule
from infobatch.uniform import UniformShard, cut, uniform_shard
from tests.conftest import ByLoss, Numbers, loss_of, same_state
from tests.ranks import on_ranks

NUM_SAMPLES = 100


def uniform(data: InfoBatch[int], batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_sampler=data.batches(batch_size, uniform=True), **options)


def mean_loss(samples: Tensor, epoch: int = 0) -> Tensor:
    """What a criterion that gives one number would give."""
    return loss_of(samples, epoch).mean()


def pruned(rule: str = "mean", seed: int = 0) -> InfoBatch[int]:
    """In an epoch that skips samples, scored by their own losses."""
    data = InfoBatch(Numbers(NUM_SAMPLES), 10, rule=rule, seed=seed)
    data.load_scores(loss_of(torch.arange(NUM_SAMPLES)))
    assert data.plan.num_pruned > 0
    return data


# The cut -----------------------------------------------------------------------------------------

plans = st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=80)


@given(plans, st.integers(1, 20), st.integers(1, 4))
def test_batches_have_one_weight_and_sizes_that_differ_by_one(
    weights: list[float], batch_size: int, multiple: int
) -> None:
    batches = cut(np.array(weights, dtype=np.float32), batch_size, multiple)
    assert sorted(entry for batch in batches for entry in batch) == list(range(len(weights)))
    assert len(batches) % multiple == 0 or len(batches) == len(weights)
    for weight in set(weights):
        sizes = [len(b) for b in batches if weights[b[0]] == weight]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= batch_size
        if multiple == 1:
            assert len(sizes) == -(-weights.count(weight) // batch_size)
    assert all(len({weights[entry] for entry in batch}) == 1 for batch in batches)
    assert all(a < b for batch in batches for a, b in pairwise(batch))  # as in the plan


def test_the_batches_of_each_weight_are_spread_over_the_whole_epoch() -> None:
    data = InfoBatch(Numbers(20_000), 10, rule="tiers")
    data.load_scores(loss_of(torch.arange(20_000)))
    plan = data.plan
    mean = float(plan.weights.mean())
    batches = cut(plan.weights.numpy(), 16, 1)
    for part in np.array_split(np.arange(len(batches)), 10):
        weights = plan.weights[np.concatenate([batches[i] for i in part])]
        assert float(weights.mean()) == pytest.approx(mean, rel=0.05)


@given(plans, st.integers(1, 9), st.integers(2, 4), st.integers(0, 5))
def test_ranks_have_equally_many_batches_and_together_all_that_is_left(
    weights: list[float], batch_size: int, world_size: int, num_steps: int
) -> None:
    of_plan = torch.tensor(weights)

    def shards(done: Tensor | None) -> list[UniformShard]:
        ranks = {"world_size": world_size, "multiple": world_size}
        return [
            uniform_shard(of_plan, done, batch_size, rank=rank, **ranks)
            for rank in range(world_size)
        ]

    def batches_of(shard: UniformShard) -> list[list[int]]:
        """A repeat is an entry of its own, behind those of the plan."""
        entries = [*shard.order.tolist(), len(weights)]
        bounds = pairwise(shard.batching.bounds)
        return [entries[shard.entries(slice(a, b))] for a, b in bounds]

    whole = [batches_of(shard) for shard in shards(None)]
    assert len({len(batches) for batches in whole}) == 1
    trained = [entry for batches in whole for batch in batches for entry in batch]
    real = sorted(entry for entry in trained if entry < len(weights))
    assert real == list(range(len(weights)))
    assert len(trained) - len(real) < world_size
    num_steps = min(num_steps, len(whole[0]) - 1)
    done = torch.zeros(len(weights) + 1, dtype=torch.bool)
    for batches in whole:
        for batch in batches[:num_steps]:
            done[batch] = True
    for shard, batches in zip(shards(None), whole, strict=True):
        # Each rank knows what all have done, as all of them take equally many steps.
        num_own = sum(len(batch) for batch in batches[:num_steps])
        found = shard.order[shard.done(torch.arange(len(shard)) < num_own)]
        assert sorted(found.tolist()) == done.nonzero().squeeze(1).tolist()
        assert shard.num_done(num_own) == len(found)
        if shard.num_own < len(shard):
            assert int(shard.order[shard.repeat]) not in sum(batches, start=[])  # noqa: RUF017
    # After a resume the rest is the rest.
    resumed = shards(done[:-1])
    assert [batches_of(shard) for shard in resumed] == [rest[num_steps:] for rest in whole]
    for shard, before in zip(resumed, shards(None), strict=True):
        if shard.num_own < len(shard):
            assert shard.order[shard.repeat] == before.order[before.repeat]


def test_with_another_batch_size_what_is_left_is_cut_anew() -> None:
    weights = torch.tensor([1.0, 2.0] * 20)
    done = torch.zeros(40, dtype=torch.bool)
    done[:7] = True
    shard = uniform_shard(weights, done, 4)
    assert shard.start == 7
    assert sorted(shard.order[7:].tolist()) == list(range(7, 40))
    for a, b in pairwise(shard.batching.bounds):
        assert len(set(weights[shard.order[7 + a : 7 + b]].tolist())) == 1
    # From there the rest is the rest again.
    done[shard.order[: 7 + shard.batching.bound(3)]] = True
    rest = uniform_shard(weights, done, 4)
    assert rest.order[rest.start :].tolist() == shard.order[rest.start :].tolist()


# What it promises --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["in order", "workers", "by index", "ours"])
def test_the_losses_of_an_epoch_sum_to_those_of_its_weighted_samples(kind: str) -> None:
    data = pruned("tiers")
    plan = data.plan
    weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    loader: Any = uniform(data, num_workers=2 if kind == "workers" else 0)
    if kind == "ours":
        loader = infobatch.DataLoader(data, 8, uniform=True, num_workers=2, in_order=False)
    num_steps, total, seen = len(loader), 0.0, []
    for samples in loader:
        (weight,) = {weight_of[sample] for sample in samples.tolist()}
        loss = data.update(mean_loss(samples), samples if kind == "by index" else None)
        assert data.batch_weights.tolist() == [weight] * len(samples)
        total += float(loss)
        seen += samples.tolist()
        num_steps -= 1
    assert (num_steps, data.epoch) == (0, 1)
    assert sorted(seen) == sorted(weight_of)
    expected = float((plan.weights * loss_of(plan.indices)).sum()) / 8
    assert total == pytest.approx(expected, rel=1e-5)


def test_unbiased_over_an_epoch_and_not_in_a_step() -> None:
    """The mean over many plans of an epoch's gradients is full training's; of a step's it is not.

    A batch of kept easy samples stands for twice as many, so its step is smaller or larger than
    that of a mixed batch.
    """
    everyone = torch.arange(NUM_SAMPLES)
    full = float(loss_of(everyone).sum()) / 8
    epochs, steps = [], []
    for seed in range(200):
        data = pruned(seed=seed)
        threshold = data.plan.threshold
        assert threshold is not None
        losses = []
        for samples in uniform(data):
            is_easy = loss_of(samples) < threshold
            assert is_easy.all() or not is_easy.any()
            losses.append(float(data.update(mean_loss(samples))))
        epochs.append(sum(losses))
        steps.append(np.std(losses) / np.mean(losses))
    error = np.std(epochs) / len(epochs) ** 0.5
    assert error < 0.01 * full
    assert float(np.mean(epochs)) == pytest.approx(full, abs=4 * error)
    assert np.mean(steps) > 0.3


@pytest.mark.parametrize("batch_size", [10, 25])
def test_batches_that_divide_the_data_are_plain_ones_with_the_rule_full(batch_size: int) -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10, rule="full")
    plain = data.plan.indices.split(batch_size)
    loader = uniform(data, batch_size)
    for samples, expected in zip(loader, plain, strict=True):
        assert torch.equal(samples, expected)
        loss = mean_loss(samples)
        assert torch.equal(data.update(loss), loss)
    assert data.epoch == 1


def test_where_nothing_is_pruned_a_smaller_batch_counts_for_less_too() -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    total = sum(float(data.update(mean_loss(samples))) for samples in uniform(data))
    assert total == pytest.approx(float(loss_of(torch.arange(NUM_SAMPLES)).sum()) / 8, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_floating_dtype_and_the_gradient_is_scaled(dtype: torch.dtype) -> None:
    data = pruned()
    for samples in uniform(data):
        loss = torch.tensor(0.5, dtype=dtype, requires_grad=True)
        weighted = data.update(loss)
        weighted.backward()
        factor = float(data.batch_weights[0]) * len(samples) / 8
        assert weighted.dtype == dtype
        assert float(weighted.detach()) == pytest.approx(0.5 * factor, rel=0.01)
        assert loss.grad is not None
        assert float(loss.grad) == pytest.approx(factor, rel=0.01)


def test_a_schedule_ends_each_epoch_where_full_training_does() -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = Schedule(lr_scheduler.OneCycleLR(optimizer, 0.1, 130), data, batch_size=8)
    loader = uniform(data)
    for epoch in range(10):
        for samples in loader:
            data.update(mean_loss(samples, epoch))
            optimizer.step()
            schedule.step()
        assert schedule.last_epoch == 13 * (epoch + 1)
    assert data.savings.fraction > 0.1


# Scores ------------------------------------------------------------------------------------------


def test_the_score_is_a_moving_average_of_batch_losses() -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    expected: dict[int, float] = {}
    for epoch in range(4):
        loader = uniform(data)
        for samples in loader:
            loss = mean_loss(samples, epoch)
            for sample in samples.tolist():
                old = expected.get(sample, float(loss))
                expected[sample] = 0.9 * old + 0.1 * float(loss)
            data.update(loss)
        scores = [expected[sample] for sample in range(NUM_SAMPLES)]
        assert data.scores.tolist() == pytest.approx(scores, rel=1e-5)
    assert data.savings.fraction > 0


def test_the_loss_of_an_epoch_is_that_of_all_samples_and_no_moving_average() -> None:
    data = pruned()
    plan = data.plan
    for samples in uniform(data):
        data.update(mean_loss(samples))
    expected = float((plan.weights * loss_of(plan.indices)).sum()) / NUM_SAMPLES
    assert data.metrics["infobatch/loss"] == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_is_not_finite_leaves_its_samples_without_a_score() -> None:
    data = InfoBatch(Numbers(16), 10)
    first, second = uniform(data)
    data.update(torch.tensor(torch.nan), first)
    with pytest.warns(RuntimeWarning, match="8 losses of epoch 0 are NaN"):
        data.update(torch.tensor(1.0), second)
    assert data.scores[first].isnan().all()
    assert data.scores[second].tolist() == [1.0] * 8


# Refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shrink": "batch"}, 'uniform is True and shrink is "batch"'),
        ({"drop_last": True}, "uniform is True and drop_last too"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        InfoBatch(Numbers(20), 10).batches(8, uniform=True, **options)


def test_rules_with_a_weight_per_sample_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ByLoss\(rescale=True\) gives a probability per sample"):
        InfoBatch(Numbers(20), 10, rule=ByLoss()).batches(8, uniform=True)
    rule = PerClass(Mean(0.3), [int(i**0.5) for i in range(400)])  # classes of all sizes
    data = InfoBatch(Numbers(400), 10, rule=rule)
    data.load_scores(loss_of(torch.arange(400)))
    with pytest.raises(ValueError, match="the epoch has more than 8 different weights"):
        next(iter(uniform(data)))


@pytest.mark.parametrize(
    ("losses", "options", "sentence"),
    [
        (torch.ones(8), {}, r"losses is shaped \(8,\), but this loader has uniform=True"),
        (0.5, {}, "losses is a float"),
        (torch.tensor(1.0), {"mask": torch.ones(8)}, "mask was given beside a loss that is one"),
        (torch.tensor(1.0), {"scores": torch.ones(8)}, "scores was given"),
        (torch.tensor(1.0), {"denominators": torch.ones(8)}, "denominators was given"),
    ],
)
def test_one_loss_per_sample_is_refused_and_nothing_is_recorded(
    losses: Any, options: dict[str, Any], sentence: str
) -> None:
    data = pruned()
    next(iter(uniform(data)))
    with pytest.raises(ValueError, match=sentence):
        data.update(losses, **options)
    assert data.num_reported == 0


def test_without_uniform_one_number_is_refused_with_what_to_do() -> None:
    data = pruned()
    next(iter(DataLoader(data, batch_sampler=data.batches(8))))
    with pytest.raises(ValueError, match=r"losses is a scalar.*batches\(uniform=True\)"):
        data.update(torch.tensor(1.0))


def test_an_epoch_has_one_kind_of_report() -> None:
    data = pruned()
    some = data.plan.indices[:8]
    data.update(loss_of(some), some)
    with pytest.raises(OrderError, match="epoch 0 was begun with one loss per sample"):
        next(iter(uniform(data)))
    for first, other in ((True, False), (False, True)):
        begun, resumed = pruned(), InfoBatch(Numbers(NUM_SAMPLES), 10)
        samples = next(iter(DataLoader(begun, batch_sampler=begun.batches(8, uniform=first))))
        begun.update(mean_loss(samples) if first else loss_of(samples))
        resumed.load_state_dict(begun.state_dict())
        samples = next(iter(DataLoader(resumed, batch_sampler=resumed.batches(8, uniform=other))))
        kind = "one number per batch" if first else "one loss per sample"
        with pytest.raises(OrderError, match=f"epoch 0 was begun with {kind}"):
            resumed.update(mean_loss(samples) if other else loss_of(samples))


def test_samples_of_different_weights_are_refused_by_index() -> None:
    data = pruned()
    next(iter(uniform(data)))
    with pytest.raises(OrderError, match=r"weigh from 1.0 to 2.*one weight only"):
        data.update(torch.tensor(1.0), data.plan.indices)
    with pytest.raises(ValueError, match="indices run from 100 to 100, expected positions"):
        data.update(torch.tensor(1.0), [100])
    with pytest.raises(TypeError, match="indices has dtype torch.float32"):
        data.update(torch.tensor(1.0), torch.ones(1))
    assert data.num_reported == 0


def test_a_batch_that_is_dropped_or_reported_twice_is_noticed() -> None:
    data = pruned()
    batches = iter(uniform(data))
    data.update(mean_loss(next(batches)))
    with pytest.raises(OrderError, match="more batches than were fetched"):
        data.update(torch.tensor(1.0))
    next(batches)
    next(batches)
    with pytest.raises(OrderError, match="were fetched and never reported"):
        data.update(torch.tensor(1.0))


def test_a_peek_changes_nothing() -> None:
    data = pruned()
    loader = uniform(data)
    first = next(iter(loader))
    assert torch.equal(next(iter(loader)), first)
    before = next(iter(DataLoader(data, batch_sampler=data.batches(8))))
    assert torch.equal(before, data.plan.indices[:8])
    for samples in loader:
        data.update(mean_loss(samples))
    assert data.epoch == 1


def test_a_batch_of_ours_may_be_reported_again() -> None:
    data = pruned()
    for samples in infobatch.DataLoader(data, 8, uniform=True):
        assert torch.equal(data.update(mean_loss(samples)), data.update(mean_loss(samples)))
    assert data.epoch == 1


# Many ranks --------------------------------------------------------------------------------------


def train_on_a_rank(num_samples: int, batch_size: int, kind: str) -> dict[str, Any]:
    data = InfoBatch(Numbers(num_samples), 10, rule="tiers")
    loader: Any = uniform(data, batch_size)
    if kind == "ours":
        loader = infobatch.DataLoader(data, batch_size, uniform=True)
    epochs = []
    for epoch in range(3):
        plan, steps = data.plan, []
        assert len(loader) == len(list(data.batches(batch_size, uniform=True)))
        for samples in loader:
            loss = data.update(mean_loss(samples, epoch))
            steps.append((samples.tolist(), data.batch_weights.tolist(), float(loss)))
        epochs.append((plan.indices.tolist(), plan.weights.tolist(), steps))
        assert data.epoch == epoch + 1
    return {"epochs": epochs, "state": data.state_dict()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "batch_size", "kind"), [(3, 8, "stock"), (2, 1, "stock"), (2, 1, "ours")]
)
def test_ranks_take_equally_many_steps_and_train_the_plan(
    tmp_path: Path, world_size: int, batch_size: int, kind: str
) -> None:
    """Batches of one sample cannot be split: there a rank may repeat one, at weight 0."""
    ranks = on_ranks(world_size, train_on_a_rank, tmp_path, 101, batch_size, kind)
    for rank in ranks:
        assert same_state(rank["state"], ranks[0]["state"])
    for epoch in range(3):
        indices, weights, _ = ranks[0]["epochs"][epoch]
        steps = [rank["epochs"][epoch][2] for rank in ranks]
        assert len({len(of_rank) for of_rank in steps}) == 1
        pairs = [
            pair
            for of_rank in steps
            for samples, of_batch, _ in of_rank
            for pair in zip(samples, of_batch, strict=True)
        ]
        real = [pair for pair in pairs if pair[1] > 0]
        assert sorted(real) == sorted(zip(indices, weights, strict=True))
        assert len(pairs) - len(real) == (len(indices) % 2 if batch_size == 1 else 0)
        losses = loss_of(torch.tensor(indices), epoch)
        expected = float((torch.tensor(weights) * losses).sum()) / batch_size
        assert sum(loss for of_rank in steps for *_, loss in of_rank) == pytest.approx(expected)


def stop_and_go_on(sync: bool) -> dict[str, Any]:
    """A checkpoint in the middle of an epoch, and what the rest of it looks like."""
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    state: dict[str, Any] = {}
    history: list[list[int]] = []
    for _ in range(3):
        for samples in uniform(data):
            data.update(mean_loss(samples, data.epoch))
            history.append(samples.tolist())
            if len(history) == 10:
                if sync:
                    data.sync()
                state, num_reported = data.state_dict(), data.num_reported
    return {"state": state, "history": history, "num_reported": num_reported, "data": data.scores}


def go_on(state: dict[str, Any]) -> dict[str, Any]:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    data.load_state_dict(state)
    history: list[list[int]] = []
    for _ in range(data.epoch, 3):
        for samples in uniform(data):
            data.update(mean_loss(samples, data.epoch))
            history.append(samples.tolist())
    return {"history": history, "scores": data.scores}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the checkpoint was taken in the middle")
@pytest.mark.parametrize("sync", [True, False])
def test_a_checkpoint_of_one_rank_goes_on_on_all(tmp_path: Path, sync: bool) -> None:
    ranks = on_ranks(2, stop_and_go_on, tmp_path, sync)
    state = ranks[0]["state"]
    resumed = on_ranks(2, go_on, tmp_path, state)
    assert ranks[0]["num_reported"] == ranks[1]["num_reported"]
    for rank, rest in zip(ranks, resumed, strict=True):
        assert len(rank["history"]) > 14  # the tenth step is in the middle of the second epoch
        assert rest["history"][:3] == rank["history"][10:13]
        if sync:
            assert rest["history"] == rank["history"][10:]
            assert torch.equal(rest["scores"], rank["data"])
    if sync:
        # On one rank what is left is cut anew, and trained all the same.
        alone = go_on(state)
        seen = [sample for rank in ranks for batch in rank["history"][:10] for sample in batch]
        data = InfoBatch(Numbers(NUM_SAMPLES), 10)
        data.load_state_dict(state)
        num_left = len(data.plan) - data.num_reported
        rest_of_epoch = [sample for batch in alone["history"] for sample in batch][:num_left]
        of_epoch = seen[-data.num_reported :] if data.num_reported else []
        assert len(set(rest_of_epoch)) == num_left
        assert set(rest_of_epoch) <= set(data.plan.indices.tolist())
        assert len(of_epoch) + num_left == len(data.plan)


def share_by_myself() -> list[list[int]]:
    """As accelerate does: every rank takes every other batch of the whole epoch."""
    import torch.distributed as dist

    data = InfoBatch(Numbers(NUM_SAMPLES), 10)
    data.load_scores(loss_of(torch.arange(NUM_SAMPLES)))
    batch_sampler = data.batches(8, uniform=True, sharded=False)
    assert batch_sampler.batch_size is None
    batches = list(batch_sampler)
    for batch in batches[dist.get_rank() :: 2]:
        data.update(mean_loss(torch.tensor(batch)), batch)
    data.set_epoch(1)
    assert not data.scores.isnan().any()
    return batches


def test_the_length_may_be_asked_before_there_is_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pruned()
    batches = data.batches(8, uniform=True)
    of_one_process = len(batches)
    monkeypatch.setattr("infobatch.distributed.world_size", lambda: 4)
    assert len(batches) == -(-of_one_process // 4)


@pytest.mark.slow
def test_a_framework_that_shards_gets_equally_many_batches_for_each_rank(tmp_path: Path) -> None:
    one, other = on_ranks(2, share_by_myself, tmp_path)
    assert one == other
    assert len(one) % 2 == 0
