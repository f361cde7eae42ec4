"""The command line: `infobatch demo`, `train`, `compare`, `report`, `rules`, `plan`.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
stopped by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer
from rich.table import Table

import infobatch
from infobatch_lab import data as data_sets
from infobatch_lab import runs
from infobatch_lab.compare import (
    News,
    Workshop,
    grid,
    matched,
    one_after_another,
    pending,
    side_by_side,
)
from infobatch_lab.data import Task
from infobatch_lab.display import fetching, out, running, show, tell
from infobatch_lab.errors import UserError
from infobatch_lab.planning import plan_for, rule_facts
from infobatch_lab.processes import process_group, rank, stop_on_signal
from infobatch_lab.report import results, write
from infobatch_lab.report.comparisons import DELTA
from infobatch_lab.runs import Run
from infobatch_lab.settings import OPTIMIZERS, Settings, settings, settings_of
from infobatch_lab.summary import summary
from infobatch_lab.train import Keeping, SetAside, Stopped, train

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
    """The whole program: a user's mistake is one sentence and an exit code."""
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


# Options that several commands have ---------------------------------------------------------------

Data = Annotated[
    str, typer.Option(help="digits, mnist, fashion-mnist, cifar10, cifar100 or folder:PATH.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where the data sets' files are, or go. [default: a cache directory]"),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="tiny, convnet, resnet8-pooled, resnet8, resnet14, resnet18, resnet50 or timm:NAME."
    ),
]
Epochs = Annotated[int | None, typer.Option(help="What suits the data set, unless given.")]
BatchSize = Annotated[int | None, typer.Option(help="Of all processes together.")]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="The highest. What suits the optimizer, unless given.")
]
Curve = Annotated[str, typer.Option("--schedule", help="onecycle, cosine or constant.")]
Smoothing = Annotated[float, typer.Option(help="Of the labels.")]
Mixup = Annotated[float, typer.Option(help="Alpha of MixUp; 0 is off.")]
Cutmix = Annotated[float, typer.Option(help="Alpha of CutMix; 0 is off.")]
Amp = Annotated[bool, typer.Option("--amp", help="Compute in bfloat16 where it is safe.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the network.")]
CheckpointEvery = Annotated[
    int, typer.Option(min=0, help="Epochs between checkpoints; 0 for none but that of Ctrl-C.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a script.")]
