"""What a launcher tells a process, for frameworks that look there."""

from __future__ import annotations

import os

import torch.distributed as dist


def as_launched() -> None:
    """Call this first in a process of `on_ranks`."""
    os.environ |= {
        "RANK": str(dist.get_rank()),
        "LOCAL_RANK": str(dist.get_rank()),
        "WORLD_SIZE": str(dist.get_world_size()),
        "LOCAL_WORLD_SIZE": str(dist.get_world_size()),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
