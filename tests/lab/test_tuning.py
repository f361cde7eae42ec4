from __future__ import annotations

from dataclasses import replace

import pytest

from infobatch_lab.errors import UserError
from infobatch_lab.lines import Run, run_of
from infobatch_lab.settings import Settings
from infobatch_lab.sweep import frontier_grid, grid
from infobatch_lab.tuning import trials, tuned
from tests.lab.lines import line_of

CELLS = grid("digits", seeds=range(3), rule=["full", "mean"])


def tried(cell: Settings, accuracy: float) -> Run:
    return run_of(line_of(cell, accuracy=accuracy))


def test_each_method_is_tried_alike_with_one_seed_and_held_out_images() -> None:
    cells = frontier_grid("digits", [1, 0.5], ["mean", "tiers"], seeds=range(3))
    found = trials(cells)
    assert {(cell.data, cell.seed) for cell in found} == {("digits-validation", 0)}
    methods = {replace(cell, seed=0) for cell in cells}
    assert len(set(found)) == len(found) == 3 * len(methods)
    for method in methods:
        rates = [t.lr for t in found if replace(t, data="digits", lr=method.lr) == method]
        assert sorted(rates) == [0.05, 0.1, 0.2]


def test_every_seed_of_a_method_gets_its_best_rate() -> None:
    best = {"full": 0.2, "mean": 0.05}
    results = [tried(t, 0.95 if t.lr == best[t.rule] else 0.9) for t in trials(CELLS)]
    found = tuned(CELLS, results)
    assert [replace(cell, lr=0.1) for cell in found] == CELLS
    assert {(cell.rule, cell.lr) for cell in found} == set(best.items())


def test_of_equally_good_rates_the_given_one_stays() -> None:
    assert tuned(CELLS, [tried(t, 0.9) for t in trials(CELLS)]) == CELLS


def test_a_data_set_without_a_validation_split_is_refused() -> None:
    known = "digits, fashion-mnist or cifar10-small"
    with pytest.raises(UserError, match=f"data is 'cifar10', expected {known}"):
        trials(grid("cifar10", seeds=[0], rule="mean"))
