"""Many processes: who am I, are we all at the same place, and what did we all see.

The only file that knows torch.distributed. Without a process group there is one rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from infobatch.errors import StateError


def _is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def num_ranks() -> int:
    """The number of processes that train together: `num_ranks()`."""
    return dist.get_world_size() if _is_up() else 1


def rank() -> int:
    """Which of them this is: `rank()`."""
    return dist.get_rank() if _is_up() else 0


def merge_losses(losses: Tensor, device: torch.device) -> Tensor:
    """The losses that all ranks reported, in the order of the plan; one collective.

    `device` is where the model is, for process groups that reach no other.
    Of all float32, read as whole numbers, the one that stands for "not reported" (-0.0) is the
    smallest: so the largest over all ranks is the loss itself, to the last bit.
    """
    if num_ranks() == 1:
        return losses
    bits = losses.view(torch.int32).to(_reachable(device))
    dist.all_reduce(bits, op=dist.ReduceOp.MAX)
    return bits.cpu().view(torch.float32)


def check_same(device: torch.device, **own: int) -> None:
    """Refuse, on every rank, numbers that differ between them; one collective.

    >>> check_same(torch.device("cpu"), seed=0, num_samples=50_000)
    """
    if num_ranks() == 1:
        return
    # What does not fit 63 bits is compared by its lowest ones.
    numbers = torch.tensor([value % 2**63 for value in own.values()], device=_reachable(device))
    of_rank = [torch.empty_like(numbers) for _ in range(num_ranks())]
    dist.all_gather(of_rank, numbers)
    table = torch.stack(of_rank).cpu()
    for name, values in zip(own, table.T.tolist(), strict=True):
        for other, value in enumerate(values):
            if value != values[0]:
                raise StateError(
                    f"{name} is {values[0]} on rank 0 and {value} on rank {other}: start all ranks "
                    "with the same data set, seed and settings, and from the same checkpoint."
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
