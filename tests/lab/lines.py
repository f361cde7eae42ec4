"""Lines of runs that were not run, for tests of what reads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infobatch_lab.settings import Settings


def line_of(chosen: Settings, **results: Any) -> dict[str, Any]:
    """The line of a run with these settings."""
    numbers = {"accuracy": 0.9, "train_seconds": 2.0, "pruning_seconds": 0.1}
    counts = {"num_samples": 100, "num_test": 100, "num_trained": 100 * chosen.epochs}
    return {"format": 2, "task": "classification", **asdict(chosen), **counts, **numbers, **results}


def save(path: Path, *lines: dict[str, Any] | str) -> Path:
    """A file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts), encoding="utf-8")
    return path
