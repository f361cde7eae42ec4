"""Finished runs, a line of JSON for each: written whole, read whatever has happened to the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infobatch_lab.report.runs import UnreadableError, parse

Run = dict[str, Any]


def prepare(path: Path) -> None:
    """See that runs can be added to a file, before hours are spent on one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    path.open("ab").close()
    if not existed:
        path.unlink()


def append(path: Path, run: Run) -> None:
    """Add a run to a file, on a line of its own even where the last one was cut off."""
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
            parse(line.decode(errors="replace"), f"{path}:{number}")
        except UnreadableError as error:
            note(f"{path}:{number} is left out: {error}.")
        else:
            found.append(json.loads(line))
    return found
