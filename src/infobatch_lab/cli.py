"""The command line: `infobatch demo`, `train`, `compare`, `frontier`, `queue`, `report`, ...

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
stopped by Ctrl-C. The options of a run are derived from `Settings` and from the tasks' `Options`.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import infobatch
from infobatch_lab import runs, tuning
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.choosing import STATISTICS, prepared
from infobatch_lab.commands import demo, reading, selecting
from infobatch_lab.commands.arguments import (
    CheckpointEvery,
    Data,
    DataDir,
    Json,
    Out,
    examples,
    numbers,
    split,
)
from infobatch_lab.commands.sweeps import (
    RUNS,
    load,
    run_cells,
    show_or_print,
    show_or_print_all,
    stop_here,
    title_of,
)
from infobatch_lab.display import running, tell
from infobatch_lab.errors import UserError
from infobatch_lab.flags import with_settings
from infobatch_lab.images import default_folder
from infobatch_lab.lines import METHOD, run_of
from infobatch_lab.processes import process_group, rank, stop_on_signal
from infobatch_lab.queue import Kind, QueueState
from infobatch_lab.settings import settings
from infobatch_lab.sweep import SWEPT, frontier_grid, grid
from infobatch_lab.training import Stopped, train

DISK_ERRORS = (errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)
"""Errors of writing, which do not name the file."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run() -> None:
    """Run the program: a user's mistake is one sentence and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a path may be no UTF-8: print its bytes
    try:
        app()
    except UserError as error:
        tell(str(error))
        sys.exit(1)
    except MemoryError as error:
        tell(f"there is not enough memory ({error}): use less data, or a smaller network.")
        sys.exit(1)
    except BrokenPipeError:  # `infobatch rules | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None and error.errno not in DISK_ERRORS:
            raise
        where = "the disk" if error.filename is None else error.filename
        tell(f"{where}: {error.strerror}.")
        sys.exit(1)


# Commands -----------------------------------------------------------------------------------------


@app.command(
    "train",
    epilog=examples(
        "infobatch train",
        "infobatch train --data cifar10 --model resnet18 --rule tiers --epochs 30 --seed 1",
        "infobatch train --data fashion-mnist --rule full --json",
        "infobatch train --data npz:images.npz --epochs 10      # or folder:PATH, hf:PATH",
        "infobatch train --data cifar100 --resume           # after Ctrl-C",
        "infobatch train --select dq --keep 0.5 --rule mean # on a chosen subset",
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
    """Train once, and add the run to OUT/runs.jsonl."""
    chosen = settings(data, **given)
    path = out_folder / "checkpoints" / f"{chosen.name}.pt"
    checkpoint = Checkpoint(path, resume, checkpoint_every)
    if resume and not path.exists():
        tell(f"no checkpoint in {path.parent} for these settings: starting anew.")
    task = load(data, data_dir)
    if rank() == 0:
        runs.prepare(out_folder / RUNS)
    with process_group(), stop_on_signal() as stop, running(lambda: (0, 1, "")) as listen:
        report = partial(listen, chosen)
        part = prepared(chosen, task, out_folder / STATISTICS, stop=stop, report=report)
        done = (
            Stopped(0)
            if part is None
            else train(
                chosen,
                part,
                checkpoint,
                workers=workers,
                tensorboard=out_folder / "tensorboard" / chosen.name if tensorboard else None,
                figures=out_folder / "figures" / chosen.name,
                stop=stop,
                report=report,
            )
        )
        if rank() == 0 and not isinstance(done, Stopped):
            # Before the others leave: should one of them fail now, torchrun ends this one too.
            runs.append(out_folder / RUNS, done)
            checkpoint.delete()
    if isinstance(done, Stopped):
        stop_here(f"stopped in epoch {done.epoch}; add --resume to the command to continue.")
    if rank() == 0:
        if as_json:
            print(json.dumps(done))
        else:
            show_or_print([run_of(done)], False, title_of(chosen))


@app.command(
    epilog=examples(
        "infobatch compare",
        "infobatch compare --data fashion-mnist --seeds 5 --match-forwards mean --jobs 2",
        "infobatch compare --rules mean --prune-ratio 0.1,0.3,0.5,0.7,0.9 --out ratios",
        "infobatch compare --rules full,mean --optimizer sgd,adamw,radam,lars,lamb --json",
        "infobatch compare --select random,herding,k-center --keep 0.3,0.5,0.7 --seeds 10",
    )
)
@with_settings(swept=SWEPT, without=("rule", "seed"))
def compare(
    given: dict[str, Any],
    data: Data = "digits",
    rule_names: Annotated[
        str | None,
        typer.Option(
            "--rules",
            help="Rules, separated by commas [default: full,mean,tiers,random, or full on subsets]",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0")] = 3,
    data_dir: DataDir = None,
    match_forwards: Annotated[
        str | None,
        typer.Option(
            help="Add full training on as many samples as this rule trained, in fewer epochs "
            "(rows with a dagger); one or more rules, separated by commas"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time")] = 1,
    checkpoint_every: CheckpointEvery = 5,
    out_folder: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train a grid of rules, subsets and seeds. Runs in OUT/runs.jsonl are not repeated."""
    for name in SWEPT:
        if given.get(name) is not None:
            as_given = numbers if name in ("prune_ratio", "delta", "keep", "budget") else split
            given[name] = as_given(name.replace("_", "-"), given[name])
    if rule_names is None:
        rule_names = "full" if given["select"] or given["subset"] else "full,mean,tiers,random"
    given["rule"] = split("rules", rule_names)
    cells = grid(data, seeds=range(seeds), **given)
    matching = [] if match_forwards is None else split("match-forwards", match_forwards)
    if unmatched := [rule for rule in matching if rule not in given["rule"]]:
        raise UserError(
            f"match-forwards is {unmatched[0]!r}, which is not one of the rules {rule_names}."
        )
    file = out_folder / RUNS
    wanted = QueueState(
        tuple(cells),
        tuple(matching),
        jobs,
        checkpoint_every,
        data_folder=data_dir or default_folder(),
    )
    show_or_print_all([(wanted, run_cells(wanted, file))], file, as_json)


