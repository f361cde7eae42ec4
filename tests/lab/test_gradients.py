"""The gradient of a drawn epoch, against gradients computed one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from infobatch_lab import gradients


def test_per_sample_gradients_are_those_of_single_samples() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    inputs, labels = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 3, 0])
    rows = gradients.per_sample_gradients(model, inputs, labels)
    for row, x, y in zip(rows, inputs, labels, strict=True):
        model.zero_grad()
        cross_entropy(model(x[None]), y[None]).backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(row, expected)


def test_bias_angle_and_noise_of_known_gradients() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    half_each = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # one of the two, doubled
    found = gradients.compare(rows, half_each)
    assert found["relative_bias"] == pytest.approx(0, abs=1e-6)
    assert found["angle_of_mean"] == pytest.approx(0, abs=1e-6)
    assert found["mean_angle"] == pytest.approx(45)
    assert found["std_to_expectation"] == pytest.approx(2**0.5)
    first_only = torch.tensor([[1.0, 0.0]] * 3)
    found = gradients.compare(rows, first_only)
    assert found["relative_bias"] == pytest.approx(0.5**0.5)  # one of two directions is missing
    assert found["angle_of_mean"] == pytest.approx(45)
    assert found["length"] == pytest.approx(0.5**0.5)


def test_rules_that_say_they_are_unbiased_are(tmp_path: Path) -> None:
    lines = gradients.measure(seed=0, num_draws=60, epochs=(1,), num_epochs=2)
    of_rule = {line["rule"]: line for line in lines}
    for rule in ("mean", "tiers", "above", "random-rescaled"):
        line = of_rule[rule]
        assert line["kept_fraction"] < 1
        assert line["relative_bias"] < 2 * line["relative_bias_by_chance"]
    unscaled = of_rule["mean-unscaled"]
    assert unscaled["relative_bias"] > 5 * unscaled["relative_bias_by_chance"]
    assert of_rule["full"]["relative_bias"] < 1e-5
    gradients.draw_figure(lines, tmp_path / "gradients.png")
    assert (tmp_path / "gradients.png").stat().st_size > 10_000
