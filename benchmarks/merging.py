"""Many processes: the merge at an epoch's end, against an all_gather of the losses each step."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler

from benchmarks.steps import pruner_with_scores
from benchmarks.table import Aim, Row, Section
from benchmarks.timing import exponential

SIZES = (1_280_000,)
RANKS = (2, 4)
BATCH = 256
"""On each rank."""


def section(sizes: Sequence[int] = SIZES, ranks: Sequence[int] = RANKS, turns: int = 3) -> Section:
    rows = []
    for size in sizes:
        for num_ranks in ranks:
            rows += rows_of(size, num_ranks, turns)
    return Section(
        "Many processes",
        f"A pruned epoch of the mean rule on processes that share one machine (gloo, batches of "
        f"{BATCH} on each rank, {os.cpu_count()} cores): the time of all its "
        "collectives, the bytes that each rank sends and receives where they go around in a ring, "
        "and how many there are; against one `all_gather` of the losses in each step. What is "
        "counted in steps is between an epoch's first step and its last.",
        rows,
    )


def rows_of(size: int, num_ranks: int, turns: int) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        arguments = [(rank, num_ranks, size, turns, Path(folder)) for rank in range(num_ranks)]
        processes = [context.Process(target=run, args=own) for own in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        found = torch.load(Path(folder) / "found.pt", weights_only=True)
    name = f"{num_ranks} processes, N = {size:,}"
    gather = "all_gather each step"
    return [
        Row(f"time, {name}", found["seconds"], "s", {gather: found["gather_seconds"]}),
        Row(f"bytes, {name}", found["MB"], "MB", {gather: found["gather_MB"]}),
        Row(f"collectives, {name}", found["calls"], "", {gather: found["gather_calls"]}),
        Row(f"collectives in steps, {name}", found["calls_in_steps"], "", aim=Aim(0)),
    ]


def run(rank: int, num_ranks: int, size: int, turns: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks
    )
    found = [measure(size) for _ in range(turns)]
    if rank == 0:
        best = {name: min(turn[name] for turn in found) for name in found[0]}
        best["calls_in_steps"] = max(turn["calls_in_steps"] for turn in found)
        torch.save(best, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def measure(size: int) -> dict[str, float]:
    """One epoch with us, and as many steps that gather their losses."""
    pruner = pruner_with_scores(size)
    if pruner.epoch == 0:  # with several ranks nothing but this closes an epoch reported at once
        pruner.set_epoch(1)
    losses, epoch = exponential(BATCH), pruner.epoch
    with counted() as ours:
        batches = list(BatchSampler(pruner.sampler, BATCH, drop_last=False))
        first, *middle, last = batches
        pruner.update(losses[: len(first)])
        before_steps = ours.num_calls
        for batch in middle:
            pruner.update(losses[: len(batch)])
        in_steps = ours.num_calls - before_steps
        pruner.update(losses[: len(last)])
    assert pruner.epoch == epoch + 1
    with counted() as theirs:
        for batch in batches:
            gathered = [torch.empty(len(batch)) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, losses[: len(batch)])
    return {
        "seconds": ours.seconds,
        "gather_seconds": theirs.seconds,
        "MB": ours.bytes / 1e6,
        "gather_MB": theirs.bytes / 1e6,
        "calls": ours.num_calls,
        "gather_calls": theirs.num_calls,
        "calls_in_steps": in_steps,
    }


@dataclass
class Collectives:
    """What goes through torch.distributed."""

    num_calls: int = 0
    bytes: float = 0.0
    seconds: float = 0.0


@contextmanager
def counted() -> Iterator[Collectives]:
    """Count and time the collectives that the library may call."""
    found, num_ranks = Collectives(), dist.get_world_size()

    def watch(name: str, own_place: int, rounds: float) -> None:
        original = getattr(dist, name)

        def call(*arguments: Any, **options: Any) -> Any:
            start = perf_counter()
            result = original(*arguments, **options)
            found.seconds += perf_counter() - start
            found.num_calls += 1
            found.bytes += rounds * arguments[own_place].nbytes
            return result

        stack.enter_context(patch.object(dist, name, call))

    with ExitStack() as stack:
        # A ring passes each rank's tensor on to all others; to reduce, each part goes twice.
        watch("all_reduce", 0, rounds=2 * (num_ranks - 1) / num_ranks)
        watch("all_gather", 1, rounds=num_ranks - 1)
        yield found
