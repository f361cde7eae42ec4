"""The losses of the running epoch, written down beside its plan until it ends.

They stay on the device they came from. A step costs a slice and a copy in order, a gather and a
scatter by index, and nothing is read back to the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch.errors import OrderError
from infobatch.share import Share

Places = slice | Tensor
"""Of a batch in order, its places in the share; of a batch by index, its samples."""

NO_LOSS = -0.0
"""Stands where nothing was reported: a loss of zero is written as +0.0, which has other bits."""
NO_BITS = torch.iinfo(torch.int32).min
"""The same, as its bits read as a whole number."""


def no_losses(num_places: int) -> Tensor:
    """The start of an epoch, float32: `no_losses(len(plan))`."""
    return torch.full((num_places,), NO_LOSS, dtype=torch.float32)


def has_loss(losses: Tensor) -> Tensor:
    """Where a loss is known: `has_loss(no_losses(3)).any()`."""
    return losses.view(torch.int32) != NO_BITS


@dataclass(frozen=True, eq=False)
class Reported:
    """What was reported of an epoch, in the order of its plan."""

    losses: Tensor
    """float32, NO_LOSS where none is known."""
    trained: Tensor | None = None
    """Places known to be trained, though what other ranks reported of them may not be known."""

    @cached_property
    def known(self) -> Tensor:
        """Where a loss is known."""
        return has_loss(self.losses)

    @cached_property
    def done(self) -> Tensor:
        """Which places were trained."""
        return self.known if self.trained is None else self.known | self.trained

    @cached_property
    def num_done(self) -> int:
        return int(self.done.count_nonzero())  # a sum would make whole numbers of them all first


class Record(ABC):
    """What a rank has reported of its share: all of it in order, or all of it by index."""

    num_reported = 0

    def __init__(self, share: Share) -> None:
        self.share = share
        self._device: torch.device | None = None
        self._all_one = share.plan.num_pruned == 0

    def to(self, device: torch.device) -> None:
        """Be on the device of the losses."""
        if device != self._device:
            # What is kept from step to step must outlive a user's inference mode.
            with torch.inference_mode(False):
                self._move(device)
            self._device = device

    @abstractmethod
    def _move(self, device: torch.device) -> None: ...

    @abstractmethod
    def has(self, num_samples: int) -> bool:
        """Whether so many samples are reported."""

    @abstractmethod
    def weights(self, places: Places) -> Tensor:
        """The weights of a batch."""

    @abstractmethod
    def all_one(self, places: Places) -> bool:
        """Whether the whole batch weighs 1, as far as that is known on the host."""

    @abstractmethod
    def write(self, places: Places, losses: Tensor) -> None:
        """Write the losses of a batch down."""

    @abstractmethod
    def is_reported(self) -> Tensor:
        """Which samples of the share are reported, on the host."""

    @abstractmethod
    def write_into(self, in_plan: Tensor) -> None:
        """Write what was reported into losses in the order of the plan."""


class OrderedRecord(Record):
    """An epoch whose batches come in the order of the share.

    >>> from infobatch.plan import Plan
    >>> plan = Plan(0, torch.tensor([2, 0, 1]), torch.ones(3), num_samples=3)
    >>> record = OrderedRecord(Share(plan))
    >>> record.to(torch.device("cpu"))
    >>> record.write(slice(0, 2), torch.tensor([0.5, 0.7]))
    >>> record.is_reported()
    tensor([ True,  True, False])
    """

    def __init__(self, share: Share) -> None:
        super().__init__(share)
        self._weights = share.weights
        self._losses: Tensor | None = None

    def _move(self, device: torch.device) -> None:
        self._weights = _send(self.share.weights, device)
        if self._losses is None:
            self._losses = torch.empty(len(self.share), dtype=torch.float32, device=device)
        else:
            self._losses = _send(self._losses, device)

    def has(self, num_samples: int) -> bool:
        return self.num_reported == num_samples

    def weights(self, places: Places) -> Tensor:
        return self._weights[places]

    def all_one(self, places: Places) -> bool:
        assert isinstance(places, slice)
        return self._all_one and places.stop <= self.share.num_own

    def write(self, places: Places, losses: Tensor) -> None:
        assert self._losses is not None
        assert isinstance(places, slice)
        self._losses[places] = losses.detach()
        self.num_reported = places.stop

    def is_reported(self) -> Tensor:
        return torch.arange(len(self.share)) < self.num_reported

    def write_into(self, in_plan: Tensor) -> None:
        assert self._losses is not None
        losses = self._losses[: min(self.num_reported, self.share.num_own)].cpu()
        places = self.share.places
        if isinstance(places, slice):
            torch.add(losses, 0.0, out=in_plan[places][: len(losses)])
        else:
            in_plan[places[: len(losses)]] = losses + 0.0


class IndexedRecord(Record):
    """An epoch whose batches come with their indices: in any order, even twice.

    >>> from infobatch.plan import Plan
    >>> plan = Plan(0, torch.tensor([2, 0, 1]), torch.ones(3), num_samples=3)
    >>> record = IndexedRecord(Share(plan))
    >>> record.to(torch.device("cpu"))
    >>> record.write(torch.tensor([1, 1, 2]), torch.tensor([0.5, 0.6, 0.7]))
    >>> record.is_reported()
    tensor([ True, False,  True])
    """

    def __init__(self, share: Share) -> None:
        super().__init__(share)
        self._all_one = self._all_one and share.num_ranks == 1
        plan = share.plan
        # A sample that is not to be trained here weighs 0; a repeat does so too.
        if self._all_one:
            self._weight_of = plan.weights  # 1 for all of them, whatever their order
        else:
            self._weight_of = torch.zeros(plan.num_samples, dtype=torch.float32)
            # A framework that shares out the whole plan may repeat what was done before a resume.
            source = plan if share.num_ranks == 1 else share
            self._weight_of[source.indices] = source.weights
        self._weight_on_device = self._weight_of
        self._loss_of = no_losses(plan.num_samples)

    def has(self, num_samples: int) -> bool:
        # What came twice on a device was counted twice, so the count is looked up when it matters.
        if self.num_reported >= num_samples:
            self.num_reported = int(self.is_reported().count_nonzero())
        return self.num_reported == num_samples

    def _move(self, device: torch.device) -> None:
        self._weight_on_device = _send(self._weight_of, device)
        self._loss_of = _send(self._loss_of, device)

    def weights(self, places: Places) -> Tensor:
        assert isinstance(places, Tensor)
        if _on_host(places):
            weights = self._checked_weights(places.numpy())
            if _on_host(self._weight_on_device):
                return torch.from_numpy(weights)
        # Not [...], which would take what is below 0 for another sample.
        return self._weight_on_device.index_select(0, _send(places, self._weight_on_device.device))

    def all_one(self, places: Places) -> bool:
        return self._all_one

    def write(self, places: Places, losses: Tensor) -> None:
        assert isinstance(places, Tensor)
        losses = losses.detach().float()
        # A loss of -0.0 would read as none: it becomes +0.0.
        if _on_host(places) and _on_host(self._loss_of):
            numbers, loss_of = places.numpy(), self._loss_of.numpy()
            # NumPy looks up a batch in a fraction of the time that torch takes to begin.
            self.num_reported += int(np.count_nonzero(loss_of.view(np.int32)[numbers] == NO_BITS))
            loss_of[numbers] = losses.as_subclass(Tensor).numpy() + np.float32(0)
        else:
            losses = torch.where(losses == 0, 0.0, losses)
            self._loss_of.index_copy_(0, _send(places, self._loss_of.device), losses)
            self.num_reported += len(places)

    def is_reported(self) -> Tensor:
        return has_loss(self._loss_of.cpu()[self.share.indices])

    def write_into(self, in_plan: Tensor) -> None:
        indices = self.share.plan.indices
        losses = self._loss_of.cpu()[indices]
        written = has_loss(losses)
        if self.share.is_padded:
            written &= indices != self.share.indices[-1]
        torch.where(written, losses, in_plan, out=in_plan)

    def _checked_weights(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The weights of a batch on the host, where samples that are not to be trained here are
        refused. On a device, unread, they weigh 0.
        """
        plan = self.share.plan
        if numbers.view(np.uint64).max() >= plan.num_samples:  # what is below 0 is large unsigned
            raise ValueError(
                f"indices run from {numbers.min()} to {numbers.max()}, "
                f"expected positions in a data set of {plan.num_samples} samples."
            )
        weights: NDArray[np.float32] = self._weight_of.numpy()[numbers]
        if weights.all():
            return weights
        stranger = weights == 0
        if self.share.is_padded:
            stranger &= numbers != int(self.share.indices[-1])
        if stranger.any():
            of_rank = "" if self.share.num_ranks == 1 else f"rank {self.share.rank}'s share of "
            raise OrderError(
                f"sample {numbers[stranger.argmax()]} is not in {of_rank}the plan of epoch "
                f"{plan.epoch}: train on what the sampler gives, and report an epoch's samples "
                "before the next one begins."
            )
        return weights


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """To a device without waiting; on the host, values may be read before they have arrived."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def _on_host(tensor: Tensor) -> bool:
    """Whether looking at the values costs nothing."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor
