"""The queue of a comparison, on disk: what is left, how long it will take, and a pause.

The queue is a file beside the runs. It holds a state for each command that has left some: which
runs it wants, with which settings, and how far those at work are. The file of runs says which of
them are finished, so a kill loses nothing.

Written by hand, because libraries for queues of jobs (Celery, RQ) want a server beside them, and
the file of runs, which every command reads, says already what is finished.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from statistics import mean
from typing import Any

from infobatch_lab.errors import UserError
from infobatch_lab.files import check_file, check_target, lock
from infobatch_lab.images import default_folder
from infobatch_lab.lines import Run
from infobatch_lab.runs import TRIALS, read_file
from infobatch_lab.settings import Settings, check, settings_of
from infobatch_lab.sweep import Pending

UNREADABLE = (
    AttributeError, KeyError, OSError, OverflowError, RecursionError, TypeError, ValueError,
    UserError,
)  # fmt: skip
"""What a file fails with that is no queue."""

POLL_SECONDS = 0.2
WRITE_SECONDS = 2.0


class Kind(str, Enum):
    """What a command shows when its runs are finished."""

    comparison = "comparison"
    frontier = "frontier"
    trials = "trials"
    """Nothing: they choose the learning rates of a frontier."""


@dataclass(frozen=True)
class QueueState:
    """What one command wants, and how far it is."""

    cells: tuple[Settings, ...]
    """Every run that is wanted, finished or not, in order; all of one data set."""
    matching: tuple[str, ...] = ()
    """The rules to which full training is matched."""
    jobs: int = 1
    checkpoint_every: int = 5
    process: int | None = None
    """The process that works on it, if it is still alive."""
    at_work: dict[str, float] = field(default_factory=dict)
    """The names of the runs at work, and how far they are, from 0 to 1."""
    data_folder: Path = field(default_factory=default_folder)
    kind: Kind = Kind.comparison

    def left(self, finished: Iterable[Run]) -> list[Settings]:
        """The cells that are not finished, in order: `state.left(read_file(path))`."""
        return list(Pending(self.cells, self.matching, finished))

    def covers(self, other: QueueState, finished: Sequence[Run]) -> bool:
        """Whether another command needs no state beside this one: it has nothing left, or this is
        the same command, perhaps with more seeds.
        """
        left = other.left(finished)
        wanted = Pending(self.cells, self.matching, finished).wanted
        return not left or (
            other.kind is self.kind
            and set(other.matching) <= set(self.matching)
            and wanted.keys() >= set(left)
        )


@dataclass(frozen=True)
class QueueFile:
    """The queue that belongs to a file of runs: `QueueFile(Path("runs/runs.jsonl"))`."""

    runs_file: Path

    @property
    def path(self) -> Path:
        return self.runs_file.with_name(f"{self.runs_file.stem}-queue.json")

    @property
    def pause_file(self) -> Path:
        return self.runs_file.with_name("queue.paused")  # one for all files of the folder

    @property
    def lock_file(self) -> Path:
        return self.path.with_suffix(".lock")

    @property
    def is_paused(self) -> bool:
        return self.pause_file.exists()

    @property
    def is_at_work(self) -> bool:
        """Whether a process that lives trains its runs."""
        return any(state.process is not None for state in self.read())

    def pause(self) -> None:
        """Hold all runs between two steps, also those that are started later."""
        self.pause_file.parent.mkdir(parents=True, exist_ok=True)
        check_target(self.pause_file)
        self.pause_file.touch()

    def resume(self) -> None:
        """Let the runs go on."""
        self.pause_file.unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training into the same file; raise `UserError` if one does."""
        self.lock_file.parent.mkdir(parents=True, exist_ok=True)
        check_target(self.lock_file)
        with self.lock_file.open("w") as file:
            is_locked = lock(file)
            # Without locks the process that the queue names must do. Its number may be that of
            # another program by now, so it is the second choice.
            if is_locked is False or (is_locked is None and self.is_at_work):
                raise UserError(
                    f"another process trains runs for {self.runs_file}: wait until it has ended, "
                    "or name another folder with --out."
                )
            yield  # the file stays: a process that has opened it might lock what is deleted

    def read(self) -> list[QueueState]:
        """The states of all commands; none where there is no file, or a damaged one."""
        try:
            check_file(self.path)
            records = json.loads(self.path.read_text(encoding="utf-8"))
        except UNREADABLE:
            return []
        kind = Kind.trials if self.runs_file.name == TRIALS else Kind.comparison
        # Older versions wrote one state for all commands, and no kind.
        return [
            state
            for record in (records if isinstance(records, list) else [records])
            for state in states_of(record, kind)
        ]

    def others(self, state: QueueState, finished: Sequence[Run]) -> list[QueueState]:
        """What other commands have left, with nobody at work: call it while the file is held."""
        return [
            replace(other, process=None, at_work={})
            for other in self.read()
            if not state.covers(other, finished)
        ]

    def write(self, states: Sequence[QueueState]) -> None:
        """Replace the file, whole or not at all; delete it where nothing is left."""
        if not states:
            self.path.unlink(missing_ok=True)
            return
        part = self.path.with_suffix(f".{os.getpid()}.part")
        check_target(part)
        records = [asdict(state) for state in states]
        # A queue may be continued from another folder.
        content = json.dumps(records, default=lambda path: str(path.absolute()))
        part.write_text(content, encoding="utf-8")
        os.replace(part, self.path)


