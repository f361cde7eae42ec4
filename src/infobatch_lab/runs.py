"""Files of runs, a line of JSON each: written, read, and searched for in folders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from infobatch_lab.errors import UserError
from infobatch_lab.fields import UnreadableError, Value
from infobatch_lab.files import check_file, check_target, same_file
from infobatch_lab.lines import FORMAT, Line, Run, parse
from infobatch_lab.metrics import ACCURACY, Metric
from infobatch_lab.provenance import provenance
from infobatch_lab.visible import visible

TRIALS = "trials.jsonl"
"""A file of runs that only choose a learning rate, which nobody who searches a folder wants."""

MOST_NOTES = 20
"""Reasons that are told of one file."""


# Writing ------------------------------------------------------------------------------------------


def prepare(path: Path) -> None:
    """Fail now if runs cannot be added to a file, before hours are spent on one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_target(path)
    existed = path.exists()
    path.open("ab").close()
    if not existed:
        path.unlink()


def append(path: Path, line: Line) -> None:
    """Add a run to a file, on a line of its own even where the last one was cut off."""
    check_target(path)
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        separator = b"" if not size or file.read(1) == b"\n" else b"\n"
        file.write(separator + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_run(
    path: Path,
    *,
    data: str,
    rule: str,
    seed: int,
    epochs: int,
    num_samples: int,
    num_trained: int,
    num_test: int,
    value: float,
    metric: Metric = ACCURACY,
    model: str | None = None,
    settings: Mapping[str, Value] | None = None,
    prune_ratio: float | None = None,
    delta: float | None = None,
    shrink: str = "epoch",
    history: Sequence[Mapping[str, float]] = (),
    train_seconds: float | None = None,
    pruning_seconds: float | None = None,
) -> None:
    """Add a run of your own loop to a file, for `infobatch report`: see docs/experiments.md.

    `value` is the metric at the end, as a fraction for accuracy. Full training has the rule "full".
    Runs are compared where `data`, `model`, `epochs`, the numbers of samples and everything in
    `settings` agree. An epoch of `history` has a `kept_fraction`, and the metric under its name.
    Raises `ValueError`, and writes nothing, if the report could not read the run.
    """
    line = {
        "format": FORMAT,
        "data": data,
        "model": model,
        "epochs": epochs,
        "options": dict(settings or {}),
        "rule": rule,
        "prune_ratio": prune_ratio,
        "delta": delta,
        "shrink": shrink,
        "seed": seed,
        **provenance(),
        "num_samples": num_samples,
        "num_trained": num_trained,
        "num_test": num_test,
        "metric": asdict(metric),
        metric.name: value,
        "train_seconds": train_seconds,
        "pruning_seconds": pruning_seconds,
        "history": [dict(epoch) for epoch in history],
    }
    try:
        parse(json.dumps(line), str(path))
    except (UnreadableError, TypeError) as error:  # TypeError: json knows no tensors
        raise ValueError(f"the run cannot be written to {path}: {error}.") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    append(path, line)


# Reading ------------------------------------------------------------------------------------------


def read_file(path: Path, note: Callable[[str], None] = lambda note: None) -> list[Run]:
    """The runs of a file; one note per reason why lines are left out: `read_file(path, print)`."""
    if not path.exists():
        return []
    check_file(path)
    place = visible(str(path))
    runs = []
    left_out: dict[str, list[int]] = {}
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                runs.append(parse(line, f"{place}:{number}"))
            except UnreadableError as error:
                left_out.setdefault(str(error), []).append(number)
    for reason, (first, *others) in list(left_out.items())[:MOST_NOTES]:
        are = f" and {len(others)} more are" if others else " is"
        note(f"{place}:{first}{are} left out: {reason}.")
    if more := sum(map(len, list(left_out.values())[MOST_NOTES:])):
        note(f"{place}: {more:,} more lines are left out for other reasons.")
    return runs


def read(run_files: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """All runs of these files and folders, and notes on the lines and files left out."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in _files(run_files):
        with noting(notes, path):
            check_file(path)  # a link may lead nowhere
            runs += read_file(path, notes.append)
    if not runs:
        named = visible(", ".join(map(str, run_files)))
        raise ValueError(
            f"run_files ({named}) hold no run, expected JSON lines as "
            "`infobatch compare` writes them" + (f"; {notes[0]}" if notes else ".")
        )
    return runs, notes


@contextmanager
def noting(notes: list[str], path: Path) -> Iterator[None]:
    """Note why a file cannot be read, and go on: others can."""
    try:
        yield
    except UserError as error:
        notes.append(visible(f"A file is left out: {error}"))
    except OSError as error:
        notes.append(visible(f"{path} is left out: {error.strerror}."))


def _files(run_files: Sequence[Path]) -> list[Path]:
    found: dict[str, Path] = {}  # a file is read once, however it is named
    for path in run_files:
        if not path.exists():
            raise FileNotFoundError(
                f"run_files has {path}, which does not exist: expected a file of JSON lines or a "
                "folder of them."
            )
        for file in files_in(path) if path.is_dir() else [path]:
            found.setdefault(same_file(file), file)
    return list(found.values())


def files_in(folder: Path) -> list[Path]:
    """The files of runs below a folder."""
    return sorted(file for file in folder.rglob("*.jsonl") if file.name != TRIALS)
