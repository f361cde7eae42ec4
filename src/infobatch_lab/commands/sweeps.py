"""Train many runs for a command, with bars and a queue, and show what came of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from infobatch_lab import runs, tasks
from infobatch_lab.checkpoints import DiscardedCheckpoint
from infobatch_lab.comparison import compare as comparisons_of
from infobatch_lab.comparison import said
from infobatch_lab.display import duration, fetching, running, show, show_frontiers, tell
from infobatch_lab.errors import UserError
from infobatch_lab.files import check_target
from infobatch_lab.frontier import find_frontiers
from infobatch_lab.images import default_folder
from infobatch_lab.jobs import Diverged, Event, SweepConfig, run_sweep
from infobatch_lab.lines import Run
from infobatch_lab.queue import QueueFile, QueueState, QueueWriter, seconds_left
from infobatch_lab.report import write
from infobatch_lab.settings import Settings
from infobatch_lab.sweep import Pending
from infobatch_lab.tasks import Task
from infobatch_lab.training import Progress

STOPPED = 130
"""The exit code of a program that Ctrl-C has stopped."""

RUNS = "runs.jsonl"


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
    """Train what the file does not have yet, and what is matched to it; returns all of these.

    What an earlier command has left in the queue stays there.
    """
    check_target(file)
    folder = (data_dir or default_folder()).absolute()  # a queue may be continued from elsewhere
    task = load(cells[0].data, folder)
    runs.prepare(file)
    queue_file = QueueFile(file)
    with queue_file.held():
        before, trained = queue_file.read(), runs.read_file(file, tell)
        pending = Pending(cells, matching, trained)
        earlier = [c for c in before.left(trained) if c not in pending.wanted]
        if earlier:
            tell(
                f"{len(earlier)} unfinished runs of an earlier command stay in the queue: "
                "`infobatch queue run` trains them, `infobatch queue clear` forgets them."
            )
        if not len(pending):
            queue_file.keep(before, earlier)
            return pending.finished
        if queue_file.is_paused:
            tell("the queue is paused; `infobatch queue resume` continues it.")
        config = SweepConfig(folder, file.parent, checkpoint_every, queue_file.pause_file)
        state = QueueState(
            (*pending.wanted, *earlier),
            tuple(dict.fromkeys((*matching, *(before.matching if earlier else ())))),
            num_jobs,
            checkpoint_every,
            os.getpid(),
            data_folder=folder,
        )
        writer = QueueWriter(queue_file, state, earlier)
        diverged = train_pending(pending, config, writer, file, task)
        num_done, num_wanted = len(pending.finished), len(pending.wanted)
        left = [c for c in state.left(runs.read_file(file)) if c.name not in diverged]
        queue_file.keep(state, left)
        if diverged:
            raise UserError(
                f"{num_done} of {num_wanted} runs are finished, and `infobatch report "
                f"{file.parent}` shows them. These diverged: {', '.join(diverged)}. Use a lower "
                "--lr."
            )
        if num_done < num_wanted:
            stop_here(
                f"stopped with {num_done} of {num_wanted} runs finished; repeat the command to "
                "continue."
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
            writer.update(tuple(pending.wanted), cell.name, fraction)
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
    comparisons, _ = comparisons_of(finished)
    if as_json:
        print(json.dumps([row.as_dict() for c in comparisons for row in c.rows()]))
    else:
        show(comparisons, title)


def show_or_print_frontiers(file: Path, as_json: bool) -> None:
    """Print the frontiers of a file of runs, for people or for a script."""
    found = find_frontiers(runs.read_file(file))
    if as_json:
        print(json.dumps([each.as_dict() for each in found]))
    else:
        show_frontiers(found)


def write_report(
    files: list[Path], folder: Path, margin: float | None, data: list[str] | None = None
) -> Path:
    """Write the page, or raise `UserError`."""
    try:
        return write(files, folder, margin=margin, data=data)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from error
