from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from infobatch_lab.cli import app
from infobatch_lab.compare import grid, matched, pending
from infobatch_lab.display import NONE, show
from infobatch_lab.report.comparisons import compare as report_of
from infobatch_lab.report.runs import read as read_for_report
from infobatch_lab.runs import append, prepare, read
from infobatch_lab.settings import Settings, settings, settings_of
from infobatch_lab.summary import summary
from tests.lab.files import started, until

SMALL = ("compare", "--epochs", "2", "--seeds", "2", "--rules", "full,mean")


def run_of(chosen: Settings, **results: Any) -> dict[str, Any]:
    """The line of a run that was not run."""
    numbers = {"accuracy": 0.9, "train_seconds": 2.0, "pruning_seconds": 0.1}
    counts = {"num_samples": 100, "num_test": 100, "num_trained": 100 * chosen.epochs}
    return {"format": 1, **asdict(chosen), **counts, **numbers, **results}


# The grid -----------------------------------------------------------------------------------------


def test_a_grid_has_each_cell_once_and_seeds_outermost() -> None:
    cells = grid(
        settings("digits"),
        rules=["full", "mean", "tiers"],
        seeds=range(2),
        prune_ratios=[0.3, 0.5],
        deltas=[0.5, 1.0],
        optimizers=[("sgd", 0.1), ("adamw", 0.005)],
    )
    assert len(set(cells)) == len(cells)
    # Per seed and optimizer: full once, mean 2 ratios x 2 deltas, tiers 2 deltas.
    assert Counter(cell.rule for cell in cells) == {"full": 4, "mean": 16, "tiers": 8}
    assert [cell.seed for cell in cells] == [0] * 14 + [1] * 14
    assert {(cell.optimizer, cell.lr) for cell in cells} == {("sgd", 0.1), ("adamw", 0.005)}


def test_what_is_finished_is_not_pending() -> None:
    cells = grid(settings("digits"), rules=["full", "mean"], seeds=range(2))
    done = [json.loads(json.dumps(run_of(cells[1])))]
    assert pending(cells, done) == [cells[0], cells[2], cells[3]]
    for change in ({"epochs": 3}, {"lr": 0.2}, {"prune_ratio": 0.4}, {"amp": True}):
        assert cells[1] in pending(cells, [{**done[0], **change}])
    older = {name: value for name, value in done[0].items() if name != "cutmix"}
    assert pending(cells, [older]) == cells
    assert pending(cells, [{**done[0], "rule": "a rule of another version"}]) == cells


def test_a_run_has_one_name_however_it_is_asked_for() -> None:
    mean, full = settings("digits", rule="mean"), settings("digits", rule="full")
    assert settings("digits", rule="mean", prune_ratio=0.5) == mean
    assert settings("digits", rule="full", delta=1) == full
    assert settings("digits", rule="mean", delta=1) != mean
    assert pending([mean], [run_of(replace(mean, prune_ratio=0.5))]) == []
    cells = grid(mean, rules=["mean", "tiers"], seeds=[0], prune_ratios=[None, 0.5, 0.3])
    assert [(cell.rule, cell.prune_ratio, cell.ratio) for cell in cells] == [
        ("mean", None, 0.5), ("mean", 0.3, 0.3), ("tiers", None, None),
    ]  # fmt: skip


def test_matched_runs_have_the_forward_passes_of_their_rule() -> None:
    mean = settings("digits", rule="mean", seed=3, epochs=10)
    runs = [
        run_of(mean, num_trained=660),
        run_of(replace(mean, rule="full")),
        run_of(replace(mean, rule="tiers"), num_trained=580),
    ]
    (cut,) = matched(runs, "mean")
    assert (cut.rule, cut.epochs, cut.seed, cut.match_forwards) == ("full", 7, 3, "mean")
    assert matched([*runs, run_of(cut)], "mean") == [cut]
    assert matched([run_of(mean, num_trained=10)], "mean")[0].epochs == 1


# The file -----------------------------------------------------------------------------------------


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "new" / "runs.jsonl"
    prepare(file)
    runs = [run_of(settings("digits", seed=seed)) for seed in range(3)]
    for run in runs:
        append(file, run)
    notes: list[str] = []
    assert read(file, notes.append) == runs
    assert notes == []
    assert settings_of(runs[1]) == settings("digits", seed=1)


def test_half_a_line_older_formats_and_strange_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    whole = run_of(settings("digits"))
    lines = [
        json.dumps({**whole, "format": 0}),
        json.dumps({"rule": "mean"}),
        "[1, 2]",
        "",
        "\x00\xff",
        json.dumps({**whole, "lr": [0.1]}),
        json.dumps({name: value for name, value in whole.items() if name != "num_trained"}),
        json.dumps(whole),
        json.dumps(whole)[:50],
    ]
    file.write_bytes("\n".join(lines).encode("latin-1"))
    notes: list[str] = []
    assert read(file, notes.append) == [whole]
    assert len(notes) == 7
    assert f"{file}:1 is left out: format is 0, expected 1." in notes
    append(file, whole)
    assert read(file, notes.append) == [whole, whole]
    untimed = {name: value for name, value in whole.items() if "seconds" not in name}
    assert summary([untimed])[0].time_saved is None
    assert read(tmp_path / "none.jsonl", notes.append) == []


