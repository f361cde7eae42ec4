"""Hard samples are all kept, and a few of the others, each with weight 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch.plan import draw
from infobatch.rules import Focus
from tests.rules.runs import savings_of_a_run


@given(
    st.integers(1, 300),
    st.floats(0, 0.8),
    st.floats(0.01, 0.2),
    st.integers(0, 3),
)
def test_the_hardest_are_all_kept_and_of_the_others_a_fraction(
    num_samples: int, prune_ratio: float, easy: float, seed: int
) -> None:
    scores = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).float()
    rule = Focus(prune_ratio, easy)
    plan = draw(rule.groups(scores, {}, 1), seed, 1)
    assert plan.weights.unique().tolist() == [1.0]
    kept = np.sort(scores[plan.indices].numpy())[::-1]
    # The slow reference: sort, keep the top, count what is left of the rest.
    num_hard = round(num_samples * rule.hard)
    top = kept[: max(num_hard - 1, 0)]
    assert top.tolist() == list(range(num_samples - 1, num_samples - 1 - len(top), -1))
    expected = num_hard + (num_samples - num_hard) * easy
    assert abs(len(plan) - expected) <= 2.5  # two roundings, and at least one of the easy ones


def test_the_ratio_is_that_of_all_samples() -> None:
    scores = torch.arange(10_000.0)
    for prune_ratio in (0.0, 0.25, 0.6, 0.63, 0.9):
        plan = draw(Focus(prune_ratio).groups(scores, {}, 1), 0, 1)
        assert plan.num_pruned / 10_000 == pytest.approx(prune_ratio, abs=3e-4)


def test_no_sample_need_be_hard() -> None:
    rule = Focus(0.93, easy=0.07)  # 0.93 / (1 - 0.07) is above 1 in floating point
    assert rule.hard == 0
    plan = draw(rule.groups(torch.arange(1000.0), {}, 1), 0, 1)
    assert len(plan) == pytest.approx(70, abs=2)


def test_every_easy_sample_may_be_trained() -> None:
    trained = torch.zeros(100, dtype=torch.bool)
    for seed in range(200):
        trained[draw(Focus().groups(torch.arange(100.0), {}, 1), seed, 1).indices] = True
    assert trained.all()


def test_equal_scores_are_all_kept() -> None:
    assert draw(Focus().groups(torch.full((99,), 0.3), {}, 1), 0, 1).num_pruned == 0


@given(
    st.integers(1, 300),
    st.floats(0.3, 0.8),
    st.floats(0.01, 0.2),
    st.floats(0.001, 0.3),
    st.integers(0, 3),
)
def test_what_is_not_trusted_counts_as_easy(
    num_samples: int, prune_ratio: float, easy: float, trim: float, seed: int
) -> None:
    scores = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).float()
    rule = Focus(prune_ratio, easy, trim)
    plan = draw(rule.groups(scores, {}, 1), seed, 1)
    assert plan.weights.unique().tolist() == [1.0]
    kept = np.sort(scores[plan.indices].numpy())
    # The slow reference: of the sorted scores, the top is not trusted, and the next are hard.
    trusted = round(num_samples * (1 - trim))
    num_hard = round(num_samples * rule.hard)
    hard = range(trusted - num_hard + 1, trusted - 1)  # both ends may be rounded
    assert np.isin(hard, kept).all()
    expected = num_hard + (num_samples - num_hard) * easy
    assert abs(len(plan) - expected) <= 3.5  # three roundings, and at least one of each group


def test_trimming_skips_as_many() -> None:
    scores = torch.arange(10_000.0)
    for trim in (0.01, 0.2, 0.7):
        plan = draw(Focus(trim=trim).groups(scores, {}, 1), 0, 1)
        assert plan.num_pruned / 10_000 == pytest.approx(0.63, abs=5e-4)


def test_wrong_labels_are_trained_as_often_as_easy_samples() -> None:
    """A fifth of the losses is far above the others, as with wrong labels."""
    scores = torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    scores[:2000] += 5
    for trim, wrong in ((0.0, 2000), (0.2, 200)):
        plan = draw(Focus(trim=trim).groups(scores, {}, 1), 0, 1)
        assert int((plan.indices < 2000).sum()) == pytest.approx(wrong, abs=2)


def test_wrong_labels_with_equal_losses_are_not_trusted_either() -> None:
    """Clipped losses and probability errors have many equal highest ones."""
    scores = torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    scores[:2000] = 9.0
    plan = draw(Focus(trim=0.2).groups(scores, {}, 1), 0, 1)
    assert int((plan.indices < 2000).sum()) == pytest.approx(200, abs=1)
    assert plan.num_pruned / 10_000 == pytest.approx(0.63, abs=5e-4)


def test_the_most_suspicious_sample_is_not_kept_for_sure() -> None:
    kept = [
        99 in draw(Focus(trim=0.2).groups(torch.arange(100.0), {}, 1), seed, 1).indices.tolist()
        for seed in range(100)
    ]
    assert 1 <= sum(kept) <= 30  # a tenth of the epochs, as for every easy sample


@given(
    st.integers(1, 300),
    st.integers(0, 300),
    st.floats(0.3, 0.8),
    st.floats(0.001, 0.19),
    st.integers(0, 3),
)
def test_equal_highest_losses_change_nothing_about_how_many_are_skipped(
    num_samples: int, num_equal: int, prune_ratio: float, trim: float, seed: int
) -> None:
    scores = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).float()
    scores[scores.argsort(descending=True)[:num_equal]] = 1000.0
    plan = draw(Focus(prune_ratio, trim=trim).groups(scores, {}, 1), seed, 1)
    expected = prune_ratio * num_samples
    assert abs(plan.num_pruned - expected) <= 4  # four roundings, and at least one of each group


def test_without_trim_equal_highest_losses_are_all_kept() -> None:
    scores = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    scores[:400] = 9.0
    plan = draw(Focus().groups(scores, {}, 1), 0, 1)
    assert int((plan.indices < 400).sum()) == 400
    assert len(plan) == 400 + 60


def test_of_losses_that_are_all_equal_a_trimmed_rule_keeps_some_at_random() -> None:
    rule = Focus(trim=0.2)
    kept = [draw(rule.groups(torch.full((100,), 0.3), {}, 1), s, 1).indices for s in range(100)]
    assert {len(indices) for indices in kept} == {37}
    assert len(torch.cat(kept).unique()) == 100


@pytest.mark.parametrize(
    ("prune_ratio", "easy", "trim"),
    # Rounding makes the sum of both parts a little more than 1.
    [(0.24, 0.7, 0.8), (0.472, 0.41, 0.8), (0.72, 0.1, 0.8), (0.18, 0.1, 0.2)],
)
def test_all_that_is_not_hard_may_be_trimmed(prune_ratio: float, easy: float, trim: float) -> None:
    plan = draw(Focus(prune_ratio, easy, trim).groups(torch.arange(1000.0), {}, 1), 0, 1)
    assert plan.num_pruned == pytest.approx(1000 * prune_ratio, abs=2)
    hard = torch.arange(round(1000 * (1 - trim)) - 1)
    assert torch.isin(hard, plan.indices).all()


def test_what_is_trimmed_makes_no_difference_if_nothing_is_hard() -> None:
    plan = draw(Focus(0.9, trim=0.5).groups(torch.arange(1000.0), {}, 1), 0, 1)
    assert len(plan) == pytest.approx(100, abs=1)  # the highest is always kept


def test_numbers_of_numpy_are_plain_numbers_in_a_checkpoint() -> None:
    ratio, easy, trim = np.float64(0.5), np.float64(0.2), np.float64(0.1)
    assert repr(Focus(ratio, easy, trim)) == "Focus(prune_ratio=0.5, easy=0.2, trim=0.1)"


def test_next_to_no_trim_is_none() -> None:
    scores = torch.arange(1000.0)
    plan = draw(Focus(trim=1e-17).groups(scores, {}, 1), 0, 1)
    assert plan.num_pruned == pytest.approx(630, abs=2)


def test_samples_that_were_never_seen_are_trusted() -> None:
    scores = torch.arange(1000.0)
    scores[:100] = torch.nan
    plan = draw(Focus(trim=0.2).groups(scores, {}, 1), 0, 1)
    assert int((plan.indices < 100).sum()) == 100


@pytest.mark.parametrize(("num_epochs", "saved"), [(16, 0.512), (100, 0.548), (200, 0.548)])
def test_half_of_a_training_is_saved(num_epochs: int, saved: float) -> None:
    assert savings_of_a_run("focus", num_epochs) == pytest.approx(saved, abs=2e-3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            (0.95, 0.1),
            r"prune_ratio is 0\.95, expected at most 0\.9: the fraction 0\.1 of the easy",
        ),
        ((0.6, 1.0), r"easy is 1\.0, expected 0 <= easy < 1"),
        ((0.6, 0.0), r"easy is 0, expected 0 < easy < 1: a sample that is never trained again"),
        ((0.6, -0.1), r"easy is -0\.1, expected 0 <= easy < 1"),
        ((1.5, 0.1), r"prune_ratio is 1\.5, expected 0 <= prune_ratio < 1"),
        ((0.63, 0.1, -0.2), r"trim is -0\.2, expected 0 <= trim < 1"),
        (
            (0.63, 0.1, 0.8),
            r"trim is 0\.8, expected at most 0\.7: the fraction 0\.3 of all samples",
        ),
        ((0.63, 0.1, 0.71), r"trim is 0\.71, expected at most 0\.7"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: tuple[float, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Focus(*settings)
