"""One comparison behind the terminal's table, the JSON, the page and results/tables.py."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from infobatch_lab.comparison import Comparison, Row, compare
from infobatch_lab.display import NONE, show
from infobatch_lab.lines import Run, run_of
from infobatch_lab.metrics import Metric
from infobatch_lab.report import results
from infobatch_lab.report.page import Section, page
from infobatch_lab.settings import Settings, settings
from infobatch_lab.sweep import grid, match_of
from tests.lab.lines import line_of, save

ROOT = Path(__file__).parents[2]


def run_with(chosen: Settings, **numbers: Any) -> Run:
    return run_of(line_of(chosen, **numbers))


def the_comparison(runs: list[Run]) -> Comparison:
    (comparison,), notes = compare(runs)
    assert notes == []
    return comparison


def rows_of(runs: list[Run]) -> list[Row]:
    return the_comparison(runs).rows()


MEAN = settings("digits", rule="mean", epochs=10)
FULL = settings("digits", rule="full", epochs=10)


def test_a_method_is_compared_with_full_training_of_the_same_seeds() -> None:
    full, pruned = rows_of(
        [
            run_with(FULL, accuracy=0.98, train_seconds=10.0),
            run_with(replace(FULL, seed=1), accuracy=1.0, train_seconds=20.0),
            run_with(MEAN, accuracy=0.97, train_seconds=7.0, pruning_seconds=0.7, num_trained=700),
            run_with(replace(MEAN, seed=2), train_seconds=70.0, pruning_seconds=7.0,
                     num_trained=500),
        ]
    )  # fmt: skip
    assert (full.method.mean, len(full.method.runs), full.time_saved) == (0.99, 2, 0)
    assert full.method.spread == pytest.approx(0.01 * 2**0.5)
    assert pruned.time_saved == pytest.approx(0.3)  # seed 2 has no full training to compare with
    assert pruned.samples_saved == pytest.approx(0.4)
    assert full.method.overhead is None
    assert pruned.method.overhead == pytest.approx(0.1)


def test_times_of_other_machines_and_numbers_of_threads_are_not_compared() -> None:
    runs = [
        run_with(FULL, machine={"threads": 2}, train_seconds=10.0),
        run_with(MEAN, machine={"threads": 1}, train_seconds=7.0),
    ]
    assert [row.time_saved for row in rows_of(runs)] == [0, None]


def a_comparison() -> list[Run]:
    """Two ratios, and full training matched to each, which for one seed is the same run."""
    runs = [run_with(replace(FULL, seed=seed), train_seconds=10.0) for seed in (0, 1)]
    for seed, ratio, num_trained in ((0, 0.5, 660), (0, 0.3, 740), (1, 0.5, 640), (1, 0.3, 780)):
        cell = replace(MEAN, seed=seed, prune_ratio=ratio)
        runs.append(run_with(cell, num_trained=num_trained, train_seconds=num_trained / 100))
    cut = dict.fromkeys(match for run in runs if (match := match_of(run)) is not None)
    return runs + [run_with(match, train_seconds=match.epochs) for match in cut]


def test_matched_runs_save_against_full_training_of_full_length() -> None:
    rows = [row for row in rows_of(a_comparison()) if row.method.match_forwards]
    assert [(row.method.key.prune_ratio, len(row.method.runs)) for row in rows] == [
        (0.5, 2), (0.3, 2),
    ]  # fmt: skip
    # Seed 0 is cut to 7 epochs of 10 for both; seed 1 to 6 and to 8.
    assert [row.samples_saved for row in rows] == pytest.approx([0.35, 0.25])
    assert [row.time_saved for row in rows] == pytest.approx([0.35, 0.25])
    assert [row.method.overhead for row in rows] == [None, None]
    assert all(row.method.short_name == "full † (mean)" for row in rows)


def test_smaller_batches_are_another_method() -> None:
    smaller = replace(MEAN, shrink="batch")
    rows = rows_of([run_with(FULL), run_with(MEAN), run_with(replace(MEAN, seed=1)),
                    run_with(smaller)])  # fmt: skip
    assert [row.method.name for row in rows] == [
        "full", "mean", "mean, r = 0.5, δ = 0.875, smaller batches",
    ]  # fmt: skip
    assert [row.as_dict()["shrink"] for row in rows] == ["epoch", "epoch", "batch"]


def test_the_only_variant_of_a_rule_says_how_it_was_trained() -> None:
    smaller, cut = replace(MEAN, shrink="batch"), replace(MEAN, rule="tiers", budget=0.6)
    rows = rows_of([run_with(FULL), run_with(smaller), run_with(cut)])
    names = [row.method.name for row in rows]
    assert names == ["full", "mean, smaller batches", "tiers, 60% of the steps"]


def test_full_training_with_fewer_steps_stands_beside_full_training_however_many_seeds_it_has() -> (
    None
):
    cut = replace(FULL, budget=0.6)
    rows = rows_of(
        [run_with(FULL), run_with(MEAN), *(run_with(replace(cut, seed=s)) for s in (0, 1))]
    )
    assert [(row.method.name, row.method.is_main) for row in rows] == [
        ("full", True), ("full, 60% of the steps", True), ("mean", True),
    ]  # fmt: skip


def test_the_variant_that_is_shown_everywhere_has_the_delta_of_its_data_set() -> None:
    full = settings("camvid", rule="full")
    of_camvid, other = (settings("camvid", rule="mean", delta=delta) for delta in (0.85, 0.875))
    rows = rows_of([run_with(full), *(run_with(replace(other, seed=s)) for s in (0, 1)),
                    run_with(of_camvid)])  # fmt: skip
    assert [row.method.name for row in rows] == ["full", "mean", "mean, r = 0.5, δ = 0.875"]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mean", "mean-unscaled", "random", "tiers", "full"])
def test_every_table_says_the_same_of_a_rule(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prune ratio of mean-unscaled was 0.5 in one table and missing in another."""
    cells = [settings("digits", rule=rule, seed=seed) for seed in range(2)]
    lines = [line_of(cell, accuracy=0.9 + 0.01 * cell.seed) for cell in cells]
    file = save(tmp_path / "runs.jsonl", *lines)
    (row,) = rows_of([run_of(line) for line in lines])
    (from_report,) = results([file])[0]["methods"]
    assert json.loads(json.dumps(row.as_dict())) == json.loads(json.dumps(from_report))
    assert from_report["prune_ratio"] == cells[0].ratio
    show([row.comparison], "digits")
    assert "90.50 ± 0.71" in capsys.readouterr().out
    html = page([Section(row.comparison, ())], [])
    assert '90.50 <span class="soft">± 0.71</span>' in html
    if cells[0].ratio is not None:
        assert f"r = {cells[0].ratio:g}" in html
    command = [sys.executable, str(ROOT / "results" / "tables.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"| `{rule}` | 90.50 ± 0.71 |" in done.stdout


def test_the_table_shows_no_overhead_where_nothing_is_pruned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([the_comparison(a_comparison())], "digits")
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("full", "mean"))]
    # Of the columns the last three are time saved, overhead and runs.
    assert [row[-2] for row in rows] == [NONE, NONE, "1.54%", NONE, "1.32%"]
    assert [row[-3] for row in rows] == ["0.0%", "35.0%", "35.0%", "25.0%", "24.0%"]


