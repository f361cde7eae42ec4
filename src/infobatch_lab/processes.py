"""One process, or several under torchrun, and requests to stop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    """The rank of this process, counted from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def process_group() -> Iterator[None]:
    """Join the other processes of torchrun; a single process has nothing to join.

    Under gloo only the first one leaves the block: the others exit in it, with code 0.
    """
    if world_size() == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        wait_for_all()  # nothing is left to exchange after this
        if rank() > 0 and dist.get_backend() == "gloo":
            # gloo may abort a process that ends its group while its partner does, and torchrun then
            # kills the partner. This process has nothing left to do, so it leaves without ending
            # the group; only the first one ends it.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    finally:
        dist.destroy_process_group()


def total(values: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def wait_for_all() -> None:
    """Wait until all processes are here."""
    if world_size() > 1:
        dist.barrier()


@contextmanager
def stop_on_signal(*numbers: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether a signal has asked to stop: Ctrl-C or SIGTERM, unless
    others are given.

    The first signal asks, so that the current step is finished; a second Ctrl-C ends at once. Under
    a launcher it does not, because the launcher may pass on the Ctrl-C that the terminal has sent
    to all processes.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if world_size() == 1 and signal.SIGINT in before:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    heeded = numbers or (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, ask) for number in heeded}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def all_agree_to_stop(asked: bool) -> bool:
    """Whether any process was asked to stop: all of them must stop at the same step."""
    if world_size() == 1:
        return asked
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return bool(total(torch.tensor(float(asked), device=device)))
