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

    @abstractmethod
    def has(self, num_samples: int) -> bool:
        """Whether so many samples are reported."""

    @abstractmethod
    def weights(self, places: Places, device: torch.device) -> Tensor:
        """The weights of a batch, on its device."""

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
    >>> record.write(slice(0, 2), torch.tensor([0.5, 0.7]))
    >>> record.reported()
    (tensor([2, 0]), tensor([0.5000, 0.7000]))
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._weights = plan.weights
        self._losses = plan.weights[:0]

    def has(self, num_samples: int) -> bool:
        return self.num_reported == num_samples

    def weights(self, places: Places, device: torch.device) -> Tensor:
        if self._weights.device != device:
            self._weights = _moved(self._weights, device)
        return self._weights[places]

    def write(self, places: Places, losses: Tensor) -> None:
        assert isinstance(places, slice)
        if self.num_reported == 0:
            with torch.inference_mode(False):
                self._losses = torch.empty(
                    len(self._plan), dtype=torch.float32, device=losses.device
                )
        elif self._losses.device != losses.device:
            self._losses = _moved(self._losses, losses.device)
        self._losses[places] = losses.detach()
        self.num_reported = places.stop

    def reported(self) -> tuple[Tensor, Tensor]:
        return self._plan.indices[: self.num_reported], self._losses[: self.num_reported].cpu()

    def remaining(self) -> tuple[Tensor, int]:
        return self._plan.indices[self.num_reported :], self.num_reported


class IndexedRecord(Record):
    """An epoch whose batches come with their indices: in any order, even twice.

    >>> plan = Plan(0, torch.tensor([2, 0, 1]), torch.ones(3), num_samples=3)
    >>> record = IndexedRecord(plan)
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

    def weights(self, places: Places, device: torch.device) -> Tensor:
        assert isinstance(places, Tensor)
        self._check(places)
        if self._weight_on_device.device != device:
            self._weight_on_device = _moved(self._weight_of, device)
        return self._weight_on_device[places.to(device, non_blocking=True)]

    def write(self, places: Places, losses: Tensor) -> None:
        assert isinstance(places, Tensor)
        if self._loss_of.device != losses.device:
            self._loss_of = _moved(self._loss_of, losses.device)
            self._written = _moved(self._written, losses.device)
        places = places.to(losses.device, non_blocking=True)
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


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    # What is kept from step to step must outlive a user's inference mode.
    with torch.inference_mode(False):
        return tensor.to(device, non_blocking=True)
