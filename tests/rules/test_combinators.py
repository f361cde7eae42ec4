from __future__ import annotations

import pytest
import torch

from infobatch import Pruner
from infobatch.plan import draw
from infobatch.rules import Every, Mean, PerClass, Random, Rule, Tiers, Until
from tests.conftest import loss_of


def test_until_stops_at_a_real_number_of_epochs() -> None:
    scores = torch.arange(10.0)
    rule = Until(Mean(), 2.5)
    assert [len(rule.groups(scores, {}, e).keep) for e in range(5)] == [2, 2, 2, 1, 1]


def test_every_holds_the_selection_and_shuffles_anew() -> None:
    pruner = Pruner(200, 100, delta=1, rule=Every(Mean(), 3))
    orders = []
    for epoch in range(8):
        indices = pruner.plan.indices
        orders.append(indices.tolist())
        pruner.update(loss_of(indices + 31 * epoch), indices)
    kept = [set(order) for order in orders]
    assert len(kept[0]) == 200  # nothing to select by, so nothing is held
    assert kept[1] == kept[2] == kept[3] != kept[4] == kept[5] == kept[6] != kept[7]
    assert len({tuple(order) for order in orders}) == 8


def test_every_draws_the_held_part_at_random() -> None:
    groups = Every(Random(0.5), 5).groups(torch.ones(50), {}, 1)
    assert len({frozenset(draw(groups, seed, 1).indices.tolist()) for seed in range(10)}) == 10


def test_per_class_compares_with_the_mean_of_the_class() -> None:
    labels = torch.tensor([0, 1] * 50)
    scores = torch.arange(100.0) + 1000 * labels  # class 1 is high as a whole
    of = PerClass(Mean(), labels).groups(scores, {}, 1).of
    for label in (0, 1):
        part = labels == label
        expected = Mean().groups(scores[part], {}, 1).of
        assert torch.equal(of[part] - of[part].min(), expected)
    plan = draw(PerClass(Mean(), labels).groups(scores, {}, 1), 0, 1)
    assert torch.bincount(labels[plan.indices]).tolist() == [37, 37]


def test_per_class_takes_many_classes() -> None:
    labels = torch.arange(3000) % 700
    rng = torch.Generator().manual_seed(0)
    scores = torch.rand(3000, generator=rng)
    groups = PerClass(Tiers(), labels).groups(scores, {}, 1)
    plan = draw(groups, 0, 1)
    assert float(plan.weights.sum()) == pytest.approx(3000)
    weight = torch.zeros(3000)
    weight[plan.indices] = plan.weights
    per_class = torch.zeros(700).index_add_(0, labels, weight)
    assert per_class.tolist() == pytest.approx(torch.bincount(labels).tolist(), rel=1e-5)


def test_per_class_does_not_rescale_what_a_class_without_scores_would() -> None:
    labels = torch.arange(60) % 3
    scores = torch.where(labels == 2, torch.nan, torch.arange(60.0))
    plan = draw(PerClass(Mean(rescale=False), labels).groups(scores, {}, 1), 0, 1)
    assert plan.num_pruned == 10
    assert set(plan.weights.tolist()) == {1.0}


@pytest.mark.parametrize(
    "inner", [Every(Mean(), 2), Until(Mean(), 3), PerClass(Until(Mean(), 3), [0])]
)
def test_holding_what_does_not_last_is_refused(inner: Rule) -> None:
    with pytest.raises(TypeError, match="put Every inside"):
        Every(inner, 5)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="labels has 3 entries for 4 samples"):
        PerClass(Mean(), [0, 1, 0]).groups(torch.ones(4), {}, 1)
    with pytest.raises(TypeError, match=r"Every\(PerClass\(rule\)\)"):
        PerClass(Until(Every(Mean(), 2), 5), [0, 1])
    with pytest.raises(ValueError, match="period is 0"):
        Every(Mean(), 0)
    with pytest.raises(ValueError, match="one whole number per sample"):
        PerClass(Mean(), torch.tensor([[0, 1]]))
