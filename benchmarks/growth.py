"""Growth: what planning costs as N grows, as slopes and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.planning import plan_once, turns_for
from benchmarks.table import Aim, Row, Section
from benchmarks.timing import best_times, exponential, permute
from infobatch.rules import RULES

SIZES = (100_000, 300_000, 10**6, 3 * 10**6, 10**7, 3 * 10**7, 10**8)
TOUCHED = 48
"""Bytes per sample written to before each turn: a virtual machine fetches memory from its host
slowly, and whoever comes first would pay for it.
"""
SLOPE_MARGIN = 0.02


def section(sizes: Sequence[int] = SIZES) -> Section:
    rows, ours, reference = [], [], []
    for size in sizes:
        plan = partial(plan_once, RULES["mean"](), exponential(size), {})
        times = best_times(
            turns_for(size),
            {"ours": plan, "randperm": partial(permute, size)},
            touch=TOUCHED * size,
        )
        ours.append(times["ours"])
        reference.append(times["randperm"])
        rows.append(Row(f"N = {size:,}", ours[-1], "s", {"randperm": reference[-1]}))
    # Where all of it fits the caches, neither grows as it does in memory.
    large = [place for place, size in enumerate(sizes) if size >= 10**6] or range(len(sizes))
    own, other = (
        slope([sizes[p] for p in large], [of[p] for p in large]) for of in (ours, reference)
    )
    bound = Aim(round(other + SLOPE_MARGIN, 3))
    rows.append(
        Row(
            "slope of log time over log N, from 1 M on",
            round(own, 3),
            "",
            {"randperm": other},
            bound,
        )
    )
    return Section(
        "Growth",
        "Planning an epoch of the mean rule as N grows, against `torch.randperm(N)`. The slope is "
        "that of a line through the logarithms; it should be no steeper than randperm's "
        f"(+ {SLOPE_MARGIN}), whose own is above 1 because memory is farther away than a cache.",
        rows,
    )


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The power of N that the time grows with, by least squares: 1 is proportional."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def picture(of: Section, path: Path) -> None:
    """Both on a log-log plot."""
    points = [row for row in of.rows if row.what.startswith("N = ")]
    sizes = [int(row.what.removeprefix("N = ").replace(",", "")) for row in points]
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.loglog(sizes, [row.ours for row in points], "o-", label="plan, mean rule")
        axes.loglog(
            sizes, [row.others["randperm"] for row in points], "s--", label="torch.randperm"
        )
        axes.set(xlabel="samples", ylabel="seconds for one epoch")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, dpi=150)
