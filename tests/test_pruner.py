"""The circle, and what a user is told when it is broken."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing
from torch.utils.data import DataLoader

from infobatch import InfoBatch, OrderError, Pruner, Savings
from infobatch.rules import RULES, Groups, Mean, Memory
from tests.conftest import Numbers, loss_of, same_state, train_epoch

# Epochs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_epochs", [1, 2, 7, 8, 90, 200])
@pytest.mark.parametrize("delta", [0, 0.3, 0.5, 0.875, 0.999, 1])
def test_exactly_the_epochs_below_delta_times_num_epochs_are_pruned(
    num_epochs: int, delta: float
) -> None:
    pruner = Pruner(10, num_epochs, delta=delta)
    pruned = []
    for epoch in range(num_epochs + 3):
        pruner.set_epoch(epoch)
        if pruner.plan.num_pruned:
            pruned.append(epoch)
        else:
            assert pruner.plan.weights.tolist() == [1.0] * 10
        pruner.update(loss_of(pruner.plan.indices), pruner.plan.indices)
    assert pruned == [e for e in range(1, num_epochs + 3) if e < delta * num_epochs]


def test_of_90_epochs_78_is_the_last_that_may_prune() -> None:
    pruner = Pruner(10, 90)
    pruner.update(torch.arange(10.0)[pruner.plan.indices], pruner.plan.indices)
    pruned = []
    for epoch in range(95):
        pruner.set_epoch(epoch)
        pruned.append(pruner.plan.num_pruned > 0)
    assert pruned == [epoch <= 78 for epoch in range(95)]


def test_weights_belong_to_the_plan_of_their_epoch() -> None:
    """A fractional delta * num_epochs leaves no weight of the last pruned epoch behind."""
    pruner = Pruner(100, 10, delta=0.55)
    for epoch in range(10):
        plan = pruner.plan
        pruner.update(loss_of(plan.indices), plan.indices)
        assert float(plan.weights.sum()) == pytest.approx(100)
        assert (plan.weights.max() > 1) == (1 <= epoch <= 5)


def test_set_epoch_is_idempotent_and_may_skip() -> None:
    pruner = Pruner(100, 10)
    pruner.set_epoch(0)
    first, rest = pruner.plan.indices[:40], pruner.plan.indices[40:]
    pruner.update(loss_of(first), first)
    pruner.set_epoch(0)
    pruner.update(loss_of(rest), rest)
    assert pruner.epoch == 1
    plan = pruner.plan
    pruner.set_epoch(1)
    assert pruner.plan is plan
    pruner.set_epoch(5)
    pruner.set_epoch(1)
    assert pruner.plan.fingerprint == plan.fingerprint
    pruner.set_epoch(7)
    assert pruner.plan.epoch == pruner.epoch == 7


def test_set_epoch_finishes_a_running_epoch() -> None:
    pruner = Pruner(100, 10)
    reached = pruner.plan.indices[:30]
    pruner.update(loss_of(reached), reached)
    assert bool(pruner.scores.isnan().all())
    pruner.set_epoch(1)
    assert torch.equal(pruner.scores[reached], loss_of(reached))
    assert int(pruner.scores.isnan().sum()) == 70


# Updates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_floating_dtype(dtype: torch.dtype) -> None:
    pruner = Pruner(64, 10)
    for _ in range(3):
        indices = pruner.plan.indices
        losses = (indices.to(dtype) / 64).requires_grad_()
        loss = pruner.update(losses, indices)
        loss.backward()
        assert loss.dtype == dtype
        assert losses.grad is not None
        assert pruner.scores.dtype == torch.float32
        assert torch.equal(pruner.scores[indices], losses.detach().float())
    assert pruner.savings.fraction > 0


def test_the_losses_of_the_user_are_untouched_and_may_change_afterwards() -> None:
    pruner = Pruner(100, 10)
    train_by_index(pruner)
    raw = torch.rand(len(pruner.plan), requires_grad=True)
    losses = raw.sigmoid()  # sigmoid saves its output: in-place scaling would break its backward
    before = losses.detach().clone()
    indices = pruner.plan.indices
    loss = pruner.update(losses[:50], indices[:50]) + pruner.update(losses[50:], indices[50:])
    loss.backward()
    assert torch.equal(losses.detach(), before)
    pruner = Pruner(4, 3)
    mutable = torch.ones(4)
    indices = pruner.plan.indices
    pruner.update(mutable[:2], indices[:2])
    mutable.fill_(99)
    pruner.update(torch.ones(2), indices[2:])
    assert pruner.scores.tolist() == [1.0] * 4


def train_by_index(pruner: Pruner) -> None:
    indices = pruner.plan.indices
    pruner.update(loss_of(indices, pruner.epoch), indices)


def test_without_gradient_and_in_any_portions() -> None:
    pruner = Pruner(1000, 10)
    with torch.no_grad():
        for size in (1000, 1, 7, 333):
            for indices in pruner.plan.indices.split(size):
                pruner.update(loss_of(indices, pruner.epoch), indices)
    assert pruner.epoch == 4


def test_scores_may_differ_from_losses() -> None:
    pruner = Pruner(50, 10)
    indices = pruner.plan.indices
    losses = torch.rand(50, 4, 4, requires_grad=True)
    loss = pruner.update(losses, indices, scores=loss_of(indices))
    assert float(loss.detach()) == pytest.approx(float(losses.detach().mean()))
    assert torch.equal(pruner.scores[indices], loss_of(indices))


def test_token_losses_with_a_mask() -> None:
    pruner = Pruner(3, 2)
    indices = torch.tensor([2, 0, 1])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    pruner.update(torch.arange(9.0).reshape(3, 3), indices, mask=mask)
    assert pruner.scores.tolist() == [3.0, 7.0, 0.5]


def test_a_sample_that_is_masked_out_keeps_its_score() -> None:
    pruner = Pruner(3, 2)
    pruner.load_scores(torch.tensor([5.0, 6.0, 7.0]))
    mask = torch.tensor([[1, 1], [0, 0], [1, 0]])
    loss = pruner.update(torch.ones(3, 2), [0, 1, 2], mask=mask)
    assert float(loss) == pytest.approx(2 / 3)  # it counts as a sample with the loss 0
    assert pruner.epoch == 1
    assert pruner.scores.tolist() == [1.0, 6.0, 1.0]
    assert pruner.num_nonfinite == 0


def test_several_losses_of_one_batch_go_in_one_call_and_a_second_forward_uses_its_weights() -> None:
    data = InfoBatch(Numbers(64), 10)
    train_epoch(data)
    loader = DataLoader(data, batch_size=8, sampler=data.sampler)
    for samples in loader:
        decode, auxiliary = loss_of(samples), loss_of(samples + 5)
        first = data.update(decode + 0.4 * auxiliary)
        second = (data.batch_weights * (decode + 0.4 * auxiliary)).mean()
        assert torch.equal(first, second)
    assert data.epoch == 2


def test_indices_come_as_tensors_lists_and_small_integers() -> None:
    pruner = Pruner(4, 3)
    pruner.update(torch.ones(2), pruner.plan.indices[:2].tolist())
    pruner.update(torch.ones(2), pruner.plan.indices[2:].to(torch.int32))
    assert pruner.epoch == 1


def test_in_order_and_by_index_do_not_mix_within_an_epoch() -> None:
    data = InfoBatch(Numbers(20), 10)
    batches = iter(DataLoader(data, batch_size=5, sampler=data.sampler))
    data.update(loss_of(next(batches)))
    with pytest.raises(OrderError, match="epoch 0 was begun without indices"):
        data.update(loss_of(next(batches)), [1, 2, 3, 4, 5])
    other = InfoBatch(Numbers(20), 10)
    batches = iter(DataLoader(other, batch_size=5, sampler=other.sampler))
    samples = next(batches)
    other.update(loss_of(samples), samples)
    with pytest.raises(OrderError, match="epoch 0 was begun with indices"):
        other.update(loss_of(next(batches)))


def test_reading_weights_changes_nothing() -> None:
    data = InfoBatch(Numbers(20), 10)
    for epoch in range(3):
        plan = data.plan
        weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
        for step, samples in enumerate(DataLoader(data, batch_sampler=data.batches(5))):
            if step == 0:  # what comes first is known to be in order
                assert data.batch_weights.tolist() == [weight_of[i] for i in samples.tolist()]
            else:
                with pytest.raises(OrderError, match="call update first, then batch_weights is"):
                    data.batch_weights  # noqa: B018
            data.update(loss_of(samples), samples)
            assert data.batch_weights.tolist() == [weight_of[i] for i in samples.tolist()]
        assert data.epoch == epoch + 1


def test_a_full_epoch_is_to_the_last_bit_what_it_would_be_without() -> None:
    for shape in [(50,), (50, 3, 7)]:
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            losses = torch.rand(shape).to(dtype)
            assert torch.equal(Pruner(50, 3).update(losses, torch.arange(50)), losses.mean())


def test_the_users_modes_and_defaults_do_not_matter() -> None:
    expected = fingerprints(Pruner(60, 10))
    pruner = Pruner(60, 10)
    found = []
    for epoch in range(4):
        with torch.inference_mode():
            found.append(pruner.plan.fingerprint)
            indices = pruner.plan.indices
            pruner.update(loss_of(indices[:20], epoch), indices[:20])
        losses = loss_of(indices[20:], epoch).requires_grad_()
        pruner.update(losses, indices[20:]).backward()
    assert found == expected

    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        pruner = Pruner(60, 10)
        with torch.device("cpu"):
            found = fingerprints(pruner)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert found == expected


@pytest.mark.parametrize("way", ["checkpoint", "pickle"])
def test_the_users_default_device_does_not_matter_to_a_copy_in_mid_epoch(way: str) -> None:
    pruner = Pruner(60, 10)
    pruner.update(loss_of(pruner.plan.indices[:20]), pruner.plan.indices[:20])
    state, pickled, copied = pruner.state_dict(), pickle.dumps(pruner), Pruner(60, 10)
    try:
        torch.set_default_device("meta")
        if way == "checkpoint":
            copied.load_state_dict(state)
        else:
            copied = pickle.loads(pickled)
        assert copied.num_reported == 20
    finally:
        torch.set_default_device(None)
    assert same_state(copied.state_dict(), state)


def test_in_order_too() -> None:
    data = InfoBatch(Numbers(64), 10)
    train_epoch(data)
    with torch.inference_mode():
        assert data.plan.num_pruned > 0
    batches = iter(DataLoader(data, batch_size=8, sampler=data.sampler))
    with torch.inference_mode():
        data.update(loss_of(next(batches)))
    data.update(loss_of(next(batches)).requires_grad_()).backward()


def test_a_copys_sampler_is_its_own() -> None:
    pruner = Pruner(20, 10)
    for other in (copy.copy(pruner), copy.deepcopy(pruner)):
        other.set_epoch(1)
        assert list(other.sampler) == other.plan.indices.tolist()
        assert pruner.epoch == 0
        assert list(pruner.sampler) == pruner.plan.indices.tolist()


class Fell(Mean):
    """Skips half of what has become smaller."""

    def init(self, num_samples: int) -> Memory:
        return {"before": torch.full((num_samples,), torch.nan)}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        return Groups(of=scores < memory["before"], keep=(1.0, 0.5))

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        return {"before": scores}


def test_a_rule_may_remember_the_scores_it_is_shown() -> None:
    pruner = Pruner(40, 10, rule=Fell())
    for epoch in range(3):
        indices = pruner.plan.indices
        pruner.update(torch.full((len(indices),), 1.0 / (1 + epoch)), indices)
    assert pruner.plan.num_pruned > 0


def test_a_rule_that_changes_the_layout_of_its_memory_is_named() -> None:
    class Forgetful(Fell):
        def init(self, num_samples: int) -> Memory:
            return {}

        def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
            return Groups(of=torch.zeros(len(scores), dtype=torch.uint8), keep=(1.0,))

    pruner = Pruner(40, 10, rule=Forgetful())
    with pytest.raises(ValueError, match="remembers 'before' as .* expected nothing: let init()"):
        pruner.update(torch.ones(40), pruner.plan.indices)


# Savings -----------------------------------------------------------------------------------------


def test_savings_count_what_was_trained() -> None:
    pruner = Pruner(100, 10)
    assert pruner.savings == Savings(0, 0)
    assert pruner.savings.fraction == 0
    trained = 0
    for epoch in range(10):
        trained += len(pruner.plan)
        train_by_index(pruner)
        assert pruner.savings == Savings(trained, 100 * (epoch + 1))
    assert pruner.savings.fraction == pytest.approx(1 - trained / 1000)


def test_an_epoch_cut_short_counts_in_proportion() -> None:
    pruner = Pruner(100, 10)
    train_by_index(pruner)
    half = pruner.plan.indices[: len(pruner.plan) // 2]
    pruner.update(loss_of(half), half)
    expected = Savings(100 + len(half), 100 + round(100 * len(half) / len(pruner.plan)))
    assert pruner.savings == expected
    pruner.set_epoch(2)
    assert pruner.savings == expected


def test_what_is_reported_twice_is_saved_once() -> None:
    pruner = Pruner(100, 10)
    first = pruner.plan.indices[:32]
    for _ in range(2):
        pruner.update(loss_of(first), first)
    assert pruner.num_reported == pruner.savings.num_trained == 32


# Determinism and copies --------------------------------------------------------------------------


def fingerprints(pruner: Pruner, num_epochs: int = 4) -> list[str]:
    plans = []
    for _ in range(num_epochs):
        plans.append(pruner.plan.fingerprint)
        train_by_index(pruner)
    return plans


def test_same_seed_same_run_other_seed_other_run() -> None:
    assert fingerprints(Pruner(100, 10, seed=1)) == fingerprints(Pruner(100, 10, seed=1))
    assert set(fingerprints(Pruner(100, 10, seed=1))).isdisjoint(
        fingerprints(Pruner(100, 10, seed=2))
    )


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_copy_goes_its_own_way(copier: Any, name: str) -> None:
    pruner = Pruner(100, 10, rule=name)
    train_by_index(pruner)
    train_by_index(pruner)
    twin = copier(pruner)
    ours = fingerprints(pruner)
    assert fingerprints(twin) == ours


def train_and_exit(pruner: Pruner) -> None:
    rest = torch.tensor(list(pruner.sampler))
    pruner.update(torch.zeros(len(rest)), rest)
    assert pruner.epoch == 2


@pytest.mark.slow
def test_a_pruner_sent_to_a_spawned_process_is_a_copy() -> None:
    """torch shares the memory of tensors it sends, and scores change in place."""
    pruner = Pruner(100, 10)
    train_by_index(pruner)
    half = pruner.plan.indices[:30]
    pruner.update(loss_of(half), half)
    before = pruner.state_dict()
    process = multiprocessing.get_context("spawn").Process(target=train_and_exit, args=(pruner,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert same_state(pruner.state_dict(), before)


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ((0, 5), ValueError, "num_samples is 0, expected a whole number of at least 1"),
        ((2.5, 5), TypeError, "num_samples is 2.5, expected a whole number"),
        ((10, 0), ValueError, "num_epochs is 0"),
        ((10, "5"), TypeError, "num_epochs is '5'"),
        ((10, True), TypeError, "num_epochs is True"),
        ((10, 5, 1.5), ValueError, "prune_ratio is 1.5, expected 0 <= prune_ratio < 1"),
        ((10, 5, -1), ValueError, "prune_ratio is -1"),
        ((10, 5, 1), ValueError, "prune_ratio is 1,"),
        ((10, 5, float("nan")), ValueError, "prune_ratio is nan"),
        ((10, 5, "half"), TypeError, "prune_ratio is 'half'"),
        ((10, 5, 0.5, 1.01), ValueError, "delta is 1.01, expected 0 <= delta <= 1"),
        ((10, 5, 0.5, -0.1), ValueError, "delta is -0.1"),
        ((10, 5, 0.5, None), TypeError, "delta is None"),
    ],
)
def test_settings_out_of_range_are_named(
    arguments: tuple[Any, ...], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        Pruner(*arguments)


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(TypeError, match="seed is 0.5, expected a whole number"):
        Pruner(10, 5, seed=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("losses", "options", "error", "sentence"),
    [
        (torch.tensor(1.0), {}, ValueError, "losses is a scalar"),
        ([1.0], {}, TypeError, "losses is a list"),
        (torch.ones(3), {"indices": [0, 1]}, ValueError, r"indices has shape \(2,\) for 3 losses"),
        (torch.ones(2), {"indices": [0.0, 1.0]}, TypeError, "indices has dtype torch.float32"),
        (torch.ones(2), {"indices": [0, 99]}, ValueError, "indices run from 0 to 99"),
        (torch.ones(2), {"indices": [[0, 1]]}, ValueError, "indices has shape"),
        (
            torch.ones(2),
            {"indices": [0, 1], "scores": torch.ones(3)},
            ValueError,
            "scores has shape",
        ),
        (torch.ones(2), {"indices": [0, 1], "scores": [1.0, 1.0]}, TypeError, "scores is list"),
        (torch.ones(2), {"indices": [0, 1], "mask": torch.ones(3)}, ValueError, "mask is shaped"),
        (torch.ones(2), {}, OrderError, "no batch is waiting for its losses"),
    ],
)
def test_a_refused_update_changes_nothing(
    losses: Tensor, options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    pruner = Pruner(10, 5)
    before = pruner.state_dict()
    with pytest.raises(error, match=sentence):
        pruner.update(losses, **options)
    assert same_state(pruner.state_dict(), before)


def test_set_epoch_refuses_what_is_no_epoch() -> None:
    pruner = Pruner(10, 5)
    with pytest.raises(ValueError, match="epoch is -1"):
        pruner.set_epoch(-1)
    with pytest.raises(TypeError, match="epoch is 1.0"):
        pruner.set_epoch(1.0)  # type: ignore[arg-type]


def test_metrics_are_of_the_epoch_trained_last() -> None:
    pruner = Pruner(100, num_epochs=10)
    nothing = {"infobatch/kept_fraction": 1, "infobatch/saved": 0}
    assert nothing.items() <= pruner.metrics.items()
    kept = []
    for epoch in range(3):
        plan = pruner.plan
        kept.append(len(plan) / 100)
        first, rest = plan.indices[:20], plan.indices[20:]
        pruner.update(loss_of(first, epoch), first)
        within = pruner.metrics["infobatch/kept_fraction"]
        pruner.update(loss_of(rest, epoch), rest)
        resumed = Pruner(100, num_epochs=10)
        resumed.load_state_dict(pruner.state_dict())
        metrics = pruner.metrics
        assert metrics.pop("infobatch/num_batches") == pruner.num_batches == 2
        assert resumed.metrics == metrics
        assert metrics["infobatch/kept_fraction"] == pytest.approx(kept[-1])
        assert within == pytest.approx(kept[-1], abs=0.02)  # of 20 samples, in whole numbers
        assert metrics["infobatch/saved"] == pytest.approx(1 - sum(kept) / len(kept))
        assert metrics["infobatch/num_trained"] == round(100 * sum(kept))
    assert kept[1] < 1