def test_the_table_tells_optimizers_apart(capsys: pytest.CaptureFixture[str]) -> None:
    cells = grid("digits", seeds=[0], rule="full", optimizer=["sgd", "adamw"])
    show(compare([run_with(cell) for cell in cells])[0], "digits")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[-2:]] == [["full", "sgd"], ["full", "adamw"]]


# Other metrics ------------------------------------------------------------------------------------

LOSS = Metric("test_loss", higher_is_better=False, margin=0.1, decimals=3)
MIOU = Metric("miou", "%", scale=100, margin=1.0)


def runs_of(metric: Metric, full: list[float], pruned: list[float]) -> list[Run]:
    return [
        run_with(replace(cell, seed=seed), metric=asdict(metric), **{metric.name: value})
        for cell, values in ((FULL, full), (MEAN, pruned))
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("metric", "change", "verdict", "difference"),
    [
        (LOSS, 0.2, "worse", "+0.200"),
        (LOSS, 0.05, "lossless", "+0.050"),
        (LOSS, -0.2, "lossless", "-0.200"),
        (MIOU, -0.05, "worse", "-5.00"),
        (MIOU, -0.005, "lossless", "-0.50"),
        (MIOU, 0.05, "lossless", "+5.00"),
    ],
)
def test_a_verdict_is_in_the_metrics_own_direction_and_unit(
    metric: Metric, change: float, verdict: str, difference: str, tmp_path: Path
) -> None:
    full = [0.5, 0.51, 0.52]
    noise = [0.0, 1e-4, -1e-4]
    pruned = [value + change + extra for value, extra in zip(full, noise, strict=True)]
    comparison = the_comparison(runs_of(metric, full, pruned))
    row = comparison.rows()[1]
    assert row.verdict == verdict
    assert row.difference is not None
    assert metric.signed(row.difference.mean) == difference
    assert row.as_dict()[metric.name] == pytest.approx(sum(pruned) / 3)
    html = page([Section(comparison, ())], [])
    assert difference.replace("-", "\N{MINUS SIGN}") in html
    unit = ", points" if metric is MIOU else ""
    assert f">Difference to full{unit}</th>" in html


def test_metrics_are_never_mixed() -> None:
    runs = [*runs_of(LOSS, [1.0], [1.1]), *runs_of(MIOU, [0.5], [0.4])]
    comparisons, _ = compare(runs)
    assert [comparison.metric for comparison in comparisons] == [LOSS, MIOU]
    assert comparisons[0].title != comparisons[1].title


def test_a_margin_is_given_in_the_metrics_unit() -> None:
    comparison = the_comparison(runs_of(MIOU, [0.5, 0.51], [0.47, 0.48]))
    assert comparison.margin(None) == pytest.approx(0.01)
    assert comparison.margin(4) == pytest.approx(0.04)
    assert [row.verdict for row in comparison.rows(margin=4)] == [None, "lossless"]
