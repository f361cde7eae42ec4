from __future__ import annotations

import random
from fractions import Fraction
from math import ceil, floor, fsum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import infobatch.plan
from infobatch import InfoBatch, Plan
from infobatch.groups import Groups, Probabilities
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


@pytest.mark.parametrize(("num_groups", "dtype"), [(20, torch.uint8), (70_000, torch.int32)])
def test_many_groups_are_thinned_like_few(num_groups: int, dtype: torch.dtype) -> None:
    """Beyond eight groups another way is taken to find their members, and beyond 65,536 a third."""
    of = torch.arange(4 * num_groups) % num_groups
    keep = (0.25, 0.5) * (num_groups // 2)
    plan = draw(Groups(of.to(dtype), keep), 0, 0)
    assert torch.bincount(of[plan.indices]).tolist() == [1, 2] * (num_groups // 2)
    assert torch.equal(plan.weights, torch.tensor([4.0, 2.0])[plan.indices % 2])


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


def test_a_plan_says_whether_its_weights_make_up_for_what_is_skipped() -> None:
    of = torch.tensor([0, 1] * 10)
    for rescale in (True, False):
        assert draw(Groups(of, (1.0, 0.5), rescale), 0, 0).rescaled == rescale
        few = Probabilities(torch.tensor([1.0, 0.5] * 10), rescale)
        many = Probabilities(torch.linspace(0.1, 1, 20), rescale)
        assert draw(few, 0, 0).rescaled == draw(many, 0, 0).rescaled == rescale


@pytest.mark.parametrize("rescale", [True, False])
def test_a_plan_says_how_many_samples_each_one_stands_for(rescale: bool) -> None:
    """With or without rescaling, and not where some could not be kept."""
    of = torch.tensor([0, 1] * 10)
    half = torch.where(torch.arange(20) % 2 == 0, 1.0, 2.0)
    for selection in (
        Groups(of, (1.0, 0.5), rescale),
        Probabilities(1 / half, rescale),
        Probabilities(torch.linspace(0.1, 1, 20), rescale),
        Groups(of, (1.0, 1.0), rescale),
    ):
        plan = draw(selection, 0, 0)
        assert plan.counts is not None
        if isinstance(selection, Groups):
            expected = half[plan.indices] if plan.num_pruned else torch.ones(20)
        else:
            expected = 1 / selection.p[plan.indices]
        assert plan.counts.tolist() == pytest.approx(expected.tolist())
        assert plan.weights.tolist() == (plan.counts.tolist() if rescale else [1.0] * len(plan))
    assert draw(Groups(of, (1.0, 0.0), rescale), 0, 0).counts is None
    assert draw(Groups(torch.zeros(5, dtype=torch.uint8), (1.0, 0.0)), 0, 0).counts is not None
    never = torch.linspace(0, 1, 20)
    assert draw(Probabilities(never, rescale=False), 0, 0).counts is None


# A probability per sample ------------------------------------------------------------------------

sixteenths = st.lists(st.integers(1, 16), min_size=9, max_size=30).filter(
    lambda numbers: len(set(numbers)) > 8
)


@given(sixteenths, st.integers(0, 2**32))
def test_from_all_starts_each_sample_is_kept_exactly_as_often_as_it_should(
    numbers: list[int], seed: int
) -> None:
    """Sixteen starts, evenly spread: for probabilities in sixteenths there are no others."""
    p = torch.tensor(numbers) / 16
    num_kept, total = [0] * len(numbers), Fraction(sum(numbers), 16)
    with pytest.MonkeyPatch.context() as patch:
        for start in range(16):
            at = np.uint64(start * 2**60 + 12345)
            patch.setattr(infobatch.plan, "_start", lambda _, at=at: at)
            plan = draw(Probabilities(p), seed, 0)
            assert len(plan) in {floor(total), ceil(total)}
            for index, weight in zip(plan.indices.tolist(), plan.weights.tolist(), strict=True):
                num_kept[index] += 1
                assert weight == pytest.approx(16 / numbers[index])
    assert num_kept == numbers


@given(
    st.lists(st.floats(2**-20, 1, width=32), min_size=9, max_size=60).filter(
        lambda p: len(set(p)) > 8 and sum(p) >= 1.001
    ),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_the_number_kept_is_within_one_of_the_sum(p: list[float], seed: int, rescale: bool) -> None:
    plan = draw(Probabilities(torch.tensor(p), rescale), seed, 0)
    total = sum(map(Fraction, p))
    assert floor(total) <= len(plan) <= ceil(total)
    indices = plan.indices.tolist()
    assert len(set(indices)) == len(indices)
    assert {i for i, chance in enumerate(p) if chance == 1} <= set(indices)
    expected = [1 / p[i] if rescale else 1.0 for i in indices]
    assert plan.weights.tolist() == pytest.approx(expected)


def test_over_many_seeds_each_sample_is_kept_with_its_probability() -> None:
    p, num_draws = torch.linspace(0.03, 0.97, 12, dtype=torch.float64), 5000
    together = torch.zeros(12, 12)
    weight = torch.zeros(12)
    for seed in range(num_draws):
        plan = draw(Probabilities(p), seed, 0)
        kept = torch.zeros(12)
        kept[plan.indices] = 1
        together += torch.outer(kept, kept)
        weight[plan.indices] += plan.weights
    deviations = (p * (1 - p) / num_draws).sqrt()
    frequencies = together.diag() / num_draws
    assert bool(((frequencies - p).abs() < 4 * deviations).all())
    assert bool(((weight / num_draws - 1).abs() < 4 * deviations / p).all())
    assert bool((together > 0).all())  # the order is random, so any two can come together


def test_a_million_probabilities_are_summed_exactly() -> None:
    rng = torch.Generator().manual_seed(0)
    p = torch.rand(1_000_003, generator=rng).clamp(1e-6, 1)
    p[::7] = 1
    plan = draw(Probabilities(p), 0, 0)
    assert abs(len(plan) - fsum(p.tolist())) < 1
    certain = torch.zeros(len(p), dtype=torch.bool)
    certain[plan.indices] = True
    assert bool(certain[::7].all())
    assert float(plan.weights.double().sum()) == pytest.approx(len(p), rel=0.02)


def test_where_the_blocks_end_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    p = torch.linspace(0.02, 1, 100)
    whole = draw(Probabilities(p), 5, 0)
    monkeypatch.setattr(infobatch.plan, "BLOCK", 7)
    assert draw(Probabilities(p), 5, 0).fingerprint == whole.fingerprint


@pytest.mark.parametrize("block", [3, 1 << 15])
def test_few_different_probabilities_are_groups(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infobatch.plan, "BLOCK", block)
    keep = torch.tensor([0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0])
    of = torch.arange(200) % 8
    few = draw(Probabilities(keep[of], rescale=False), 3, 0)
    assert (
        few.fingerprint == draw(Groups(of, tuple(keep.tolist()), rescale=False), 3, 0).fingerprint
    )
    weights = draw(Probabilities(keep[of].clamp(min=0.01)), 3, 0).weights
    assert float(weights.sum()) == pytest.approx(200)


def test_what_has_no_chance_is_never_kept() -> None:
    p = torch.linspace(0, 1, 30)
    kept = {
        i for seed in range(200) for i in draw(Probabilities(p, False), seed, 0).indices.tolist()
    }
    assert kept == set(range(1, 30))


def test_a_held_draw_of_probabilities_is_the_one_drawn_then() -> None:
    p = torch.linspace(0.02, 1, 100)
    then, later = draw(Probabilities(p), 0, 2), draw(Probabilities(p, drawn_in=2), 0, 5)
    assert then.indices.tolist() != later.indices.tolist()
    assert sorted(then.indices.tolist()) == sorted(later.indices.tolist())


def test_too_little_to_be_sure_of_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match=r"p sums to 0\.9, expected at least 1"):
        draw(Probabilities(torch.linspace(0.01, 0.17, 10)), 0, 0)


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
