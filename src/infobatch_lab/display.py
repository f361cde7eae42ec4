"""Bars and tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from infobatch_lab import tasks
from infobatch_lab.checkpoints import DiscardedCheckpoint
from infobatch_lab.comparison import (
    CROWD_MARK,
    CROWDED,
    NO_REFERENCE,
    SEVERAL_MACHINES,
    Comparison,
    Row,
)
from infobatch_lab.download import Fetching
from infobatch_lab.frontier import Frontier
from infobatch_lab.jobs import Event, Listener
from infobatch_lab.metrics import Metric
from infobatch_lab.processes import rank
from infobatch_lab.settings import Settings
from infobatch_lab.statistics import Difference
from infobatch_lab.training import Progress as Step
from infobatch_lab.visible import visible

# Names come from files: brackets and colons in them are no style and no emoji.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)

NONE = "\N{EN DASH}"


def tell(sentence: str) -> None:
    """Print a sentence for people on stderr, beside the results."""
    if rank() == 0:
        err.print(f"infobatch: {visible(sentence)}", soft_wrap=True)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(5), duration(200), duration(9000)
    ('5 s', '3.3 min', '2.5 h')
    """
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


@contextmanager
def running(overall: Callable[[], tuple[int, int, str]]) -> Iterator[Listener]:
    """Bars of the runs at work, and one of all; on a terminal, else nothing.

    `overall` says how many runs are finished, how many there are, and what else to show.
    """
    if not err.is_terminal or rank() != 0:
        yield lambda cell, event: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=err, transient=True) as bars:
        all_runs = bars.add_task("all runs", total=1, note="")
        shown: dict[Settings, TaskID] = {}
        fractions: dict[Settings, float] = {}

        def listen(cell: Settings, event: Event) -> None:
            if isinstance(event, DiscardedCheckpoint):
                return
            if cell not in shown:
                name = f"{cell.label} seed {cell.seed}"
                shown[cell] = bars.add_task(name, total=1, note="")
            if isinstance(event, Step):
                fractions[cell] = event.fraction
                note = event.note or f"epoch {event.epoch + 1} of {cell.epochs}"
                metric = tasks.find(cell.data).task.metric
                if event.finished is not None and metric.name in event.finished:
                    note += f", {metric.full_text(event.finished[metric.name])}"
                bars.update(shown[cell], completed=event.fraction, note=note)
            else:
                bars.remove_task(shown.pop(cell))
                fractions.pop(cell, None)
            num_done, num_runs, left = overall()
            done = num_done + sum(fractions.values())
            note = f"{num_done} of {num_runs}{left and f', {left}'}"
            bars.update(all_runs, total=num_runs, completed=done, note=note)

        yield listen


@contextmanager
def fetching() -> Iterator[Fetching]:
    """A bar for each file that is fetched; on a terminal, else nothing."""
    if not err.is_terminal:
        yield lambda file, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        shown: dict[str, TaskID] = {}

        def listen(file: str, done: int, total: int) -> None:
            if file not in shown:
                shown[file] = bars.add_task(file, total=total or None)
            bars.update(shown[file], completed=done)

        yield listen


def show(comparisons: Sequence[Comparison], title: str) -> None:
    """Print a table of comparisons, which differ in the optimizer at most."""
    rows = [row for comparison in comparisons for row in comparison.rows()]
    if not rows:
        return
    metric = comparisons[0].metric
    values = {name: {column(row) for row in rows} - {""} for name, column in VARIED.items()}
    varied = [name for name in VARIED if says_something(name, values[name])]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("rule", overflow="fold")
    for name in (*varied, metric.words, "samples saved", "time saved", "overhead", "runs"):
        table.add_column(name, justify="right")
    for row in rows:
        method = row.method
        table.add_row(
            method.short_name if method.match_forwards or method.key.chosen else method.rule,
            *(VARIED[name](row) for name in varied),
            value_and_spread(metric, row),
            f"{row.samples_saved:.1%}",
            time_saved(row),
            NONE if method.overhead is None else f"{method.overhead:.2%}",
            str(len(method.runs)),
        )
    out.print(table)
    if any(each.full is None and len(each.methods) > 1 for each in comparisons):
        out.print(NO_REFERENCE, soft_wrap=True)
    if any(row.method.match_forwards for row in rows):
        out.print("† Full training in fewer epochs, on as many samples as that rule trained.")
    if any(row.is_crowded for row in rows):
        out.print(f"{CROWD_MARK} {CROWDED}")
    if any(len(comparison.machines) > 1 for comparison in comparisons):
        out.print(SEVERAL_MACHINES)


