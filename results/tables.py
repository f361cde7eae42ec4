"""The tables of RESULTS.md, in Markdown, from the runs of a folder.

python results/tables.py results/digits
python results/tables.py --time results/wall-clock
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t

from infobatch_lab.comparison import Comparison, Row, compare
from infobatch_lab.frontier import cells as cells_of
from infobatch_lab.frontier import columns, find_frontiers, without_pieces
from infobatch_lab.runs import read


def main() -> None:
    is_of_time = sys.argv[1] == "--time"
    runs, notes = read([Path(folder) for folder in sys.argv[1 + is_of_time :]])
    comparisons, doubles = compare(runs)
    for note in notes + doubles:
        print(note, file=sys.stderr)
    frontiers = find_frontiers(runs)
    for frontier in [] if is_of_time else frontiers:
        rows_of_text = [(f"`{name}`", *texts) for name, *texts in map(cells_of, frontier.rows())]
        print(f"### {frontier.title}\n\n{markdown(columns(frontier.metric), rows_of_text)}\n")
    for comparison in without_pieces(comparisons, frontiers):
        rows = comparison.rows()
        main_rows = [row for row in rows if row.method.is_main]
        others = [row for row in rows if not row.method.is_main]
        if is_of_time:
            print(f"### {comparison.title}\n\n{time_table(comparison, main_rows)}\n")
            continue
        print(f"### {comparison.title}\n\n{table(comparison, main_rows)}\n")
        if others:
            print(f"Other values of r and δ:\n\n{table(comparison, others)}\n")


def table(comparison: Comparison, rows: Sequence[Row]) -> str:
    metric = comparison.metric
    difference = f"{metric.difference_title} (95 %)"
    columns = ("method", metric.title, difference, "verdict", "samples saved", "seeds")
    return markdown(columns, [cells(row) for row in rows])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ("---", *("--:",) * (len(columns) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: Row) -> tuple[str, ...]:
    metric, method, found = row.comparison.metric, row.method, row.difference
    spread = "" if method.spread is None else f" ± {metric.text(method.spread)}"
    difference, verdict = "", row.verdict or ""
    if found is not None:
        difference = metric.signed(found.mean)
        if found.low is not None and found.high is not None:
            difference += f" ({metric.signed(found.low)} to {metric.signed(found.high)})"
        if found.num_needed:
            verdict += f" (needs {found.num_needed} seeds)"
    return (
        f"`{method.name}`",
        f"{metric.text(method.mean)}{spread}",
        difference,
        verdict,
        f"{row.samples_saved:.1%}" if verdict else "",  # nothing of full training itself
        str(len(method.runs)),
    )


TIME_COLUMNS = (
    "method",
    "samples saved",
    "time saved",
    "of the samples saved (95 %)",
    "planning and `update`, of the training time",
    "seeds",
)


def time_table(comparison: Comparison, rows: Sequence[Row]) -> str:
    """What of the samples saved is time saved, seed by seed."""
    lines = []
    for row in rows:
        if row.is_reference:
            continue
        samples, overhead = row.samples_saved, row.method.overhead
        parts = [(1 - ours / full) / samples for full, ours in comparison.seconds(row.method)]
        half = t.ppf(0.975, len(parts) - 1) * stdev(parts) / len(parts) ** 0.5
        line = (
            f"`{row.method.name}`",
            f"{samples:.1%}",
            f"{mean(parts) * samples:.1%}",
            f"{mean(parts):.0%} ({mean(parts) - half:.0%} to {mean(parts) + half:.0%})",
            "" if overhead is None else f"{overhead:.1%}",
            str(len(parts)),
        )
        lines.append(line)
    return markdown(TIME_COLUMNS, lines)


if __name__ == "__main__":
    main()
