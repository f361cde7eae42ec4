"""The frontier: its runs, its line, and what is above it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infobatch_lab.sweep import frontier_grid
from tests.lab.files import infobatch, started, until

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
