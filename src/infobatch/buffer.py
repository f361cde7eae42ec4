"""Where the losses of an epoch are written down: one buffer in plan order, beside the weights.

It lives on the device of the losses and reads nothing back to the host. On the host NumPy reads and
writes a batch in a fraction of the time that torch takes to begin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.distributed import NO_BITS, NO_LOSS, has_loss, no_losses
from infobatch.errors import OrderError
from infobatch.shard import Shard

HOST = torch.device("cpu")
ZERO = np.float32(0)
ELSEWHERE = -1
"""The entry of a sample that is not to be trained here."""


class LossBuffer:
    """The weights of an epoch's entries, and the losses reported for them.

    Behind the entries of the plan there are a few more that weigh 0, for the repeats that even out
    the ranks, and on a device for samples that should not be there.

    >>> buffer = LossBuffer(torch.tensor([1.0, 2.0]), Shard(0, 2))
    >>> buffer.to(HOST)
    >>> buffer.write_in_order(slice(0, 1), torch.tensor([0.5]))
    >>> buffer.weights(slice(0, 2)), has_loss(buffer.losses(1))
    (tensor([1., 2.]), tensor([ True, False]))
    """

    def __init__(self, weights: Tensor, shard: Shard, *, in_order: bool = False) -> None:
        self._shard = shard
        self._num_entries = len(weights)
        self._weights = weights
        # In order it is known what was reported, and memory that is not written to costs nothing.
        self._is_blank = in_order and shard.world_size == 1
        size = self._num_entries
        self._losses = torch.empty(size, dtype=torch.float32) if self._is_blank else no_losses(size)
        self.device: torch.device | None = None
        self.arrays: HostArrays | None = None
        """The same memory for NumPy, where it is on the host."""
        self._reserve(0 if shard.world_size == 1 else shard.world_size)

    def _reserve(self, num_more: int) -> None:
        missing = self._num_entries + num_more - len(self._losses)
        if missing > 0:
            self._weights = torch.cat([self._weights, self._weights.new_zeros(missing)])
            self._losses = torch.cat([self._losses, no_losses(missing).to(self._losses.device)])

    def to(self, device: torch.device) -> None:
        """Be on the device of the losses."""
        if device == self.device:
            return
        # The buffer is kept from step to step: it must outlive a user's inference mode.
        with torch.inference_mode(False):
            if device != HOST:
                self._reserve(max(1, self._shard.world_size))
            self._weights, self._losses = send(self._weights, device), send(self._losses, device)
        self.device, self.arrays = device, None
        if device == HOST:
            losses = self._losses.numpy()
            self.arrays = HostArrays(self._weights.numpy(), losses, losses.view(np.int32))

    def weights(self, entries: slice | Tensor) -> Tensor:
        """The weights of a batch."""
        if isinstance(entries, slice):
            return self._weights[entries]
        return self._weights.index_select(0, entries)

    def write_in_order(self, entries: slice, losses: Tensor) -> None:
        """Record the losses of consecutive entries as they are."""
        if self.arrays is not None:
            self.arrays.losses[entries] = as_array(losses)
        else:
            self._losses[entries] = losses.detach()

    def write_by_index(self, entries: Tensor, losses: Tensor) -> None:
        """Record the losses of any entries; a loss of -0.0, which reads as none, as +0.0."""
        losses = losses.detach().float()  # first: a tiny float64 loss may become a -0.0 here
        losses = torch.where(losses == 0, 0.0, losses)
        self._losses.index_copy_(0, entries, losses)

    def forget(self, entries: slice | Tensor) -> None:
        """Make entries, on the host, as if nothing had been reported for them."""
        if not isinstance(entries, slice):
            entries = entries.to(self._losses.device)
        self._losses[entries] = NO_LOSS

    def losses(self, num_in_order: int | None = None) -> Tensor:
        """The losses of the plan's entries, on the host; `num_in_order` of the shard came in order.

        In order a loss is written as it is, and a -0.0 becomes +0.0 here.
        """
        losses = self._losses.cpu()
        if num_in_order:
            own = self._shard.entries(slice(0, min(num_in_order, self._shard.num_own)))
            array = losses.numpy()
            array[own] += ZERO
            if self._is_blank:
                array[: own.start] = array[own.stop :] = NO_LOSS
        return losses[: self._num_entries]

    def is_reported(self) -> Tensor:
        """Which positions of the shard were reported by index, on the host."""
        return has_loss(self._losses.cpu())[self._shard.entries(slice(0, len(self._shard)))]


class HostArrays(NamedTuple):
    """The weights and losses of a buffer on the host."""

    weights: NDArray[np.float32]
    losses: NDArray[np.float32]
    bits: NDArray[np.int32]
    """The losses, read as whole numbers."""

    def write_by_index(self, entries: NDArray[Any], losses: Tensor) -> int:
        """Record losses; returns how many of them are the first ones of their entries."""
        num_new = int(np.count_nonzero(self.bits.take(entries) == NO_BITS))
        # Adding makes +0.0 of -0.0, which reads as none; a tiny float64 becomes a -0.0 before that.
        self.losses[entries] = as_array(losses).astype(np.float32, copy=False) + ZERO
        return num_new


class EntryOf:
    """From samples to entries of the epoch, for losses that come with their indices.

    >>> entry_of = EntryOf(torch.tensor([2, 0]), Shard(0, 2), num_samples=3, epoch=1)
    >>> entry_of.on_host(np.array([0, 2])).tolist()
    [1, 0]
    """

    def __init__(self, indices: Tensor, shard: Shard, num_samples: int, epoch: int) -> None:
        self._shard, self._epoch = shard, epoch
        self._num_entries = len(indices)
        small = self._num_entries + shard.world_size < 2**31
        self._entry_of: NDArray[Any] = np.full(
            num_samples, ELSEWHERE, dtype=np.int32 if small else np.int64
        )
        # A framework that shards the whole epoch by itself may repeat what was done before a
        # resume; a rank's own part never does.
        own = slice(None) if shard.world_size == 1 else shard.entries(slice(0, shard.num_own))
        entries = np.arange(self._num_entries, dtype=self._entry_of.dtype)
        self._entry_of[indices.numpy()[own]] = entries[own]
        if shard.num_own < len(shard):
            repeat = shard.entries(slice(shard.num_own, len(shard))).start
            self._entry_of[int(indices[shard.repeat])] = repeat
        self._on_device: Tensor | None = None

    def on_host(self, samples: NDArray[np.int64]) -> NDArray[Any]:
        """Return the entries of these samples, or raise if one is not trained here."""
        try:
            entries = self._entry_of.take(samples)
            is_inside = np.minimum.reduce(samples) >= 0  # NumPy counts what is below 0 from the end
        except IndexError:
            is_inside = False
        if not is_inside:
            raise ValueError(
                f"indices run from {samples.min()} to {samples.max()}, "
                f"expected positions in a data set of {len(self._entry_of)} samples."
            )
        if np.minimum.reduce(entries) < 0:
            shard = self._shard
            part = "" if shard.world_size == 1 else f"rank {shard.rank}'s part of "
            raise OrderError(
                f"sample {samples[entries.argmin()]} is not in {part}the plan of epoch "
                f"{self._epoch}: train on what the sampler gives, and report an epoch's samples "
                "before the next one begins.",
                "not-in-plan",
            )
        return entries

    def on_device(self, samples: Tensor, device: torch.device) -> Tensor:
        """The same, unread: samples that are not trained here get an entry that weighs 0."""
        if self._on_device is None or self._on_device.device != device:
            with torch.inference_mode(False):
                entries = np.where(self._entry_of < 0, self._num_entries, self._entry_of)
                self._on_device = send(torch.from_numpy(entries), device)
        # Not [...], which would take what is below 0 for another sample.
        return self._on_device.index_select(0, send(samples, device)).long()


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To a device without waiting; on the host, values may be read before they have arrived."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def as_array(losses: Tensor) -> NDArray[Any]:
    """Losses on the host for NumPy, which knows no bfloat16: `as_array(losses)`."""
    if type(losses) is not Tensor:
        losses = losses.as_subclass(Tensor)
    if losses.dtype is torch.bfloat16:
        losses = losses.float()
    array: NDArray[Any] = losses.numpy(force=True)  # detaches too, in one call
    return array
