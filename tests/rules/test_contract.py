"""What every rule must keep to. A new rule is tested by being in the table."""

from __future__ import annotations

import copy
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import infobatch.plan
from infobatch import Pruner
from infobatch.plan import draw
from infobatch.rules import (
    IES,
    RCAP,
    UCB,
    EpsilonGreedy,
    Every,
    Focus,
    Groups,
    Kakurenbo,
    Mean,
    Memory,
    PerClass,
    Probabilities,
    Revisit,
    Rule,
    SeTa,
    Until,
    Windows,
    check_layout,
)
from infobatch.rules.base import everything
from tests.conftest import (
    BIASED,
    RULE_NAMES,
    UNBIASED,
    every_rule,
    labels,
    loss_of,
    same_state,
)

SIZES = [1, 2, 3, 7, 100_003]


def trained(rule: Rule, scores: Tensor, num_epochs: int = 1) -> Memory:
    """The memory after epochs that trained every sample, in the last one with its score as loss.

    Before, the losses of odd samples went up and down.
    """
    everyone = torch.arange(len(scores))
    memory, last = rule.init(len(scores)), torch.full_like(scores, torch.nan)
    for epoch in range(num_epochs):
        losses = scores + everyone % 2 * ((num_epochs - 1 - epoch) % 3)
        memory = rule.remember(last, memory, epoch, everyone, losses)
        last = losses
    return memory


def long_tailed(num_samples: int) -> Tensor:
    rng = torch.Generator().manual_seed(num_samples)
    return torch.empty(num_samples).exponential_(generator=rng)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_an_unseen_data_set_is_kept_whole(name: str) -> None:
    rule = every_rule(50)[name]
    groups = rule.groups(torch.full((50,), torch.nan), rule.init(50), 0)
    plan = draw(groups, seed=0, epoch=0)
    assert sorted(plan.indices.tolist()) == list(range(50))
    assert plan.weights.tolist() == [1.0] * 50


