"""Choose the samples of a run before it, and count what that costs.

Statistics are collected once for a data set, a network and a seed, and all methods share them. They
are files below `OUT/statistics`, which carry their own times: a method is charged with the time of
the statistics that it looks at, as if it had collected them alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from infobatch import StateError, selection
from infobatch.selection import METHODS, Statistics
from infobatch_lab.errors import UserError
from infobatch_lab.files import lock
from infobatch_lab.processes import world_size
from infobatch_lab.proxies import EARLY_RUNS, Proxy, early_runs_of, proxy_of, trained
from infobatch_lab.seeding import generator
from infobatch_lab.settings import Settings
from infobatch_lab.subsets import Choice, from_file, on_subset
from infobatch_lab.tasks import Task
from infobatch_lab.training import Progress

STATISTICS = "statistics"
"""The folder of statistics below that of runs."""

OF_OUTPUTS = {"probabilities", "features", "validation"}
OF_VISITS = {"correct", "changes"}
OF_EARLY_RUNS = {"el2n", "grand"}

HELD_OUT = 0.1
"""The part of the training samples that is GLISTER's validation set; they may be chosen too."""

POLL_SECONDS = 0.2


class StopError(Exception):
    """Choosing was asked to stop. What is done is in its files."""


def prepared(
    cell: Settings,
    task: Task,
    folder: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Task | None:
    """The task with the samples that a run has: all, or those of its subset; None if stopped."""
    if not cell.has_subset:
        return task
    try:
        return on_subset(task, choose(cell, task, folder, stop=stop, report=report))
    except StopError:
        return None


def choose(
    cell: Settings,
    task: Task,
    folder: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Choice:
    """The samples of a run with `subset` or `select`; raises `StopError` if it is stopped.

    Statistics are kept in `folder`, and those that are there are used.
    """
    if cell.subset is not None:
        return from_file(cell)
    assert cell.select is not None
    assert cell.keep is not None
    data = task.labelled()
    assert data is not None  # the settings were checked
    if world_size() > 1:
        raise UserError(
            f"select is {cell.select!r}, expected one process: run `infobatch select` first, and "
            "give its file as subset."
        )
    folder.mkdir(parents=True, exist_ok=True)
    gathering = Gathering(cell, task, data, folder, stop, report)
    with locked(folder / f"{gathering.name}.lock", gathering.go_on):
        statistics, collecting_seconds = gathering.statistics(set(METHODS[cell.select].needs))
    start = perf_counter()
    try:
        chosen = selection.select(
            data, cell.select, cell.keep, statistics=statistics, seed=cell.seed
        )
    except ValueError as error:  # say, more classes and features than `influence` has room for
        raise UserError(str(error)) from error
    return Choice(
        torch.tensor(chosen.indices),
        num_samples=len(statistics),
        weights=None if chosen.weights is None else chosen.weights.float(),
        collecting_seconds=collecting_seconds,
        selecting_seconds=perf_counter() - start,
        data=cell.data,
    )


@dataclass
class Gathering:
    """The statistics of a data set under a network, collected as they are needed."""

    cell: Settings
    task: Task
    data: Dataset[Any]
    folder: Path
    stop: Callable[[], bool]
    report: Callable[[Progress], None]
    waited: float = 0.0
    """Seconds of reports and pauses, which no statistics are charged with."""

    def __post_init__(self) -> None:
        self.proxy = proxy_of(self.cell)
        self.name = self.proxy.name
        self.labels: Tensor = torch.stack([label for _, label in all_of(self.data)])

    def statistics(self, needs: set[str]) -> tuple[Statistics, float]:
        """These statistics, and the seconds that it takes to collect them and no others."""
        found, seconds = Statistics(labels=self.labels), 0.0
        if needs & (OF_OUTPUTS | OF_VISITS | {"perturbation"}):
            proxy = self.trained(self.proxy)
            seconds += proxy.train_seconds
            if needs & OF_VISITS:
                found |= proxy.visits
                seconds += proxy.recording_seconds
            if needs & OF_OUTPUTS:
                outputs, spent = self.collected(
                    "outputs", partial(selection.collect, proxy.model, self.data, "craig")
                )
                found |= with_validation(outputs)
                seconds += spent
            if "perturbation" in needs:
                perturbed, spent = self.collected(
                    "perturbation", partial(selection.collect, proxy.model, self.data, "deepfool")
                )
                found |= perturbed
                seconds += spent
        if needs & OF_EARLY_RUNS:
            runs = [self.trained(run) for run in early_runs_of(self.cell)]
            seconds += sum(run.train_seconds for run in runs)
            for name in sorted(needs & OF_EARLY_RUNS):
                means, spent = self.collected(
                    name,
                    partial(
                        selection.collect_runs, lambda run: runs[run].model, self.data, name,
                        num_runs=EARLY_RUNS,
                    ),
                )  # fmt: skip
                found |= means
                seconds += spent
        return found, seconds

    def trained(self, settings: Settings) -> Proxy:
        """A network, from its file or trained now."""
        proxy = trained(settings, self.task, self.labels, self.folder, self.go_on)
        if proxy is None:
            raise StopError
        return proxy

    def collected(self, name: str, collect: Callable[..., Statistics]) -> tuple[Statistics, float]:
        """Statistics from their file or collected now, and the seconds they took, over all
        attempts. A collection that is stopped goes on from its file.
        """
        path = self.folder / f"{self.name}-{name}.npz"
        times = Times(path.with_suffix(".json"))
        if not path.exists():
            times.write(0.0, done=False)
        before, done = times.read()
        if done:
            return Statistics.load(path), before
        start, self.waited = perf_counter(), 0.0

        def progress(num_done: int, total: int) -> None:
            if not self.go_on(Progress(0, 0.0)):
                raise StopError

        def spent() -> float:
            return before + perf_counter() - start - self.waited

        try:
            found = collect(path=path, progress=progress)
        except StateError as error:
            raise UserError(str(error)) from error
        except StopError:
            times.write(spent(), done=False)
            raise
        seconds = spent()
        times.write(seconds, done=True)
        return found, seconds

    def go_on(self, progress: Progress) -> bool:
        """Report where choosing is, and say whether it goes on."""
        start = perf_counter()
        self.report(replace(progress, fraction=0.0, finished=None, note="choosing samples"))
        self.waited += perf_counter() - start
        return not self.stop()


@dataclass(frozen=True)
class Times:
    """A file with the seconds that statistics took so far, and whether they are complete."""

    path: Path

    def read(self) -> tuple[float, bool]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return float(found["seconds"]), bool(found["done"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0, False

    def write(self, seconds: float, *, done: bool) -> None:
        part = self.path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"seconds": seconds, "done": done}), encoding="utf-8")
        os.replace(part, self.path)


def all_of(data: Dataset[Any]) -> Iterator[Any]:
    """Every sample of a data set, fetched in batches."""
    num_samples = len(data)  # type: ignore[arg-type]  # torch's Dataset has no __len__
    for start in range(0, num_samples, 1000):
        indices = list(range(start, min(start + 1000, num_samples)))
        yield from data.__getitems__(indices)  # type: ignore[attr-defined]


def with_validation(outputs: Statistics) -> Statistics:
    """The same statistics, a fixed tenth of which stands for a validation set."""
    num_held_out = max(1, round(HELD_OUT * len(outputs)))
    order = torch.randperm(len(outputs), generator=generator("validation for GLISTER"))
    return replace(outputs, validation=outputs.take(order[:num_held_out].sort().values))


@contextmanager
def locked(path: Path, go_on: Callable[[Progress], bool]) -> Iterator[None]:
    """Hold a file's lock, so that runs at the same time do not collect the same statistics."""
    with path.open("w") as file:
        while lock(file) is False:
            if not go_on(Progress(0, 0.0)):
                raise StopError
            time.sleep(POLL_SECONDS)
        yield
