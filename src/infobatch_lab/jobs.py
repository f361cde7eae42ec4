"""Run what is pending, in this process or in several, until it is done or Ctrl-C asks to stop.

Written by hand because the pools of concurrent.futures and joblib cannot ask a task that runs to
stop after its current step, so that it leaves a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

import torch

from infobatch_lab import tasks
from infobatch_lab.checkpoints import Checkpoint, CheckpointError, DiscardedCheckpoint
from infobatch_lab.choosing import STATISTICS, prepared
from infobatch_lab.errors import UserError
from infobatch_lab.lines import Line, run_of
from infobatch_lab.processes import stop_on_signal
from infobatch_lab.queue import wait_while_paused
from infobatch_lab.settings import Settings
from infobatch_lab.sweep import Pending
from infobatch_lab.tasks import Task
from infobatch_lab.training import DivergedError, Progress, Stopped, train


@dataclass(frozen=True)
class Diverged:
    """A run has no metric, and the others go on."""

    sentence: str


Event = Line | Stopped | Progress | DiscardedCheckpoint | Diverged
Listener = Callable[[Settings, Event], None]
"""Is called with a run's progress, then with its line, or with why it has none."""


@dataclass(frozen=True)
class SweepConfig:
    """The settings that all runs of a sweep share."""

    data_folder: Path
    out: Path
    """Where checkpoints and figures go."""
    checkpoint_every: int = 5
    pause_file: Path | None = None
    """While this file exists, runs wait between two steps."""

    def checkpoint(self, cell: Settings) -> Checkpoint:
        path = self.out / "checkpoints" / f"{cell.name}.pt"
        return Checkpoint(path, resume=True, every=self.checkpoint_every)

    def train(
        self,
        cell: Settings,
        task: Task,
        stop: Callable[[], bool],
        listen: Callable[[Progress | DiscardedCheckpoint], None],
    ) -> Line | Stopped | Diverged:
        """Train a cell, from its checkpoint where there is one that can be used."""

        def report(progress: Progress) -> None:
            listen(progress)
            wait_while_paused(self.pause_file, stop)

        part = prepared(cell, task, self.out / STATISTICS, stop=stop, report=report)
        if part is None:
            return Stopped(0)
        checkpoint = self.checkpoint(cell)
        once = partial(
            train, cell, part, checkpoint, stop=stop, report=report,
            figures=self.out / "figures" / cell.name,
        )  # fmt: skip
        try:
            try:
                return once()
            except CheckpointError as error:
                listen(checkpoint.discard(str(error)))
                return once()
        except DivergedError as error:
            return Diverged(str(error))


def run_sweep(
    pending: Pending, config: SweepConfig, listener: Listener, *, num_jobs: int, task: Task
) -> None:
    """Train what is pending, until all is done or Ctrl-C asks to stop."""

    def hear(cell: Settings, event: Event) -> None:
        if isinstance(event, dict):
            pending.finish(cell, run_of(event))
        listener(cell, event)

    if num_jobs == 1:
        one_after_another(pending, config, hear, task=task)
    else:
        side_by_side(pending, config, hear, num_jobs=num_jobs)


def one_after_another(
    pending: Pending, config: SweepConfig, listener: Listener, *, task: Task
) -> None:
    """Train in this process."""
    with stop_on_signal() as stop:
        while not stop() and (cell := pending.take()) is not None:
            listener(cell, config.train(cell, task, stop, partial(listener, cell)))


# Side by side -------------------------------------------------------------------------------------


def side_by_side(
    pending: Pending, config: SweepConfig, listener: Listener, *, num_jobs: int
) -> None:
    """Train in processes that share the machine's threads."""
    num_threads = max(1, torch.get_num_threads() // num_jobs)
    num_workers = min(num_jobs, len(pending))
    with stop_on_signal() as stop, workers(config, num_workers, num_threads) as process_of:
        idle = list(process_of)
        at_work: dict[Connection, Settings] = {}
        stopping = False
        while True:
            # A finished run may have added its match, so idle workers are asked again each time.
            while idle and (next_cell := pending.take()) is not None:
                connection = idle.pop()
                at_work[connection] = next_cell
                with suppress(BrokenPipeError):  # a dead worker is noticed when it does not answer
                    connection.send(next_cell)
            if not at_work:
                return
            if stop() and not stopping:
                stopping = True
                pending.clear()
                for process in process_of.values():
                    process.terminate()  # politely: a worker saves and says so
            for ready in wait(list(at_work), timeout=0.2):
                connection = cast("Connection", ready)
                cell = at_work[connection]
                event = receive(connection, process_of[connection], cell, stopping)
                if not isinstance(event, Progress | DiscardedCheckpoint):
                    idle.append(connection)
                    del at_work[connection]
                if event is not None:
                    listener(cell, event)
                if stopping:
                    pending.clear()


def receive(
    connection: Connection, process: BaseProcess, cell: Settings, stopping: bool
) -> Event | None:
    """Receive an event from a worker; None if it ended early because it was told to."""
    try:
        event: Event | UserError = connection.recv()
    except (EOFError, OSError):
        if stopping:
            return None
        process.join()
        raise UserError(
            f"the process that trained {cell.name} died (exit code {process.exitcode}): run the "
            "same command again to train the runs that are missing."
        ) from None
    if isinstance(event, UserError):
        raise event
    return event


@contextmanager
def workers(
    config: SweepConfig, num_workers: int, num_threads: int
) -> Iterator[dict[Connection, BaseProcess]]:
    """Processes that train what they are sent, ended when done with."""
    context = multiprocessing.get_context("spawn")
    started: dict[Connection, BaseProcess] = {}
    # Ctrl-C reaches every process of a terminal; the workers leave it to this one to pass it on.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(target=work, args=(theirs, config, num_threads))
            process.start()
            theirs.close()
            started[ours] = process
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield started
    finally:
        for connection in started:
            connection.close()
        for process in list(started.values()):
            process.terminate()
            process.join()


def work(connection: Connection, config: SweepConfig, num_threads: int) -> None:
    """Train the cells that this worker is sent, until nobody sends any more."""
    torch.set_num_threads(num_threads)
    loaded: dict[str, Task] = {}
    with stop_on_signal(signal.SIGTERM) as stop:
        try:
            while not stop():
                cell: Settings = connection.recv()
                if cell.data not in loaded:
                    loaded[cell.data] = tasks.load(cell.data, config.data_folder)
                sender = ProgressSender(connection)
                connection.send(config.train(cell, loaded[cell.data], stop, sender))
        except UserError as error:
            connection.send(error)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass  # the sweep has ended, or died: nobody listens


class ProgressSender:
    """Passes progress on, a hundred times in a run at most, and each epoch's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent = -1.0  # the first one shows that the run has started

    def __call__(self, event: Progress | DiscardedCheckpoint) -> None:
        if isinstance(event, Progress):
            if event.finished is None and event.fraction - self._sent < 0.01:
                return
            self._sent = event.fraction
        self._connection.send(event)
