"""Memory: bytes per sample that are resident, at rest, during an epoch and at the peak."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from benchmarks.steps import pruner_with_scores
from benchmarks.table import Aim, Row, Section
from benchmarks.timing import exponential
from infobatch import Pruner

SIZES = (10_000_000,)
HUGE = 100_000_000
MACHINE_GB = 24
BATCH = 8192
AIMS = {
    "at rest": (4.1, 4.1),
    "half reported": (14.1, 20.3),
    "planning, peak": (19, 19),
    "closing, peak": (23, 26),
}
"""In order, and by index."""
SCORES = 4.0
"""Bytes of a score."""

Found = TypeVar("Found")


def section(sizes: Sequence[int] = SIZES, huge: int = HUGE) -> Section:
    rows = []
    for size in sizes:
        for how, by_index in (("in order", False), ("by index", True)):
            most = in_fresh_process(bytes_per_sample, size, by_index)
            for stage, bounds in AIMS.items():
                bound = bounds[by_index]
                what = f"{stage}, {how}, N = {size:,}"
                rows.append(Row(what, most[stage], "B", {"the scores": SCORES}, Aim(bound)))
    peak = in_fresh_process(peak_gigabytes, huge)
    rows.append(Row(f"peak of a process, N = {huge:,}", peak, "GB", aim=Aim(MACHINE_GB)))
    return Section(
        "Memory",
        "Bytes per sample that are resident beyond what the process had before, mean rule, the "
        "larger of a full and a pruned epoch; against the scores alone. malloc gives freed blocks "
        "back at once (`MALLOC_MMAP_THRESHOLD_`). The last line is a whole "
        "process, torch included, that reports one epoch and plans the next.",
        rows,
    )


def run(size: int, by_index: bool) -> Iterator[str]:
    """A full and a pruned epoch; stops where memory is of interest, and says where."""
    losses = exponential(BATCH)
    pruner = Pruner(size, num_epochs=100)
    for _ in range(2):
        yield "at rest"
        half = len(pruner.plan) // BATCH // 2
        yield "planning, peak"
        for number, batch in enumerate(pruner.batches(BATCH)):
            pruner.update(losses[: len(batch)], batch if by_index else None)
            if number == half:
                yield "half reported"
        yield "closing, peak"
    yield "at rest"


def bytes_per_sample(size: int, by_index: bool) -> dict[str, float]:
    """The most that a run has in memory at each stage; a peak is that since the stage before."""
    for _ in run(10 * BATCH, by_index):  # loads libraries and starts threads
        pass
    before, most = resident("VmRSS"), dict.fromkeys(AIMS, 0.0)
    for stage in run(size, by_index):
        now = resident("VmHWM" if "peak" in stage else "VmRSS") - before
        most[stage] = max(most[stage], now / size)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    return most


def peak_gigabytes(size: int) -> float:
    """The peak of a process that reports a first epoch at once and plans the second."""
    assert len(pruner_with_scores(size).plan) < size
    return resident("VmHWM") / 1e9


def resident(entry: str) -> int:
    """VmRSS, what this process has in memory, or VmHWM, its peak; in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(text.split()[1]) for text in status if text.startswith(entry)) * 1024


def in_fresh_process(task: Callable[..., Found], *arguments: object) -> Found:
    # With a fixed threshold malloc returns every large block as soon as it is freed, so that what
    # is resident is what is alive.
    before = dict(os.environ)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(task, *arguments).result()
    finally:
        os.environ.clear()
        os.environ.update(before)
