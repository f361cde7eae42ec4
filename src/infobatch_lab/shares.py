"""Comparisons in the shape of the paper's Table 1: a line per method, a column per pruned share."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from infobatch_lab.comparison import Comparison, Row

NEAR = 0.03
"""A rule stands in a column if the part that it saves is as near to the column's share."""


@dataclass(frozen=True)
class ShareLine:
    """A method at several pruned shares."""

    name: str
    is_static: bool
    """Whether the samples were chosen once, before training."""
    row_of: dict[float, Row]
    """By share."""

    @property
    def score(self) -> tuple[int, float]:
        """To sort by: complete lines first, then the better ones."""
        rows = list(self.row_of.values())
        sign = rows[0].comparison.metric.sign
        return -len(rows), -sign * mean(row.method.mean for row in rows)


def shares_of(comparison: Comparison) -> list[float]:
    """The shares that static methods pruned."""
    keeps = {method.key.keep for method in comparison.methods}
    return sorted(round(1 - keep, 6) for keep in keeps if keep is not None)


def lines_by_share(comparison: Comparison, margin: float | None = None) -> list[ShareLine]:
    """Methods that choose once, the best first, then rules that decide in every epoch.

    A rule is in a line where it saves about as much as a share; of several the nearest one. Rules
    on a subset are in none.
    """
    shares, found = shares_of(comparison), {}
    for row in comparison.rows(margin):
        key, saved = row.method.key, row.samples_saved
        if key.select is not None and key.keep is not None and key.rule == "full":
            found[key.select, True, round(1 - key.keep, 6)] = row
        elif not key.chosen and key.rule != "full" and shares:
            share = min(shares, key=lambda share: abs(share - saved))
            place = (key.rule, False, share)
            nearest = place not in found or abs(found[place].samples_saved - share) > abs(
                saved - share
            )
            if abs(share - saved) <= NEAR and nearest:
                found[place] = row
    names = dict.fromkeys((name, is_static) for name, is_static, _ in found)
    lines = [
        ShareLine(
            name,
            is_static,
            {share: found[name, is_static, share] for share in shares
             if (name, is_static, share) in found},
        )
        for name, is_static in names
    ]  # fmt: skip
    return sorted(lines, key=lambda line: (not line.is_static, line.score))
