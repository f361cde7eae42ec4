from __future__ import annotations

from infobatch.rules import Mean
from infobatch_lab import rules


def test_the_default_ratio_is_the_one_that_the_rule_uses() -> None:
    for name in rules.NAMES:
        ratio = rules.default_ratio(name)
        assert rules.create(name) == rules.create(name, ratio)
    assert rules.default_ratio("a rule of another version") is None


def test_the_ablation_is_the_mean_rule_without_rescaling() -> None:
    assert rules.create("mean-unscaled") == Mean(0.5, rescale=False)
    assert rules.create("mean-unscaled", 0.3) == Mean(0.3, rescale=False)
