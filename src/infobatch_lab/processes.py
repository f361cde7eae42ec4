"""One process, or several under torchrun; and being asked to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    """Of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def num_processes() -> int:
    """That train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def process_group() -> Iterator[None]:
    """Joined with the other processes of torchrun; nothing to do for one alone."""
    if num_processes() == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def total(values: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if num_processes() > 1:
        dist.all_reduce(values)
    return values


def wait_for_all() -> None:
    """Go on when all processes are here."""
    if num_processes() > 1:
        dist.barrier()


@contextmanager
def stop_on_signal(*numbers: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C (or a polite kill) has asked to stop; or just
    these signals.

    The first asks, so that the step at hand is finished; a second Ctrl-C ends at once. Not so under
    a launcher: it may pass on the one that the terminal has sent to all, and kills what does not
    end.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if num_processes() == 1 and signal.SIGINT in before:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    heeded = numbers or (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, ask) for number in heeded}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def all_agree_to_stop(asked: bool) -> bool:
    """Whether any process was asked to, so that all of them stop at the same step."""
    if num_processes() == 1:
        return asked
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return bool(total(torch.tensor(float(asked), device=device)))
