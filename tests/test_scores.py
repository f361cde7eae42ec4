from __future__ import annotations

import pytest
import torch

from infobatch import InfoBatch
from infobatch.scores import merge, unseen
from tests.conftest import Numbers, loss_of, train_epoch


def test_trained_samples_take_their_loss_and_skipped_ones_keep_their_score() -> None:
    data = InfoBatch(Numbers(500), 20, seed=1)
    expected = torch.full((500,), torch.nan)
    for epoch in range(6):
        indices = data.plan.indices
        train_epoch(data)
        expected[indices] = loss_of(indices, epoch)
        assert torch.equal(data.scores, expected)


def test_scores_are_float32_nan_where_unseen_and_a_copy() -> None:
    data = InfoBatch(Numbers(5), 3)
    assert data.scores.dtype == torch.float32
    assert bool(data.scores.isnan().all())
    data.scores.fill_(7)
    assert bool(data.scores.isnan().all())


def test_what_is_not_finite_is_counted_and_forgotten() -> None:
    scores = unseen(5)
    losses = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])
    assert merge(scores, torch.tensor([4, 3, 2, 1]), losses) == 3
    assert torch.equal(scores.isnan(), torch.tensor([True, True, True, True, False]))
    assert scores[4] == 1


def test_non_finite_losses_are_reported_and_do_not_stop_pruning() -> None:
    data = InfoBatch(Numbers(100), 10)
    losses = loss_of(data.plan.indices)
    losses[:3] = torch.tensor([torch.nan, torch.inf, 1e300])
    bad = set(data.plan.indices[:3].tolist())
    with pytest.warns(RuntimeWarning, match="3 losses of epoch 0 are NaN or infinite"):
        data.update(losses, data.plan.indices)
    assert data.num_nonfinite == 3
    assert data.plan.num_pruned > 20
    assert data.plan.threshold == pytest.approx(float(losses[3:].double().mean()))
    assert bad <= set(data.plan.indices.tolist())


def test_a_warning_made_an_error_loses_nothing() -> None:
    data = InfoBatch(Numbers(64), 10, rule="ucb")
    losses = loss_of(data.plan.indices)
    losses[0] = torch.nan
    with pytest.raises(RuntimeWarning, match="1 losses of epoch 0"):  # pytest makes it one
        data.update(losses, data.plan.indices)
    assert data.epoch == 1
    data.set_epoch(2)
    assert (data.num_nonfinite, data.savings.num_trained) == (1, 64)
