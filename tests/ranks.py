"""Real processes that train together: `on_ranks(4, function, tmp_path)`."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

# A server that has imported torch once forks clean processes in no time.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "torch.distributed", "infobatch"])
TIMEOUT = timedelta(seconds=120)


def on_ranks(
    num_ranks: int, function: Callable[..., Any], folder: Path, *arguments: Any
) -> list[Any]:
    """What `function(*arguments)` returns on each rank of a process group."""
    meeting = folder / f"meeting-{len(list(folder.iterdir()))}"
    meeting.mkdir()
    processes = [
        PROCESSES.Process(target=_run, args=(rank, num_ranks, meeting, function, arguments))
        for rank in range(num_ranks)
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:  # a test that takes too long leaves no rank behind
        for process in processes:
            if process.is_alive():
                process.kill()
    outcomes = [torch.load(meeting / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]
    failures = [failure for _, failure in outcomes if failure]
    assert not failures, "\n".join(failures)
    return [result for result, _ in outcomes]


def _run(
    rank: int, num_ranks: int, meeting: Path, function: Callable[..., Any], arguments: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}/store",
        rank=rank,
        world_size=num_ranks,
        timeout=TIMEOUT,
    )
    try:
        outcome = (function(*arguments), "")
    except Exception:
        outcome = (None, f"rank {rank}: {traceback.format_exc()}")
    torch.save(outcome, meeting / f"{rank}.part")
    os.replace(meeting / f"{rank}.part", meeting / f"{rank}.pt")
    # A rank that leaves while another is still in their last collective can make that one wait
    # forever, and so can `destroy_process_group`: leave without it, and together.
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while len(list(meeting.glob("*.pt"))) < num_ranks and time.monotonic() < deadline:
        time.sleep(0.01)
    os._exit(0)


class Collectives(TorchDispatchMode):
    """The collectives called inside: `with Collectives() as seen: ...; seen.names`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
