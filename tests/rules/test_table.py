from __future__ import annotations

import pytest

from infobatch import Pruner
from infobatch.rules import RULES, Above, Every, Full, Mean, Random, Rule, Tiers


def test_the_table_has_the_documented_names() -> None:
    assert sorted(RULES) == [
        "above", "epsilon-greedy", "full", "mean", "random", "random-rescaled", "tiers", "ucb",
    ]  # fmt: skip
    assert all(isinstance(make(), Rule) for make in RULES.values())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, Mean(0.5)),
        ({"prune_ratio": 0.3}, Mean(0.3)),
        ({"rule": "mean", "prune_ratio": 0.3}, Mean(0.3)),
        ({"rule": "above"}, Above(0.5)),
        ({"rule": "random", "prune_ratio": 0.2}, Random(0.2)),
        ({"rule": "random-rescaled", "prune_ratio": 0.2}, Random(0.2, rescale=True)),
        ({"rule": "tiers"}, Tiers()),
        ({"rule": Full()}, Full()),
    ],
)
def test_rule_and_prune_ratio_mean_what_they_say(given: dict[str, object], meant: Rule) -> None:
    assert Pruner(10, 2, **given).rule == meant  # type: ignore[arg-type]


def test_held_baselines_take_a_ratio() -> None:
    rule = Pruner(10, 2, 0.3, rule="ucb").rule
    assert isinstance(rule, Every)
    assert rule.period == 10
    assert "prune_ratio=0.3" in repr(rule)


@pytest.mark.parametrize("rule", ["tiers", "full", Tiers(), Mean(0.3)])
def test_a_ratio_beside_a_rule_with_its_own_is_refused(rule: Rule | str) -> None:
    with pytest.raises(ValueError, match=r"prune_ratio is 0\.5"):
        Pruner(10, 2, 0.5, rule=rule)


def test_an_unknown_rule_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match="rule is 'median', expected a Rule or one of above, eps"):
        Pruner(10, 2, rule="median")
    with pytest.raises(TypeError, match="expected a Rule or one of"):
        Pruner(10, 2, rule=0.5)  # type: ignore[arg-type]
