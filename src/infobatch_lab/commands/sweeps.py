"""Train many runs for a command, with bars and a queue, and show what came of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer

from infobatch_lab import runs, tasks
from infobatch_lab.checkpoints import DiscardedCheckpoint
from infobatch_lab.comparison import Row, said
from infobatch_lab.comparison import compare as comparisons_of
from infobatch_lab.display import duration, fetching, running, show, show_frontiers, tell
from infobatch_lab.errors import UserError
from infobatch_lab.files import check_target
from infobatch_lab.frontier import find_frontiers
from infobatch_lab.images import default_folder
from infobatch_lab.jobs import Diverged, Event, SweepConfig, run_sweep
from infobatch_lab.lines import Run
from infobatch_lab.queue import Kind, QueueFile, QueueState, QueueWriter, seconds_left
from infobatch_lab.report import write
from infobatch_lab.settings import Settings
from infobatch_lab.sweep import Pending
from infobatch_lab.tasks import Task
from infobatch_lab.training import Progress

STOPPED = 130
"""The exit code of a program that Ctrl-C has stopped."""

RUNS = "runs.jsonl"

Done = tuple[QueueState, list[Run]]
"""A command, and the runs that it wanted."""


def load(data: str, folder: Path | None) -> Task:
    """A task with its data, fetched with a bar where it is missing."""
    with fetching() as progress:
        return tasks.load(data, folder or default_folder(), progress)


def run_cells(state: QueueState, file: Path) -> list[Run]:
    """Train what a command wants and the file does not have yet; returns all of its runs."""
    check_target(file)
    task = load(state.cells[0].data, state.data_folder)
    runs.prepare(file)
    queue = QueueFile(file)
    with queue.held():
        tell_of_others(state, queue)
        return train_held(state, queue, task)


def run_queue(queue: QueueFile, data_dir: Path | None, as_json: bool) -> None:
    """Train what commands have left, one after the other, and show it as they would.

    Where one of them fails, the others go on.
    """
    done: list[Done] = []
    failures = []
    with queue.held():
        for state in queue.read():
            folder = data_dir or state.data_folder
            try:
                task = load(state.cells[0].data, folder)
                done.append((state, train_held(replace(state, data_folder=folder), queue, task)))
            except UserError as error:
                failures.append(str(error))
    show_or_print_all(done, queue.runs_file, as_json)
    if failures:
        raise UserError(" ".join(failures))


def tell_of_others(state: QueueState, queue: QueueFile) -> None:
    """Say how many runs of other commands stay in the queue."""
    finished = runs.read_file(queue.runs_file)
    wanted = Pending(state.cells, state.matching, finished).wanted
    left = {cell for other in queue.others(state, finished) for cell in other.left(finished)}
    if num_left := len(left - wanted.keys()):
        run, stays, it = ("run", "stays", "it") if num_left == 1 else ("runs", "stay", "them")
        tell(
            f"{num_left} unfinished {run} of an earlier command {stays} in the queue: `infobatch "
            f"queue run` trains {it}, `infobatch queue clear` forgets {it}."
        )


def train_held(state: QueueState, queue: QueueFile, task: Task) -> list[Run]:
    """Train what a command wants into the file of a queue that is held."""
    file = queue.runs_file
    finished = runs.read_file(file, tell)
    pending = Pending(state.cells, state.matching, finished)
    others = queue.others(state, finished)
    if not len(pending):
        queue.write(others)
        return pending.finished
    if queue.is_paused:
        tell("the queue is paused; `infobatch queue resume` continues it.")
    config = SweepConfig(state.data_folder, file.parent, state.checkpoint_every, queue.pause_file)
    diverged = train_pending(pending, config, QueueWriter(queue, state, others), file, task)
    num_done, num_wanted = len(pending.finished), len(pending.wanted)
    rest = replace(state, cells=tuple(c for c in state.cells if c.name not in diverged))
    is_stopped = num_done + len(diverged) < num_wanted
    queue.write([rest, *others] if is_stopped else others)
    if is_stopped:
        stop_here(
            f"stopped with {num_done} of {num_wanted} runs finished; repeat the command to "
            "continue."
        )
    if diverged:
        raise UserError(
            f"{num_done} of {num_wanted} runs are finished, and `infobatch report "
            f"{file.parent}` shows them. These diverged: {', '.join(diverged)}. Use a lower "
            "--lr."
        )
    return pending.finished


def train_pending(
    pending: Pending, config: SweepConfig, writer: QueueWriter, file: Path, task: Task
) -> list[str]:
    """Train what is pending, and write each run to the file; returns the names of those that
    diverged.
    """
    num_jobs = writer.num_jobs
    diverged: list[str] = []

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
            elif isinstance(event, Diverged):
                tell(event.sentence)
                config.checkpoint(cell).delete()
                diverged.append(cell.name)
            fraction = event.fraction if isinstance(event, Progress) else None
            writer.update(cell.name, fraction)
            show_progress(cell, event)

        run_sweep(pending, config, listen, num_jobs=num_jobs, task=task)
    return diverged


def stop_here(sentence: str) -> NoReturn:
    """End as programs do that Ctrl-C has stopped."""
    tell(sentence)
    raise typer.Exit(STOPPED)


def title_of(cell: Settings) -> str:
    """The head of a table of runs."""
    return f"{cell.data}, {cell.model}, {said('epochs', cell.epochs)}"


def show_or_print(finished: list[Run], as_json: bool, title: str) -> None:
    """Print a comparison, for people or for a script."""
    if as_json:
        print(json.dumps([row.as_dict() for row in rows_of(finished)]))
    else:
        show(comparisons_of(finished)[0], title)


def rows_of(finished: list[Run]) -> list[Row]:
    """The rows of a comparison's table."""
    return [row for comparison in comparisons_of(finished)[0] for row in comparison.rows()]


def show_or_print_all(done: list[Done], file: Path, as_json: bool) -> None:
    """Print what came of commands, each by its kind, for people or for a script."""
    kinds = {state.kind for state, _ in done}
    compared = [(state, finished) for state, finished in done if state.kind is Kind.comparison]
    frontiers = find_frontiers(runs.read_file(file)) if Kind.frontier in kinds else []
    if as_json:
        records = [row.as_dict() for _, finished in compared for row in rows_of(finished)]
        print(json.dumps(records + [each.as_dict() for each in frontiers]))
    else:
        for state, finished in compared:
            show_or_print(finished, False, title_of(state.cells[0]))
        show_frontiers(frontiers)
    if Kind.trials in kinds:
        tell("the learning rates are tried; repeat `infobatch frontier` to train the runs.")


def write_report(
    files: list[Path], folder: Path, margin: float | None, data: list[str] | None = None
) -> Path:
    """Write the page, or raise `UserError`."""
    try:
        return write(files, folder, margin=margin, data=data)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from error
