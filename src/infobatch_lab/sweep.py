"""Many runs: a grid of settings, one after the other or side by side, and never one twice."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch

from infobatch_lab import rules, tasks
from infobatch_lab.checkpoints import Checkpoint, CheckpointError, DiscardedCheckpoint
from infobatch_lab.errors import UserError
from infobatch_lab.processes import stop_on_signal
from infobatch_lab.queue import wait_while_paused
from infobatch_lab.rules import DELTA
from infobatch_lab.runs import Line, Run, run_of
from infobatch_lab.settings import Settings, settings
from infobatch_lab.tasks import Task
from infobatch_lab.training import Progress, Stopped, train

Event = Line | Stopped | Progress | DiscardedCheckpoint
Listener = Callable[[Settings, Event], None]
"""Is called with a run's progress, then with its line, or that it was stopped."""

SWEPT = ("optimizer", "rule", "prune_ratio", "delta", "shrink")
"""The settings that a comparison may vary; the last one changes fastest."""


def grid(data: str, *, seeds: Iterable[int], **given: Any) -> list[Settings]:
    """All cells, without doubles: a rule without a ratio, or full training, has fewer.

    Those of `SWEPT` may be lists. Seeds change last, so that methods take turns: a machine that
    slows down favours none, and a sweep that is cut short has whole seeds.

    >>> cells = grid("digits", seeds=[0], rule=["full", "mean"], prune_ratio=[0.3, 0.5])
    >>> [(cell.rule, cell.ratio) for cell in cells]
    [('full', None), ('mean', 0.3), ('mean', 0.5)]
    """
    values = [v if isinstance(v := given.pop(name, None), list) else [v] for name in SWEPT]
    cells: dict[Settings, None] = {}
    for seed, *combination in product(seeds, *values):
        chosen = dict(zip(SWEPT, combination, strict=True))
        rule = chosen["rule"]
        if rule in rules.NAMES and rules.default_ratio(rule) is None:
            chosen["prune_ratio"] = None
        cells[settings(data, seed=seed, **chosen, **given)] = None
    return list(cells)


def match_of(run: Run) -> Settings | None:
    """Full training with as many forward passes as a run made (Table 12); None for a run of full
    training, or of settings that are not known.
    """
    cell = run.settings
    if cell is None or cell.rule == "full":
        return None
    return replace(as_full(cell), epochs=run.matched_epochs, match_forwards=cell.rule)


def as_full(cell: Settings) -> Settings:
    """Full training with the same seed and settings."""
    return replace(cell, rule="full", prune_ratio=None, delta=DELTA, shrink="epoch")


class Pending:
    """The cells still to run, seed by seed, all methods of one seed before the next.

    With rules in `matching`, each finished run of theirs adds the full training matched to it.
    """

    def __init__(
        self, cells: Sequence[Settings], matching: Sequence[str], finished: Iterable[Run]
    ) -> None:
        self.wanted: dict[Settings, None] = {}
        self._done = {run.settings: run for run in finished}
        self._matching = matching
        self._waiting: list[Settings] = []
        for cell in sorted(cells, key=lambda cell: cell.seed):
            self._add(cell)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Settings]:
        """The cells that wait."""
        return iter(self._waiting)

    def take(self) -> Settings | None:
        """The next cell; None if none is waiting now."""
        return self._waiting.pop(0) if self._waiting else None

    def finish(self, cell: Settings, run: Run) -> None:
        """Note that a cell is done."""
        self._done[cell] = run
        self._add_match(run)

    def clear(self) -> None:
        """Forget the cells that wait."""
        self._waiting = []

    @property
    def finished(self) -> list[Run]:
        """The runs of the wanted cells that are done."""
        return [self._done[cell] for cell in self.wanted if cell in self._done]

    def _add(self, cell: Settings) -> None:
        if cell in self.wanted:
            return
        self.wanted[cell] = None
        if cell in self._done:
            self._add_match(self._done[cell])
            return
        later = (i for i, other in enumerate(self._waiting) if other.seed > cell.seed)
        self._waiting.insert(next(later, len(self._waiting)), cell)

    def _add_match(self, run: Run) -> None:
        if run.rule in self._matching and (match := match_of(run)) is not None:
            self._add(match)


@dataclass(frozen=True)
class SweepConfig:
    """What all runs of a sweep share."""

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
    ) -> Line | Stopped:
        """Train a cell, from its checkpoint where there is one that can be used."""

        def report(progress: Progress) -> None:
            listen(progress)
            wait_while_paused(self.pause_file, stop)

        checkpoint = self.checkpoint(cell)
        once = partial(
            train, cell, task, checkpoint, stop=stop, report=report,
            figures=self.out / "figures" / cell.name,
        )  # fmt: skip
        try:
            return once()
        except CheckpointError as error:
            listen(checkpoint.discard(str(error)))
            return once()


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
    """What a worker sends; None if it ended early because it was told to."""
    try:
        event: Event | UserError = connection.recv()
    except (EOFError, OSError):
        if stopping:
            return None
        process.join()
        raise UserError(
            f"the process that trained {cell.name} died (exit code {process.exitcode}): run the "
            "same command again to go on with what is missing."
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
        self._sent = 0.0

    def __call__(self, event: Progress | DiscardedCheckpoint) -> None:
        if isinstance(event, Progress):
            if event.finished is None and event.fraction - self._sent < 0.01:
                return
            self._sent = event.fraction
        self._connection.send(event)
