"""The frontier: its runs, its line, and what is above it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from infobatch_lab.cli import app
from infobatch_lab.display import show_frontiers
from infobatch_lab.frontier import Frontier, FrontierRow, cells, find_frontiers
from infobatch_lab.lines import Run, run_of
from infobatch_lab.metrics import Metric
from infobatch_lab.report import frontier_results, results, write
from infobatch_lab.settings import Settings, settings
from infobatch_lab.sweep import frontier_grid
from tests.lab.files import environment, infobatch, started, until
from tests.lab.lines import line_of, save

# The runs -----------------------------------------------------------------------------------------


def test_shorter_full_training_is_there_with_both_batches() -> None:
    cells = frontier_grid(
        "digits", [1, 0.7, 0.5], ["mean", "tiers"], seeds=range(2), epochs=20, batch_size=40
    )
    assert len(set(cells)) == len(cells)
    assert [cell.seed for cell in cells] == [0] * 9 + [1] * 9
    full = [(cell.epochs, cell.batch_size) for cell in cells if cell.rule == "full"]
    assert full == [(20, 40), (14, 40), (14, 28), (10, 40), (10, 20)] * 2
    rules = Counter((cell.rule, cell.shrink) for cell in cells if cell.rule != "full")
    assert rules == {(rule, mode): 2 for rule in ("mean", "tiers") for mode in ("epoch", "batch")}
    assert {cell.epochs for cell in cells if cell.rule != "full"} == {20}


def test_a_smaller_batch_keeps_the_steps_but_for_rounding() -> None:
    whole, *shorter = frontier_grid("digits", [1, 0.7, 0.6, 0.5, 0.3], [], seeds=[0])
    steps = whole.epochs / whole.batch_size
    for usual, smaller in zip(shorter[::2], shorter[1::2], strict=True):
        assert usual.epochs / usual.batch_size == pytest.approx(steps * usual.epochs / 40)
        assert smaller.epochs / smaller.batch_size == pytest.approx(steps, rel=0.05)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


SMALL = ("frontier", "--epochs", 2, "--lengths", "1,0.5", "--rules", "mean", "--seeds", 2)


@pytest.mark.slow
def test_a_killed_frontier_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    command = (*SMALL, "--tune-lr", "--out", tmp_path)
    trials, runs = tmp_path / "trials.jsonl", tmp_path / "runs.jsonl"
    for file in (trials, runs):
        with started(*command) as process:
            until(file.exists, process)  # and is killed
    assert infobatch(*command).returncode == 0
    # Full at two lengths, once with a smaller batch, and mean in two modes.
    assert len(lines(trials)) == 3 * 5
    assert {line["data"] for line in lines(trials)} == {"digits-validation"}
    done = [
        tuple(line[name] for name in ("data", "rule", "seed", "epochs", "batch_size", "shrink"))
        for line in lines(runs)
    ]
    assert len(set(done)) == len(done) == 2 * 5
    assert [key[2] for key in done] == [0] * 5 + [1] * 5
    best = max(
        (t for t in lines(trials) if (t["rule"], t["shrink"]) == ("mean", "batch")),
        key=lambda t: (t["accuracy"], t["lr"] == 0.1),
    )
    (rate,) = {r["lr"] for r in lines(runs) if (r["rule"], r["shrink"]) == ("mean", "batch")}
    assert rate == best["lr"]


# The line -----------------------------------------------------------------------------------------

FULL = settings("digits", rule="full", epochs=10, batch_size=32)
MEAN = settings("digits", rule="mean", epochs=10, batch_size=32)
NUM_TEST = 10_000


def made_up(cell: Settings, accuracies: Mapping[int, float], **numbers: Any) -> list[Run]:
    """A run for each seed; of full training with all samples, unless given."""
    return [
        run_of(
            line_of(replace(cell, seed=seed), accuracy=value, num_test=NUM_TEST, **numbers),
            f"runs.jsonl:{seed}",
        )
        for seed, value in accuracies.items()
    ]


def the_frontier(*runs: list[Run]) -> Frontier:
    (found,) = find_frontiers([run for some in runs for run in some])
    return found


def the_row(frontier: Frontier, name: str) -> FrontierRow:
    (row,) = [row for row in frontier.rows() if row.name == name]
    return row


def shorter(epochs: int, batch_size: int = 32) -> Settings:
    return replace(FULL, epochs=epochs, batch_size=batch_size)


def test_a_method_is_judged_where_the_line_has_as_many_samples() -> None:
    frontier = the_frontier(
        made_up(FULL, {0: 0.90, 1: 0.92, 2: 0.91}),  # 1,000 samples
        made_up(shorter(5), {0: 0.80, 1: 0.84, 2: 0.82}),  # 500
        made_up(MEAN, {0: 0.88, 1: 0.90, 2: 0.89}, num_trained=750),
    )
    row = the_row(frontier, "mean")
    # Half way: 0.85, 0.88 and 0.865, so that the differences are 3, 2 and 2.5 points.
    assert row.to_line is not None
    assert row.to_line.mean == pytest.approx(0.025)
    assert row.to_line.is_paired
    expected = stats.ttest_1samp([0.03, 0.02, 0.025], 0).confidence_interval(0.95)
    assert (row.to_line.low, row.to_line.high) == pytest.approx((expected.low, expected.high))
    assert row.place == "above"
    assert row.to_full is not None
    assert row.to_full.mean == pytest.approx(-0.02)
    assert row.verdict == "worse"
    assert row.samples == pytest.approx(0.75)


def test_the_line_is_the_better_batch_by_the_mean_and_not_the_luck_of_a_seed() -> None:
    usual = {0: 0.80, 1: 0.86, 2: 0.80}
    smaller = {0: 0.84, 1: 0.82, 2: 0.84}
    frontier = the_frontier(
        made_up(FULL, dict.fromkeys(range(3), 0.9)),
        made_up(shorter(5), usual),
        made_up(shorter(5, 16), smaller),
    )
    assert [(point.epochs, point.batch_size) for point in frontier.line] == [(5, 16), (10, 32)]
    assert frontier.line_at(dict.fromkeys(range(3), 500)) == pytest.approx(smaller)
    assert [row.name for row in frontier.rows() if row.is_on_line] == [
        "full", "full, 5 epochs, batch 16",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("accuracies", "place"),
    [
        ((0.868, 0.87, 0.872), "above"),
        ((0.83, 0.85, 0.88), "undecided"),
        ((0.828, 0.83, 0.832), "below"),
        ((0.845, 0.846, 0.847), "below"),  # by half a point: the line has no margin
    ],
)
def test_an_interval_that_holds_the_line_decides_nothing(
    accuracies: tuple[float, ...], place: str
) -> None:
    frontier = the_frontier(
        made_up(FULL, dict.fromkeys(range(3), 0.9)),
        made_up(shorter(5), dict.fromkeys(range(3), 0.8)),
        made_up(MEAN, dict(enumerate(accuracies)), num_trained=750),
    )
    assert the_row(frontier, "mean").place == place


def slow_line(knots: Sequence[tuple[float, float]], samples: float) -> float:
    """Walk along the line in small steps, and stop where it has this many samples."""
    for (x0, y0), (x1, y1) in pairwise(sorted(knots)):
        for step in range(10_001):
            part = step / 10_000
            if x0 + part * (x1 - x0) >= samples:
                return y0 + part * (y1 - y0)
    raise AssertionError(samples)


@given(st.data())
@hypothesis_settings(max_examples=30, deadline=None)
def test_the_line_of_each_seed_is_that_of_a_slow_walk(data: st.DataObject) -> None:
    # Sums of these are exact, so that both sides find the same of two equally good batches.
    accuracy = st.integers(100, 900).map(lambda number: number / 1024)
    lengths = sorted(data.draw(st.sets(st.integers(1, 9), min_size=1, max_size=3)))
    seeds = range(data.draw(st.integers(2, 4)))
    values = {
        (epochs, batch): {seed: data.draw(accuracy) for seed in seeds}
        for epochs, batch in [(10, 32), *((n, batch) for n in lengths for batch in (32, 8))]
    }
    trained = {s: data.draw(st.integers(100 * lengths[0], 1000)) for s in seeds}
    ours = {seed: data.draw(accuracy) for seed in seeds}
    frontier = the_frontier(
        *(made_up(shorter(*key), of) for key, of in values.items()),
        [run for s in seeds for run in made_up(MEAN, {s: ours[s]}, num_trained=trained[s])],
    )
    chosen = {}
    for n in (*lengths, 10):
        of_length = [of for (epochs, _), of in values.items() if epochs == n]
        chosen[n] = max(of_length, key=lambda of: sum(of.values()))
    expected = [
        ours[s] - slow_line([(100 * n, of[s]) for n, of in chosen.items()], trained[s])
        for s in seeds
    ]
    found = the_row(frontier, "mean").to_line
    assert found is not None
    assert found.mean == pytest.approx(sum(expected) / len(expected), abs=2e-4)


def test_a_seed_that_misses_a_length_is_left_out() -> None:
    frontier = the_frontier(
        made_up(FULL, {0: 0.9, 1: 0.9, 2: 0.9}),
        made_up(shorter(5), {0: 0.8, 1: 0.8}),
        made_up(MEAN, {0: 0.85, 1: 0.87, 2: 0.1}, num_trained=500),
    )
    row = the_row(frontier, "mean")
    assert row.to_line is not None
    assert row.to_line.mean == pytest.approx(0.06)
    assert cells(row)[-1] == "3 (2 on the line)"
    assert cells(the_row(frontier, "full"))[-1] == "3"


def test_of_several_rates_full_training_is_that_of_the_best() -> None:
    frontier = the_frontier(
        made_up(FULL, {0: 0.88, 1: 0.88}),
        made_up(replace(FULL, lr=0.2), {0: 0.9, 1: 0.9}),
        made_up(shorter(5), {0: 0.8, 1: 0.8}),
    )
    assert frontier.whole.lr == 0.2
    assert the_row(frontier, "full, learning rate 0.1").verdict == "worse"


def test_one_common_seed_gives_a_difference_without_an_interval() -> None:
    frontier = the_frontier(
        made_up(FULL, {0: 0.9, 1: 0.9}),
        made_up(shorter(5), {0: 0.8, 1: 0.8}),
        made_up(MEAN, {1: 0.85, 5: 0.1, 6: 0.2}, num_trained=500),
    )
    row = the_row(frontier, "mean")
    assert row.to_line is not None
    assert row.to_line.mean == pytest.approx(0.05)
    assert row.to_line.low is None
    assert row.place == "undecided"
    assert "undecided (needs at least 2 seeds of both)" in cells(row)


def test_the_table_says_how_many_seeds_would_decide() -> None:
    frontier = the_frontier(
        made_up(FULL, {0: 0.9, 1: 0.9, 2: 0.9}),
        made_up(shorter(5), {0: 0.8, 1: 0.8, 2: 0.8}),
        made_up(MEAN, {0: 0.80, 1: 0.84, 2: 0.90}, num_trained=500),
    )
    row = the_row(frontier, "mean")
    assert row.to_line is not None
    assert f"undecided (needs {row.to_line.num_needed} seeds of both)" in cells(row)


def test_nothing_is_said_beyond_the_ends_of_the_line() -> None:
    frontier = the_frontier(
        made_up(FULL, {0: 0.9, 1: 0.9}),
        made_up(shorter(5), {0: 0.8, 1: 0.8}),
        made_up(MEAN, {0: 0.99, 1: 0.99}, num_trained=499),
    )
    row = the_row(frontier, "mean")
    assert (row.to_line, row.place, row.verdict) == (None, None, "lossless")


def test_full_training_with_a_budget_of_steps_makes_no_line() -> None:
    alone = [
        made_up(FULL, {0: 0.9, 1: 0.9, 2: 0.9}),
        made_up(shorter(5), {0: 0.8, 1: 0.8, 2: 0.8}),
        made_up(MEAN, {0: 0.87, 1: 0.88, 2: 0.89}, num_trained=750),
    ]
    # As many epochs as full training, better, and with more seeds: it may be neither end of a line.
    cut = made_up(replace(FULL, budget=0.6), dict.fromkeys(range(4), 0.95), num_trained=600)
    before, after = the_frontier(*alone), the_frontier(*alone, cut)
    assert after.line == before.line
    assert after.whole == before.whole
    assert the_row(after, "mean").to_line == the_row(before, "mean").to_line
    assert the_row(after, "full, 60% of the steps").place == "above"


@pytest.mark.parametrize(
    "stray", [replace(FULL, lr=0.2), replace(FULL, batch_size=64), shorter(5, 16)]
)
def test_a_single_run_beside_many_is_no_part_of_the_line(stray: Settings) -> None:
    many = [
        made_up(FULL, {0: 0.9, 1: 0.9, 2: 0.9}),
        made_up(shorter(5), {0: 0.8, 1: 0.8, 2: 0.8}),
        made_up(MEAN, {0: 0.87, 1: 0.88, 2: 0.89}, num_trained=750),
    ]
    before, after = the_frontier(*many), the_frontier(*many, made_up(stray, {0: 0.99}))
    for row in before.rows():
        (same,) = [other for other in after.rows() if other.point == row.point]
        assert {**same.as_dict(), "method": row.name} == row.as_dict()


def test_a_batch_that_lacks_a_seed_of_many_may_still_make_the_line() -> None:
    """As in a sweep that is not finished: it runs seed by seed, and the usual batch first."""
    frontier = the_frontier(
        made_up(FULL, dict.fromkeys(range(4), 0.9)),
        made_up(shorter(5), dict.fromkeys(range(4), 0.80)),
        made_up(shorter(5, 16), dict.fromkeys(range(3), 0.86)),
        made_up(MEAN, {0: 0.839, 1: 0.84, 2: 0.841, 3: 0.84}, num_trained=500),
    )
    assert [point.batch_size for point in frontier.line] == [16, 32]
    assert the_row(frontier, "mean").place == "below"


def test_less_may_be_better() -> None:
    loss = asdict(Metric("test_loss", higher_is_better=False))

    def runs(cell: Settings, *losses: float, **numbers: Any) -> list[Run]:
        return [
            run
            for seed, value in enumerate(losses)
            for run in made_up(cell, {seed: 0.0}, metric=loss, test_loss=value, **numbers)
        ]

    frontier = the_frontier(
        runs(FULL, 1.0, 1.1),
        runs(shorter(5), 2.0, 2.1),
        runs(shorter(5, 16), 1.8, 1.9),
        runs(MEAN, 1.2, 1.31, num_trained=500),
    )
    assert [point.batch_size for point in frontier.line] == [16, 32]
    row = the_row(frontier, "mean")
    assert row.to_line is not None
    assert row.to_line.mean == pytest.approx(-0.595)
    assert row.place == "above"


@pytest.mark.parametrize("options", [("--lengths", "1"), ("--epochs", "1")])
def test_lengths_that_give_no_line_are_refused_before_training(
    tmp_path: Path, options: tuple[str, str]
) -> None:
    result = CliRunner().invoke(app, ["frontier", *options, "--out", str(tmp_path / "f")])
    assert "expected at least two that differ in whole epochs" in str(result.exception)
    assert not (tmp_path / "f").exists()


def test_a_method_that_the_line_does_not_reach_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full, half = made_up(FULL, {0: 0.9, 1: 0.9}), made_up(shorter(5), {0: 0.8, 1: 0.8})
    show_frontiers([the_frontier(full, half, made_up(MEAN, {0: 0.9, 1: 0.9}, num_trained=499))])
    assert "mean trained fewer samples than the shortest full training" in capsys.readouterr().out
    uneven = [*made_up(MEAN, {0: 0.9}, num_trained=499), *made_up(MEAN, {1: 0.9}, num_trained=510)]
    show_frontiers([the_frontier(full, half, uneven)])
    assert "mean trained fewer samples" in capsys.readouterr().out
    show_frontiers([the_frontier(full, half, made_up(MEAN, {0: 0.9, 1: 0.9}, num_trained=500))])
    assert "fewer samples" not in capsys.readouterr().out


# What belongs together ----------------------------------------------------------------------------


def test_modes_rates_and_lengths_are_points_of_their_own() -> None:
    cells = [
        FULL, shorter(5), shorter(5, 16), MEAN, replace(MEAN, shrink="batch"),
        replace(MEAN, prune_ratio=0.7), replace(MEAN, lr=0.2), replace(MEAN, epochs=8),
    ]  # fmt: skip
    frontier = the_frontier(*(made_up(cell, {0: 0.9}) for cell in cells))
    assert [(row.name, row.point.lr) for row in frontier.rows()] == [
        ("full", 0.1),
        ("full, 5 epochs", 0.1),
        ("full, 5 epochs, batch 16", 0.1),
        ("mean, learning rate 0.1", 0.1),
        ("mean, learning rate 0.2", 0.2),
        ("mean, 8 epochs", 0.1),
        ("mean, smaller batches", 0.1),
        ("mean, r = 0.7, δ = 0.875", 0.1),
    ]


def test_other_settings_and_other_files_do_not_meet() -> None:
    assert find_frontiers(made_up(FULL, {0: 0.9})) == []
    other_network = replace(shorter(5), model="resnet8")
    assert find_frontiers(made_up(FULL, {0: 0.9}) + made_up(other_network, {0: 0.8})) == []
    elsewhere = run_of(line_of(shorter(5)), "other/runs.jsonl:1")
    assert find_frontiers([*made_up(FULL, {0: 0.9}), elsewhere]) == []
    matched = replace(shorter(5), match_forwards="mean")
    assert find_frontiers(made_up(FULL, {0: 0.9}) + made_up(matched, {0: 0.8})) == []


# Where it is shown --------------------------------------------------------------------------------


def a_file(folder: Path) -> Path:
    """The line at two lengths, one rule with full training's rate and one with its own."""
    own_rate = settings("digits", rule="tiers", epochs=10, batch_size=32, lr=0.2)
    found = [
        line_of(replace(cell, seed=seed), accuracy=value + 0.001 * seed * number, **numbers)
        for number, (cell, value, numbers) in enumerate(
            [
                (FULL, 0.95, {}),
                (shorter(5), 0.85, {}),
                (shorter(5, 16), 0.90, {}),
                (MEAN, 0.94, {"num_trained": 700}),
                (own_rate, 0.80, {"num_trained": 600}),
            ]
        )
        for seed in range(3)
    ]
    trial = line_of(replace(FULL, data="digits-validation"))
    save(folder / "trials.jsonl", trial)
    return save(folder / "runs.jsonl", *found)


