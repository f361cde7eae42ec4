"""Which runs a comparison has: a grid of settings, seed by seed, and never one twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from infobatch_lab import rules
from infobatch_lab.lines import Run
from infobatch_lab.rules import DELTA
from infobatch_lab.settings import SHRINK, Settings, settings

SWEPT = ("optimizer", "select", "keep", "rule", "prune_ratio", "delta", "shrink", "budget")
"""The settings that a comparison may vary; the last one changes fastest."""


def grid(data: str, *, seeds: Iterable[int], **given: Any) -> list[Settings]:
    """All cells, without doubles: a rule without a ratio, or full training, has fewer.

    Those of `SWEPT` may be lists. Seeds change last, so that methods take turns: a machine that
    slows down favours none, and a sweep that is cut short has whole seeds. Where samples are
    chosen, full training on all of them comes first, to compare with.

    >>> cells = grid("digits", seeds=[0], rule=["full", "mean"], prune_ratio=[0.3, 0.5])
    >>> [(cell.rule, cell.ratio) for cell in cells]
    [('full', None), ('mean', 0.3), ('mean', 0.5)]
    """
    values = [v if isinstance(v := given.pop(name, None), list) else [v] for name in SWEPT]
    cells: dict[Settings, None] = {}
    for seed, *combination in product(seeds, *values):
        chosen = dict(zip(SWEPT, combination, strict=True))
        rule = chosen["rule"]
        if rule in rules.KNOWN and rules.default_ratio(rule) is None:
            chosen["prune_ratio"] = None
        cell = settings(data, seed=seed, **chosen, **given)
        if cell.has_subset:
            cells[as_full(cell)] = None
        cells[cell] = None
    return list(cells)


def frontier_grid(
    data: str, lengths: Sequence[float], rules: Sequence[str], *, seeds: Iterable[int], **given: Any
) -> list[Settings]:
    """Full training at parts of the epochs, and rules in both modes, seed by seed.

    A shorter run of full training has its own whole schedule. It is there twice: with the usual
    batch, and with one smaller in the same proportion, which keeps the number of steps.

    >>> cells = frontier_grid("digits", [1, 0.5], ["mean"], seeds=[0], batch_size=32)
    >>> [(cell.rule, cell.epochs, cell.batch_size, cell.shrink) for cell in cells]
    [('full', 40, 32, 'epoch'), ('full', 20, 32, 'epoch'), ('full', 20, 16, 'epoch'),
     ('mean', 40, 32, 'epoch'), ('mean', 40, 32, 'batch')]
    """
    cells: dict[Settings, None] = {}
    for seed in seeds:
        whole = settings(data, seed=seed, rule="full", **given)
        for length in lengths:
            epochs = max(1, round(length * whole.epochs))
            batch_size = max(1, round(whole.batch_size * epochs / whole.epochs))
            cells[replace(whole, epochs=epochs)] = None
            cells[replace(whole, epochs=epochs, batch_size=batch_size)] = None
        for rule, shrink in product(rules, SHRINK):
            cells[settings(data, seed=seed, rule=rule, shrink=shrink, **given)] = None
    return list(cells)


def match_of(run: Run) -> Settings | None:
    """Full training with as many forward passes as a run made (Table 12); None for a run of full
    training, or of settings that are not known.
    """
    cell = run.settings
    if cell is None or cell.rule == "full":
        return None
    return replace(as_full(cell), epochs=run.matched_epochs, match_forwards=cell.rule)


def as_full(cell: Settings) -> Settings:
    """Full training on all samples, for all epochs, with the same seed and settings."""
    on_all = replace(cell, select=None, keep=None, subset=None, budget=None)
    return replace(on_all, rule="full", prune_ratio=None, delta=DELTA, shrink="epoch")


class Pending:
    """The cells still to run, seed by seed, all methods of one seed before the next.

    With rules in `matching`, each finished run of theirs adds the full training matched to it.
    """

    def __init__(
        self, cells: Sequence[Settings], matching: Sequence[str], finished: Iterable[Run]
    ) -> None:
        self.wanted: dict[Settings, None] = {}
        self._done = {run.settings: run for run in finished}
        self._matching = matching
        self._waiting: list[Settings] = []
        for cell in sorted(cells, key=lambda cell: cell.seed):
            self._add(cell)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Settings]:
        """The cells that wait."""
        return iter(self._waiting)

    def take(self) -> Settings | None:
        """The next cell; None if none is waiting now."""
        return self._waiting.pop(0) if self._waiting else None

    def finish(self, cell: Settings, run: Run) -> None:
        """Note that a cell is done."""
        self._done[cell] = run
        self._add_match(run)

    def clear(self) -> None:
        """Forget the cells that wait."""
        self._waiting = []

    @property
    def finished(self) -> list[Run]:
        """The runs of the wanted cells that are done."""
        return [self._done[cell] for cell in self.wanted if cell in self._done]

    def _add(self, cell: Settings) -> None:
        if cell in self.wanted:
            return
        self.wanted[cell] = None
        if cell in self._done:
            self._add_match(self._done[cell])
            return
        later = (i for i, other in enumerate(self._waiting) if other.seed > cell.seed)
        self._waiting.insert(next(later, len(self._waiting)), cell)

    def _add_match(self, run: Run) -> None:
        if run.rule in self._matching and (match := match_of(run)) is not None:
            self._add(match)
