"""The losses of the running epoch, written down beside its plan until it ends.

They stay on the device they came from. A step costs a slice and a copy in order, a gather and a
scatter by index, and nothing is read back to the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from infobatch.errors import OrderError
from infobatch.plan import Plan

Places = slice | Tensor
"""Of a batch in order, its places in the plan; of a batch by index, its samples."""


class Record(ABC):
    """What an epoch has reported: all of it in order, or all of it by index."""

    num_reported = 0

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._device: torch.device | None = None
        self.all_one = plan.num_pruned == 0
        """Whether every sample weighs 1."""

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
    def write(self, places: Places, losses: Tensor) -> None:
        """Write the losses of a batch down."""

    @abstractmethod
    def reported(self) -> tuple[Tensor, Tensor]:
        """The samples reported so far and their losses, on the host."""

    @abstractmethod
    def remaining(self) -> tuple[Tensor, int]:
        """The samples not reported yet, and the place of the first in the plan."""


class OrderedRecord(Record):
    """An epoch whose batches come in the order of the plan.

    >>> plan = Plan(0, torch.tensor([2, 0, 1]), torch.ones(3), num_samples=3)
    >>> record = OrderedRecord(plan)
    >>> record.to(torch.device("cpu"))
    >>> record.write(slice(0, 2), torch.tensor([0.5, 0.7]))
    >>> record.reported()
    (tensor([2, 0]), tensor([0.5000, 0.7000]))
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._weights = plan.weights
        self._losses: Tensor | None = None

    def _move(self, device: torch.device) -> None:
        self._weights = self._plan.weights.to(device, non_blocking=True)
        if self._losses is None:
            self._losses = torch.empty(len(self._plan), dtype=torch.float32, device=device)
        else:
            self._losses = self._losses.to(device, non_blocking=True)

    def has(self, num_samples: int) -> bool:
        return self.num_reported == num_samples

    def weights(self, places: Places) -> Tensor:
        return self._weights[places]

    def write(self, places: Places, losses: Tensor) -> None:
        assert self._losses is not None
        assert isinstance(places, slice)
        self._losses[places] = losses.detach()
        self.num_reported = places.stop

    def reported(self) -> tuple[Tensor, Tensor]:
        assert self._losses is not None
        return self._plan.indices[: self.num_reported], self._losses[: self.num_reported].cpu()

    def remaining(self) -> tuple[Tensor, int]:
        return self._plan.indices[self.num_reported :], self.num_reported


class IndexedRecord(Record):
    """An epoch whose batches come with their indices: in any order, even twice.

    >>> plan = Plan(0, torch.tensor([2, 0, 1]), torch.ones(3), num_samples=3)
    >>> record = IndexedRecord(plan)
    >>> record.to(torch.device("cpu"))
    >>> record.write(torch.tensor([1, 1, 2]), torch.tensor([0.5, 0.6, 0.7]))
    >>> record.reported()
    (tensor([2, 1]), tensor([0.7000, 0.6000]))
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        # A sample that is not in the plan weighs 0; every sample in it weighs more.
        if plan.num_pruned:
            self._weight_of = torch.zeros(plan.num_samples, dtype=torch.float32)
            self._weight_of[plan.indices] = plan.weights
        else:
            self._weight_of = torch.ones(1, dtype=torch.float32).expand(plan.num_samples)
        self._weight_on_device = self._weight_of
        self._loss_of = torch.zeros(plan.num_samples, dtype=torch.float32)
        self._written = torch.zeros(plan.num_samples, dtype=torch.bool)

    def has(self, num_samples: int) -> bool:
        # What came twice on a device was counted twice, so the count is looked up when it matters.
        if self.num_reported >= num_samples:
            self.num_reported = int(self._is_reported().sum())
        return self.num_reported == num_samples

    def _move(self, device: torch.device) -> None:
        self._weight_on_device = self._weight_of.to(device, non_blocking=True)
        self._loss_of = self._loss_of.to(device, non_blocking=True)
        self._written = self._written.to(device, non_blocking=True)

    def weights(self, places: Places) -> Tensor:
        assert isinstance(places, Tensor)
        self._check(places)
        return self._weight_on_device[places.to(self._device, non_blocking=True)]

    def write(self, places: Places, losses: Tensor) -> None:
        assert isinstance(places, Tensor)
        places = places.to(self._device, non_blocking=True)
        num_new = len(places)
        if _on_host(places) and _on_host(self._written):
            num_new -= int(np.count_nonzero(self._written.numpy()[places.numpy()]))
        self._loss_of[places] = losses.detach().float()
        self._written[places] = True
        self.num_reported += num_new

    def reported(self) -> tuple[Tensor, Tensor]:
        indices = self._plan.indices
        if not self.has(len(indices)):
            indices = indices[self._is_reported()]
        return indices, self._loss_of.cpu()[indices]

    def remaining(self) -> tuple[Tensor, int]:
        return self._plan.indices[~self._is_reported()], 0

    def _is_reported(self) -> Tensor:
        return self._written.cpu()[self._plan.indices]

    def _check(self, indices: Tensor) -> None:
        """Refuse samples that are not in the plan. On a device, unread, they weigh 0 instead."""
        if not _on_host(indices):
            return
        numbers = indices.numpy()
        if numbers.min() < 0 or numbers.max() >= self._plan.num_samples:
            raise ValueError(
                f"indices run from {numbers.min()} to {numbers.max()}, "
                f"expected positions in a data set of {self._plan.num_samples} samples."
            )
        weights = self._weight_of.numpy()[numbers]
        if weights.min() == 0:
            raise OrderError(
                f"sample {numbers[weights.argmin()]} is not in the plan of epoch "
                f"{self._plan.epoch}: train on plan.indices, and report an epoch's samples before "
                "the next one begins."
            )


def _on_host(tensor: Tensor) -> bool:
    """Whether looking at the values costs nothing."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor
