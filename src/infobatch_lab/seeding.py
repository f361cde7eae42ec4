"""Random numbers that depend on a place in a run, not on what was drawn before."""

from __future__ import annotations

import hashlib

import torch


def generator(*key: int | str) -> torch.Generator:
    """A generator for this key alone: `generator("batch", seed, epoch, position)`.

    A resumed run draws the same numbers without any saved state.
    """
    return torch.Generator().manual_seed(seed_of(*key))


def seed_of(*key: int | str) -> int:
    """A seed for this key: equal keys give equal seeds."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
