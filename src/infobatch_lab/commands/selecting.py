"""`infobatch select`: choose samples before training, and write their indices to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from infobatch.selection import METHODS
from infobatch_lab.choosing import STATISTICS, StopError, choose
from infobatch_lab.commands.arguments import Data, DataDir, Json, examples
from infobatch_lab.commands.sweeps import load, stop_here
from infobatch_lab.display import duration, out, running
from infobatch_lab.errors import UserError
from infobatch_lab.flags import with_settings
from infobatch_lab.lines import METHOD
from infobatch_lab.options import in_words
from infobatch_lab.processes import stop_on_signal
from infobatch_lab.settings import settings
from infobatch_lab.subsets import save

app = typer.Typer()


@app.command(
    epilog=examples(
        "infobatch select herding --keep 0.3 --out herding.npy",
        "infobatch train --subset herding.npy",
        "infobatch select el2n --data fashion-mnist --keep 0.5 --seed 1 --out el2n.npy --json",
    )
)
@with_settings(without=METHOD)
def select(
    method: Annotated[str, typer.Argument(help=f"Method: {in_words(list(METHODS))}")],
    given: dict[str, Any],
    keep: Annotated[float, typer.Option(help="Fraction of each class to keep")],
    data: Data = "digits",
    data_dir: DataDir = None,
    out_file: Annotated[
        Path, typer.Option("--out", help="File for the indices, ending in .npy")
    ] = Path("subset.npy"),
    statistics: Annotated[
        Path, typer.Option(help="Folder for statistics, which all methods use")
    ] = Path("runs") / STATISTICS,
    as_json: Json = False,
) -> None:
    """Choose a subset of a data set before training, and write its indices."""
    if out_file.suffix != ".npy":
        raise UserError(f"out is {out_file}, expected a name that ends in .npy.")
    cell = settings(data, select=method, keep=keep, **given)
    task = load(data, data_dir)
    out_file.parent.mkdir(parents=True, exist_ok=True)
    with stop_on_signal() as stop, running(lambda: (0, 1, "")) as listen:
        try:
            choice = choose(
                cell, task, statistics, stop=stop, report=lambda progress: listen(cell, progress)
            )
        except StopError:
            stop_here("stopped; repeat the command to continue.")
    facts = {"method": method, "keep": keep, "seed": cell.seed, "model": cell.model}
    save(out_file, choice, facts)
    seconds = (choice.collecting_seconds or 0.0), (choice.selecting_seconds or 0.0)
    if as_json:
        times = dict(zip(("collecting_seconds", "selecting_seconds"), seconds, strict=True))
        counts = {"num_samples": choice.num_samples, "num_chosen": len(choice.indices)}
        print(json.dumps({"file": str(out_file), "data": data, **facts, **counts, **times}))
        return
    out.print(
        f"{len(choice.indices):,} of {choice.num_samples:,} samples in {out_file}; statistics took "
        f"{duration(seconds[0])}, selecting {duration(seconds[1])}",
        soft_wrap=True,
    )
