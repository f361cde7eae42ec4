"""The candidates keep to the contract of rules, and do what their names say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from infobatch import Pruner
from infobatch.rules import Full, Groups, Mean, Memory, Probabilities, Rule
from infobatch_lab import rules
from infobatch_lab.candidates import (
    CANDIDATES,
    Aged,
    Fading,
    Noise,
    OfErrors,
    Proportional,
    Smoothed,
    TwoSteps,
)


def losses_of(num_samples: int) -> Tensor:
    return torch.empty(num_samples).exponential_(generator=torch.Generator().manual_seed(0))


def planned(name: str, losses: Tensor, seed: int = 0) -> Pruner:
    pruner = Pruner(len(losses), 9, delta=1, rule=rules.create(f"tried:{name}"), seed=seed)
    pruner.update(losses, torch.arange(len(losses)))
    return pruner


def in_groups(rule: Rule, scores: Tensor, memory: Memory) -> list[int]:
    selection = rule.groups(scores, memory, 2)
    assert isinstance(selection, Groups)
    found: list[int] = selection.of.tolist()
    return found


@pytest.mark.parametrize("name", [name for name in CANDIDATES if CANDIDATES[name].unbiased])
def test_weights_make_up_for_what_is_skipped(name: str) -> None:
    losses = losses_of(400)
    mean = torch.zeros(400)
    for seed in range(200):
        plan = planned(name, losses, seed).plan
        mean[plan.indices] += plan.weights / 200
    assert len(plan) < 400
    # A weight is 0 or at most 10, so the mean of 200 has a standard deviation of 0.22 at most.
    assert (mean - 1).abs().max() < 0.9
    assert abs(float(mean.mean()) - 1) < 0.02


def test_without_rescaling_the_same_samples_are_kept_and_weigh_one() -> None:
    losses = losses_of(400)
    biased, unbiased = (planned(f"{name}-62", losses).plan for name in ("unscaled", "proportional"))
    assert biased.indices.equal(unbiased.indices)
    assert biased.weights.unique().tolist() == [1]


def test_losses_may_stand_for_gradients_in_place_of_errors() -> None:
    """The errors of losses 4 and 8 are nearly alike; the losses are not."""
    losses = torch.full((400,), 4.0)
    losses[:40] = 8.0
    by_loss, by_error = (
        rules.create(f"tried:{name}").groups(losses, {}, 1)
        for name in ("unscaled-losses-62", "unscaled-62")
    )
    assert isinstance(by_loss, Probabilities)
    assert isinstance(by_error, Probabilities)
    assert by_loss.p[0] / by_loss.p[-1] == pytest.approx(2, rel=1e-3)
    assert by_error.p[0] / by_error.p[-1] == pytest.approx(1, abs=0.02)


@pytest.mark.filterwarnings("ignore:1 losses of epoch")
@pytest.mark.parametrize("name", CANDIDATES)
def test_a_sample_without_a_finite_loss_is_kept(name: str) -> None:
    losses = losses_of(50)
    losses[7] = torch.nan
    pruner = planned(name, losses)
    for _ in range(3):
        plan = pruner.plan
        assert dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))[7] == 1
        pruner.update(losses[plan.indices], plan.indices)


@pytest.mark.parametrize("growth", [0.1, 0.5, 1.0])
def test_noise_spends_its_budget_and_no_more(growth: float) -> None:
    losses = losses_of(5000)
    selection = Noise(growth=growth, max_weight=100).groups(losses, {}, 1)
    assert isinstance(selection, Probabilities)
    squares = (1 - torch.exp(-losses.double())) ** 2
    grown = float((squares / selection.p).sum() / squares.sum())
    assert grown == pytest.approx(1 + growth, rel=1e-3)


def test_noise_prunes_more_once_the_data_are_learned() -> None:
    losses = losses_of(5000)
    early, late = (Noise().groups(scale * losses, {}, 1) for scale in (10, 0.1))
    assert isinstance(early, Probabilities)
    assert isinstance(late, Probabilities)
    assert late.p.mean() < early.p.mean() - 0.1


def test_proportional_keeps_its_fraction_and_bounds_the_weights() -> None:
    selection = Proportional(0.5, max_weight=4).groups(losses_of(5000), {}, 1)
    assert isinstance(selection, Probabilities)
    assert float(selection.p.mean()) == pytest.approx(0.5, abs=1e-3)
    assert float(selection.p.min()) == 0.25


def test_errors_move_the_mean_to_another_sample() -> None:
    losses = torch.tensor([0.1, 0.9, 9.0])  # their mean is above 0.9, that of the errors below
    assert in_groups(Mean(), losses, {}) == [1, 1, 0]
    assert in_groups(OfErrors(Mean()), losses, {}) == [1, 0, 0]


def test_a_smoothed_rule_remembers_earlier_losses() -> None:
    rule = Smoothed(Mean(), alpha=0.5)
    everyone, memory = torch.arange(3), rule.init(3)
    first, second = torch.tensor([8.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 1.0])
    memory = rule.remember(first, memory, 0, everyone, first)
    memory = rule.remember(first, memory, 1, everyone, second)
    assert memory["smooth"].tolist() == [4.0, 1.0, 1.0]
    assert in_groups(rule, second, memory) == [0, 1, 1]


def test_an_aged_score_comes_closer_to_the_mean_with_every_epoch_without_a_visit() -> None:
    rule = Aged(Mean(), half_life=1)
    scores = torch.tensor([1.0, 9.0, 2.0])  # their mean is 4
    memory = rule.remember(scores, rule.init(3), 0, torch.arange(3), scores)
    memory = rule.remember(scores, memory, 1, torch.tensor([1]), scores[1:2])
    memory = rule.remember(scores, memory, 2, torch.tensor([1, 2]), scores[1:])
    assert memory["trained_in"].tolist() == [0, 2, 2]
    seen: list[Tensor] = []

    class Spy(Mean):
        def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
            seen.append(scores)
            return super().groups(scores, memory, epoch)

    Aged(Spy(), half_life=1).groups(scores, memory, 3)
    # Sample 0 was skipped twice, so a quarter of its distance to the mean is left.
    assert seen[0].tolist() == [3.25, 9.0, 2.0]


def test_two_steps_change_the_rule_at_their_epoch() -> None:
    rule = TwoSteps(Mean(), Full(), at=70)
    scores = losses_of(50)
    assert rule.groups(scores, {}, 69).prunes
    assert not rule.groups(scores, {}, 70).prunes


@pytest.mark.parametrize("name", ["fading-16", "fading-random-16"])
def test_fading_skips_half_of_all_samples_most_of_them_in_the_first_epochs(name: str) -> None:
    losses = losses_of(1000)
    pruner = Pruner(1000, 16, delta=1, rule=rules.create(f"tried:{name}"))
    kept = []
    for _ in range(16):
        indices = pruner.plan.indices
        kept.append(len(indices) / 1000)
        pruner.update(losses[indices], indices)
    assert kept[0] == 1  # nothing is known yet
    assert kept[1:9] == pytest.approx([0.32] * 8, abs=0.01)
    assert kept[8:] == sorted(kept[8:])
    assert kept[15] == pytest.approx(0.915, abs=0.01)
    assert sum(kept) / 16 == pytest.approx(0.5, abs=0.02)


def test_fading_skips_nothing_once_its_epochs_are_over() -> None:
    rule = Fading(Proportional(0.5), epochs=16)
    assert not rule.groups(losses_of(50), {}, 16).prunes
    assert not rule.groups(losses_of(50), {}, 99).prunes


def test_an_unknown_candidate_or_a_ratio_is_refused() -> None:
    with pytest.raises(ValueError, match="rule is 'tried:best', expected tried: with one of"):
        rules.create("tried:best")
    with pytest.raises(ValueError, match="prune_ratio is 0.3, but tried:noise-50 has its own"):
        rules.create("tried:noise-50", 0.3)
