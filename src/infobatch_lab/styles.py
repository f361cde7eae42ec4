"""How each rule looks in figures. The order is that of all tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Style:
    """Colours on light and dark paper, a marker and a dash pattern of matplotlib."""

    light: str
    dark: str
    marker: str
    dash: Any = "-"


# Hues and lightness after Okabe and Ito, told apart with any colour vision; each has a contrast of
# at least 3 to its paper.
STYLES = {
    "full": Style("#1f2328", "#e6edf3", "o"),
    "mean": Style("#0072b2", "#56b4e9", "s"),
    "tiers": Style("#d55e00", "#ff8a3d", "^", (0, (5, 1.5))),
    "focus": Style("#b3123a", "#ff7a90", "p", (0, (8, 1.5))),
    "random-rescaled": Style("#4b3fa7", "#a99cff", "P", (0, (1, 1))),
    "above": Style("#2f93c8", "#9fdcff", "v", (0, (4, 1, 1, 1))),
    "random": Style("#a67c00", "#e6b422", "X", (0, (1.5, 1.5))),
    "epsilon-greedy": Style("#00805d", "#2fc795", "D", (0, (6, 2, 1.5, 2))),
    "ucb": Style("#b8558f", "#e48cc0", "*", (0, (3, 1, 1, 1, 1, 1))),
}

OTHERS = (
    Style("#6b7280", "#9aa4b2", "h", (0, (4, 1.5))),
    Style("#8b3a2b", "#e2796a", "<", (0, (2, 1))),
    Style("#5f7a00", "#b3cf3f", ">", (0, (5, 1, 1, 1))),
    Style("#7a4fc0", "#c5a3ff", "p", (0, (1, 1.5))),
    Style("#00737e", "#4fd3df", "d", (0, (3, 1.5))),
    Style("#a8326b", "#ff8fb8", "H", (0, (6, 1.5, 1, 1.5))),
    Style("#7d5a2c", "#d9b27c", "8", (0, (2, 2))),
)
"""For rules that the table does not have, in their order of names."""

MATCHED_DASH = (0, (2, 3))
"""Full training with matched forward passes."""


def style_of(rule: str, all_rules: set[str]) -> Style:
    """The style of a rule, the same in all figures of a comparison that has `all_rules`."""
    if rule in STYLES:
        return STYLES[rule]
    return OTHERS[sorted(all_rules - STYLES.keys()).index(rule) % len(OTHERS)]
