from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from infobatch import Pruner
from infobatch.rules import RULES, Above, Every, Full, Mean, NamedRule, Random, Rule, Tiers


def test_the_table_has_the_documented_names() -> None:
    assert sorted(RULES) == [
        "above", "epsilon-greedy", "focus", "full", "ies", "kakurenbo", "mean", "random",
        "random-rescaled", "rcap", "rs2", "seta", "tiers", "ucb", "windows",
    ]  # fmt: skip
    assert list(RULES) == sorted(RULES)
    assert all(row.name == name for name, row in RULES.items())


@pytest.mark.parametrize("row", RULES.values(), ids=lambda row: row.name)
def test_a_row_is_true_of_the_rule_it_makes(row: NamedRule) -> None:
    assert isinstance(row(), Rule)
    assert row().unbiased == row.unbiased
    if row.default_ratio is None:
        with pytest.raises(ValueError, match=r"prune_ratio is 0\.25, but .* has its own ratios"):
            row(0.25)
    else:
        assert row() == row(row.default_ratio) == row.make(row.default_ratio)
        assert row(0.25) != row()
        assert "prune_ratio=0.25" in repr(row(0.25))
    for text in (row.skips, row.paper, row.cost):
        assert text
        assert not text.endswith(".")
        assert "\n" not in text


def test_the_docs_have_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    expected = {
        f"| `{row.name}` | {row.skips} | {row.default_ratio or ''} "
        f"| {'yes' if row.unbiased else 'no'} |".replace("  ", " ")
        for row in RULES.values()
    }
    assert {line for line in page.splitlines() if line.startswith("| `")} == expected


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


@pytest.mark.parametrize("name", [n for n, row in RULES.items() if row.default_ratio is not None])
def test_a_ratio_of_another_number_type_is_the_same_rule(name: str) -> None:
    rules = {repr(Pruner(4, 2, ratio, rule=name).rule) for ratio in (0.25, np.float64(0.25))}
    assert len(rules) == 1
    zeros = {repr(Pruner(4, 2, ratio, rule=name).rule) for ratio in (0, 0.0)}
    assert len(zeros) == 1