def states_of(record: Any, kind: Kind) -> list[QueueState]:
    """The states of a part of the file: one, or none where it is damaged, or one for each data set
    where an older version put those of several commands together.
    """
    try:
        cells = [cell for cell in map(settings_of, record["cells"]) if cell is not None]
        for cell in cells:
            check(cell)
        is_at_work = is_alive(record["process"])
        at_work = {str(name): float(part) for name, part in record["at_work"].items()}
        folder = record.get("data_folder")
        state = QueueState(
            cells=(),
            matching=tuple(map(str, record["matching"])),
            jobs=max(1, int(record["jobs"])),
            checkpoint_every=max(0, int(record["checkpoint_every"])),
            process=record["process"] if is_at_work else None,
            at_work=at_work if is_at_work else {},
            data_folder=default_folder() if folder is None else Path(folder),
            kind=Kind(record.get("kind", kind)),
        )
    except UNREADABLE:
        return []
    names = dict.fromkeys(cell.data for cell in cells)
    return [replace(state, cells=tuple(c for c in cells if c.data == name)) for name in names]


class QueueWriter:
    """Keeps the file up to date while runs of a command are at work."""

    def __init__(self, file: QueueFile, state: QueueState, others: Sequence[QueueState]) -> None:
        self.at_work: dict[str, float] = {}
        self._file = file
        self._state = state
        self._others = others
        self._write()

    @property
    def num_jobs(self) -> int:
        return self._state.jobs

    def update(self, name: str, fraction: float | None) -> None:
        """Note how far a run is, or with None that it has ended.

        A start or an end is written at once, progress in between every few seconds.
        """
        due = fraction is None or name not in self.at_work
        if fraction is None:
            self.at_work.pop(name, None)
        else:
            self.at_work[name] = fraction
        if due or time.monotonic() - self._written_at > WRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        state = replace(self._state, process=os.getpid(), at_work=self.at_work)
        self._file.write([state, *self._others])
        self._written_at = time.monotonic()


def is_alive(process: Any) -> bool:
    """Whether a process of this number runs."""
    if not isinstance(process, int):
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def wait_while_paused(pause_file: Path | None, stop: Callable[[], bool]) -> None:
    """Return when the pause is over, or when the run is asked to stop."""
    while pause_file is not None and pause_file.exists() and not stop():
        time.sleep(POLL_SECONDS)


