"""Lines of JSON -> runs. A line that cannot be read is left out, with a sentence why."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1

Value = str | float | bool | None

SETTINGS = (
    "data",
    "model",
    "optimizer",
    "epochs",
    "schedule",
    "batch_size",
    "lr",
    "label_smoothing",
    "mixup",
    "cutmix",
    "amp",
    "compile",
    "num_samples",
    "num_test",
)
"""What has to agree between two runs that are compared."""


class UnreadableError(ValueError):
    """A line that is no run, and why."""


@dataclass(frozen=True)
class Losses:
    """The paper's Fig. 6: histograms of the losses of one epoch."""

    epoch: int
    edges: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    rescaled: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """One training run, as far as a report needs it."""

    place: str
    """The file and line it was read from."""
    settings: tuple[Value, ...]
    """The values of `SETTINGS`, in that order."""
    rule: str
    seed: int
    prune_ratio: float | None
    delta: float | None
    match_forwards: str | None
    epochs: int
    num_samples: int
    num_test: int
    num_trained: int
    accuracy: float
    train_seconds: float | None
    pruning_seconds: float | None
    kept_fractions: tuple[float, ...]
    """Of each epoch."""
    accuracies: tuple[float, ...]
    """After each epoch; NaN where it was not measured."""
    losses: Losses | None
    command: str
    environment: tuple[tuple[str, str], ...]
    """Commit, versions and machine."""
    machine: str


def read(run_files: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """All runs of these files and folders, and notes on the lines left out."""
    runs, notes = [], []
    for path in _files(run_files):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        left_out: dict[str, list[int]] = {}
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    runs.append(parse(line, f"{path}:{number}"))
                except UnreadableError as error:
                    left_out.setdefault(str(error), []).append(number)
        for reason, (first, *others) in left_out.items():
            are = f" and {len(others)} more are" if others else " is"
            notes.append(f"{path}:{first}{are} left out: {reason}.")
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
        for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def parse(line: str, place: str) -> Run:
    """One line as a run, or `UnreadableError`."""
    try:
        record = json.loads(line)
    except ValueError:
        raise UnreadableError("it is no complete JSON, perhaps half-written") from None
    if not isinstance(record, dict):
        raise UnreadableError("it is no JSON object")
    if record.get("format") != FORMAT:
        raise UnreadableError(f"format is {record.get('format')!r}, expected {FORMAT}")
    accuracy = _number(record, "accuracy")
    if not 0 <= accuracy <= 1:
        raise UnreadableError(f"accuracy is {accuracy!r}, expected a fraction of 1")
    history = [epoch for epoch in _list(record, "history") if isinstance(epoch, dict)]
    machine = _pairs(record, "machine")
    return Run(
        place=place,
        settings=(_text(record, "data"), *(_value(record, name) for name in SETTINGS[1:])),
        rule=_text(record, "rule"),
        seed=_whole(record, "seed"),
        prune_ratio=_number_or_none(record, "prune_ratio"),
        delta=_number_or_none(record, "delta"),
        match_forwards=_text(record, "match_forwards") if record.get("match_forwards") else None,
        epochs=_whole(record, "epochs", at_least=1),
        num_samples=_whole(record, "num_samples", at_least=1),
        num_test=_whole(record, "num_test", at_least=1),
        num_trained=_whole(record, "num_trained", at_least=1),
        accuracy=accuracy,
        train_seconds=_number_or_none(record, "train_seconds"),
        pruning_seconds=_number_or_none(record, "pruning_seconds"),
        kept_fractions=tuple(_number(epoch, "kept_fraction") for epoch in history),
        accuracies=tuple(_number_or_nan(epoch, "accuracy") for epoch in history),
        losses=_losses(record.get("loss_distribution")),
        command=str(record.get("command") or "unknown"),
        environment=(
            ("commit", str(record.get("commit") or "unknown")),
            *_pairs(record, "versions"),
            *machine,
        ),
        machine=", ".join(value for _, value in machine),
    )


def _losses(value: Any) -> Losses | None:
    if not isinstance(value, dict):
        return None
    edges, *counts = (
        tuple(_number({name: item}, name) for item in _list(value, name))
        for name in ("edges", "before", "after", "rescaled")
    )
    if any(len(edges) != len(bins) + 1 for bins in counts):
        raise UnreadableError("loss_distribution has not one edge more than bins")
    return Losses(_whole(value, "epoch"), edges, *counts)


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
