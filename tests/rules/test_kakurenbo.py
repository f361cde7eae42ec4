"""KAKURENBO against a sample-by-sample reference."""

from __future__ import annotations

from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch.plan import draw
from infobatch.rules import Kakurenbo


def hidden(losses: list[float], fraction: float, confidence: float) -> set[int]:
    """The lowest fraction, without those that are not confidently right."""
    num_hidden = len(losses) - max(1, round(len(losses) * (1 - fraction)))
    lowest = sorted(range(len(losses)), key=losses.__getitem__)[:num_hidden]
    return {i for i in lowest if exp(-losses[i]) >= confidence}


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=60, unique=True),
    st.sampled_from([0.1, 0.3, 0.5, 0.9]),
    st.sampled_from([0.0, 0.5, 0.7, 0.9]),
)
def test_the_lowest_confident_losses_are_hidden(
    thousandths: list[int], fraction: float, confidence: float
) -> None:
    losses = [number / 1000 for number in thousandths]
    rule = Kakurenbo(fraction, confidence)
    plan = draw(rule.groups(torch.tensor(losses), {}, 0), seed=0, epoch=0)
    kept = set(plan.indices.tolist())
    assert kept == set(range(len(losses))) - hidden(losses, fraction, confidence)
    assert set(plan.weights.tolist()) == {1.0}


def test_of_equal_losses_as_many_are_hidden_as_should_be() -> None:
    plan = draw(Kakurenbo(0.3).groups(torch.full((100,), 0.1), {}, 0), seed=0, epoch=0)
    assert plan.num_pruned == 30
    not_confident = Kakurenbo(0.3).groups(torch.full((100,), 0.4), {}, 0)
    assert draw(not_confident, seed=0, epoch=0).num_pruned == 0


def test_less_and_less_is_hidden() -> None:
    rule = Kakurenbo(0.3)
    fractions = {0: 0.3, 59: 0.3, 60: 0.24, 119: 0.24, 120: 0.18, 159: 0.18, 160: 0.12, 500: 0.12}
    assert {e: rule.hidden_fraction(e) for e in fractions} == pytest.approx(fractions)
    shorter = Kakurenbo(0.3, num_epochs=10)
    stages = [shorter.hidden_fraction(e) for e in range(10)]
    assert stages == pytest.approx([0.3] * 3 + [0.24] * 3 + [0.18] * 2 + [0.12] * 2)


def test_the_learning_rate_makes_up_for_fewer_steps() -> None:
    """A step in an epoch of 70 % counts 10/7, so that an epoch moves as far as a full one."""
    rule = Kakurenbo(0.3)
    assert 70 * rule.learning_rate_factor(0) == pytest.approx(100)
    assert 88 * rule.learning_rate_factor(160) == pytest.approx(100)


def test_a_low_cross_entropy_means_a_right_prediction() -> None:
    logits = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)) * 3
    labels = torch.arange(5000) % 3
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    groups = Kakurenbo(0.99).groups(losses, {}, 0)
    skipped = torch.ones(5000, dtype=torch.bool)
    skipped[draw(groups, seed=0, epoch=0).indices] = False
    assert int(skipped.sum()) > 1000
    assert torch.equal(logits.argmax(1)[skipped], labels[skipped])
    assert float(logits.softmax(1).amax(1)[skipped].min()) >= 0.7 - 1e-6