def says_something(column: str, values: set[str]) -> bool:
    """Whether a column of settings is shown: for several values, or for one that is unusual."""
    return len(values) > 1 or (column in USUAL and not values <= USUAL[column])


def time_saved(row: Row) -> str:
    """The part of full training's time, marked where it is to be read with caution."""
    if row.time_saved is None:
        return NONE
    return f"{row.time_saved:.1%}" + f" {CROWD_MARK}" * row.is_crowded


def show_frontiers(frontiers: Sequence[Frontier]) -> None:
    """Print a table for each frontier, narrower than the one of the report."""
    for frontier in frontiers:
        metric, rates = frontier.metric, {point.lr for point in frontier.points}
        title = frontier.title + (f", learning rate {min(rates):g}" if len(rates) == 1 else "")
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("method", overflow="fold")
        for name in ("lr",) * (len(rates) > 1) + (metric.words, "samples", "to the line"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("line", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for row in frontier.rows():
            table.add_row(
                row.name,
                *(f"{row.point.lr:g}",) * (len(rates) > 1),
                metric.text(row.point.method.mean),
                f"{row.samples:.1%}",
                mean_and_half(metric, row.to_line),
                "on the line" if row.is_on_line else row.place or "",
                row.verdict or "",
            )
        out.print(table)
        if too_short := [row.name for row in frontier.rows() if row.is_out_of_reach]:
            out.print(
                f"{', '.join(too_short)} trained fewer samples than the shortest full training: "
                "add a shorter one to --lengths to compare with the line.",
                soft_wrap=True,
            )


def mean_and_half(metric: Metric, found: Difference | None) -> str:
    """A difference and half of its interval."""
    if found is None:
        return ""
    half = "" if found.high is None else f" ± {metric.text(found.high - found.mean)}"
    return metric.signed(found.mean) + half


NO_COLUMN = ("name", "rule", "seed", "options", "state", "fraction")
"""What a row of the queue has besides settings that may have a column."""


def show_queue(status: dict[str, Any], folder: Path) -> None:
    """Print what `queue.status_of` says."""
    if not status["runs"]:
        out.print(f"nothing is queued in {folder}.", soft_wrap=True)
    else:
        rows = [row | row["options"] for row in status["runs"]]
        varied = columns_of(rows)
        heads = (name.replace("_", " ") for name in varied)
        table = Table("run", "seed", *heads, "state", box=None, pad_edge=False)
        for row in rows:
            state = f"{row['fraction']:.0%}" if row["state"] == "at work" else row["state"]
            values = (NONE if (v := row.get(name)) is None else str(v) for name in varied)
            table.add_row(*map(visible, (row["rule"], str(row["seed"]), *values, state)))
        out.print(table)
        left = status["seconds_left"] if status["num_left"] else None
        words = "" if left is None else f", about {duration(left)} left"
        out.print(f"{status['num_done']} of {len(status['runs'])} runs finished{words}.")
    if status["paused"]:
        out.print("It is paused: `infobatch queue resume` continues it.")
    elif status["num_left"] and not status["alive"]:
        out.print("No process is training them: `infobatch queue run` continues.")


def columns_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The settings that tell the runs of a queue apart, besides rule and seed.

    Between data sets nearly all settings differ, which the name of the data set says already.
    """
    data_sets = {row["data"] for row in rows}
    names = dict.fromkeys(name for row in rows for name in row if name not in NO_COLUMN)
    varied = [n for n in names if len({(row["data"], row.get(n)) for row in rows}) > len(data_sets)]
    return ["data"] * (len(data_sets) > 1) + varied


def value_and_spread(metric: Metric, row: Row) -> str:
    """The mean over the seeds, and the standard deviation where there are several."""
    spread = row.method.spread
    return metric.text(row.method.mean) + ("" if spread is None else f" ± {metric.text(spread)}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _choosing(row: Row) -> str:
    seconds = row.method.mean_of("choosing_seconds")
    return "" if seconds is None else duration(seconds)


VARIED: dict[str, Callable[[Row], str]] = {
    "optimizer": lambda row: str(row.comparison.settings.get("optimizer")),
    "prune ratio": lambda row: _number(row.method.key.prune_ratio),
    "delta": lambda row: _number(row.method.key.delta),
    "shrink": lambda row: row.method.key.shrink if row.method.rule != "full" else "",
    "budget": lambda row: _number(row.method.key.budget),
    "choosing": _choosing,
}
"""The columns of settings, and the time of choosing; `says_something` tells which are shown."""

USUAL: dict[str, set[str]] = {"shrink": {"epoch"}, "budget": set(), "choosing": set()}
"""Columns that are shown for a single value too, unless it is one of these."""
