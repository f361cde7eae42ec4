"""The tables of RESULTS.md, in Markdown, from the runs of a folder.

python results/tables.py results/digits
python results/tables.py --time results/wall-clock
python results/tables.py --subsets results/selection
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t

from infobatch_lab.comparison import Comparison, Method, Row, compare
from infobatch_lab.frontier import cells as cells_of
from infobatch_lab.frontier import columns, find_frontiers, without_pieces
from infobatch_lab.runs import read
from infobatch_lab.shares import lines_by_share, shares_of
from infobatch_lab.statistics import with_need


def main() -> None:
    kind = sys.argv[1] if sys.argv[1] in ("--time", "--subsets") else ""
    is_of_time = kind == "--time"
    runs, notes = read([Path(folder) for folder in sys.argv[1 + bool(kind) :]])
    comparisons, doubles = compare(runs)
    for note in notes + doubles:
        print(note, file=sys.stderr)
    if kind == "--subsets":
        for comparison in comparisons:
            print(f"### {comparison.title}\n\n{subsets_table(comparison)}\n")
            print(f"What choosing costs:\n\n{cost_table(comparison)}\n")
            print(f"Rules on a subset:\n\n{table(comparison, combined(comparison))}\n")
        return
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
            print(f"Other variants:\n\n{table(comparison, others)}\n")


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
    difference, verdict = "", with_need(row.verdict, found)
    if found is not None:
        difference = metric.signed(found.mean)
        if found.low is not None and found.high is not None:
            difference += f" ({metric.signed(found.low)} to {metric.signed(found.high)})"
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
        if len(parts) < 2:  # no interval, or nothing that can be compared
            continue
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


def subsets_table(comparison: Comparison) -> str:
    """The shape of the paper's Table 1: methods by pruned share; bold where lossless."""
    metric, shares = comparison.metric, shares_of(comparison)
    lines = []
    if (full := comparison.full) is not None:
        value = f"{metric.text(full.mean)} ± {metric.text(full.spread or 0)}"
        blank = ("",) * (len(shares) - 1)
        lines.append(("all samples", "", value, *blank, str(len(full.runs))))
    for line in lines_by_share(comparison):
        cells = [by_share(line.row_of[s]) if s in line.row_of else "" for s in shares]
        seeds = {len(row.method.runs) for row in line.row_of.values()}
        kind = "once" if line.is_static else "every epoch"
        lines.append((f"`{line.name}`", kind, *cells, "-".join(map(str, sorted(seeds)))))
    heads = (f"{share:.0%} pruned" for share in shares)
    return markdown(("method", "chooses", *heads, "seeds"), lines)


def by_share(row: Row) -> str:
    """A value, and its difference to full training with half of the 95 % interval."""
    metric, found = row.comparison.metric, row.difference
    value = metric.text(row.method.mean)
    if found is None:
        return value
    half = "" if found.high is None else f" ± {metric.text(found.high - found.mean)}"
    text = f"{value} ({metric.signed(found.mean)}{half})"
    return f"**{text}**" if row.verdict == "lossless" else text


COST_COLUMNS = ("method", "chooses", "collecting", "selecting", "training", "in all", "seeds")


def cost_table(comparison: Comparison) -> str:
    """The shape of the paper's Table 2: times in % of full training's, at the middle share.

    Each is the least of its seeds: what else a machine does only adds to a time.
    """
    shares, full = shares_of(comparison), comparison.full
    if not shares or full is None:
        return ""
    middle, whole = shares[len(shares) // 2], least(full, "train_seconds")
    lines = []
    for line in lines_by_share(comparison):
        row = line.row_of.get(middle)
        if row is None:
            continue
        names = ("collecting_seconds", "selecting_seconds", "train_seconds")
        parts = [least(row.method, name) / whole for name in names]
        if not line.is_static:  # what it takes to decide is inside of the training time
            parts[1] = least(row.method, "pruning_seconds") / whole
            parts[2] -= parts[1]
        kind = "once" if line.is_static else "every epoch"
        texts = [f"{part:.1%}" if part else "" for part in parts]
        cells = (f"`{line.name}`", kind, *texts, f"{sum(parts):.0%}", str(len(row.method.runs)))
        lines.append((sum(parts), cells))
    return markdown(COST_COLUMNS, [cells for _, cells in sorted(lines)])


def least(method: Method, name: str) -> float:
    """The least of the seeds; 0 for what a method does not have."""
    return min(getattr(run, name) or 0.0 for run in method.runs)


def combined(comparison: Comparison) -> list[Row]:
    """Rules on a subset, each after the subset alone."""
    rows = [row for row in comparison.rows() if row.method.key.chosen]
    both = {row.method.key.select for row in rows if row.method.rule != "full"}
    return [row for row in rows if row.method.key.select in both]


if __name__ == "__main__":
    main()
