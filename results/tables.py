"""The tables of RESULTS.md, in Markdown, from the runs of a folder.

python results/tables.py results/digits
python results/tables.py --time results/wall-clock
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t

from infobatch_lab.report.comparisons import Comparison, Method, compare
from infobatch_lab.report.rows import row
from infobatch_lab.report.runs import read
from infobatch_lab.report.statistics import judge

MARGIN = 0.005
COLUMNS = (
    "method",
    "accuracy, %",
    "difference to full, points (95 %)",
    "verdict",
    "samples saved",
    "seeds",
)
TIME_COLUMNS = (
    "method",
    "samples saved",
    "time saved",
    "of the samples saved (95 %)",
    "planning and `update`, of the training time",
    "seeds",
)


def main() -> None:
    is_of_time = sys.argv[1] == "--time"
    runs, notes = read([Path(folder) for folder in sys.argv[1 + is_of_time :]])
    comparisons, doubles = compare(runs)
    for note in notes + doubles:
        print(note, file=sys.stderr)
    for comparison in comparisons:
        if is_of_time:
            print(f"### {comparison.title}\n\n{time_table(comparison)}\n")
            continue
        others = [method for method in comparison.methods if not method.is_main]
        print(f"### {comparison.title}\n\n{table(comparison, comparison.main_methods)}\n")
        if others:
            print(f"Other values of r and δ:\n\n{table(comparison, others)}\n")


def table(comparison: Comparison, methods: Sequence[Method]) -> str:
    differences = judge(comparison, MARGIN)
    rows = [row(comparison, method, differences.get(method), MARGIN) for method in methods]
    return markdown(COLUMNS, [cells(found) for found in rows])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ("---", *("--:",) * (len(columns) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def time_table(comparison: Comparison) -> str:
    """What of the samples saved is time saved, seed by seed."""
    rows = []
    for method in comparison.main_methods:
        if method is comparison.full:
            continue
        samples = comparison.samples_saved(method)
        parts = [(1 - ours / full) / samples for full, ours in comparison.seconds(method)]
        half = t.ppf(0.975, len(parts) - 1) * stdev(parts) / len(parts) ** 0.5
        overhead = row(comparison, method, None, MARGIN)["overhead"]
        cells_of_row = (
            f"`{method.name}`",
            f"{samples:.1%}",
            f"{mean(parts) * samples:.1%}",
            f"{mean(parts):.0%} ({mean(parts) - half:.0%} to {mean(parts) + half:.0%})",
            "" if overhead is None else f"{overhead:.1%}",
            str(len(parts)),
        )
        rows.append(cells_of_row)
    return markdown(TIME_COLUMNS, rows)


def cells(found: dict[str, Any]) -> tuple[str, ...]:
    spread = "" if found["spread"] is None else f" ± {100 * found['spread']:.2f}"
    difference = "" if found["difference"] is None else f"{100 * found['difference']:+.2f}"
    if found["interval"]:
        low, high = found["interval"]
        difference += f" ({100 * low:+.2f} to {100 * high:+.2f})"
    verdict = found["verdict"] or ""
    if found["seeds_needed"]:
        verdict += f" (needs {found['seeds_needed']} seeds)"
    return (
        f"`{found['method']}`",
        f"{100 * found['accuracy']:.2f}{spread}",
        difference,
        verdict,
        f"{found['samples_saved']:.1%}" if verdict else "",  # nothing of full training itself
        str(len(found["seeds"])),
    )


if __name__ == "__main__":
    main()
