"""A checkpoint at an epoch's boundary: its size, and the time to save and to load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.steps import pruner_with_scores
from benchmarks.table import Aim, Row, Section
from benchmarks.timing import best_times
from infobatch import Pruner

SIZES = (1_280_000, 14_000_000)
VECTOR = "a float32 vector"


def section(sizes: Sequence[int] = SIZES) -> Section:
    return Section(
        "A checkpoint",
        "`torch.save(pruner.state_dict())` to a file and `load_state_dict(torch.load())`, mean "
        "rule, between two epochs; against the same of a float32 vector of N.",
        [row for size in sizes for row in rows_of(size)],
    )


def rows_of(size: int) -> list[Row]:
    pruner, fresh = pruner_with_scores(size), Pruner(size, num_epochs=100)
    vector = torch.rand(size)
    with TemporaryDirectory() as folder:
        path, plain = Path(folder) / "pruner.pt", Path(folder) / "vector.pt"
        times = best_times(
            7,
            {
                "save": lambda: torch.save(pruner.state_dict(), path),
                "save vector": lambda: torch.save(vector, plain),
                "load": lambda: fresh.load_state_dict(load(path)),
                "load vector": lambda: load(plain),
            },
        )
        size_ours, size_plain = path.stat().st_size, plain.stat().st_size
    aim = Aim(1.5, VECTOR)
    return [
        Row(f"size, N = {size:,}", size_ours / 1e6, "MB", {VECTOR: size_plain / 1e6}, aim),
        Row(f"save, N = {size:,}", times["save"], "s", {VECTOR: times["save vector"]}, aim),
        Row(f"load, N = {size:,}", times["load"], "s", {VECTOR: times["load vector"]}, aim),
    ]


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)
