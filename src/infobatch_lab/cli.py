"""The command line: `infobatch demo`, `train`, `compare`, `frontier`, `queue`, `report`, ...

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
stopped by Ctrl-C. The options of a run are derived from `Settings` and from the tasks' `Options`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.table import Table

import infobatch
from infobatch_lab import runs, tasks, tuning
from infobatch_lab.checkpoints import Checkpoint, DiscardedCheckpoint
from infobatch_lab.comparison import compare as comparisons_of
from infobatch_lab.display import (
    duration,
    fetching,
    out,
    running,
    show,
    show_frontiers,
    show_queue,
    tell,
)
from infobatch_lab.errors import UserError
from infobatch_lab.flags import with_settings
from infobatch_lab.frontier import find_frontiers
from infobatch_lab.images import default_folder
from infobatch_lab.jobs import Event, SweepConfig, run_sweep
from infobatch_lab.options import in_words
from infobatch_lab.processes import process_group, rank, stop_on_signal
from infobatch_lab.queue import QueueFile, QueueState, QueueWriter, seconds_left, status_of
from infobatch_lab.report import check_margin, frontier_results, results, write
from infobatch_lab.runs import METHOD, Run
from infobatch_lab.scores_file import plan_for
from infobatch_lab.settings import Settings, settings
from infobatch_lab.sweep import SWEPT, Pending, frontier_grid, grid
from infobatch_lab.tasks import Task
from infobatch_lab.training import Progress, Stopped, train

STOPPED = 130
"""The exit code of a program that Ctrl-C has stopped."""

RUNS = "runs.jsonl"

DEMO_RUNS = "demo.jsonl"
"""Not RUNS: a finished demonstration is run anew, and must not take a user's runs with it."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run() -> None:
    """Run the program: a user's mistake is one sentence and an exit code."""
    try:
        app()
    except UserError as error:
        tell(str(error))
        sys.exit(1)
    except BrokenPipeError:  # `infobatch rules | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        tell(f"{error.filename}: {error.strerror}.")
        sys.exit(1)


def examples(*lines: str) -> str:
    """The end of a command's help, with its lines kept apart."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


# Options ------------------------------------------------------------------------------------------

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets' files [default: a cache directory]"),
]
CheckpointEvery = Annotated[
    int, typer.Option(min=0, help="Epochs between checkpoints; 0: only when stopped by Ctrl-C")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a script")]
Out = Annotated[Path, typer.Option("--out", help="Folder for runs.jsonl and checkpoints")]


Data = Annotated[str, typer.Option(help=f"Data set: {in_words(list(tasks.RECIPES))}")]


class QueueAction(str, Enum):
    """The actions of `infobatch queue`."""

    show = "show"
    pause = "pause"
    resume = "resume"
    run = "run"


# Commands -----------------------------------------------------------------------------------------


@app.command(
    "train",
    epilog=examples(
        "infobatch train",
        "infobatch train --data cifar10 --model resnet18 --rule tiers --epochs 30 --seed 1",
        "infobatch train --data fashion-mnist --rule full --json",
        "infobatch train --data cifar100 --resume           # after Ctrl-C",
        "torchrun --nproc-per-node 2 -m infobatch train --data cifar10",
    ),
)
@with_settings()
def train_command(
    given: dict[str, Any],
    data: Data = "digits",
    data_dir: DataDir = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that fetch batches")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from this run's checkpoint, if there is one")
    ] = False,
    checkpoint_every: CheckpointEvery = 5,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log to OUT/tensorboard")
    ] = False,
    out_folder: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train once, and add a line to OUT/runs.jsonl."""
    chosen = settings(data, **given)
    path = out_folder / "checkpoints" / f"{chosen.name}.pt"
    checkpoint = Checkpoint(path, resume, checkpoint_every)
    if resume and not path.exists():
        tell(f"no checkpoint in {path.parent} for these settings: starting anew.")
    task = load(data, data_dir)
    if rank() == 0:
        runs.prepare(out_folder / RUNS)
    with process_group(), stop_on_signal() as stop, running(lambda: (0, 1, "")) as listen:
        done = train(
            chosen,
            task,
            checkpoint,
            workers=workers,
            tensorboard=out_folder / "tensorboard" / chosen.name if tensorboard else None,
            figures=out_folder / "figures" / chosen.name,
            stop=stop,
            report=lambda progress: listen(chosen, progress),
        )
    if isinstance(done, Stopped):
        stop_here(f"stopped in epoch {done.epoch}; the same command with --resume goes on.")
    if rank() == 0:
        runs.append(out_folder / RUNS, done)
        checkpoint.delete()
        if as_json:
            print(json.dumps(done))
        else:
            show_or_print([runs.run_of(done)], False, title_of(chosen))


