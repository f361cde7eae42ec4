"""`infobatch demo`: see it work in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from infobatch_lab import runs
from infobatch_lab.commands.arguments import Json, examples
from infobatch_lab.commands.sweeps import run_cells, show_or_print, write_report
from infobatch_lab.display import tell
from infobatch_lab.queue import QueueState
from infobatch_lab.sweep import Pending, grid

DEMO_RUNS = "demo.jsonl"
"""Not RUNS: a finished demonstration is run anew, and must not take a user's runs with it."""

app = typer.Typer()


@app.command(
    epilog=examples(
        "infobatch demo",
        "infobatch demo --seeds 10",
    )
)
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0")] = 5,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time [default: one per core, at most 4]")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for runs and report")] = Path(
        "infobatch-demo"
    ),
    as_json: Json = False,
) -> None:
    """Try four rules on scikit-learn's digits in about a minute.

    It prints a table and writes a report.
    """
    cells = grid("digits", seeds=range(seeds), rule=["full", "mean", "tiers", "random"])
    file = out_folder / DEMO_RUNS
    if not len(Pending(cells, [], runs.read_file(file))):
        file.unlink()  # a finished one is shown anew, a stopped one goes on
    num_jobs = jobs or min(torch.get_num_threads(), 4)
    finished = run_cells(QueueState(tuple(cells), jobs=num_jobs, checkpoint_every=0), file)
    show_or_print(finished, as_json, f"digits, {seeds} seeds, 40 epochs")
    page = write_report([file], out_folder, None)
    if as_json:
        tell(f"report in {page}")
    else:
        print(f"report in {page}")
