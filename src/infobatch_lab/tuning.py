"""The learning rate of each method: the best of three on images held out of the training data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from infobatch_lab import tasks
from infobatch_lab.errors import UserError
from infobatch_lab.lines import Run
from infobatch_lab.options import in_words
from infobatch_lab.settings import Settings

FACTORS = (1.0, 0.5, 2.0)
"""Times the learning rate of the settings; of equally good ones the first is taken."""

VALIDATION = "-validation"
"""The end of the name of a data set with training images held out."""

SEED = 0


def trials(cells: Iterable[Settings]) -> list[Settings]:
    """The runs that choose the learning rates: three for each method, with one seed."""
    methods = dict.fromkeys(map(_as_trial, cells))
    return [replace(method, lr=factor * method.lr) for method in methods for factor in FACTORS]


def tuned(cells: Sequence[Settings], finished: Iterable[Run]) -> list[Settings]:
    """The same cells, each with the best learning rate of its method's trials."""
    value_of = {run.settings: run.metric.sign * run.value for run in finished}

    def best(cell: Settings) -> float:
        rates = [factor * cell.lr for factor in FACTORS]
        return max(rates, key=lambda lr: value_of[replace(_as_trial(cell), lr=lr)])

    return [replace(cell, lr=best(cell)) for cell in cells]


def _as_trial(cell: Settings) -> Settings:
    data = cell.data + VALIDATION
    if data not in tasks.RECIPES:
        known = [n.removesuffix(VALIDATION) for n in tasks.RECIPES if n.endswith(VALIDATION)]
        raise UserError(
            f"data is {cell.data!r}, expected {in_words(known)} for tune-lr: leave tune-lr out."
        )
    return replace(cell, data=data, seed=SEED)