@app.command(
    epilog=examples(
        "infobatch frontier",
        "infobatch frontier --data fashion-mnist --seeds 5 --tune-lr --jobs 2 --out fashion",
        "infobatch frontier --data fashion-mnist-noisy --lengths 1,0.6,0.5 --rules mean,tiers",
        "nice -n 19 infobatch frontier --seeds 10 &    # after a kill, repeat it to continue",
    )
)
@with_settings(without=(*METHOD, "seed"))
def frontier(
    given: dict[str, Any],
    data: Data = "digits",
    rule_names: Annotated[
        str,
        typer.Option(
            "--rules",
            help="Rules, separated by commas; each is run with fewer and with smaller batches",
        ),
    ] = "mean,tiers,focus,random",
    lengths: Annotated[
        str,
        typer.Option(help="Lengths of full training, as fractions of the epochs; one must be 1"),
    ] = "1,0.7,0.6,0.5,0.4",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0")] = 3,
    tune_lr: Annotated[
        bool,
        typer.Option(
            "--tune-lr",
            help="First choose a learning rate for each method: 0.5, 1 or 2 times the given one,  "
            "by trials on held-out training data, which go to OUT/trials.jsonl",
        ),
    ] = False,
    data_dir: DataDir = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time")] = 1,
    checkpoint_every: CheckpointEvery = 5,
    out_folder: Out = Path("frontier"),
    as_json: Json = False,
) -> None:
    """Compare rules with shorter full training, at equal numbers of samples."""
    parts = numbers("lengths", lengths)
    if 1 not in parts or not all(0 < part <= 1 for part in parts):
        raise UserError(f"lengths is {lengths!r}, expected parts of 1, with 1 among them.")
    rule_list = split("rules", rule_names)
    cells = frontier_grid(data, parts, rule_list, seeds=range(seeds), **given)
    if len({cell.epochs for cell in cells}) < 2:
        raise UserError(
            f"lengths is {lengths!r}, expected at least two that differ in whole epochs: full "
            f"training has {cells[0].epochs}."
        )
    wanted = QueueState(
        tuple(cells),
        jobs=jobs,
        checkpoint_every=checkpoint_every,
        data_folder=data_dir or default_folder(),
        kind=Kind.frontier,
    )
    if tune_lr:
        trials = replace(wanted, cells=tuple(tuning.trials(cells)), kind=Kind.trials)
        tried = run_cells(trials, out_folder / runs.TRIALS)
        wanted = replace(wanted, cells=tuple(tuning.tuned(cells, tried)))
    file = out_folder / RUNS
    show_or_print_all([(wanted, run_cells(wanted, file))], file, as_json)


@app.callback(invoke_without_command=True)
def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> None:
    """Dynamic data pruning for PyTorch: try it, measure it, report it."""
    if version:
        print(f"infobatch {infobatch.__version__}")
        raise typer.Exit


# After those that train, in the order of the help.
app.registered_commands += demo.app.registered_commands
app.registered_commands += selecting.app.registered_commands
app.registered_commands += reading.app.registered_commands
