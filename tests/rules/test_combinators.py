from __future__ import annotations

import pytest
import torch
from torch import Tensor

from infobatch import Pruner
from infobatch.plan import draw
from infobatch.rules import (
    UCB,
    Every,
    Groups,
    Kakurenbo,
    Mean,
    Memory,
    PerClass,
    Probabilities,
    Random,
    Revisit,
    Rule,
    Tiers,
    Until,
)
from tests.conftest import ByLoss, loss_of


def test_until_stops_at_a_real_number_of_epochs() -> None:
    scores = torch.arange(10.0)
    rule = Until(Mean(), 2.5)
    assert [rule.groups(scores, {}, e).prunes for e in range(5)] == [True] * 3 + [False] * 2


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
    rule = Every(Random(0.5), 5)
    groups = rule.groups(torch.ones(50), rule.init(50), 1)
    assert len({frozenset(draw(groups, seed, 1).indices.tolist()) for seed in range(10)}) == 10


def test_per_class_compares_with_the_mean_of_the_class() -> None:
    labels = torch.tensor([0, 1] * 50)
    scores = torch.arange(100.0) + 1000 * labels  # class 1 is high as a whole
    groups = PerClass(Mean(), labels).groups(scores, {}, 1)
    assert isinstance(groups, Groups)
    of = groups.of
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


def test_every_holds_probabilities_as_it_holds_groups() -> None:
    pruner = Pruner(200, 100, delta=1, rule=Every(ByLoss(), 3))
    weights = []
    for epoch in range(5):
        plan = pruner.plan
        weights.append(dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True)))
        pruner.update(loss_of(plan.indices + 31 * epoch), plan.indices)
    assert len(weights[0]) == 200
    assert len(set(weights[1].values())) > 8  # or it would have been drawn as groups
    assert weights[1] == weights[2] == weights[3] != weights[4]


def test_per_class_takes_probabilities_within_each_class() -> None:
    labels = torch.tensor([0, 1, 2] * 40)
    scores = torch.where(labels == 2, torch.nan, torch.arange(120.0) + 1000 * labels)
    groups = PerClass(ByLoss(), labels).groups(scores, {}, 1)
    assert isinstance(groups, Probabilities)
    for label in (0, 1):
        part = labels == label
        assert torch.equal(groups.p[part], ByLoss().groups(scores[part], {}, 1).p)
    assert groups.p[labels == 2].tolist() == [1.0] * 40  # without a score
    assert not PerClass(ByLoss(rescale=False), labels).groups(scores, {}, 1).rescale


def test_per_class_mixes_groups_and_probabilities() -> None:
    class Either(ByLoss):
        """Groups for a class of low losses."""

        def groups(  # type: ignore[override]
            self, scores: Tensor, memory: Memory, epoch: int
        ) -> Groups | Probabilities:
            if float(scores.max()) < 100:
                return Mean(0.75).groups(scores, memory, epoch)
            return super().groups(scores, memory, epoch)

    labels = torch.tensor([0, 1] * 50)
    scores = torch.arange(100.0) + 1000 * labels
    groups = PerClass(Either(), labels).groups(scores, {}, 1)
    assert isinstance(groups, Probabilities)
    low = (labels == 0) & (scores < 49)
    assert set(groups.p[low].tolist()) == {0.25}
    assert set(groups.p[(labels == 0) & ~low].tolist()) == {1.0}


def test_every_says_so_where_a_rule_makes_more_groups_than_it_says() -> None:
    class Many(Mean):
        def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
            return Groups(torch.arange(len(scores)) % 3, keep=(1.0, 0.5, 0.5))

    class NoProbabilities(Many):
        @property
        def max_groups(self) -> None:  # type: ignore[override]
            return None

    for rule, words in (
        (Many(), "has max_groups 2 and made 3 groups"),
        (NoProbabilities(), "has max_groups None and made 3 groups"),
    ):
        every, scores = Every(rule, 3), torch.ones(9)
        with pytest.raises(ValueError, match=words):
            every.remember(scores, every.init(9), 1, torch.arange(9), scores)

    class Secretly(ByLoss):
        @property
        def max_groups(self) -> int:  # type: ignore[override]
            return 2

    every, scores = Every(Secretly(), 3), torch.arange(9.0)
    with pytest.raises(ValueError, match="has max_groups 2 and made a probability per sample"):
        every.remember(scores, every.init(9), 1, torch.arange(9), scores)


