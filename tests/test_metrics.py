"""What an epoch that has ended tells: against slow references, and against real gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from infobatch import DataLoader as IndexedLoader
from infobatch import InfoBatch, Pruner
from infobatch.distributed import NO_LOSS
from infobatch.epoch import EpochLosses
from infobatch.metrics import EpochMetrics, gradient_noise, mean_loss, pack, skipped_loss, unpack
from infobatch.plan import BLOCK, Plan
from tests.conftest import BIASED, UNBIASED, Numbers, every_rule, loss_of

NUM_SAMPLES = 300
LOSSES = loss_of(torch.arange(NUM_SAMPLES))
"""The loss of each sample, the same in all epochs."""
NUM_DRAWS = 25


def close_epoch(pruner: Pruner, losses: Tensor = LOSSES) -> Plan:
    """Train an epoch by index, in batches of 64; returns its plan."""
    plan = pruner.plan
    for indices in plan.indices.split(64):
        pruner.update(losses[indices], indices)
    return plan


# The loss over all samples -----------------------------------------------------------------------


def test_the_loss_of_a_full_epoch_is_its_mean_loss() -> None:
    pruner = Pruner(NUM_SAMPLES, 10)
    assert "infobatch/loss" not in pruner.metrics
    close_epoch(pruner)
    assert pruner.metrics["infobatch/loss"] == pytest.approx(float(LOSSES.double().mean()))


SILENT = {"every-per-class-ucb", "every-seta", "kakurenbo", "revisit-per-class-ucb", "seta", "ucb"}
"""Rules that give some samples no chance: nothing is known of their losses."""


@pytest.mark.parametrize("name", sorted({*UNBIASED, *BIASED} - SILENT))
def test_the_loss_of_a_pruned_epoch_is_on_average_that_over_all_samples(name: str) -> None:
    """Fresh losses that have nothing to do with the scores which the epoch was planned with."""
    fresh, found = LOSSES.flip(0) + 2, []
    for seed in range(40):
        pruner = Pruner(NUM_SAMPLES, 10, rule=every_rule(NUM_SAMPLES)[name], seed=seed)
        close_epoch(pruner)
        close_epoch(pruner, fresh)
        found.append(pruner.metrics["infobatch/loss"])
    losses = torch.tensor(found, dtype=torch.float64)
    error = float(losses.std()) / len(found) ** 0.5
    assert float(losses.mean()) == pytest.approx(float(fresh.double().mean()), abs=4 * error + 1e-4)


@pytest.mark.parametrize("shrink", ["epoch", "batch"])
@pytest.mark.parametrize("name", ["mean", "tiers", "by-loss"])
def test_the_loss_is_the_same_however_epochs_shrink(name: str, shrink: Any) -> None:
    data = InfoBatch(Numbers(NUM_SAMPLES), 10, rule=every_rule(NUM_SAMPLES)[name])
    for _ in range(2):
        plan = data.plan
        for samples in DataLoader(data, batch_sampler=data.batches(16, shrink=shrink)):
            data.update(LOSSES[samples])
    assert plan.num_pruned > 0
    by_hand = sum(
        weight * float(LOSSES[index])
        for index, weight in zip(plan.indices.tolist(), plan.weights.tolist(), strict=True)
    )
    assert data.metrics["infobatch/loss"] == pytest.approx(by_hand / NUM_SAMPLES)


@pytest.mark.parametrize("name", sorted(SILENT))
def test_a_rule_that_gives_some_samples_no_chance_tells_the_loss_of_full_epochs(name: str) -> None:
    pruner = Pruner(NUM_SAMPLES, 4, delta=0.75, rule=every_rule(NUM_SAMPLES)[name])
    for part in (1.0, 0.75, 0.5, 0.25):
        plan = close_epoch(pruner, LOSSES * part)
        if plan.num_pruned:
            assert not {"infobatch/loss", "infobatch/loss_left"} & pruner.metrics.keys()
        else:
            assert pruner.metrics["infobatch/loss_left"] == pytest.approx(part)
    assert plan.num_pruned == 0
    assert pruner.metrics["infobatch/loss"] == pytest.approx(0.25 * float(LOSSES.double().mean()))


@pytest.mark.parametrize("name", BIASED)
def test_weights_that_make_up_for_nothing_have_no_noise(name: str) -> None:
    pruner = Pruner(NUM_SAMPLES, 4, delta=0.75, rule=every_rule(NUM_SAMPLES)[name])
    for _ in range(4):
        plan = close_epoch(pruner)
        assert pruner.metrics.get("infobatch/gradient_noise") == (None if plan.num_pruned else 1)
    assert plan.num_pruned == 0


@pytest.mark.parametrize("given", ["scores", "denominators"])
def test_where_one_batch_had_scores_of_its_own_no_loss_is_told(given: str) -> None:
    pruner = Pruner(NUM_SAMPLES, 10)
    close_epoch(pruner)
    assert "infobatch/loss" in pruner.metrics
    first, rest = pruner.plan.indices[:50], pruner.plan.indices[50:]
    own: Any = {given: LOSSES[first] + 1}
    pruner.update(LOSSES[first], first, **own)
    resumed = Pruner(NUM_SAMPLES, 10)
    resumed.load_state_dict(pruner.state_dict())
    for run in (pruner, resumed):
        run.update(LOSSES[rest], rest)
        assert "infobatch/loss" not in run.metrics
        assert "infobatch/loss_left" not in run.metrics
        close_epoch(run)
        assert "infobatch/loss" in run.metrics


def test_a_part_of_an_epoch_stands_for_all_of_it() -> None:
    """Over all parts of three of four entries: the last batch dropped, a loss not finite."""
    counts = torch.tensor([1.0, 1.0, 2.0, 2.0])
    plan = Plan(1, torch.arange(4), torch.ones(4), num_samples=6, counts=counts)
    losses = torch.tensor([3.0, 5.0, 1.0, 1.0])
    assert mean_loss(plan, EpochLosses(losses)) == 2
    for value in (NO_LOSS, torch.nan, torch.inf, -torch.inf):
        found = []
        for missing in range(4):
            part = losses.clone()
            part[missing] = value
            found.append(mean_loss(plan, EpochLosses(part)) or 0)
        assert sum(found) / 4 == pytest.approx(2)
        assert max(found) > 2 > min(found)
        assert mean_loss(plan, EpochLosses(torch.full((4,), value))) is None


def test_more_samples_than_a_block() -> None:
    num_samples = 2 * BLOCK + 77
    torch.manual_seed(1)
    losses, scores = torch.rand(num_samples), torch.rand(num_samples)
    pruner = Pruner(num_samples, 10, rule="tiers")
    pruner.load_scores(scores)
    plan = pruner.plan
    pruner.update(losses[plan.indices], plan.indices)
    loss, weight = losses[plan.indices].double(), plan.weights.double()
    kept = float(scores[plan.indices].double().sum() / scores.double().sum())
    noise = float((weight**2 * loss).sum() / (weight * loss).sum())
    assert pruner.metrics["infobatch/loss"] == pytest.approx(
        float((weight * loss).sum() / num_samples)
    )
    assert pruner.metrics["infobatch/skipped_loss"] == pytest.approx(1 - kept)
    assert pruner.metrics["infobatch/gradient_noise"] == pytest.approx(noise)


# How far the data are learned --------------------------------------------------------------------


def test_loss_left_is_a_part_of_the_first_epochs_loss() -> None:
    pruner, left = Pruner(NUM_SAMPLES, 10, rule="full"), []
    for part in (1.0, 0.5, 0.25):
        close_epoch(pruner, LOSSES * part)
        left.append(pruner.metrics["infobatch/loss_left"])
    assert left == pytest.approx([1.0, 0.5, 0.25])


def test_without_a_first_loss_there_is_no_part_of_it() -> None:
    """Absent, not wrong: in the first epoch scores were given, or losses are below 0."""
    other = Pruner(NUM_SAMPLES, 10)
    indices = other.plan.indices
    other.update(LOSSES[indices], indices, scores=LOSSES[indices])
    close_epoch(other)
    assert "infobatch/loss" in other.metrics
    assert "infobatch/loss_left" not in other.metrics
    below = Pruner(NUM_SAMPLES, 10)
    close_epoch(below, LOSSES - 1e6)
    assert below.metrics["infobatch/loss"] < 0
    left_out = {"infobatch/loss_left", "infobatch/gradient_noise"}
    assert not left_out & below.metrics.keys()
    close_epoch(below, LOSSES)
    assert "infobatch/skipped_loss" not in below.metrics


# What was skipped --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mean", "tiers", "random", "kakurenbo", "by-loss"])
def test_the_skipped_loss_is_that_of_the_samples_left_out(name: str) -> None:
    pruner = Pruner(NUM_SAMPLES, 10, rule=every_rule(NUM_SAMPLES)[name])
    close_epoch(pruner)
    assert pruner.metrics["infobatch/skipped_loss"] == 0
    plan = close_epoch(pruner, LOSSES + 100)
    skipped = set(range(NUM_SAMPLES)) - set(plan.indices.tolist())
    assert skipped
    by_hand = sum(float(LOSSES[i]) for i in skipped) / float(LOSSES.double().sum())
    assert pruner.metrics["infobatch/skipped_loss"] == pytest.approx(by_hand)


def test_samples_without_a_score_carry_nothing() -> None:
    plan = Plan(1, torch.tensor([0, 2]), torch.ones(2), num_samples=4)
    assert skipped_loss(plan, torch.tensor([3.0, 1.0, torch.nan, torch.nan])) == 0.25
    assert skipped_loss(plan, torch.full((4,), torch.nan)) is None
    assert skipped_loss(plan, torch.zeros(4)) is None


# Noise -------------------------------------------------------------------------------------------


def test_the_noise_of_random_pruning_is_that_of_fewer_samples() -> None:
    """Eq. 15: the noise-to-signal ratio of a kept sample, squared, grows by noise x K/N = 1."""
    pruner = Pruner(NUM_SAMPLES, 10, rule="random-rescaled")
    close_epoch(pruner)
    assert pruner.metrics["infobatch/gradient_noise"] == 1
    close_epoch(pruner)
    metrics = pruner.metrics
    growth = metrics["infobatch/gradient_noise"] * metrics["infobatch/kept_fraction"]
    assert growth == pytest.approx(1)


def second_moment_growth(gradients: Tensor, scores: Tensor, rule: str) -> float:
    """E[sum over kept of (w g)^2] / sum of g^2, over some draws of an epoch."""
    squared, found = gradients.double().square().sum(1), 0.0
    for seed in range(NUM_DRAWS):
        pruner = Pruner(len(scores), 2, delta=1, rule=rule, seed=seed)
        pruner.load_scores(scores)
        plan = pruner.plan
        found += float((plan.weights.double() ** 2 * squared[plan.indices]).sum())
    return found / NUM_DRAWS / float(squared.sum())


def estimated_growth(losses: Tensor, scores: Tensor, rule: str) -> float:
    """The metric, over the same draws."""
    found = 0.0
    for seed in range(NUM_DRAWS):
        pruner = Pruner(len(scores), 2, delta=1, rule=rule, seed=seed)
        pruner.load_scores(scores)
        close_epoch(pruner, losses)
        found += pruner.metrics["infobatch/gradient_noise"]
    return found / NUM_DRAWS


@pytest.mark.parametrize("rule", ["mean", "tiers", "above"])
def test_the_noise_is_exact_where_squared_gradients_are_proportional_to_losses(rule: str) -> None:
    """Squared errors of a linear model on inputs of length 1."""
    torch.manual_seed(0)
    x = nn.functional.normalize(torch.randn(NUM_SAMPLES, 5), dim=1)
    errors = x @ torch.randn(5) + torch.randn(NUM_SAMPLES)
    losses = errors**2
    gradients = 2 * errors[:, None] * x
    expected = second_moment_growth(gradients, losses, rule)
    assert estimated_growth(losses, losses, rule) == pytest.approx(expected, rel=0.02)
    assert expected > 1.05


def test_the_noise_of_a_classifier_is_about_right() -> None:
    """Cross entropy of a small network in training, where the assumption is rough."""
    torch.manual_seed(0)
    x = torch.randn(NUM_SAMPLES, 8)
    y = (x[:, :3].sin().sum(1) + 0.3 * torch.randn(NUM_SAMPLES) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss_of_one(parameters: Any, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    for epoch in range(31):
        losses = cross_entropy(model(x), y, reduction="none")
        if epoch in (1, 30):
            parameters = {name: p.detach() for name, p in model.named_parameters()}
            rows = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(parameters, x, y)
            gradients = torch.cat([row.flatten(1) for row in rows.values()], dim=1)
            growth = {}
            for rule in ("mean", "tiers", "above", "random-rescaled"):
                scores = losses.detach()
                growth[rule] = estimated_growth(scores, scores, rule)
                expected = second_moment_growth(gradients, scores, rule)
                assert growth[rule] == pytest.approx(expected, rel=0.3), (epoch, rule)
            assert growth["mean"] < growth["above"]
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


def test_a_sample_without_a_loss_of_its_own_is_left_out() -> None:
    """Of two samples one has a denominator of 0: it keeps its score, and no number of it counts."""
    pruner = Pruner(2, 10, rule="full")
    pruner.update(torch.tensor([3.0, 0.0]), [0, 1], denominators=torch.tensor([1.0, 0.0]))
    assert pruner.metrics["infobatch/gradient_noise"] == 1
    assert pruner.metrics["infobatch/num_nonfinite"] == 0


def test_losses_that_tell_nothing_of_gradients_give_no_noise() -> None:
    plan = Plan(1, torch.arange(2), torch.ones(2), num_samples=2)
    for losses in ([1.0, -1.0], [0.0, 0.0], [torch.nan, torch.nan], [NO_LOSS, NO_LOSS]):
        assert gradient_noise(plan, EpochLosses(torch.tensor(losses))) is None


# The number of batches ---------------------------------------------------------------------------


@pytest.mark.parametrize("loader_of", [DataLoader, IndexedLoader])
@pytest.mark.parametrize("drop_last", [False, True])
def test_num_batches_is_what_the_length_of_the_loader_was(loader_of: Any, drop_last: bool) -> None:
    data = InfoBatch(Numbers(100), 10)
    loader = loader_of(data, batch_sampler=data.batches(7, drop_last=drop_last))
    assert data.num_batches == 0
    assert "infobatch/num_batches" not in data.metrics
    lengths = []
    for epoch in range(3):
        lengths.append(len(loader))
        for samples in loader:
            data.update(loss_of(samples, epoch))
        assert data.metrics["infobatch/num_batches"] == data.num_batches == lengths[-1]
    assert lengths[1] < lengths[0]


def test_a_batch_reported_again_counts_once() -> None:
    data = InfoBatch(Numbers(40), 10)
    for samples in IndexedLoader(data, batch_size=8):
        data.update(loss_of(samples))
        data.update(loss_of(samples))
    assert data.num_batches == 5


def test_an_epoch_without_reports_leaves_the_count_of_the_one_before() -> None:
    pruner = Pruner(NUM_SAMPLES, 10)
    close_epoch(pruner)
    before = pruner.metrics
    pruner.set_epoch(4)
    pruner.set_epoch(5)
    assert pruner.metrics == before
    assert before["infobatch/num_batches"] == 5


# State -------------------------------------------------------------------------------------------


def test_packed_metrics_are_what_they_were() -> None:
    for metrics in (EpochMetrics(), EpochMetrics(0.25, 2.0, 1.5, 0.0), EpochMetrics(loss=-1.0)):
        assert unpack(pack(metrics)) == metrics


@pytest.mark.parametrize("place", [0, 2])
def test_a_resumed_run_reports_the_same(place: int) -> None:
    """At an epoch's end and in its middle, and of the epochs that follow."""
    pruner = Pruner(NUM_SAMPLES, 10)
    close_epoch(pruner)
    close_epoch(pruner, LOSSES / 2)
    for indices in pruner.plan.indices.split(64)[:place]:
        pruner.update(LOSSES[indices], indices)
    resumed, copied = Pruner(NUM_SAMPLES, 10), copy.deepcopy(pruner)
    resumed.load_state_dict(pruner.state_dict())
    for _ in range(2):
        found = [dict(run.metrics) for run in (pruner, resumed, copied)]
        for metrics in found:
            metrics.pop("infobatch/num_batches", None)
        assert found[0] == found[1] == found[2]
        assert found[0].keys() >= {"infobatch/loss", "infobatch/loss_left"}
        for run in (pruner, resumed, copied):
            rest = run.plan.indices[run.num_reported :]
            run.update(LOSSES[rest] / 3, rest)