@app.command(
    epilog=examples(
        "infobatch compare",
        "infobatch compare --data fashion-mnist --seeds 5 --match-forwards mean --jobs 2",
        "infobatch compare --rules mean --prune-ratio 0.1,0.3,0.5,0.7,0.9 --out ratios",
        "infobatch compare --rules full,mean --optimizer sgd,adamw,radam,lars,lamb --json",
    )
)
@with_settings(swept=SWEPT, without=("rule", "seed"))
def compare(
    given: dict[str, Any],
    data: Data = "digits",
    rule_names: Annotated[
        str, typer.Option("--rules", help="Rules, separated by commas")
    ] = "full,mean,tiers,random",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0")] = 3,
    data_dir: DataDir = None,
    match_forwards: Annotated[
        str | None,
        typer.Option(
            help="Also train fully for as many forward passes as this rule made (dagger rows); "
            "one or more rules, separated by commas"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time")] = 1,
    checkpoint_every: CheckpointEvery = 5,
    out_folder: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train a grid of rules and seeds. Runs that OUT/runs.jsonl has already are not repeated."""
    for name in SWEPT:
        if given.get(name) is not None:
            as_given = numbers if name in ("prune_ratio", "delta") else split
            given[name] = as_given(name.replace("_", "-"), given[name])
    given["rule"] = split("rules", rule_names)
    cells = grid(data, seeds=range(seeds), **given)
    matching = [] if match_forwards is None else split("match-forwards", match_forwards)
    if unmatched := [rule for rule in matching if rule not in given["rule"]]:
        raise UserError(
            f"match-forwards is {unmatched[0]!r}, which is not one of the rules {rule_names}."
        )
    file = out_folder / RUNS
    finished = run_cells(cells, matching, file, data_dir, jobs, checkpoint_every)
    show_or_print(finished, as_json, title_of(cells[0]))


@app.command(
    epilog=examples(
        "infobatch frontier",
        "infobatch frontier --data fashion-mnist --seeds 5 --tune-lr --jobs 2 --out fashion",
        "infobatch frontier --data fashion-mnist-noisy --lengths 1,0.6 --rules mean,tiers",
        "nice -n 19 infobatch frontier --seeds 10 &    # after a kill the same command goes on",
    )
)
@with_settings(without=(*METHOD, "seed"))
def frontier(
    given: dict[str, Any],
    data: Data = "digits",
    rule_names: Annotated[
        str, typer.Option("--rules", help="Rules, separated by commas; each is run in both modes")
    ] = "mean,tiers,random",
    lengths: Annotated[
        str, typer.Option(help="Full training's lengths, as parts of the epochs; 1 among them")
    ] = "1,0.7,0.6,0.5",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0")] = 3,
    tune_lr: Annotated[
        bool,
        typer.Option(
            "--tune-lr",
            help="Choose each method's learning rate first: half, once or twice the given one, by "
            "trials on held-out training data; they go to OUT/trials.jsonl",
        ),
    ] = False,
    data_dir: DataDir = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time")] = 1,
    checkpoint_every: CheckpointEvery = 5,
    out_folder: Out = Path("frontier"),
    as_json: Json = False,
) -> None:
    """Is pruning better than training less? Compare rules with shorter full training."""
    parts = numbers("lengths", lengths)
    if 1 not in parts or not all(0 < part <= 1 for part in parts):
        raise UserError(f"lengths is {lengths!r}, expected parts of 1, with 1 among them.")
    rule_list = split("rules", rule_names)
    cells = frontier_grid(data, parts, rule_list, seeds=range(seeds), **given)
    if tune_lr:
        trials = tuning.trials(cells)
        tried = run_cells(trials, [], out_folder / runs.TRIALS, data_dir, jobs, checkpoint_every)
        cells = tuning.tuned(cells, tried)
    run_cells(cells, [], out_folder / RUNS, data_dir, jobs, checkpoint_every)
    found = find_frontiers(runs.read_file(out_folder / RUNS))
    if as_json:
        print(json.dumps([each.as_dict() for each in found]))
    else:
        show_frontiers(found)


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
    """See it work, in about a minute: four rules on scikit-learn's digits, and a report."""
    cells = grid("digits", seeds=range(seeds), rule=["full", "mean", "tiers", "random"])
    file = out_folder / DEMO_RUNS
    if not len(Pending(cells, [], runs.read_file(file))):
        file.unlink()  # a finished one is shown anew, a stopped one goes on
    num_jobs = jobs or min(torch.get_num_threads(), 4)
    finished = run_cells(cells, [], file, None, num_jobs, checkpoint_every=0)
    show_or_print(finished, as_json, f"digits, {seeds} seeds, 40 epochs")
    page = write_report([file], out_folder, None)
    if as_json:
        tell(f"report in {page}")
    else:
        print(f"report in {page}")


@app.command(
    epilog=examples(
        "infobatch queue",
        "infobatch queue --out results/camvid --json",
        "infobatch queue pause          # `infobatch queue resume` lets it go on",
        "infobatch queue run            # after a kill: what is left, without the command",
    )
)
def queue(
    action: Annotated[QueueAction, typer.Argument(help="What to do")] = QueueAction.show,
    out_folder: Out = Path("runs"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what a comparison has still to run and how long it will take; hold it, or go on."""
    file = QueueFile(out_folder / RUNS)
    if action is QueueAction.pause:
        file.pause()
        tell(f"the runs of {out_folder} wait; `infobatch queue resume` lets them go on.")
    elif action is QueueAction.resume:
        file.resume()
    elif action is QueueAction.run:
        state = file.read()
        if not state.cells:
            raise UserError(f"nothing is queued in {out_folder}: run `infobatch compare`.")
        cells, every = state.cells, state.checkpoint_every
        finished = run_cells(cells, state.matching, file.runs_file, data_dir, state.jobs, every)
        show_or_print(finished, as_json, title_of(cells[0]))
    elif as_json:
        print(json.dumps(status_of(file)))
    else:
        show_queue(status_of(file), out_folder)


@app.command(
    epilog=examples(
        "infobatch report runs",
        "infobatch report results/*/*.jsonl --out page --margin 0.25",
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
    as_json: Json = False,
) -> None:
    """Write a page with tables and figures of finished runs, and print its path."""
    try:
        check_margin(margin)
    except ValueError as error:
        raise UserError(str(error)) from error
    found: list[Path] = []
    for path in files:
        if not path.exists():
            raise UserError(
                f"{path} does not exist, expected a file of runs, or a folder with one."
            )
        found += runs.files_in(path) if path.is_dir() else [path]
    if not found:
        raise UserError(f"{files[0]} holds no file that ends in .jsonl: run `infobatch compare`.")
    page = write_report(found, out_folder, margin)
    if as_json:
        numbers_of = {
            "comparisons": results(found, margin=margin),
            "frontiers": frontier_results(found, margin=margin),
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
    """List the rules: what each one skips, whether it is biased, and where it is from."""
    rows = list(infobatch.rules.RULES.values())
    if as_json:
        facts = ("unbiased", "default_ratio", "skips", "paper", "cost")
        print(
            json.dumps([{"rule": row.name} | {f: getattr(row, f) for f in facts} for row in rows])
        )
        return
    table = Table("rule", "biased", "skips", "from", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.name, "no" if row.unbiased else "yes", row.skips, row.paper)
    out.print(table)


@app.command(
    epilog=examples(
        "infobatch plan losses.npy",
        "infobatch plan losses.csv --column loss --rule tiers",
        "infobatch plan losses.parquet --prune-ratio 0.3 --json",
    )
)
def plan(
    file: Annotated[Path, typer.Argument(metavar="SCORES", help="A .npy, .csv or .parquet file")],
    rule: Annotated[str, typer.Option(help="Rule, see `infobatch rules`")] = "mean",
    prune_ratio: Annotated[
        float | None,
        typer.Option(help="Fraction of the prunable samples to skip [default: per rule]"),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of the scores [default: score, or the only one]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed")] = 0,
    as_json: Json = False,
) -> None:
    """Show what a rule would keep of a file of scores, without training."""
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


@app.callback(invoke_without_command=True)
def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> None:
    """Unbiased dynamic data pruning for PyTorch: try it, measure it, report it."""
    if version:
        print(f"infobatch {infobatch.__version__}")
        raise typer.Exit


# Parts that commands share ------------------------------------------------------------------------


def load(data: str, folder: Path | None) -> Task:
    """A task with its data, fetched with a bar where it is missing."""
    with fetching() as progress:
        return tasks.load(data, folder or default_folder(), progress)


def run_cells(
    cells: Sequence[Settings],
    matching: Sequence[str],
    file: Path,
    data_dir: Path | None,
    num_jobs: int,
    checkpoint_every: int,
) -> list[Run]:
    """Train what the file does not have yet, and what is matched to it; returns all of these."""
    pending = Pending(cells, matching, runs.read_file(file, tell))
    task = load(cells[0].data, data_dir)
    runs.prepare(file)
    if not len(pending):
        return pending.finished
    queue_file = QueueFile(file)
    if queue_file.is_paused:
        tell("the queue is paused; `infobatch queue resume` lets it go on.")
    folder = data_dir or default_folder()
    config = SweepConfig(folder, file.parent, checkpoint_every, queue_file.pause_file)
    state = QueueState(
        tuple(pending.wanted), tuple(matching), num_jobs, checkpoint_every, os.getpid()
    )
    writer = QueueWriter(queue_file, state)

    def overall() -> tuple[int, int, str]:
        left = [cell for cell in pending.wanted if cell.name in writer.at_work] + list(pending)
        seconds = seconds_left(left, pending.finished, at_work=writer.at_work, jobs=num_jobs)
        words = "" if seconds is None or not left else f"about {duration(seconds)} left"
        return len(pending.finished), len(pending.wanted), words

    with running(overall) as show_progress:

        def listen(cell: Settings, event: Event) -> None:
            if isinstance(event, dict):
                runs.append(file, event)
                config.checkpoint(cell).delete()
            elif isinstance(event, DiscardedCheckpoint):
                tell(event.sentence)
            fraction = event.fraction if isinstance(event, Progress) else None
            writer.update(tuple(pending.wanted), cell.name, fraction)
            show_progress(cell, event)

        run_sweep(pending, config, listen, num_jobs=num_jobs, task=task)
    num_done, num_wanted = len(pending.finished), len(pending.wanted)
    if num_done < num_wanted:
        stop_here(
            f"stopped with {num_done} of {num_wanted} runs finished; the same command goes on."
        )
    queue_file.delete()
    return pending.finished


def stop_here(sentence: str) -> NoReturn:
    """End as programs do that Ctrl-C has stopped."""
    tell(sentence)
    raise typer.Exit(STOPPED)


def split(option: str, text: str) -> list[str]:
    """Split a text at its commas: `split("rules", "full,mean")`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"{option} is {text!r}, expected one or more, separated by commas.")
    return names


def numbers(option: str, text: str) -> list[float]:
    """Split a text at its commas into numbers."""
    try:
        return [float(number) for number in split(option, text)]
    except ValueError:
        raise UserError(f"{option} is {text!r}, expected numbers separated by commas.") from None


def title_of(cell: Settings) -> str:
    """The head of a table of runs."""
    return f"{cell.data}, {cell.model}, {cell.epochs} epochs"


def show_or_print(finished: list[Run], as_json: bool, title: str) -> None:
    """Print a comparison, for people or for a script."""
    comparisons, _ = comparisons_of(finished)
    if as_json:
        print(json.dumps([row.as_dict() for c in comparisons for row in c.rows()]))
    else:
        show(comparisons, title)


def write_report(files: list[Path], folder: Path, margin: float | None) -> Path:
    """Write the page, or raise `UserError`."""
    try:
        return write(files, folder, margin=margin)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from error
