"""Eq. 3 and 8 against a slow reference in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch.plan import Plan, draw
from infobatch.rules import Above, Mean

finite = st.floats(0, 1e6, width=32)
maybe_unseen = st.one_of(finite, st.just(float("nan")))


def exact_low(scores: list[float]) -> set[int]:
    """The samples below the mean, without any rounding."""
    seen = {i: Fraction(s) for i, s in enumerate(scores) if s == s}
    return {i for i, s in seen.items() if s * len(seen) < sum(seen.values())}


def weights_of(plan: Plan) -> dict[int, float]:
    return dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))


@given(st.lists(maybe_unseen, min_size=1, max_size=40), st.floats(0, 0.999))
def test_of_the_low_ones_the_rounded_share_is_kept_and_made_up_for(
    values: list[float], prune_ratio: float
) -> None:
    scores = torch.tensor(values, dtype=torch.float32)
    weights = weights_of(draw(Mean(prune_ratio).groups(scores, {}, 1), seed=3, epoch=1))
    low = exact_low(scores.tolist())
    kept_low = low & weights.keys()
    assert weights.keys() - low == set(range(len(values))) - low
    assert all(weights[i] == 1 for i in weights.keys() - low)
    if low:
        exact_share = len(low) * (1 - Fraction(prune_ratio))
        assert len(kept_low) >= 1
        assert abs(len(kept_low) - exact_share) <= Fraction(1, 2) + Fraction(1, 10**6) or (
            len(kept_low) == 1
        )
        assert all(weights[i] == pytest.approx(len(low) / len(kept_low)) for i in kept_low)


@given(st.lists(maybe_unseen, min_size=2, max_size=40))
def test_above_is_the_mirror_image(values: list[float]) -> None:
    scores = torch.tensor(values, dtype=torch.float32)
    seen = scores[~scores.isnan()]
    of_above = Above().groups(scores, {}, 1).of
    of_below = Mean().groups(1e6 - scores, {}, 1).of
    if len(seen) and bool((1e6 - (1e6 - seen) == seen).all()):
        assert torch.equal(of_above, of_below)
    assert {i for i, g in enumerate(of_above.tolist()) if g}.isdisjoint(exact_low(values))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-30, 3e38, 0.0, 2.3025853])
@pytest.mark.parametrize("num_samples", [1, 3, 7, 1000, 100_003])
def test_equal_scores_are_all_kept(value: float, num_samples: int) -> None:
    scores = torch.full((num_samples,), value)
    for rule in (Mean(), Above()):
        assert draw(rule.groups(scores, {}, 1), seed=0, epoch=1).num_pruned == 0


def test_ties_with_the_mean_are_kept() -> None:
    scores = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float32)
    scores[1] = (scores[0] + scores[2]) / 2
    assert Mean().groups(scores, {}, 1).of[2] == 0
    assert Mean().groups(torch.tensor([1.0, 2.0, 3.0]), {}, 1).of.tolist() == [1, 0, 0]


def test_the_threshold_is_a_float64_mean_of_the_seen() -> None:
    # A float32 sum of these is off in the fourth digit.
    scores = torch.full((5_000_000,), 0.1)
    scores[0] = torch.nan
    scores[1] = 1000
    threshold = Mean().groups(scores, {}, 1).threshold
    tenth = Fraction(float(scores[2]))
    assert threshold == pytest.approx(float((4_999_998 * tenth + 1000) / 4_999_999), rel=1e-12)


def test_a_nearly_full_or_empty_ratio_keeps_its_promises() -> None:
    scores = torch.arange(1000.0)
    almost_none = draw(Mean(1e-9).groups(scores, {}, 1), seed=0, epoch=1)
    almost_all = draw(Mean(1 - 1e-9).groups(scores, {}, 1), seed=0, epoch=1)
    assert almost_none.num_pruned == 0
    assert almost_all.num_pruned == 499
    assert almost_all.weights.max() == 500


def test_without_rescaling_all_weigh_one() -> None:
    plan = draw(Mean(rescale=False).groups(torch.arange(100.0), {}, 1), seed=0, epoch=1)
    assert plan.num_pruned == 25
    assert plan.weights.tolist() == [1.0] * 75
