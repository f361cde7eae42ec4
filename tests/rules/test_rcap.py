"""RCAP against a slow reference: bisection in place of the closed form."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch.groups import Probabilities
from infobatch.plan import draw
from infobatch.rules import RCAP
from infobatch.rules.rcap import share_out


def bisected(total: float, weights: list[float], most: list[float]) -> list[float]:
    """min(most, x * weight) with the x for which they sum to the total."""
    low, high = 0.0, 1e12
    for _ in range(200):
        x = (low + high) / 2
        shares = [min(m, x * w) for w, m in zip(weights, most, strict=True)]
        low, high = (x, high) if sum(shares) < total else (low, x)
    return shares


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.1, 10)), min_size=1, max_size=20),
    st.floats(0.01, 1),
)
def test_a_total_is_shared_out_in_proportion_up_to_the_most(
    members: list[tuple[float, float]], part: float
) -> None:
    weights, most = [w for w, _ in members], [m for _, m in members]
    total = part * sum(most)
    shares = share_out(total, np.array(weights), np.array(most))
    assert shares.tolist() == pytest.approx(bisected(total, weights, most), rel=1e-6)
    assert shares.sum() == pytest.approx(total)


def expected_p(
    losses: list[float], labels: list[int], prune_ratio: float, beta: float
) -> list[float]:
    classes, n = sorted(set(labels)), len(losses)
    clipped = [min(loss, log(max(2, len(classes)))) for loss in losses]
    members = {c: [i for i in range(n) if labels[i] == c] for c in classes}
    means = [sum(clipped[i] for i in members[c]) / len(members[c]) for c in classes]
    importance = [
        sqrt(max(mean, 1e-9) * len(members[c]) / n) for mean, c in zip(means, classes, strict=True)
    ]
    sizes = [float(len(members[c])) for c in classes]
    quotas = bisected(max(1.0, n * (1 - prune_ratio)), importance, sizes)
    p = [0.0] * n
    for c, quota in zip(classes, quotas, strict=True):
        softmax = [exp(clipped[i] / beta) for i in members[c]]
        for i, share in zip(
            members[c], bisected(quota, softmax, [1.0] * len(softmax)), strict=True
        ):
            p[i] = share
    return p


@given(
    st.lists(st.tuples(st.floats(0, 4, width=32), st.integers(0, 4)), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.sampled_from([0.3, 1.0, 3.0]),
)
def test_probabilities_follow_quotas_and_softmax(
    samples: list[tuple[float, int]], prune_ratio: float, beta: float
) -> None:
    losses, labels = [loss for loss, _ in samples], [label for _, label in samples]
    groups = RCAP(prune_ratio, labels, beta).groups(torch.tensor(losses), {}, 1)
    assert isinstance(groups, Probabilities)
    groups.check()
    assert groups.p.tolist() == pytest.approx(
        expected_p(losses, labels, prune_ratio, beta), rel=1e-4, abs=1e-6
    )
    assert not groups.rescale


def test_hard_classes_and_hard_samples_are_kept_more_often() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(10_000) % 10
    scores = torch.rand(10_000, generator=rng) * (1 + labels) / 5
    scores[:100] = torch.nan
    groups = RCAP(0.7, labels).groups(scores, {}, 1)
    assert isinstance(groups, Probabilities)
    plan = draw(groups, seed=0, epoch=1)
    kept = torch.zeros(10_000, dtype=torch.bool)
    kept[plan.indices] = True
    assert bool(kept[:100].all())  # without a score
    assert int(kept[100:].sum()) == pytest.approx(0.3 * 9900, abs=1)
    per_class = [float(groups.p[labels == label].sum()) for label in range(10)]
    assert per_class == sorted(per_class)
    assert per_class[9] > 2 * per_class[0]
    assert scores[100:][kept[100:]].mean() > scores[100:][~kept[100:]].mean()


def test_beyond_the_clip_losses_are_alike() -> None:
    scores = torch.cat((torch.linspace(0, log(10), 50), torch.tensor([log(10), 5.0, 80.0])))
    p = RCAP(0.8).groups(scores, {}, 1)
    assert isinstance(p, Probabilities)
    assert len(set(p.p[-3:].tolist())) == 1


@pytest.mark.parametrize("beta", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("value", [0.0, 1.0, 50.0])
def test_any_temperature_and_equal_losses_work(beta: float, value: float) -> None:
    scores = torch.full((1000,), value)
    scores[:20] = torch.linspace(0, 50, 20)
    rule = RCAP(0.5, torch.arange(1000) % 7, beta)
    assert len(draw(rule.groups(scores, {}, 1), 0, 1)) == pytest.approx(500, abs=1)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"beta is 0, expected a number above 0"):
        RCAP(beta=0)
    with pytest.raises(ValueError, match="labels has 3 entries for 4 samples"):
        RCAP(labels=[0, 1, 0]).groups(torch.ones(4), {}, 1)
    with pytest.raises(ValueError, match="one whole number per sample"):
        RCAP(labels=torch.tensor([0.5]))