@pytest.mark.parametrize("name", RULE_NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_sample_whose_loss_was_not_finite_is_always_kept(name: str, bad: float) -> None:
    rule = every_rule(200)[name]
    losses = long_tailed(200)
    losses[[0, 17, 199]] = bad
    memory = trained(rule, losses)
    scores = torch.where(losses.isfinite(), losses, torch.nan)
    for epoch in range(1, 9):
        plan = draw(rule.groups(scores, memory, epoch), seed=0, epoch=epoch)
        weights = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
        assert [weights[i] for i in (0, 17, 199)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", RULE_NAMES)
def test_asking_changes_nothing_and_answers_the_same(name: str) -> None:
    rule, scores = every_rule(300)[name], long_tailed(300)
    memory = trained(rule, scores)
    scores_before, memory_before = scores.clone(), copy.deepcopy(memory)
    first, second = (draw(rule.groups(scores, memory, 4), seed=7, epoch=4) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert torch.equal(scores, scores_before)
    assert same_state(memory, memory_before)


class Plain(Rule):
    """A user's own, which is no dataclass."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @property
    def unbiased(self) -> bool:
        return True

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        return everything(scores)


def test_a_rule_that_is_no_dataclass_is_known_again_in_another_process() -> None:
    assert repr(Plain(0.5)) == "Plain(threshold=0.5)"


# What NumPy computes passes for a number: typed as anything, since float32 is no float.
float32: Any = np.float32
int64: Any = np.int64


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mean(np.float64(0.5)), Mean(0.5)),
        (Focus(0.5, np.float64(0.1), trim=np.float64(0.2)), Focus(0.5, 0.1, trim=0.2)),
        (EpsilonGreedy(epsilon=1, alpha=float32(0.5)), EpsilonGreedy(epsilon=1.0, alpha=0.5)),
        (UCB(c=1, alpha=np.float64(0.8)), UCB(c=1.0, alpha=0.8)),
        (Every(Mean(), int64(3)), Every(Mean(), 3)),
        (Revisit(Mean(), int64(3)), Revisit(Mean(), 3)),
        (Until(Mean(), 7), Until(Mean(), 7.0)),
        (Kakurenbo(num_epochs=int64(9)), Kakurenbo(num_epochs=9)),
        (SeTa(num_groups=int64(4), window=1), SeTa(num_groups=4, window=1.0)),
        (Windows(num_windows=int64(4)), Windows(num_windows=4)),
        (IES(threshold=1), IES(threshold=1.0)),
        (RCAP(beta=2), RCAP(beta=2.0)),
    ],
)
def test_a_setting_may_be_a_number_of_any_kind(one: Rule, other: Rule) -> None:
    """A checkpoint knows a rule by its repr."""
    assert repr(one) == repr(other)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_remembering_makes_a_new_memory(name: str) -> None:
    rule, scores = every_rule(300)[name], long_tailed(300)
    memory = trained(rule, scores)
    before = copy.deepcopy(memory)
    rule.remember(scores, memory, 1, torch.arange(0, 300, 2), scores[::2] + 1)
    assert same_state(memory, before)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_memory_keeps_the_layout_it_begins_with(name: str) -> None:
    rule, num_samples = every_rule(60)[name], 60
    memory, scores = rule.init(num_samples), torch.full((num_samples,), torch.nan)
    for epoch in range(12):
        indices = draw(rule.groups(scores, memory, epoch), seed=0, epoch=epoch).indices
        remembered = rule.remember(scores, memory, epoch, indices, loss_of(indices, epoch))
        check_layout(rule, rule.init(num_samples), remembered)
        memory, scores[indices] = remembered, loss_of(indices, epoch)


def test_another_layout_is_refused_by_name() -> None:
    rule, begun = UCB(), UCB().init(3)
    for name, values, words in (
        (
            "u",
            torch.zeros(3, dtype=torch.float64),
            r"'u' as torch.float64 of shape \(3,\), expected",
        ),
        ("var", torch.zeros(2), r"'var' as torch.float32 of shape \(2,\), expected"),
        ("c", torch.zeros(3), r"'c' as torch.float32 of shape \(3,\), expected nothing"),
        ("u", [0.0], "'u' as a list, expected torch.float32"),
    ):
        with pytest.raises(ValueError, match=rf"UCB\(.*\) remembers {words}"):
            check_layout(rule, begun, {**begun, name: values})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="'u' as nothing, expected torch.float32 of shape"):
        check_layout(rule, begun, {})


@pytest.mark.parametrize("name", RULE_NAMES)
def test_rules_decide_on_what_they_have_remembered_for_many_epochs(name: str) -> None:
    pruner = Pruner(60, 40, rule=every_rule(60)[name])
    for epoch in range(12):
        assert pruner.epoch == epoch
        indices = pruner.plan.indices
        pruner.update(loss_of(indices) / 1009 * (1 + indices % 2 * (epoch % 3)), indices)
    prunes = "full" not in name
    assert (pruner.savings.fraction > 0) == prunes


def test_settings_tell_rules_apart() -> None:
    """A checkpoint knows its rule by this."""
    names = {repr(rule) for rule in every_rule(30).values()}
    assert names == {repr(rule) for rule in every_rule(30).values()}
    assert len(names) == len(RULE_NAMES)
    assert names.isdisjoint(
        {
            repr(Every(UCB(c=2.0), 10)),
            repr(Every(EpsilonGreedy(epsilon=0.2), 10)),
            repr(PerClass(Mean(), [0, 0, *labels(28)])),
        }
    )


@pytest.mark.parametrize("name", RULE_NAMES)
def test_every_plan_is_a_subset_without_repeats(name: str) -> None:
    rule, scores = every_rule(1000)[name], long_tailed(1000)
    plan = draw(rule.groups(scores, trained(rule, scores), 5), seed=0, epoch=5)
    indices = plan.indices.tolist()
    assert len(set(indices)) == len(indices) == len(plan.weights) >= 1
    assert set(indices) <= set(range(1000))
    assert plan.indices.dtype == torch.int64
    assert plan.weights.dtype == torch.float32


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize("num_samples", SIZES)
def test_unbiased_weights_sum_to_the_data_set(name: str, num_samples: int) -> None:
    rule, scores = every_rule(num_samples)[name], long_tailed(num_samples)
    for epoch in range(1, 4):
        groups = rule.groups(scores, trained(rule, scores), epoch)
        plan = draw(groups, seed=0, epoch=epoch)
        off = 1e-6 * num_samples
        if isinstance(groups, Probabilities) and len(groups.p.unique()) > 8:
            # In expectation only; independent draws would have this variance.
            off += 5 * float((1 / groups.p.double() - 1).sum()) ** 0.5
        assert float(plan.weights.double().sum()) == pytest.approx(num_samples, abs=off)
        assert plan.rescaled


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize("num_samples", [1, 2, 3, 4, 5, 6])
def test_over_all_random_numbers_each_sample_weighs_exactly_one(
    name: str, num_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, scores = every_rule(num_samples)[name], long_tailed(num_samples)
    groups = rule.groups(scores, trained(rule, scores), 1)
    sizes: list[int] = []

    def note_size(n: int, _: object) -> NDArray[np.int32]:
        sizes.append(n)
        return np.arange(n, dtype=np.int32)

    monkeypatch.setattr(infobatch.plan, "_keys", note_size)
    draw(groups, seed=0, epoch=1)
    every_order = list(product(*(permutations(range(size)) for size in sizes)))
    total = [Fraction(0)] * num_samples
    for orders in every_order:
        keys = iter(orders)
        monkeypatch.setattr(infobatch.plan, "_keys", lambda *_, k=keys: np.array(next(k), np.int32))
        plan = draw(groups, seed=0, epoch=1)
        for index, weight in zip(plan.indices.tolist(), plan.weights.tolist(), strict=True):
            total[index] += Fraction(weight).limit_denominator(1000)
    assert total == [Fraction(len(every_order))] * num_samples


@pytest.mark.parametrize("name", UNBIASED)
def test_over_many_draws_each_sample_weighs_one_on_average(name: str) -> None:
    num_samples, num_draws = 20_011, 100
    rule, scores = every_rule(num_samples)[name], long_tailed(num_samples)
    groups = rule.groups(scores, trained(rule, scores), 1)
    total, squares = torch.zeros(num_samples, dtype=torch.float64), 0.0
    for seed in range(num_draws):
        plan = draw(groups, seed=seed, epoch=1)
        total[plan.indices] += plan.weights
        squares += float((plan.weights.double() ** 2).sum())
    variance = squares / num_draws - num_samples  # of one draw, summed over the samples
    spread = float(((total / num_draws - 1) ** 2).sum())
    # A sample that is off by a tenth of its deviation would double its share of the spread.
    assert spread == pytest.approx(variance / num_draws, rel=0.05, abs=1e-6)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_each_tenth_of_an_epoch_has_its_mean_weight(name: str) -> None:
    rule, scores = every_rule(100_003)[name], long_tailed(100_003)
    plan = draw(rule.groups(scores, trained(rule, scores), 1), seed=0, epoch=1)
    tenths = torch.stack([part.mean() for part in plan.weights.tensor_split(10)])
    expected = plan.weights.mean()
    five_deviations = 5 * float(plan.weights.std()) / (len(plan) / 10) ** 0.5
    assert float((tenths - expected).abs().max()) <= five_deviations + 1e-6
    # Nor does the loss level drift from the start of an epoch to its end.
    kept = scores[plan.indices]
    means = torch.stack([part.mean() for part in kept.tensor_split(10)])
    assert (
        float((means - kept.mean()).abs().max()) < 5 * float(kept.std()) / (len(plan) / 10) ** 0.5
    )


@pytest.mark.parametrize("name", BIASED)
def test_biased_rules_say_so_and_weigh_one(name: str) -> None:
    rule, scores = every_rule(1000)[name], long_tailed(1000)
    plan = draw(rule.groups(scores, trained(rule, scores, 6), 6), seed=0, epoch=6)
    assert plan.num_pruned > 0
    assert set(plan.weights.tolist()) == {1.0}
    assert not plan.rescaled
    while hasattr(rule, "rule"):  # what it is made of
        rule = rule.rule
    assert "Biased" in (type(rule).__doc__ or "")