@pytest.mark.slow
def test_the_page_and_the_tables_say_the_same(tmp_path: Path) -> None:
    a_file(tmp_path)
    page = write([tmp_path], tmp_path / "page").read_text()
    (from_script,) = frontier_results([tmp_path])
    assert [row["place"] for row in from_script["methods"]] == [None] * 3 + ["above", "below"]
    for word in ("digits · tiny · sgd · frontier", "above", "below", "on the line"):
        assert word in page
    assert (tmp_path / "page" / "1-frontier-digits-tiny-sgd-frontier.png").stat().st_size
    # The comparison at full length stays; what compares nothing by itself is left out.
    (comparison,) = results([tmp_path])
    assert [row["method"] for row in comparison["methods"]] == ["full", "mean"]
    assert "validation" not in page
    assert "15 runs in 1 comparison and 1 frontier" in page
    root = Path(__file__).parents[2]
    tables = [sys.executable, str(root / "results" / "tables.py"), str(tmp_path)]
    done = subprocess.run(tables, capture_output=True, text=True, check=True, env=environment())
    (tiers,) = [line for line in done.stdout.splitlines() if line.startswith("| `tiers` |")]
    row = from_script["methods"][-1]
    texts = [f"{100 * value:+.2f}" for value in (row["difference_to_line"], row["difference"])]
    assert all(text in tiers for text in (*texts, "| 0.2 |", "| below |", "| worse |"))
    minus = [text.replace("-", "\N{MINUS SIGN}") for text in texts]
    assert all(text in page for text in minus)


