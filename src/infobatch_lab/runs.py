"""The schema of a run: one line of JSON. Everybody who writes or reads runs uses this file.

A line has the settings at its top level (the task's own under `options`), where the run comes from
(command, commit, versions, machine), how many samples it trained, its seconds, its metrics, and a
history by epoch. Lines of format 1, in which every task was classification, are still read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from infobatch_lab.metrics import ACCURACY, Metric
from infobatch_lab.settings import Settings, declared, settings_of, upgraded

FORMAT = 2
READABLE = (1, 2)

TRIALS = "trials.jsonl"
"""A file of runs that only choose a learning rate, which nobody who searches a folder wants."""

Line = dict[str, Any]
"""A run as it is written."""

Value = str | float | bool | None

METHOD = ("rule", "prune_ratio", "delta", "shrink", "select", "keep", "subset")
"""The settings that tell methods apart: all others must agree between runs that are compared."""

COMPARED = tuple(n for n in declared(Settings) if n not in (*METHOD, "seed"))


class UnreadableError(ValueError):
    """A line that is no run, and why."""


@dataclass(frozen=True)
class LossHistogram:
    """The losses of one epoch: of all samples, of those kept, and weighted (the paper's Fig. 6)."""

    epoch: int
    edges: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    rescaled: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """A finished run, read and checked."""

    place: str
    """The file and line it was read from."""
    settings: Settings | None
    """None for a line that lacks some, or of a data set or rule that there is no more."""
    compared: tuple[tuple[str, Value], ...]
    """The settings that must agree between runs that are compared, by name."""
    metric: Metric
    rule: str
    seed: int
    prune_ratio: float | None
    delta: float | None
    shrink: str
    match_forwards: str | None
    select: str | None
    keep: float | None
    subset: str | None
    epochs: int
    num_samples: int
    num_test: int
    num_trained: int
    value: float
    """The metric at the end."""
    train_seconds: float | None
    eval_seconds: float | None
    pruning_seconds: float | None
    collecting_seconds: float | None
    """The time that the statistics took by which the samples were chosen."""
    selecting_seconds: float | None
    kept_fractions: tuple[float, ...]
    """The fraction of the data that each epoch trained."""
    values: tuple[float, ...]
    """The metric after each epoch; NaN where it was not measured."""
    losses: LossHistogram | None
    command: str
    environment: tuple[tuple[str, str], ...]
    """Commit, versions and machine."""
    machine: str

    @property
    def seconds(self) -> float | None:
        """The seconds of training and evaluation."""
        return None if self.train_seconds is None else self.train_seconds + (self.eval_seconds or 0)

    @property
    def choosing_seconds(self) -> float | None:
        """The seconds that choosing its samples took; None where all are trained, or unknown."""
        if self.collecting_seconds is None or self.selecting_seconds is None:
            return None
        return self.collecting_seconds + self.selecting_seconds

    @property
    def matched_epochs(self) -> int:
        """The epochs of full training with as many forward passes, to the nearest one."""
        return max(1, round(self.num_trained / self.num_samples))


# Files --------------------------------------------------------------------------------------------


def prepare(path: Path) -> None:
    """Fail now if runs cannot be added to a file, before hours are spent on one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    path.open("ab").close()
    if not existed:
        path.unlink()


def append(path: Path, line: Line) -> None:
    """Add a run to a file, on a line of its own even where the last one was cut off."""
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        separator = b"" if not size or file.read(1) == b"\n" else b"\n"
        file.write(separator + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path, note: Callable[[str], None] = lambda note: None) -> list[Run]:
    """The runs of a file; one note per reason why lines are left out: `read_file(path, print)`."""
    if not path.exists():
        return []
    runs = []
    left_out: dict[str, list[int]] = {}
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                runs.append(parse(line, f"{path}:{number}"))
            except UnreadableError as error:
                left_out.setdefault(str(error), []).append(number)
    for reason, (first, *others) in left_out.items():
        are = f" and {len(others)} more are" if others else " is"
        note(f"{path}:{first}{are} left out: {reason}.")
    return runs


def read(run_files: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """All runs of these files and folders, and notes on the lines left out."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in _files(run_files):
        runs += read_file(path, notes.append)
    if not runs:
        raise ValueError(
            f"run_files ({', '.join(map(str, run_files))}) hold no run, expected JSON lines as "
            "`infobatch compare` writes them" + (f"; {notes[0]}" if notes else ".")
        )
    return runs, notes


def _files(run_files: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}  # a file is read once, however it is named
    for path in run_files:
        if not path.exists():
            raise FileNotFoundError(
                f"run_files has {path}, which does not exist: expected a file of JSON lines or a "
                "folder of them."
            )
        for file in files_in(path) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def files_in(folder: Path) -> list[Path]:
    """The files of runs below a folder."""
    return sorted(file for file in folder.rglob("*.jsonl") if file.name != TRIALS)


# One line -----------------------------------------------------------------------------------------


def parse(text: str, place: str) -> Run:
    """One line as a run, or `UnreadableError`."""
    try:
        line = json.loads(text)
    except ValueError:
        raise UnreadableError("it is no complete JSON, perhaps half-written") from None
    if not isinstance(line, dict):
        raise UnreadableError("it is no JSON object")
    return run_of(line, place)


def run_of(line: Line, place: str = "") -> Run:
    """A line that was just written, or read, as a run."""
    if line.get("format") not in READABLE:
        readable = " or ".join(map(str, READABLE))
        raise UnreadableError(f"format is {line.get('format')!r}, expected {readable}")
    record = upgraded(line)
    metric = _metric(record.get("metric"))
    value = _number(record, metric.name)
    if metric.counts_samples and not 0 <= value <= 1:
        raise UnreadableError(f"{metric.name} is {value!r}, expected a fraction of 1")
    history = [epoch for epoch in _list(record, "history") if isinstance(epoch, dict)]
    machine = _pairs(record, "machine")
    own = record.get("options")
    if not isinstance(own, dict):
        raise UnreadableError(f"options is {own!r}, expected an object")
    _text(record, "data")
    compared = {name: _value(record, name) for name in COMPARED}
    compared |= {name: _value(own, name) for name in sorted(own)}
    counts = {name: _whole(record, name, at_least=1) for name in ("num_samples", "num_test")}
    return Run(
        place=place,
        settings=settings_of(line),
        compared=tuple((compared | counts | {"metric": metric.name}).items()),
        metric=metric,
        rule=_text(record, "rule"),
        seed=_whole(record, "seed"),
        prune_ratio=_number_or_none(record, "prune_ratio"),
        delta=_number_or_none(record, "delta"),
        shrink=_text(record, "shrink"),
        match_forwards=_text_or_none(record, "match_forwards"),
        select=_text_or_none(record, "select"),
        keep=_number_or_none(record, "keep"),
        subset=_text_or_none(record, "subset"),
        epochs=_whole(record, "epochs", at_least=1),
        **counts,
        num_trained=_whole(record, "num_trained", at_least=1),
        value=value,
        train_seconds=_number_or_none(record, "train_seconds"),
        eval_seconds=_number_or_none(record, "eval_seconds"),
        pruning_seconds=_number_or_none(record, "pruning_seconds"),
        collecting_seconds=_number_or_none(record, "collecting_seconds"),
        selecting_seconds=_number_or_none(record, "selecting_seconds"),
        kept_fractions=tuple(_number(epoch, "kept_fraction") for epoch in history),
        values=tuple(_number_or_nan(epoch, metric.name) for epoch in history),
        losses=_losses(record.get("loss_distribution")),
        command=str(record.get("command") or "unknown"),
        environment=(
            ("commit", str(record.get("commit") or "unknown")),
            *_pairs(record, "versions"),
            *machine,
        ),
        machine=", ".join(value for _, value in machine),
    )


def _metric(value: Any) -> Metric:
    """As the line describes it: a page needs no task to show its runs."""
    if value is None:
        return ACCURACY
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise UnreadableError(f"metric is {value!r}, expected an object with a name")
    given = {field.name: value[field.name] for field in fields(Metric) if field.name in value}
    for name, item in given.items():
        like = type(getattr(Metric(""), name))
        if not isinstance(item, int if like is int else (like, int) if like is float else like):
            raise UnreadableError(f"metric has {name} {item!r}, expected {like.__name__}")
    return Metric(**given)


def _losses(value: Any) -> LossHistogram | None:
    if not isinstance(value, dict):
        return None
    edges, *counts = (
        tuple(_number({name: item}, name) for item in _list(value, name))
        for name in ("edges", "before", "after", "rescaled")
    )
    if any(len(edges) != len(bins) + 1 for bins in counts):
        raise UnreadableError("loss_distribution has not one edge more than bins")
    return LossHistogram(_whole(value, "epoch"), edges, *counts)


def _number(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnreadableError(f"{name} is {value!r}, expected a number")
    return float(value)


def _number_or_none(record: Mapping[str, Any], name: str) -> float | None:
    return None if record.get(name) is None else _number(record, name)


def _number_or_nan(record: Mapping[str, Any], name: str) -> float:
    return math.nan if record.get(name) is None else _number(record, name)


def _whole(record: Mapping[str, Any], name: str, *, at_least: int = 0) -> int:
    number = _number(record, name)
    if number != int(number) or number < at_least:
        raise UnreadableError(f"{name} is {record[name]!r}, expected a whole number >= {at_least}")
    return int(number)


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise UnreadableError(f"{name} is {value!r}, expected a text")
    return value


def _text_or_none(record: Mapping[str, Any], name: str) -> str | None:
    return _text(record, name) if record.get(name) else None


def _value(record: Mapping[str, Any], name: str) -> Value:
    value = record.get(name)
    if value is None or isinstance(value, str | float | int):
        return value
    raise UnreadableError(f"{name} is {value!r}, expected a text or a number")


def _list(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name)
    return value if isinstance(value, list) else []


def _pairs(record: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    value = record.get(name)
    return tuple((str(k), str(v)) for k, v in value.items()) if isinstance(value, dict) else ()
