"""results/step_times.py: what runs would take on a quiet machine, from steps that were timed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from infobatch_lab.lines import Run, run_of
from infobatch_lab.settings import settings
from tests.lab.lines import line_of

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "results" / "step_times.py"))

TIMES = {10: 13.0, 6: 9.0}
"""A step takes 3 seconds, and one more for each sample."""


def run_with(batches: list[list[int]], pruning_seconds: float = 0.0, **chosen: Any) -> Run:
    """A run that trained batches of these sizes in these epochs, of 10 full batches each."""
    sizes = [size for epoch in batches for size in epoch]
    return run_of(
        line_of(
            settings("digits", epochs=10, batch_size=10, **chosen),
            num_samples=100,
            num_steps=len(sizes),
            num_trained=sum(sizes),
            pruning_seconds=pruning_seconds,
            train_seconds=2.0,
            history=[{"kept_fraction": sum(epoch) / 100} for epoch in batches],
        )
    )


def seconds(run: list[list[int]]) -> float:
    return sum(3.0 + size for epoch in run for size in epoch)


FULL = [[10] * 10] * 10
SHORTER = [[10] * 10] * 4 + [[10] * 6] * 6
SMALLER = [[10] * 10] * 4 + [[6] * 10] * 6
# 60 steps are more than six epochs here: eight, of which pruned ones are shorter.
IN_60_STEPS = [[10] * 10] * 3 + [[10] * 6 + [4]] * 4 + [[10, 4]]


def test_each_way_to_train_has_a_row_of_its_own() -> None:
    runs = [
        run_with(FULL, rule="full"),
        run_with(SHORTER, rule="tiers"),
        run_with(SMALLER, rule="tiers", shrink="batch"),
        run_with(IN_60_STEPS, rule="tiers", budget=0.6),
    ]
    rows = [row.split(" | ") for row in SCRIPT["rows_of_runs"]("digits", runs, TIMES)]
    assert all(data == "| `digits`" for data, *_ in rows)
    found = {name: (samples, time.removesuffix(" |")) for _, name, samples, time in rows}
    (budget,) = [name for name in found if "60% of the steps" in name]
    (smaller,) = [name for name in found if "smaller batches" in name]
    trained = {"`tiers`": SHORTER, smaller: SMALLER, budget: IN_60_STEPS}
    assert found == {
        name: (
            f"{1 - sum(map(sum, run)) / 1000:.1%}",
            f"{1 - seconds(run) / seconds(FULL):.1%}",
        )
        for name, run in trained.items()
    }


def test_planning_and_update_take_time() -> None:
    runs = [run_with(FULL, rule="full"), run_with(SHORTER, 0.5, rule="mean")]
    (row,) = SCRIPT["rows_of_runs"]("digits", runs, TIMES)
    # A quarter of its training time was planning, so the steps were the other three.
    assert row.endswith(f"| {1 - seconds(SHORTER) / 0.75 / seconds(FULL):.1%} |")


def test_a_run_that_does_not_say_its_steps_is_refused() -> None:
    full = run_of(line_of(settings("digits", rule="full")))
    pruned = run_of(line_of(settings("digits", rule="mean")))
    with pytest.raises(ValueError, match="does not say its num_steps"):
        SCRIPT["rows_of_runs"]("digits", [full, pruned], TIMES)
