from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import infobatch.plan
from infobatch import InfoBatch, Plan
from infobatch.groups import Groups
from infobatch.plan import draw
from infobatch.rules import Mean
from tests.conftest import Numbers, loss_of, train_epoch


def a_plan(seed: int, epoch: int) -> Plan:
    return draw(Mean().groups(loss_of(torch.arange(1000)), {}, epoch), seed, epoch)


def test_the_same_seed_and_epoch_give_the_same_plan() -> None:
    assert torch.equal(a_plan(3, 4).indices, a_plan(3, 4).indices)


def test_seed_and_epoch_are_not_interchangeable() -> None:
    fingerprints = {
        a_plan(seed, epoch).indices[:20].sum().item() for seed in range(8) for epoch in range(8)
    }
    assert len(fingerprints) == 64


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 10**30])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert len(a_plan(seed, 0)) > 0


def test_a_run_leaves_the_global_generators_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    data = InfoBatch(Numbers(300), 5, seed=9)
    for _ in range(5):
        train_epoch(data)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_each_group_keeps_its_rounded_share() -> None:
    of = torch.tensor([0] * 10 + [1] * 7 + [2] * 5 + [3] * 1 + [4] * 4, dtype=torch.uint8)
    plan = draw(Groups(of, keep=(0.5, 1.0, 0.33, 0.01, 0.0)), 0, 0)
    counts = torch.bincount(of[plan.indices].long(), minlength=5).tolist()
    assert counts == [5, 7, 2, 1, 0]
    weights = {
        int(of[i]): w for i, w in zip(plan.indices.tolist(), plan.weights.tolist(), strict=True)
    }
    assert weights == {0: 2.0, 1: 1.0, 2: 2.5, 3: 1.0}


def test_many_groups_are_thinned_like_few() -> None:
    """Beyond eight groups another way is taken to find their members."""
    of = torch.arange(4000) % 20
    plan = draw(Groups(of.to(torch.uint8), keep=(0.25,) * 20), 0, 0)
    assert torch.bincount(of[plan.indices]).tolist() == [50] * 20
    assert set(plan.weights.tolist()) == {4.0}


def test_equal_random_numbers_are_told_apart_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infobatch.plan, "_keys", lambda n, _: np.zeros(n, dtype=np.int32))
    groups = Groups(torch.zeros(100, dtype=torch.uint8), keep=(0.3,))
    plans = [draw(groups, seed, 0).indices.tolist() for seed in range(30)]
    assert {len(set(plan)) for plan in plans} == {30}
    assert set().union(*plans) == set(range(100))


@pytest.mark.parametrize("keep", [(1.0,), (1.0, 1.0)])
def test_what_prunes_nothing_shuffles_everything_and_holds_one_weight(
    keep: tuple[float, ...],
) -> None:
    plan = draw(Groups(torch.arange(1000) % len(keep), keep), seed=0, epoch=3)
    assert plan.indices.sort().values.tolist() == list(range(1000))
    assert plan.indices.tolist() != list(range(1000))
    assert plan.weights.tolist() == [1.0] * 1000
    assert plan.weights.untyped_storage().nbytes() == 4
    assert plan.fingerprint == Plan(3, plan.indices, torch.ones(1000), 1000).fingerprint


def test_a_held_selection_is_the_one_drawn_then() -> None:
    groups = Mean().groups(loss_of(torch.arange(1000)), {}, 2)
    then = draw(groups, seed=0, epoch=2)
    held = Groups(groups.of, groups.keep, drawn_in=2)
    later = draw(held, seed=0, epoch=5)
    assert not torch.equal(then.indices, later.indices)
    assert dict(zip(then.indices.tolist(), then.weights.tolist(), strict=True)) == dict(
        zip(later.indices.tolist(), later.weights.tolist(), strict=True)
    )


def test_groups_that_are_none_are_refused() -> None:
    of = torch.tensor([0, 1, 2], dtype=torch.uint8)
    with pytest.raises(ValueError, match="of runs from 0 to 2, expected groups from 0 to 1"):
        draw(Groups(of, keep=(1.0, 0.5)), 0, 0)
    with pytest.raises(ValueError, match="expected fractions from 0 to 1"):
        draw(Groups(of, keep=(1.0, 0.5, 1.5)), 0, 0)
    for strange in (torch.tensor([0.0, torch.nan, 1.0]), torch.tensor([0.5, 0, 1]), of[:, None]):
        with pytest.raises(ValueError, match="expected one whole number per sample"):
            draw(Groups(strange, keep=(1.0, 0.5)), 0, 0)


def test_a_rule_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps no sample of epoch 3"):
        draw(Groups(torch.zeros(5, dtype=torch.uint8), keep=(0.0,)), 0, 3)


def test_the_fingerprint_notices_any_other_plan() -> None:
    plan = a_plan(0, 1)
    swapped = plan.indices.clone()
    swapped[[0, 1]] = plan.indices[[1, 0]]
    heavier = plan.weights.clone()
    heavier[5] += 1
    others = [
        Plan(1, swapped, plan.weights, 1000),
        Plan(1, plan.indices, heavier, 1000),
        Plan(2, plan.indices, plan.weights, 1000),
    ]
    assert plan.fingerprint == a_plan(0, 1).fingerprint
    assert plan.fingerprint not in {other.fingerprint for other in others}
