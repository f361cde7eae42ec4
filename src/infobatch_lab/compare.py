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
from typing import cast

import torch

from infobatch_lab import data
from infobatch_lab.data import Task
from infobatch_lab.errors import UserError
from infobatch_lab.processes import stop_on_signal
from infobatch_lab.report.comparisons import DELTA
from infobatch_lab.runs import Run
from infobatch_lab.settings import Settings, canonical, check, own_ratio, settings_of
from infobatch_lab.train import CheckpointError, Keeping, SetAside, Stopped, train
from infobatch_lab.training import Progress

News = Run | Stopped | Progress | SetAside

Hear = Callable[[Settings, News], None]
"""Is told of a run's progress, then of its result, or that it was stopped."""


def grid(
    base: Settings,
    *,
    rules: Sequence[str],
    seeds: Iterable[int],
    prune_ratios: Sequence[float | None] = (None,),
    deltas: Sequence[float] = (DELTA,),
    optimizers: Sequence[tuple[str, float]] = (("sgd", 0.1),),
) -> list[Settings]:
    """All cells, without doubles: a rule without a ratio, or full training, has fewer.

    Seeds change last, so that rules take turns and a machine that slows down favours none.

    >>> from infobatch_lab.settings import settings
    >>> cells = grid(settings("digits"), rules=["full", "mean"], seeds=[0], prune_ratios=[0.3, 0.5])
    >>> [(cell.rule, cell.ratio) for cell in cells]
    [('full', None), ('mean', 0.3), ('mean', 0.5)]
    """
    cells: dict[Settings, None] = {}
    for seed, (optimizer, lr), rule, ratio, delta in product(
        seeds, optimizers, rules, prune_ratios, deltas
    ):
        cell = replace(
            base,
            rule=rule,
            seed=seed,
            optimizer=optimizer,
            lr=lr,
            prune_ratio=None if own_ratio(rule) is None else ratio,
            delta=delta,
        )
        check(cell)
        cells[canonical(cell)] = None
    return list(cells)


def matched(finished: Iterable[Run], rule: str) -> list[Settings]:
    """Full training cut to as many forward passes as each of this rule's runs made (Table 12)."""
    cells: dict[Settings, None] = {}
    for run in finished:
        of_run = settings_of(run)
        if of_run is None or of_run.rule != rule or of_run.match_forwards:
            continue
        cells[match_of(run, of_run)] = None
    return list(cells)


def match_of(run: Run, of_run: Settings) -> Settings:
    """Full training with as many forward passes as a run made, to the nearest epoch."""
    return replace(
        as_full(of_run),
        epochs=max(1, round(run["num_trained"] / run["num_samples"])),
        match_forwards=of_run.rule,
    )


def as_full(cell: Settings) -> Settings:
    """Full training with the same seed and settings."""
    return replace(cell, rule="full", prune_ratio=None, delta=DELTA, match_forwards=None)


def pending(cells: Iterable[Settings], finished: Iterable[Run]) -> list[Settings]:
    """The cells that are not among the finished runs."""
    done = {settings_of(run) for run in finished}
    return [cell for cell in cells if cell not in done]


@dataclass(frozen=True)
class Workshop:
    """What all runs of a comparison share."""

    data_folder: Path
    checkpoints: Path
    checkpoint_every: int = 5

    def train(
        self,
        cell: Settings,
        task: Task,
        stop: Callable[[], bool],
        hear: Callable[[Progress | SetAside], None],
    ) -> Run | Stopped:
        """A cell, from its checkpoint where there is one that can be used."""
        keeping = self.keeping(cell)
        try:
            return train(cell, task, keeping, stop=stop, report=hear)
        except CheckpointError as error:
            hear(keeping.set_aside(str(error)))
            return train(cell, task, keeping, stop=stop, report=hear)

    def keeping(self, cell: Settings) -> Keeping:
        """What a cell leaves behind on its way."""
        return Keeping(
            self.checkpoints / f"{cell.name}.pt", resume=True, every=self.checkpoint_every
        )