def test_a_page_may_have_nothing_but_a_frontier(tmp_path: Path) -> None:
    rates = [replace(MEAN, lr=0.2), replace(shorter(5), lr=0.05), FULL]
    file = save(tmp_path / "runs.jsonl", *map(line_of, rates))
    page = write([file], tmp_path / "page").read_text()
    assert results([file]) == []
    assert "3 runs in 1 frontier. " in page
    assert "loses less than 0.5 points of accuracy with" in page


def test_a_finished_frontier_is_shown_without_training(tmp_path: Path) -> None:
    command = [
        "frontier",
        "--epochs",
        "10",
        "--lengths",
        "1,0.5",
        "--rules",
        "mean",
        "--seeds",
        "1",
    ]
    cells = frontier_grid("digits", [1, 0.5], ["mean"], seeds=[0], epochs=10)
    save(tmp_path / "runs.jsonl", *(line_of(cell) for cell in cells))
    shown = CliRunner().invoke(app, [*command, "--out", str(tmp_path)]).output
    assert "frontier, learning rate 0.1" in shown
    as_json = CliRunner().invoke(app, [*command, "--out", str(tmp_path), "--json"]).output
    (found,) = json.loads(as_json)
    assert [row["method"] for row in found["methods"]] == [
        "full", "full, 5 epochs", "full, 5 epochs, batch 16", "mean", "mean, smaller batches",
    ]  # fmt: skip