def test_what_is_not_remembered_per_sample_cannot_be_divided_into_classes() -> None:
    class Counting(Mean):
        def init(self, num_samples: int) -> Memory:
            return {"count": torch.tensor(0)}

    with pytest.raises(TypeError, match="remembers 'count', which is not per sample"):
        PerClass(Counting(), [0, 1])


@pytest.mark.parametrize(
    "inner", [Every(Mean(), 2), Until(Mean(), 3), PerClass(Until(Mean(), 3), [0])]
)
def test_holding_what_does_not_last_is_refused(inner: Rule) -> None:
    with pytest.raises(TypeError, match="put Every inside"):
        Every(inner, 5)


def run(rule: Rule, num_epochs: int = 14, num_samples: int = 60) -> list[set[int]]:
    """Which samples each epoch trains, with losses that differ from epoch to epoch."""
    pruner, kept = Pruner(num_samples, num_epochs, delta=1, rule=rule), []
    for epoch in range(num_epochs):
        indices = pruner.plan.indices
        kept.append(set(indices.tolist()))
        pruner.update(loss_of(indices + 7 * epoch) / 1009, indices)
    return kept


def longest_absence(kept: list[set[int]], num_samples: int = 60) -> int:
    absences = []
    for sample in range(num_samples):
        marks = "".join("x" if sample in epoch else "." for epoch in kept)
        absences.append(max(len(gap) for gap in marks.split("x")))
    return max(absences)


@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize("rule", [Kakurenbo(0.5), Mean(0.9), ByLoss(), UCB(), Tiers()], ids=repr)
def test_revisit_skips_no_sample_longer_than_it_says(rule: Rule, period: int) -> None:
    assert longest_absence(run(Revisit(rule, period))) == period
    assert longest_absence(run(rule)) > 5


def test_revisit_leaves_the_others_as_they_are() -> None:
    rule, scores = Revisit(Mean(), 2), torch.arange(100.0)
    memory = rule.remember(scores, rule.init(100), 3, torch.arange(0, 100, 2), scores[::2])
    groups = rule.groups(scores, memory, 4)
    plan = draw(groups, 0, 4)
    weights = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    # Odd ones were never trained, so they are due; of the even ones below the mean a half is kept.
    assert all(weights[i] == 1.0 for i in range(1, 100, 2))
    assert [i for i in weights if i % 2 == 0 and i >= 50] != []
    low = [weights[i] for i in range(0, 50, 2) if i in weights]
    assert len(low) == 12
    assert sum(low) == pytest.approx(25)


@pytest.mark.parametrize("inner", [Every(Mean(), 2), Revisit(Mean(), 3)])
def test_revisiting_what_is_held_is_refused(inner: Rule) -> None:
    with pytest.raises(TypeError, match="changes what is held or revisited inside: use one"):
        Revisit(inner, 5)
    with pytest.raises(TypeError, match="holds what Revisit changes: use one of them"):
        Every(Until(Revisit(Mean(), 3), 9), 5)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="labels has 3 entries for 4 samples"):
        PerClass(Mean(), [0, 1, 0]).groups(torch.ones(4), {}, 1)
    with pytest.raises(TypeError, match=r"Every\(PerClass\(rule\)\)"):
        PerClass(Until(Every(Mean(), 2), 5), [0, 1])
    with pytest.raises(ValueError, match="period is 0"):
        Every(Mean(), 0)
    with pytest.raises(ValueError, match="one whole number per sample"):
        PerClass(Mean(), torch.tensor([[0, 1]]))