def one_after_another(
    cells: Sequence[Settings], workshop: Workshop, hear: Hear, *, task: Task
) -> None:
    """Train in this process, until done or asked to stop."""
    with stop_on_signal() as stop:
        for cell in cells:
            outcome = workshop.train(cell, task, stop, partial(hear, cell))
            hear(cell, outcome)
            if stop():
                return


# Side by side -------------------------------------------------------------------------------------


def side_by_side(
    cells: Sequence[Settings], workshop: Workshop, hear: Hear, *, num_jobs: int
) -> None:
    """Train in processes that share the machine's threads, until done or asked to stop."""
    waiting = list(cells)
    num_threads = max(1, torch.get_num_threads() // num_jobs)
    num_workers = min(num_jobs, len(cells))
    with stop_on_signal() as stop, workers(workshop, num_workers, num_threads) as process_of:
        at_work = {connection: waiting.pop(0) for connection in process_of}
        for connection, cell in at_work.items():
            send(connection, cell)
        stopping = False
        while at_work:
            if stop() and not stopping:
                stopping, waiting = True, []
                for process in process_of.values():
                    process.terminate()  # politely: a worker saves and says so
            for ready in wait(list(at_work), timeout=0.2):
                connection = cast("Connection", ready)
                cell = at_work[connection]
                outcome = heard_from(connection, process_of[connection], cell, stopping)
                if outcome is not None:
                    hear(cell, outcome)
                if isinstance(outcome, Progress | SetAside):
                    continue
                if waiting:
                    at_work[connection] = waiting.pop(0)
                    send(connection, at_work[connection])
                else:
                    del at_work[connection]


def send(connection: Connection, cell: Settings) -> None:
    """Give a worker a cell; one that has died is noticed when it does not answer."""
    with suppress(BrokenPipeError):
        connection.send(cell)


def heard_from(
    connection: Connection, process: BaseProcess, cell: Settings, stopping: bool
) -> News | None:
    """What a worker has to say; None if it ended early because it was told to."""
    try:
        outcome: News | UserError = connection.recv()
    except (EOFError, OSError):
        if stopping:
            return None
        process.join()
        raise UserError(
            f"the process that trained {cell.name} died (exit code {process.exitcode}): run the "
            "same command again to go on with what is missing."
        ) from None
    if isinstance(outcome, UserError):
        raise outcome
    return outcome


@contextmanager
def workers(
    workshop: Workshop, num_workers: int, num_threads: int
) -> Iterator[dict[Connection, BaseProcess]]:
    """Processes that train what they are sent, ended when done with."""
    context = multiprocessing.get_context("spawn")
    started: dict[Connection, BaseProcess] = {}
    # Ctrl-C reaches every process of a terminal; the workers leave it to this one to pass it on.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(
                target=work, args=(theirs, workshop, num_threads)
            )
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


def work(connection: Connection, workshop: Workshop, num_threads: int) -> None:
    """What a worker does: train the cells that it is sent, until nobody sends any more."""
    torch.set_num_threads(num_threads)
    tasks: dict[str, Task] = {}
    with stop_on_signal(signal.SIGTERM) as stop:
        try:
            while not stop():
                cell: Settings = connection.recv()
                if cell.data not in tasks:
                    tasks[cell.data] = data.load(cell.data, workshop.data_folder)
                connection.send(workshop.train(cell, tasks[cell.data], stop, Told(connection)))
        except UserError as error:
            connection.send(error)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass  # the comparison has ended, or died: nobody is there to tell


class Told:
    """Passes progress on, a hundred times in a run at most, and each epoch's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._told = 0.0

    def __call__(self, news: Progress | SetAside) -> None:
        if isinstance(news, Progress):
            if news.finished is None and news.part - self._told < 0.01:
                return
            self._told = news.part
        self._connection.send(news)
