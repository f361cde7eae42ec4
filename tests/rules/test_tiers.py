"""Percentile tiers against NumPy's quantiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch.plan import draw
from infobatch.rules import Tiers
from tests.rules.runs import savings_of_a_run


@given(
    st.lists(st.one_of(st.integers(0, 50), st.none()), min_size=1, max_size=60),
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.8, 0.85, 1.0]), min_size=1, unique=True),
)
def test_tiers_lie_between_the_interpolated_quantiles(
    values: list[int | None], quantiles: list[float]
) -> None:
    scores = torch.tensor([float("nan") if v is None else float(v) for v in values])
    seen = scores[~scores.isnan()].double().numpy()
    groups = Tiers(tuple((q, 0.5) for q in sorted(quantiles))).groups(scores, {}, 1)
    if len(seen) == 0:
        assert groups.keep == (1.0,)
        return
    thresholds = [np.quantile(seen, q) for q in sorted(quantiles)]
    for score, group in zip(scores.tolist(), groups.of.tolist(), strict=True):
        above = [t for t in thresholds if score < t]
        assert group == len(quantiles) - len(above)


def test_equal_scores_go_up_and_are_all_kept() -> None:
    assert draw(Tiers().groups(torch.full((999,), 0.3), {}, 1), 0, 1).num_pruned == 0


@pytest.mark.parametrize(("num_epochs", "saved"), [(200, 0.4133), (150, 0.4148), (90, 0.4117)])
def test_the_default_saves_what_the_paper_reports(num_epochs: int, saved: float) -> None:
    assert savings_of_a_run("tiers", num_epochs) == pytest.approx(saved, abs=5e-4)


def test_weights_are_four_two_and_one() -> None:
    plan = draw(Tiers().groups(torch.arange(1000.0), {}, 1), 0, 1)
    assert {w: plan.weights.tolist().count(w) for w in (4.0, 2.0, 1.0)} == {4: 50, 2: 325, 1: 150}


@pytest.mark.parametrize(
    "tiers", [(), ((0.5, 0.5), (0.2, 0.5)), ((0.5, 1.0),), ((1.5, 0.5),), ((0.2, 0.1), (0.2, 0.2))]
)
def test_bad_tiers_are_refused(tiers: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"tiers|quantile|\br\b"):
        Tiers(tiers)
