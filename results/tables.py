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

from infobatch.report.comparisons import Comparison, Method, compare
from infobatch.report.runs import read
from infobatch.report.statistics import Difference, judge

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
    return markdown(
        COLUMNS, [cells(comparison, method, differences.get(method)) for method in methods]
    )


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
        pruning = [run.pruning_seconds or 0 for run in method.runs]
        training = [run.train_seconds or 0 for run in method.runs]
        row = (
            f"`{method.name}`",
            f"{samples:.1%}",
            f"{mean(parts) * samples:.1%}",
            f"{mean(parts):.0%} ({mean(parts) - half:.0%} to {mean(parts) + half:.0%})",
            f"{sum(pruning) / sum(training):.1%}",
            str(len(parts)),
        )
        rows.append(row)
    return markdown(TIME_COLUMNS, rows)


def cells(comparison: Comparison, method: Method, found: Difference | None) -> tuple[str, ...]:
    values = [100 * accuracy for accuracy in method.accuracies.values()]
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    interval = ""
    if found is not None:
        interval = f"{100 * found.mean:+.2f}"
        if found.low is not None and found.high is not None:
            interval += f" ({100 * found.low:+.2f} to {100 * found.high:+.2f})"
    return (
        f"`{method.name}`",
        f"{mean(values):.2f}{spread}",
        interval,
        verdict(found),
        "" if method is comparison.full else f"{comparison.samples_saved(method):.1%}",
        str(len(method.runs)),
    )


def verdict(found: Difference | None) -> str:
    if found is None:
        return ""
    words = found.verdict(MARGIN)
    return f"{words} (needs {found.num_needed} seeds)" if found.num_needed else words


if __name__ == "__main__":
    main()