Out = Annotated[Path, typer.Option("--out", help="The folder for runs.jsonl and checkpoints.")]


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
def train_command(
    data: Data = "digits",
    data_dir: DataDir = None,
    model: Model = None,
    rule: Annotated[str, typer.Option(help="See `infobatch rules`; or mean-unscaled.")] = "mean",
    prune_ratio: Annotated[float | None, typer.Option(help="The rule's own, unless given.")] = None,
    delta: Annotated[float, typer.Option(help="The part of the epochs that may prune.")] = DELTA,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    optimizer: Annotated[str, typer.Option(help="sgd, adamw, radam, lars or lamb.")] = "sgd",
    lr: LearningRate = None,
    schedule: Curve = "onecycle",
    label_smoothing: Smoothing = 0.0,
    mixup: Mixup = 0.0,
    cutmix: Cutmix = 0.0,
    amp: Amp = False,
    compile: Compile = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes that fetch batches.")] = 0,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with this run's checkpoint, if there is one.")
    ] = False,
    checkpoint_every: CheckpointEvery = 5,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log below OUT/tensorboard.")
    ] = False,
    out_folder: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train once, and add a line to OUT/runs.jsonl."""
    chosen = settings(
        data,
        rule=rule,
        seed=seed,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        prune_ratio=prune_ratio,
        delta=delta,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        label_smoothing=label_smoothing,
        mixup=mixup,
        cutmix=cutmix,
        amp=amp,
        compile=compile,
    )
    keeping = Keeping(
        out_folder / "checkpoints" / f"{chosen.name}.pt",
        resume,
        checkpoint_every,
        out_folder / "tensorboard" / chosen.name if tensorboard else None,
    )
    if resume and not keeping.checkpoint.exists():
        tell(f"no checkpoint in {keeping.checkpoint.parent} for these settings: starting anew.")
    task = load(data, data_dir)
    if rank() == 0:
        runs.prepare(out_folder / RUNS)
    with process_group(), stop_on_signal() as stop, running(1) as hear:
        done = train(
            chosen,
            task,
            keeping,
            workers=workers,
            stop=stop,
            report=lambda progress: hear(chosen, progress),
        )
    if isinstance(done, Stopped):
        stop_here(f"stopped in epoch {done.epoch}; the same command with --resume goes on.")
    if rank() == 0:
        runs.append(out_folder / RUNS, done)
        keeping.forget()
        if as_json:
            print(json.dumps(done))
        else:
            show(summary([done]), f"{data}, {chosen.model}, {chosen.epochs} epochs")


@app.command(
    epilog=examples(
        "infobatch compare",
        "infobatch compare --data fashion-mnist --seeds 5 --match-forwards mean --jobs 2",
        "infobatch compare --rules mean --prune-ratio 0.1,0.3,0.5,0.7,0.9 --out ratios",
        "infobatch compare --rules full,mean --optimizer sgd,adamw,radam,lars,lamb --json",
    )
)
def compare(
    data: Data = "digits",
    data_dir: DataDir = None,
    model: Model = None,
    rules: Annotated[str, typer.Option(help="Separated by commas.")] = "full,mean,tiers,random",
    seeds: Annotated[int, typer.Option(min=1, help="How many, from seed 0 on.")] = 3,
    prune_ratios: Annotated[
        str | None, typer.Option("--prune-ratio", help="One or more, separated by commas.")
    ] = None,
    deltas: Annotated[str, typer.Option("--delta", help="One or more, separated by commas.")] = str(
        DELTA
    ),
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    optimizers: Annotated[
        str, typer.Option("--optimizer", help="One or more, separated by commas.")
    ] = "sgd",
    lr: LearningRate = None,
    schedule: Curve = "onecycle",
    label_smoothing: Smoothing = 0.0,
    mixup: Mixup = 0.0,
    cutmix: Cutmix = 0.0,
    amp: Amp = False,
    compile: Compile = False,
    match_forwards: Annotated[
        str | None,
        typer.Option(
            help="Also train fully for as many forward passes as this rule made (dagger rows); "
            "one or more rules, separated by commas."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    checkpoint_every: CheckpointEvery = 5,
    out_folder: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train a grid of rules and seeds; what OUT/runs.jsonl holds already is not run again."""
    base = settings(
        data,
        rule="full",
        model=model,
        schedule=schedule,
        epochs=epochs,
        batch_size=batch_size,
        label_smoothing=label_smoothing,
        mixup=mixup,
        cutmix=cutmix,
        amp=amp,
        compile=compile,
    )
    cells = grid(
        base,
        rules=split("rules", rules),
        seeds=range(seeds),
        prune_ratios=[None] if prune_ratios is None else numbers("prune-ratio", prune_ratios),
        deltas=numbers("delta", deltas),
        optimizers=[
            (name, OPTIMIZERS.get(name, 1.0) if lr is None else lr)
            for name in split("optimizer", optimizers)
        ],
    )
    matching = [] if match_forwards is None else split("match-forwards", match_forwards)
    if unmatched := [rule for rule in matching if rule not in split("rules", rules)]:
        raise UserError(
            f"match-forwards is {unmatched[0]!r}, which is not one of the rules {rules}."
        )
    workshop = Workshop(
        data_dir or data_sets.default_folder(), out_folder / "checkpoints", checkpoint_every
    )
    finished = run_cells(cells, matching, workshop, out_folder / RUNS, jobs)
    show_or_print(finished, as_json, f"{data}, {base.model}, {base.epochs} epochs")


@app.command(
    epilog=examples(
        "infobatch demo",
        "infobatch demo --seeds 10",
    )
)
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. [default: one per core, 4 at most]")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", help="The folder it writes.")] = Path(
        "infobatch-demo"
    ),
    as_json: Json = False,
) -> None:
    """See it work, in about a minute: four rules on scikit-learn's digits, and a report."""
    cells = grid(settings("digits"), rules=["full", "mean", "tiers", "random"], seeds=range(seeds))
    file = out_folder / DEMO_RUNS
    if not pending(cells, runs.read(file, lambda note: None)):
        file.unlink()  # a finished one is shown anew, a stopped one goes on
    workshop = Workshop(
        data_sets.default_folder(), out_folder / "demo-checkpoints", checkpoint_every=0
    )
    num_jobs = jobs or min(torch.get_num_threads(), 4)
    finished = run_cells(cells, [], workshop, file, num_jobs)
    show_or_print(finished, as_json, f"digits, {seeds} seeds, 40 epochs")
    page = write_report([file], out_folder, 0.5)
    if as_json:
        tell(f"report in {page}")
    else:
        print(f"report in {page}")


