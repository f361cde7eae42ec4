from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from infobatch_lab.cli import app
from infobatch_lab.lines import Run, run_of
from infobatch_lab.runs import read_file
from infobatch_lab.settings import Settings, settings
from infobatch_lab.sweep import Pending, grid, match_of
from tests.lab.files import started, until
from tests.lab.lines import line_of

SMALL = ("compare", "--epochs", "2", "--seeds", "2", "--rules", "full,mean")


def run_with(chosen: Settings, **results: Any) -> Run:
    """A run that was not run."""
    return run_of(line_of(chosen, **results))


# The grid -----------------------------------------------------------------------------------------


def test_a_grid_has_each_cell_once_and_seeds_outermost() -> None:
    cells = grid(
        "digits",
        seeds=range(2),
        rule=["full", "mean", "tiers"],
        prune_ratio=[0.3, 0.5],
        delta=[0.5, 1.0],
        optimizer=["sgd", "adamw"],
    )
    assert len(set(cells)) == len(cells)
    # Per seed and optimizer: full once, mean 2 ratios x 2 deltas, tiers 2 deltas.
    assert Counter(cell.rule for cell in cells) == {"full": 4, "mean": 16, "tiers": 8}
    assert [cell.seed for cell in cells] == [0] * 14 + [1] * 14
    assert {(cell.optimizer, cell.lr) for cell in cells} == {("sgd", 0.1), ("adamw", 0.01)}
    (with_rate,) = grid("digits", seeds=[0], rule="mean", optimizer="adamw", lr=0.3)
    assert with_rate.lr == 0.3


def left(cells: list[Settings], *finished: Run, matching: Sequence[str] = ()) -> list[Settings]:
    return list(Pending(cells, matching, finished))


def test_what_is_finished_is_not_pending() -> None:
    cells = grid("digits", seeds=range(2), rule=["full", "mean"])
    done = json.loads(json.dumps(line_of(cells[1])))
    assert left(cells, run_of(done)) == [cells[0], cells[2], cells[3]]
    for change in ({"epochs": 3}, {"lr": 0.2}, {"prune_ratio": 0.4}, {"amp": True}):
        assert cells[1] in left(cells, run_of({**done, **change}))
    incomplete = {**done, "format": 1, "label_smoothing": 0.0, "mixup": 0.0}
    assert left(cells, run_of(incomplete)) == cells
    assert left(cells, run_of({**incomplete, "cutmix": 0.0})) != cells
    assert left(cells, run_of({**done, "rule": "a rule of another version"})) == cells


def test_a_run_has_one_name_however_it_is_asked_for() -> None:
    mean = settings("digits", rule="mean")
    assert left([mean], run_with(replace(mean, prune_ratio=0.5))) == []
    cells = grid("digits", seeds=[0], rule=["mean", "tiers"], prune_ratio=[None, 0.5, 0.3])
    assert [(cell.rule, cell.prune_ratio, cell.ratio) for cell in cells] == [
        ("mean", None, 0.5), ("mean", 0.3, 0.3), ("tiers", None, None),
    ]  # fmt: skip


def test_matched_runs_have_the_forward_passes_of_their_rule() -> None:
    mean = settings("digits", rule="mean", seed=3, epochs=10)
    cut = match_of(run_with(mean, num_trained=660))
    assert cut is not None
    assert (cut.rule, cut.epochs, cut.seed, cut.match_forwards) == ("full", 7, 3, "mean")
    assert match_of(run_with(replace(mean, rule="full"))) is None
    shortest = match_of(run_with(mean, num_trained=10))
    assert shortest is not None
    assert shortest.epochs == 1


@pytest.mark.parametrize("num_finished", [0, 2])
def test_all_methods_of_a_seed_come_before_the_next_seed(num_finished: int) -> None:
    """The full training matched to a run, too, which is known only when that run is done."""
    cells = grid("digits", seeds=range(2), rule=["full", "mean", "tiers"], epochs=10)
    finished = [run_with(cell, num_trained=540) for cell in cells[:num_finished]]
    pending = Pending(cells, ["mean"], finished)
    order = []
    while (cell := pending.take()) is not None:
        order.append(cell)
        pending.finish(cell, run_with(cell, num_trained=660 if cell.seed else 540))
    assert [cell.seed for cell in order] == [0] * (4 - num_finished) + [1] * 4
    assert len(set(order)) == len(order)
    matched = {cell.seed: cell.epochs for cell in pending.wanted if cell.match_forwards}
    assert matched == {0: 5, 1: 7}
    assert len(pending.finished) == len(pending.wanted) == 8


# The command --------------------------------------------------------------------------------------


def lines_of(folder: Path, name: str = "runs") -> list[dict[str, Any]]:
    """The lines of the runs that can be read."""
    file = folder / name / "runs.jsonl"
    lines = file.read_text().split("\n") if file.exists() else []
    return [json.loads(lines[int(run.place.rsplit(":", 1)[1]) - 1]) for run in read_file(file)]


def test_finished_cells_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = [*SMALL, "--match-forwards", "mean", "--json"]
    first = CliRunner().invoke(app, options)
    assert first.exit_code == 0, first.stderr
    runs = lines_of(tmp_path)
    assert [(run["rule"], run["seed"], run["match_forwards"]) for run in runs] == [
        ("full", 0, None), ("mean", 0, None), ("full", 0, "mean"),
        ("full", 1, None), ("mean", 1, None), ("full", 1, "mean"),
    ]  # fmt: skip
    again = CliRunner().invoke(app, options)
    assert again.stdout == first.stdout
    assert lines_of(tmp_path) == runs
    rows = json.loads(first.stdout)
    assert [(row["rule"], row["num_runs"]) for row in rows] == [
        ("full", 2),
        ("full", 2),
        ("mean", 2),
    ]

    # A killed writer, and a run of another version.
    file = tmp_path / "runs" / "runs.jsonl"
    kept = file.read_text().splitlines()
    kept[1] = json.dumps({**runs[1], "format": 0})
    file.write_text("\n".join(kept)[:-30])
    repaired = CliRunner().invoke(app, options)
    assert repaired.exit_code == 0
    assert "runs.jsonl:2 is left out: format is 0, expected 1 or 2." in repaired.stderr
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
        assert "repeat the command to continue" in errors
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
    assert histories(runs) == histories(lines_of(tmp_path, "unbroken"))


def test_a_checkpoint_that_cannot_be_used_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = grid("digits", seeds=range(2), rule=["full", "mean"], epochs=2)
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
