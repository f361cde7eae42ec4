"""Many processes: who am I, are we all at the same place, and what did we all see.

The only file that knows torch.distributed. Without a process group there is one rank.
"""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from torch import Tensor

from infobatch.errors import StateError

NO_LOSS = -0.0
"""Stands where no loss was reported: a loss of zero is written as +0.0, which has other bits."""
NO_BITS = torch.iinfo(torch.int32).min
"""The same, as its bits read as a whole number: the smallest one there is."""


def no_losses(num_entries: int) -> Tensor:
    """The losses before anything is reported, float32: `no_losses(len(plan))`."""
    return torch.full((num_entries,), NO_LOSS, dtype=torch.float32)


def has_loss(losses: Tensor) -> Tensor:
    """Which losses are known: `has_loss(no_losses(3)).any()`."""
    return losses.view(torch.int32) != NO_BITS


def _is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """The number of processes that train together: `world_size()`."""
    return dist.get_world_size() if _is_up() else 1


def rank() -> int:
    """Which of them this is: `rank()`."""
    return dist.get_rank() if _is_up() else 0


def merge_losses(losses: Tensor, device: torch.device) -> Tensor:
    """The losses that all ranks reported, in the order of the plan; one collective.

    `device` is where the model is, for process groups that reach no other.
    Of all float32, read as whole numbers, the one that stands for "not reported" is the smallest:
    so the largest over all ranks is the loss itself, to the last bit.
    """
    if world_size() == 1:
        return losses
    bits = losses.view(torch.int32).to(_reachable(device), copy=True)
    dist.all_reduce(bits, op=dist.ReduceOp.MAX)
    return bits.cpu().view(torch.float32)


def check_same(device: torch.device, **own: object) -> None:
    """Raise on every rank if the ranks differ in one of these; one collective while they agree.

    >>> check_same(torch.device("cpu"), seed=0, rule="Mean(prune_ratio=0.5)")
    """
    if world_size() == 1:
        return
    words = {name: str(value) for name, value in own.items()}
    sums = torch.tensor(
        [zlib.crc32(word.encode()) for word in words.values()], device=_reachable(device)
    )
    of_rank = [torch.empty_like(sums) for _ in range(world_size())]
    dist.all_gather(of_rank, sums)
    table = torch.stack(of_rank)
    if bool((table == table[0]).all()):
        return
    # All ranks see the same difference, so all of them come here and exchange the words.
    said: list[dict[str, str]] = [{} for _ in range(world_size())]
    dist.all_gather_object(said, words)
    for name, first in said[0].items():
        for other, values in enumerate(said):
            if values[name] != first:
                raise StateError(
                    f"{name} is {first} on rank 0 and {values[name]} on rank {other}: start "
                    "all ranks with the same data set, seed and settings, and from the same "
                    "checkpoint, and report as many batches on each of them.",
                    "ranks-differ",
                )


def _reachable(device: torch.device) -> torch.device:
    """Where the process group can reach a tensor: on the host, or else where the model is."""
    if "cpu" in dist.get_backend_config():
        return torch.device("cpu")
    if device.type != "cpu":
        return device
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return accelerator
