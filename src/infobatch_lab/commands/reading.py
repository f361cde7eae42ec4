"""Commands that train nothing: `infobatch queue`, `report`, `rules`, `plan`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import infobatch
from infobatch_lab import runs
from infobatch_lab.commands.arguments import Json, Out, examples, split
from infobatch_lab.commands.sweeps import (
    RUNS,
    run_queue,
    write_report,
)
from infobatch_lab.display import out, show_queue, tell
from infobatch_lab.errors import UserError
from infobatch_lab.queue import QueueFile, status_of
from infobatch_lab.report import check_margin, frontier_results, results
from infobatch_lab.scores_file import plan_for

app = typer.Typer()


class QueueAction(str, Enum):
    """The actions of `infobatch queue`."""

    show = "show"
    pause = "pause"
    resume = "resume"
    run = "run"
    clear = "clear"


@app.command(
    epilog=examples(
        "infobatch queue",
        "infobatch queue --out frontier        # of `infobatch frontier`",
        "infobatch queue --out results/camvid --json",
        "infobatch queue pause          # `infobatch queue resume` continues",
        "infobatch queue run            # after a kill: train the runs that are left",
        "infobatch queue clear          # forget them",
    )
)
def queue(
    action: Annotated[
        QueueAction,
        typer.Argument(
            help="Show the runs, pause them, resume them, train those that are left, or forget them"
        ),
    ] = QueueAction.show,
    out_folder: Out = Path("runs"),
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="For run: folder of the data sets' files [default: the one that the runs had]"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show, pause, continue or forget the runs of a comparison.

    It shows which runs are left and how long they will take.
    """
    file = queue_in(out_folder)
    if action is QueueAction.pause:
        file.pause()
        tell(
            f"the runs in {out_folder} pause after their current step, or after an evaluation that "
            "has begun; `infobatch queue resume` continues them."
        )
    elif action is QueueAction.resume:
        file.resume()
    elif action is QueueAction.run:
        if not file.read():
            raise UserError(f"nothing is queued in {out_folder}: run `infobatch compare`.")
        run_queue(file, data_dir, as_json)
    elif action is QueueAction.clear:
        clear(out_folder)
    elif as_json:
        print(json.dumps(status_of(file)))
    else:
        show_queue(status_of(file), out_folder)


def queue_in(folder: Path) -> QueueFile:
    """The queue of a folder: of its runs, or of a frontier's trials. One at work comes first, then
    the one that was written last.
    """
    return max(
        queues_in(folder),
        key=lambda queue: (queue.is_at_work, queue.path.stat().st_mtime),
        default=QueueFile(folder / RUNS),
    )


def queues_in(folder: Path) -> list[QueueFile]:
    """The queues of a folder that are there."""
    both = QueueFile(folder / RUNS), QueueFile(folder / runs.TRIALS)
    return [queue for queue in both if queue.path.exists()]


def clear(folder: Path) -> None:
    """Forget both queues of a folder, or none of them if a process is at work."""
    with ExitStack() as stack:
        queues = queues_in(folder)
        for queue in queues:
            stack.enter_context(queue.held())
        names = {
            row["name"]
            for queue in queues
            for row in status_of(queue)["runs"]
            if row["state"] != "done"
        }
        for queue in queues:
            queue.write([])
    if not names:
        tell(f"nothing is queued in {folder}.")
        return
    checkpoints = folder / "checkpoints"
    is_one = len(names) == 1
    told = f"forgot {len(names)} {'run' if is_one else 'runs'}"
    if any((checkpoints / f"{name}.pt").exists() for name in names):
        stay = "its checkpoint stays" if is_one else "their checkpoints stay"
        told += f"; {stay} in {checkpoints}"
    tell(told + ".")


@app.command(
    epilog=examples(
        "infobatch report runs",
        "infobatch report results/*/*.jsonl --out page --margin 0.25",
        "infobatch report results --data digits,fashion-mnist",
        "infobatch report runs --json",
    )
)
def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Files of runs, or folders with them")
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the page")] = Path("report"),
    margin: Annotated[
        float | None,
        typer.Option(
            help="Largest loss that counts as lossless, in the metric's unit "
            "[default: the metric's own, 0.5 points of accuracy]"
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Data sets to show, separated by commas [default: all]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an HTML page with tables and figures of finished runs.

    It prints the path of the page.
    """
    try:
        check_margin(margin)
    except ValueError as error:
        raise UserError(str(error)) from error
    for path in files:
        if not path.exists():
            raise UserError(
                f"{path} does not exist, expected a file of runs, or a folder with one."
            )
    if not any(path.is_file() or runs.files_in(path) for path in files):
        raise UserError(f"{files[0]} holds no file that ends in .jsonl: run `infobatch compare`.")
    names = None if data is None else split("data", data)
    page = write_report(files, out_folder, margin, names)
    if as_json:
        numbers_of = {
            "comparisons": results(files, margin=margin, data=names),
            "frontiers": frontier_results(files, margin=margin, data=names),
        }
        print(json.dumps({"page": str(page), **numbers_of}))
    else:
        print(page)


@app.command(
    "rules",
    epilog=examples(
        "infobatch rules",
        "infobatch rules --json",
    ),
)
def rules_command(as_json: Json = False) -> None:
    """List the rules: what each one skips, and whether it is biased."""
    rows = list(infobatch.rules.RULES.values())
    if as_json:
        facts = ("unbiased", "default_ratio", "skips", "paper", "cost")
        print(
            json.dumps([{"rule": row.name} | {f: getattr(row, f) for f in facts} for row in rows])
        )
        return
    table = Table("rule", "biased", "r", "an epoch skips", box=None, pad_edge=False)
    for row in rows:
        ratio = "" if row.default_ratio is None else f"{row.default_ratio:g}"
        table.add_row(row.name, "no" if row.unbiased else "yes", ratio, row.skips)
    out.print(table)
    out.print("With a rule that is not biased, the expected gradient is that of full training.")
    out.print("r is the default of --prune-ratio. Papers and costs: infobatch rules --json")


@app.command(
    epilog=examples(
        "infobatch plan losses.npy",
        "infobatch plan losses.csv --column loss --rule tiers",
        "infobatch plan statistics.npz --column losses",
        "infobatch plan losses.parquet --prune-ratio 0.3 --json",
    )
)
def plan(
    file: Annotated[
        Path, typer.Argument(metavar="SCORES", help="A .npy, .npz, .csv or .parquet file")
    ],
    rule: Annotated[str, typer.Option(help="Rule, see `infobatch rules`")] = "mean",
    prune_ratio: Annotated[
        float | None,
        typer.Option(help="Fraction to skip of what the rule may skip [default: per rule]"),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="Column, or array, of the scores [default: score, or the only one]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed")] = 0,
    as_json: Json = False,
) -> None:
    """Show what a rule would keep of a file of scores."""
    facts = plan_for(file, rule=rule, prune_ratio=prune_ratio, column=column, seed=seed)
    if as_json:
        print(json.dumps(facts))
        return
    out.print(
        f"{facts['num_samples']:,} samples, {facts['num_unseen']:,} of them without a finite score"
    )
    if facts["threshold"] is not None:
        out.print(f"threshold {facts['threshold']:.6g}")
    out.print(
        f"{facts['rule']} keeps {facts['num_kept']:,} and skips {facts['num_pruned']:,} "
        f"({facts['pruned_fraction']:.1%})"
    )
    for weight, count in facts["weights"]:
        out.print(f"  {count:>12,} with weight {weight:.6g}")