# The table ----------------------------------------------------------------------------------------


def test_the_summary_compares_with_full_training_of_the_same_seeds() -> None:
    mean = settings("digits", rule="mean", epochs=10)
    runs = [
        run_of(replace(mean, rule="full"), accuracy=0.98, train_seconds=10.0),
        run_of(replace(mean, rule="full", seed=1), accuracy=1.0, train_seconds=20.0),
        run_of(mean, accuracy=0.97, train_seconds=7.0, pruning_seconds=0.7, num_trained=700),
        run_of(replace(mean, seed=2), train_seconds=70.0, pruning_seconds=7.0, num_trained=500),
    ]
    full, pruned = summary(runs)
    assert (full.accuracy, full.num_runs, full.time_saved) == (0.99, 2, 0)
    assert full.spread == pytest.approx(0.01 * 2**0.5)
    assert pruned.time_saved == pytest.approx(0.3)  # seed 2 has no full training to compare with
    assert pruned.samples_saved == pytest.approx(0.4)
    assert full.overhead is None
    assert pruned.overhead == pytest.approx(0.1)
    assert json.dumps([row.as_dict() for row in (full, pruned)])


def test_times_of_other_machines_and_numbers_of_threads_are_not_compared() -> None:
    mean = settings("digits", rule="mean", epochs=10)
    runs = [
        run_of(replace(mean, rule="full"), machine={"threads": 2}, train_seconds=10.0),
        run_of(mean, machine={"threads": 1}, train_seconds=7.0),
    ]
    assert [row.time_saved for row in summary(runs)] == [0, None]


def a_comparison() -> list[dict[str, Any]]:
    """Two ratios, and full training matched to each, which for one seed is the same run."""
    mean = settings("digits", rule="mean", epochs=10)
    runs = [run_of(replace(mean, rule="full", seed=seed), train_seconds=10.0) for seed in (0, 1)]
    for seed, ratio, num_trained in ((0, 0.5, 660), (0, 0.3, 740), (1, 0.5, 640), (1, 0.3, 780)):
        cell = replace(mean, seed=seed, prune_ratio=ratio)
        runs.append(run_of(cell, num_trained=num_trained, train_seconds=num_trained / 100))
    runs += [run_of(cell, train_seconds=cell.epochs) for cell in matched(runs, "mean")]
    return runs


def test_matched_runs_save_against_full_training_of_full_length() -> None:
    rows = [row for row in summary(a_comparison()) if row.settings.match_forwards]
    assert [(row.settings.ratio, row.num_runs) for row in rows] == [(0.5, 2), (0.3, 2)]
    # Seed 0 is cut to 7 epochs of 10 for both; seed 1 to 6 and to 8.
    assert [row.samples_saved for row in rows] == pytest.approx([0.35, 0.25])
    assert [row.time_saved for row in rows] == pytest.approx([0.35, 0.25])
    assert [row.overhead for row in rows] == [None, None]
    assert all(row.settings.label == "full † (mean)" for row in rows)


def test_the_summary_and_the_report_say_the_same(tmp_path: Path) -> None:
    # Seeds that only one of two methods has, on a machine that became slower, tell nothing.
    full = settings("digits", rule="full", seed=2, epochs=10)
    runs = [*a_comparison(), {**run_of(full, train_seconds=100.0), "num_test": 100}]
    for run in runs:
        append(tmp_path / "runs.jsonl", run)
    (comparison,), _ = report_of(read_for_report([tmp_path / "runs.jsonl"])[0])
    reported = {
        (method.match_forwards, method.rule, method.prune_ratio): (
            comparison.samples_saved(method),
            saved[1] / saved[0] if (saved := comparison.seconds_saved(method)) else None,
        )
        for method in comparison.methods
    }
    rows = summary(runs)
    assert len(rows) == len(reported) == 5
    for row in rows:
        key = row.settings.match_forwards, row.settings.rule, row.settings.ratio
        assert (row.samples_saved, row.time_saved) == pytest.approx(reported[key])


def test_the_table_shows_no_overhead_where_nothing_is_pruned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(summary(a_comparison()), "digits")
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("full", "mean"))]
    # Of the columns the last three are time saved, overhead and runs.
    assert [row[-2] for row in rows] == [NONE, "1.54%", "1.32%", NONE, NONE]
    assert [row[-3] for row in rows] == ["0.0%", "35.0%", "24.0%", "35.0%", "25.0%"]


def test_the_table_tells_optimizers_apart(capsys: pytest.CaptureFixture[str]) -> None:
    cells = grid(
        settings("digits"), rules=["full"], seeds=[0], optimizers=[("sgd", 0.1), ("adamw", 0.01)]
    )
    show(summary(run_of(cell) for cell in cells), "digits")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[-2:]] == [["full", "sgd"], ["full", "adamw"]]


