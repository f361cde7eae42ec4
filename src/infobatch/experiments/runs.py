"""Finished runs, a line of JSON for each: written whole, read whatever has happened to the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMAT = 1

Run = dict[str, Any]


def append(path: Path, run: Run) -> None:
    """Add a run to a file, on a line of its own even where the last one was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        separator = b"" if not size or file.read(1) == b"\n" else b"\n"
        file.write(separator + json.dumps(run).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, note: Callable[[str], None]) -> list[Run]:
    """The runs of a file; what is not one is left out, with a note: `read(path, print)`."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            run = json.loads(line)
        except ValueError:
            note(f"{path}:{number} is not a whole line of JSON, left out.")
            continue
        if not isinstance(run, dict) or run.get("format") != FORMAT:
            given = run.get("format") if isinstance(run, dict) else None
            note(f"{path}:{number} has format {given}, expected {FORMAT}, left out.")
            continue
        found.append(run)
    return found