@app.command(
    epilog=examples(
        "infobatch report runs",
        "infobatch report results/*/*.jsonl --out page --margin 0.25",
        "infobatch report runs --json",
    )
)
def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Files of runs, or folders with them.")
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="The folder it writes.")] = Path(
        "report"
    ),
    margin: Annotated[
        float, typer.Option(help="What counts as lossless, in points of accuracy.")
    ] = 0.5,
    as_json: Json = False,
) -> None:
    """Write a page with tables and figures of finished runs, and print its path."""
    if not 0 < margin < 100:
        raise UserError(f"margin is {margin:g}, expected points of accuracy, 0 < margin < 100.")
    found: list[Path] = []
    for path in files:
        if not path.exists():
            raise UserError(
                f"{path} does not exist, expected a file of runs, or a folder with one."
            )
        found += sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not found:
        raise UserError(f"{files[0]} holds no file that ends in .jsonl: run `infobatch compare`.")
    page = write_report(found, out_folder, margin)
    if as_json:
        comparisons = results(found, margin=margin / 100)
        print(json.dumps({"page": str(page), "comparisons": comparisons}))
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
    """List the rules: what each is, what it costs, and whether it is biased."""
    rows = rule_facts()
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("rule", "unbiased", "from", "cost", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["rule"], "yes" if row["unbiased"] else "no", row["paper"], row["cost"])
    out.print(table)


@app.command(
    epilog=examples(
        "infobatch plan losses.npy",
        "infobatch plan losses.csv --column loss --rule tiers",
        "infobatch plan losses.parquet --prune-ratio 0.3 --json",
    )
)
def plan(
    file: Annotated[
        Path, typer.Argument(metavar="SCORES", help="A score per sample: .npy, .csv or .parquet.")
    ],
    rule: Annotated[str, typer.Option(help="See `infobatch rules`.")] = "mean",
    prune_ratio: Annotated[float | None, typer.Option(help="The rule's own, unless given.")] = None,
    column: Annotated[
        str | None, typer.Option(help="Of a table. [default: the only one, or `score`]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Say what a rule would keep of these scores in an epoch, without training."""
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
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Unbiased dynamic data pruning for PyTorch: try it, measure it, report it."""
    if version:
        print(f"infobatch {infobatch.__version__}")
        raise typer.Exit


# What the commands share --------------------------------------------------------------------------


def load(data: str, folder: Path | None) -> Task:
    """A data set, fetched with a bar where it is missing."""
    with fetching() as heard:
        return data_sets.load(data, folder or data_sets.default_folder(), heard)


def run_cells(
    cells: Sequence[Settings],
    matching: Sequence[str],
    workshop: Workshop,
    file: Path,
    num_jobs: int,
) -> list[Run]:
    """Train what the file does not hold yet, then what is matched to it; returns all of these."""
    wanted = list(cells)

    def finished() -> list[Run]:
        found = {settings_of(run): run for run in runs.read(file, lambda note: None)}
        return [found[cell] for cell in wanted if cell in found]

    runs.read(file, tell)  # what cannot be read is told of, once
    task = load(cells[0].data, workshop.data_folder)
    runs.prepare(file)
    run_missing(pending(cells, finished()), workshop, file, num_jobs, task)
    for rule in matching:
        cut = matched(finished(), rule)
        wanted += cut
        run_missing(pending(cut, finished()), workshop, file, num_jobs, task)
    return finished()


def run_missing(
    cells: Sequence[Settings], workshop: Workshop, file: Path, num_jobs: int, task: Task
) -> None:
    """Train these, and write each down when it is done."""
    if not cells:
        return
    num_finished = 0
    with running(len(cells)) as show_progress:

        def hear(cell: Settings, heard: News) -> None:
            nonlocal num_finished
            if isinstance(heard, dict):
                runs.append(file, heard)
                workshop.keeping(cell).forget()
                num_finished += 1
            elif isinstance(heard, SetAside):
                tell(heard.sentence)
            show_progress(cell, heard)

        if num_jobs == 1:
            one_after_another(cells, workshop, hear, task=task)
        else:
            side_by_side(cells, workshop, hear, num_jobs=num_jobs)
    if num_finished < len(cells):
        stop_here(
            f"stopped with {num_finished} of {len(cells)} runs finished; the same command goes on."
        )


def stop_here(sentence: str) -> NoReturn:
    """End as programs do that Ctrl-C has stopped."""
    tell(sentence)
    raise typer.Exit(STOPPED)


def split(option: str, text: str) -> list[str]:
    """What is separated by commas, at least one: `split("rules", "full,mean")`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"{option} is {text!r}, expected one or more, separated by commas.")
    return names


def numbers(option: str, text: str) -> list[float]:
    """Numbers separated by commas, or a sentence."""
    try:
        return [float(number) for number in split(option, text)]
    except ValueError:
        raise UserError(f"{option} is {text!r}, expected numbers separated by commas.") from None


def show_or_print(finished: list[Run], as_json: bool, title: str) -> None:
    """The summary of a comparison, for people or for a script."""
    rows = summary(finished)
    if as_json:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        show(rows, title)


def write_report(files: list[Path], folder: Path, margin: float) -> Path:
    """The page of `infobatch_lab.report`; `margin` in points."""
    try:
        return write(files, folder, margin=margin / 100)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from error
