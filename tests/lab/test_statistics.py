"""Intervals and verdicts, against scipy and against tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from infobatch_lab.statistics import Difference, difference

ACCURACY = st.floats(0.5, 1.0)


@given(st.lists(st.tuples(ACCURACY, ACCURACY), min_size=2, max_size=12))
def test_seeds_in_common_are_compared_in_pairs(pairs: list[tuple[float, float]]) -> None:
    ours, full = (dict(enumerate(values)) for values in zip(*pairs, strict=True))
    found = difference(ours, full, 0.005, resolution=1e-9)
    differences = np.subtract(list(ours.values()), list(full.values()))
    assert found.mean == pytest.approx(differences.mean(), abs=1e-12)
    assert found.is_paired
    assert found.low is not None
    assert found.high is not None
    if differences.std() > 1e-6:  # below, scipy warns of rounding errors
        expected = stats.ttest_rel(list(ours.values()), list(full.values())).confidence_interval()
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.lists(ACCURACY, min_size=2, max_size=9), st.lists(ACCURACY, min_size=2, max_size=9))
def test_other_seeds_are_compared_as_two_samples(ours: list[float], full: list[float]) -> None:
    found = difference(
        dict(enumerate(ours)), {100 + i: a for i, a in enumerate(full)}, 0.005, resolution=1e-9
    )
    assert not found.is_paired
    if np.std(ours) > 1e-6 and np.std(full) > 1e-6:
        expected = stats.ttest_ind(ours, full, equal_var=False).confidence_interval()
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_an_interval_by_hand() -> None:
    # Differences 1, 2, 3, 4, 5 points: mean 3, standard deviation 1.5811; t(4) is 2.776 in tables.
    ours = {seed: 0.90 + (seed + 1) / 100 for seed in range(5)}
    found = difference(ours, dict.fromkeys(range(5), 0.90), 0.005, resolution=1e-9)
    half = 2.776 * 0.015811 / 5**0.5
    assert (found.low, found.high) == pytest.approx((0.03 - half, 0.03 + half), abs=1e-5)


def test_only_common_seeds_count_where_there_are_two() -> None:
    full = {0: 0.90, 1: 0.92, 2: 0.91}
    with_more = difference({0: 0.91, 1: 0.92, 7: 0.1, 8: 0.2}, full, 0.005, resolution=1e-3)
    assert with_more == difference({0: 0.91, 1: 0.92}, full, 0.005, resolution=1e-3)


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_one_seed_has_a_difference_but_no_interval(seeds: list[int]) -> None:
    found = difference({0: 0.9}, dict.fromkeys(seeds, 0.8), 0.005, resolution=1e-3)
    assert found.mean == pytest.approx(0.1)
    assert (found.low, found.high, found.num_needed) == (None, None, None)
    assert found.verdict(0.005) == "undecided"


def test_two_seeds_that_agree_by_chance_prove_nothing() -> None:
    same = {0: 0.9, 1: 0.9}
    assert difference(same, same, 0.005, resolution=1 / 360).verdict(0.005) == "undecided"
    many = dict.fromkeys(range(10), 0.9)
    assert difference(many, many, 0.005, resolution=1 / 360).verdict(0.005) == "lossless"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.0049, 0.01, "lossless"),
        (-0.0049, -0.0001, "lossless"),  # it is worse, but by less than the margin
        (-0.0051, -0.0001, "worse"),
        (-0.0051, 0.0001, "undecided"),
        (-0.005, 0.01, "undecided"),
        (-0.01, 0.0, "undecided"),
    ],
)
def test_the_verdict(low: float, high: float, verdict: str) -> None:
    found = Difference(0.0, low, high, is_paired=True)
    assert found.verdict(0.005) == verdict


@pytest.mark.parametrize("mean", [0.004, 0.0, -0.001, -0.0024, -0.0026, -0.004, -0.02])
@pytest.mark.parametrize("first_seed_of_full", [0, 10_000])
def test_the_seeds_needed_give_a_verdict_and_one_less_does_not(
    mean: float, first_seed_of_full: int
) -> None:
    def found(num_seeds: int) -> Difference:
        """Of accuracies with exactly this mean and a standard deviation of 1.2 points."""
        noise = np.random.default_rng(0).normal(size=num_seeds)
        noise = 0.012 * (noise - noise.mean()) / noise.std(ddof=1)
        ours = {seed: 0.9 + mean + x for seed, x in enumerate(noise)}
        flat = {first_seed_of_full + seed: 0.9 for seed in range(num_seeds)}
        return difference(ours, flat, 0.005, resolution=1e-9)

    needed = found(3).num_needed
    assert needed is not None
    assert needed > 3
    assert found(needed).verdict(0.005) != "undecided"
    assert found(needed).num_needed is None
    assert found(needed - 1).verdict(0.005) == "undecided"


def test_a_hundred_seeds_are_still_counted() -> None:
    """With this spread 100 seeds give a verdict, and 99 do not."""
    needs = set()
    for spread in np.linspace(0.001, 0.05, 2000):
        ours = {0: 0.9 - spread, 1: 0.9, 2: 0.9 + spread}
        needs.add(difference(ours, dict.fromkeys(range(3), 0.9), 0.005).need)
    assert "needs 100 seeds of both" in needs


def test_more_seeds_than_anybody_trains_are_not_counted() -> None:
    """Differences of half the margin, with a spread of ten times the margin."""
    ours = {0: 0.9475, 1: 0.8475, 2: 0.8975}
    found = difference(ours, dict.fromkeys(range(3), 0.9), 0.005)
    assert found.need == "needs over 100 seeds of both"


VALUES = st.lists(st.floats(0.5, 5.0), min_size=2, max_size=6)


@given(VALUES, VALUES, st.floats(0.01, 1.0))
def test_where_less_is_better_the_verdict_is_that_of_the_mirror_image(
    ours: list[float], full: list[float], margin: float
) -> None:
    """A loss and its negative must be judged alike."""
    of_ours, of_full = dict(enumerate(ours)), dict(enumerate(full))
    loss = difference(of_ours, of_full, margin, sign=-1)
    gain = difference(
        {s: -x for s, x in of_ours.items()}, {s: -x for s, x in of_full.items()}, margin
    )
    assert loss.verdict(margin) == gain.verdict(margin)
    assert loss.num_needed == gain.num_needed
    assert loss.mean == pytest.approx(-gain.mean)
    assert loss.low is not None
    assert gain.high is not None
    assert loss.low == pytest.approx(-gain.high)


def test_a_metric_without_steps_may_repeat_exactly() -> None:
    same = {0: 1.25, 1: 1.5, 2: 1.75}
    assert difference(same, same, 0.01, sign=-1).verdict(0.01) == "lossless"
