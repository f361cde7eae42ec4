"""What people see: bars while something runs, on a terminal only, and a table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from infobatch_lab.compare import Hear, News
from infobatch_lab.processes import rank
from infobatch_lab.settings import Settings
from infobatch_lab.summary import Row
from infobatch_lab.train import SetAside
from infobatch_lab.training import Progress as Step

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

NONE = "\N{EN DASH}"


def tell(sentence: str) -> None:
    """A sentence for people, beside the results."""
    if rank() == 0:
        err.print(f"infobatch: {sentence}", markup=False, soft_wrap=True)


@contextmanager
def running(num_runs: int) -> Iterator[Hear]:
    """Bars of the runs at work, and one of all; on a terminal, else nothing."""
    if not err.is_terminal or rank() != 0:
        yield lambda cell, heard: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=err, transient=True) as bars:
        overall = bars.add_task("all runs", total=num_runs, note=f"0 of {num_runs}")
        shown: dict[Settings, TaskID] = {}
        parts: dict[Settings, float] = {}

        def hear(cell: Settings, heard: News) -> None:
            if isinstance(heard, SetAside):
                return
            if cell not in shown:
                name = f"{cell.label} seed {cell.seed}"
                shown[cell] = bars.add_task(name, total=1, note="")
            if isinstance(heard, Step):
                parts[cell] = heard.part
                note = f"epoch {heard.epoch + 1} of {cell.epochs}"
                if heard.finished is not None:
                    note += f", {heard.finished['accuracy']:.2%}"
                bars.update(shown[cell], completed=heard.part, note=note)
            else:
                bars.remove_task(shown.pop(cell))
            done = sum(part == 1 for part in parts.values())
            bars.update(overall, completed=sum(parts.values()), note=f"{done} of {num_runs}")

        yield hear


@contextmanager
def fetching() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file that is fetched; on a terminal, else nothing."""
    if not err.is_terminal:
        yield lambda file, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        shown: dict[str, TaskID] = {}

        def hear(file: str, done: int, total: int) -> None:
            if file not in shown:
                shown[file] = bars.add_task(file, total=total or None)
            bars.update(shown[file], completed=done)

        yield hear


def show(rows: Sequence[Row], title: str) -> None:
    """The table of a comparison."""
    pruned = [row for row in rows if row.settings.rule != "full"]
    varied = [
        name
        for name, among in (("optimizer", rows), ("prune_ratio", pruned), ("delta", pruned))
        if len({getattr(row.settings, name) for row in among}) > 1
    ]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("rule")
    for name in (*varied, "accuracy", "samples saved", "time saved", "overhead", "runs"):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        spread = "" if row.spread is None else f" ± {100 * row.spread:.2f}"
        shown = row.as_dict()
        table.add_row(
            row.settings.label,
            *("" if (v := shown[name]) is None else str(v) for name in varied),
            f"{100 * row.accuracy:.2f}{spread}",
            f"{row.samples_saved:.1%}",
            NONE if row.time_saved is None else f"{row.time_saved:.1%}",
            NONE if row.overhead is None else f"{row.overhead:.2%}",
            str(row.num_runs),
        )
    out.print(table)
    if any(row.settings.match_forwards for row in rows):
        out.print("† full training cut to as many forward passes")