# The command --------------------------------------------------------------------------------------


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return read(folder / "runs" / "runs.jsonl", lambda note: None)


def test_finished_cells_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = [*SMALL, "--match-forwards", "mean", "--json"]
    first = CliRunner().invoke(app, options)
    assert first.exit_code == 0, first.stderr
    runs = lines_of(tmp_path)
    assert [(run["rule"], run["seed"]) for run in runs[:4]] == [
        ("full", 0), ("mean", 0), ("full", 1), ("mean", 1),
    ]  # fmt: skip
    assert [run["match_forwards"] for run in runs] == [None] * 4 + ["mean"] * 2
    again = CliRunner().invoke(app, options)
    assert again.stdout == first.stdout
    assert lines_of(tmp_path) == runs
    rows = json.loads(first.stdout)
    assert [(row["rule"], row["num_runs"]) for row in rows] == [
        ("full", 2),
        ("mean", 2),
        ("full", 2),
    ]

    # A killed writer, and a run of another version.
    file = tmp_path / "runs" / "runs.jsonl"
    kept = file.read_text().splitlines()
    kept[1] = json.dumps({**runs[1], "format": 0})
    file.write_text("\n".join(kept)[:-30])
    repaired = CliRunner().invoke(app, options)
    assert repaired.exit_code == 0
    assert "runs.jsonl:2 is left out: format is 0, expected 1." in repaired.stderr
    assert "runs.jsonl:6 is left out: it is no complete JSON" in repaired.stderr
    assert len(lines_of(tmp_path)) == 4 + 2
    for name in ("history", "accuracy", "num_trained"):
        assert lines_of(tmp_path)[4][name] == runs[1][name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_jobs_that_are_stopped_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["compare", "--epochs", "4", "--seeds", "2", "--rules", "full,mean"]
    options += ["--checkpoint-every", "1"]
    with started(*options, "--jobs", 2) as process:
        until(lambda: list(tmp_path.glob("runs/checkpoints/*.pt")), process)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            os.kill(process.pid, number)
        _, errors = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -9), errors
    if number == signal.SIGINT:
        assert "the same command goes on" in errors
        assert "Traceback" not in errors
    before = lines_of(tmp_path)
    assert len(before) < 4
    assert CliRunner().invoke(app, options).exit_code == 0
    runs = lines_of(tmp_path)
    assert Counter((run["rule"], run["seed"]) for run in runs) == {
        (rule, seed): 1 for rule in ("full", "mean") for seed in (0, 1)
    }
    assert runs[: len(before)] == before
    assert CliRunner().invoke(app, [*options, "--out", "unbroken"]).exit_code == 0
    unbroken = read(tmp_path / "unbroken" / "runs.jsonl", lambda note: None)
    assert histories(runs) == histories(unbroken)


def test_a_checkpoint_that_cannot_be_used_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = settings("digits", epochs=2)
    cells = grid(base, rules=["full", "mean"], seeds=range(2))
    checkpoints = Path("runs/checkpoints")
    checkpoints.mkdir(parents=True)
    (checkpoints / f"{cells[0].name}.pt").write_bytes(b"")
    torch.save(["not", "a", "state"], checkpoints / f"{cells[1].name}.pt")
    for jobs in (1, 2):
        result = CliRunner().invoke(app, [*SMALL, "--jobs", str(jobs), "--out", "runs"])
        assert result.exit_code == 0, result.stderr
        assert len(lines_of(tmp_path)) == 4
        assert result.stderr.count("and the run starts anew.") == (2 if jobs == 1 else 0)
    left = sorted(path.name for path in checkpoints.iterdir())
    assert left == sorted(f"{cell.name}.unusable" for cell in cells[:2])

    Path("runs/runs.jsonl").unlink()
    (checkpoints / f"{cells[3].name}.pt").write_bytes(b"damaged")
    result = CliRunner().invoke(app, [*SMALL, "--jobs", "2"])
    assert result.exit_code == 0, result.stderr
    assert len(lines_of(tmp_path)) == 4
    assert f"{cells[3].name}.pt cannot be resumed" in result.stderr


def histories(runs: list[dict[str, Any]]) -> dict[tuple[str, int], Any]:
    return {(run["rule"], run["seed"]): run["history"] for run in runs}


def test_a_job_that_dies_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["compare", "--epochs", "400", "--seeds", "1", "--rules", "full,mean"]
    with started(*options, "--jobs", 2, "--checkpoint-every", 1) as process:
        until(lambda: len(list(tmp_path.glob("runs/checkpoints/*.pt"))) == 2, process)
        os.kill(a_worker_of(process), signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "died (exit code -9): run the same command again" in errors
    assert "Traceback" not in errors


def a_worker_of(process: subprocess.Popen[str]) -> int:
    listing = ["ps", "ww", "--ppid", str(process.pid), "-o", "pid=,args="]
    lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(int(line.split()[0]) for line in lines if "spawn_main" in line)
