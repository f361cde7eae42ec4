"""The torch DataLoader that is calling us, found on the stack.

A sampler is told nothing about the loader that draws from it, but some things depend on it: how far
it reads ahead (so that a `break` can be told from a dropped batch), which data set it reads (a
Subset takes our indices for its own), and whether it is starting worker processes (which need the
data set without any state per sample). All of this is optional knowledge: for other loaders, or a
torch that names things differently, the answer is None, and whoever asked assumes the worst.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.utils.data import BatchSampler, dataloader

DEPTH = 40
"""How many frames up a loader is looked for; starting a process takes about a dozen."""


@dataclass(frozen=True)
class LoaderCall:
    """One call from a torch loader's iterator."""

    iterator: weakref.ref[Any]
    read_ahead: int
    """How many batches it draws before it hands out the first one."""
    batch_size: int | None
    """Of torch's own BatchSampler; None for others, which may do as they like."""
    drop_last: bool
    dataset: Any
    in_order: bool
    """Whether it hands out batches in the order in which it draws them."""
    is_starting: bool
    """Whether it begins to read, in distinction to asking for more."""
    sampler: Any = None
    """What it draws indices from, directly or through torch's own BatchSampler."""

    def goes_on_from(self, earlier: LoaderCall | None) -> bool:
        """Whether one iteration begins to read again, as in loaders that never end."""
        return earlier is not None and self._is_same(earlier) and not self.is_starting

    def starts_again(self, earlier: LoaderCall) -> bool:
        """Whether a loader with persistent workers has set its one iterator back to the start."""
        return self._is_same(earlier) and self.is_starting

    def _is_same(self, earlier: LoaderCall) -> bool:
        return self.iterator() is not None and self.iterator() is earlier.iterator()


def loader_call() -> LoaderCall | None:
    """The call that led here, if it came from a torch DataLoader: `loader_call()`."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEPTH):
        if frame is None:
            break
        iterator = _loader_of(frame)
        if iterator is not None:
            # Workers are given their first batches inside `_reset`.
            is_starting = False
            while frame is not None and _loader_of(frame) is iterator:
                is_starting = is_starting or frame.f_code.co_name in ("__init__", "_reset")
                frame = frame.f_back
            return _call_of(iterator, is_starting)
        frame = frame.f_back
    return None


def _loader_of(frame: FrameType) -> Any:
    """The loader whose method a frame runs; None for any other frame."""
    # The variables of other people's frames are not touched: reading them would keep them alive.
    if _is_torchs(frame.f_globals.get("__name__", "")):
        owner = frame.f_locals.get("self")
        if isinstance(owner, dataloader._BaseDataLoaderIter):
            return owner
    return None


def _is_torchs(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "torchdata")


def _call_of(iterator: Any, is_starting: bool) -> LoaderCall:
    num_workers = getattr(iterator, "_num_workers", 0)
    batches = getattr(iterator, "_index_sampler", None)
    known = batches if isinstance(batches, BatchSampler) else None
    if known is not None and not _is_torchs(type(known).__module__):
        known = None
    return LoaderCall(
        weakref.ref(iterator),
        read_ahead=num_workers * (getattr(iterator, "_prefetch_factor", None) or 0),
        batch_size=None if known is None else known.batch_size,
        drop_last=known is not None and known.drop_last,
        dataset=getattr(iterator, "_dataset", None),
        in_order=getattr(iterator, "_in_order", True),
        is_starting=is_starting,
        sampler=batches if known is None else known.sampler,
    )


def is_starting_workers() -> bool:
    """Whether a torch DataLoader is sending its data set to new worker processes."""
    call = loader_call()
    return call is not None and call.is_starting and call.read_ahead > 0