def seconds_left(
    cells: Iterable[Settings],
    finished: Sequence[Run],
    *,
    at_work: dict[str, float],
    jobs: int = 1,
) -> float | None:
    """How long the cells will take, by what finished runs took; None where nothing tells."""
    total = 0.0
    for cell in cells:
        seconds = expected_seconds(cell, finished)
        if seconds is None:
            return None
        total += seconds * (1 - at_work.get(cell.name, 0.0))
    return total / max(1, jobs)


SPEED = ("options", "amp", "compile", "batch_size", "optimizer", "rule", "shrink")
"""Settings that change the time of a sample; the ones that matter most come first."""


def expected_seconds(cell: Settings, finished: Sequence[Run]) -> float | None:
    """As long as runs that differ in the seed alone; where there are none, a sample takes as long
    as in the runs most like it. None if no run has the data set and the network.
    """
    alike = [
        (run, run.settings, run.seconds)
        for run in finished
        if run.settings is not None
        and (run.settings.data, run.settings.model) == (cell.data, cell.model)
        and run.seconds is not None
    ]
    same = [seconds for _, own, seconds in alike if replace(own, seed=cell.seed) == cell]
    if same or not alike:
        return mean(same) if same else None

    def likeness(own: Settings) -> list[bool]:
        return [getattr(own, name) == getattr(cell, name) for name in SPEED]

    most = max(likeness(own) for _, own, _ in alike)
    per_sample = [s / run.num_trained for run, own, s in alike if likeness(own) == most]
    return mean(per_sample) * expected_samples(cell, [run for run, _, _ in alike])


def expected_samples(cell: Settings, alike: Sequence[Run]) -> float:
    """How many samples a run trains, if its rule skips as much as in runs of the same data set; a
    rule without runs skips nothing.
    """

    def method(own: Settings) -> tuple[Any, ...]:
        # A budget is a number of steps: only smaller batches make it fewer samples.
        fills_budget = own.budget is not None and own.shrink == "epoch"
        return own.rule, own.prune_ratio, own.delta, own.subset, fills_budget

    def at_most(run: Run | Settings) -> float:
        return alike[0].num_samples * run.epochs * (run.budget or 1.0) * (run.keep or 1.0)

    kept = [
        run.num_trained / at_most(run)
        for run in alike
        if run.settings is not None and method(run.settings) == method(cell)
    ]
    return at_most(cell) * (mean(kept) if kept else 1.0)


def status_of(file: QueueFile) -> dict[str, Any]:
    """The queue in plain numbers and words. A run that several commands want is there once."""
    states, finished = file.read(), read_file(file.runs_file)
    rows: dict[Settings, dict[str, Any]] = {}
    seconds: list[float | None] = []
    for state in states:
        pending = Pending(state.cells, state.matching, finished)
        waiting, at_work = set(pending) - rows.keys(), state.at_work
        seconds.append(seconds_left(waiting, finished, at_work=at_work, jobs=state.jobs))
        rows |= {
            cell: row_of(cell, is_done=cell not in waiting, fraction=at_work.get(cell.name))
            for cell in pending.wanted
            if cell not in rows
        }
    num_left = sum(row["state"] != "done" for row in rows.values())
    return {
        "paused": file.is_paused,
        "alive": any(state.process is not None for state in states),
        "num_done": len(rows) - num_left,
        "num_left": num_left,
        "seconds_left": None if None in seconds else sum(filter(None, seconds)),
        "runs": list(rows.values()),
    }


def row_of(cell: Settings, *, is_done: bool, fraction: float | None) -> dict[str, Any]:
    """A run with all of its settings, and how far it is if it is at work."""
    state = "done" if is_done else "waiting" if fraction is None else "at work"
    told = {"state": state, "fraction": 1.0 if is_done else fraction or 0.0}
    return {"name": cell.name, **asdict(cell), "rule": cell.label, **told}
