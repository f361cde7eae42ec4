"""Scores are compared with those of their own window, and with no other."""

from __future__ import annotations

from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infobatch.rules import Mean, Memory, Windows


@given(
    st.lists(st.lists(st.integers(0, 19), min_size=1, unique=True), min_size=1, max_size=5),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_each_score_is_compared_with_the_mean_of_its_window(
    epochs: list[list[int]], num_windows: int, random: Random
) -> None:
    """The samples of each epoch, in the order of training."""
    rule, scores = Windows(num_windows=num_windows), torch.full((20,), torch.nan)
    memory = rule.init(20)
    window_of: dict[int, tuple[int, int]] = {}
    for epoch, trained in enumerate(epochs):
        losses = torch.tensor([float(random.randint(0, 50)) for _ in trained])
        memory = rule.remember(scores, memory, epoch, torch.tensor(trained), losses)
        scores[trained] = losses
        for place, sample in enumerate(trained):
            window_of[sample] = epoch, place * num_windows // len(trained)
    of = rule.groups(scores, memory, len(epochs)).of.tolist()
    for sample in range(20):
        if sample not in window_of:
            assert of[sample] == 0
            continue
        fellows = [float(scores[s]) for s in window_of if window_of[s] == window_of[sample]]
        assert of[sample] == (float(scores[sample]) * len(fellows) < sum(fellows))


def train(rule: Windows, losses: Tensor) -> Memory:
    order = torch.arange(len(losses))
    return rule.remember(
        torch.full_like(losses, torch.nan), rule.init(len(losses)), 0, order, losses
    )


def test_a_model_that_improves_does_not_make_late_samples_look_easy() -> None:
    rng = torch.Generator().manual_seed(0)
    difficulty = torch.rand(10_000, generator=rng)
    recorded = difficulty + torch.linspace(2, 0, 10_000)  # all losses fall during the epoch
    late = torch.arange(10_000) >= 5000
    low_by_mean = Mean().groups(recorded, {}, 1).of.bool()
    low_by_window = Windows().groups(recorded, train(Windows(), recorded), 1).of.bool()
    assert float(late[low_by_mean].float().mean()) > 0.85
    assert abs(float(late[low_by_window].float().mean()) - 0.5) < 0.02
    # So it is difficulty that is compared.
    assert float(difficulty[low_by_window].mean()) < 0.35


def test_with_one_window_the_first_epoch_is_compared_as_a_whole() -> None:
    rule, losses = Windows(num_windows=1), torch.rand(1000)
    assert torch.equal(
        rule.groups(losses, train(rule, losses), 1).of, Mean().groups(losses, {}, 1).of
    )


def test_scores_that_no_epoch_has_recorded_are_of_one_age() -> None:
    rule, scores = Windows(), torch.rand(1000)
    assert torch.equal(rule.groups(scores, rule.init(1000), 0).of, Mean().groups(scores, {}, 0).of)
