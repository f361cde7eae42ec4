"""The losses of the running epoch, written down beside its plan until it ends.

They stay on the device they came from. A step costs a slice and a copy in order, a gather and a
scatter by index, and nothing is read back to the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from infobatch.errors import OrderError
from infobatch.plan import Plan

Places = slice | Tensor
"""Of a batch in order, its places in the plan; of a batch by index, its samples."""


class Record(ABC):
    """What an epoch has reported; in order or by index, not both: order is lost with the first."""

    num_reported = 0

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the whole plan is reported."""

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
        self._losses = torch.empty(0)

    @property
    def complete(self) -> bool:
        return self.num_reported == len(self._plan)

    def weights(self, places: Places, device: torch.device) -> Tensor:
        if self._weights.device != device:
            self._weights = self._weights.to(device, non_blocking=True)
        return self._weights[places]

    def write(self, places: Places, losses: Tensor) -> None:
        assert isinstance(places, slice)
        if self.num_reported == 0:
            self._losses = torch.empty(len(self._plan), device=losses.device)
        elif self._losses.device != losses.device:
            self._losses = self._losses.to(losses.device)
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
            self._weight_of = torch.zeros(plan.num_samples)
            self._weight_of[plan.indices] = plan.weights
        else:
            self._weight_of = torch.ones(1).expand(plan.num_samples)
        self._weight_on_device = self._weight_of
        self._loss_of = torch.zeros(plan.num_samples)
        self._written = torch.zeros(plan.num_samples, dtype=torch.bool)

    @property
    def complete(self) -> bool:
        # Samples may come twice, so num_reported is an upper bound, made exact when it matters.
        if self.num_reported >= len(self._plan):
            self.num_reported = int(
                self._written[self._plan.indices.to(self._written.device)].sum()
            )
        return self.num_reported == len(self._plan)

    def weights(self, places: Places, device: torch.device) -> Tensor:
        assert isinstance(places, Tensor)
        self._check(places)
        if self._weight_on_device.device != device:
            self._weight_on_device = self._weight_of.to(device, non_blocking=True)
        return self._weight_on_device[places.to(device, non_blocking=True)]

    def write(self, places: Places, losses: Tensor) -> None:
        assert isinstance(places, Tensor)
        if self._loss_of.device != losses.device:
            self._loss_of = self._loss_of.to(losses.device, non_blocking=True)
            self._written = self._written.to(losses.device, non_blocking=True)
        places = places.to(losses.device, non_blocking=True)
        self._loss_of[places] = losses.detach().float()
        self._written[places] = True
        self.num_reported += len(places)

    def reported(self) -> tuple[Tensor, Tensor]:
        indices = self._plan.indices if self.complete else self._plan.indices[self._is_reported()]
        return indices, self._loss_of.cpu()[indices]

    def remaining(self) -> tuple[Tensor, int]:
        return self._plan.indices[~self._is_reported()], 0

    def _is_reported(self) -> Tensor:
        return self._written.cpu()[self._plan.indices]

    def _check(self, indices: Tensor) -> None:
        """Refuse samples that are not in the plan. On a device, unread, they weigh 0 instead."""
        if indices.device.type != "cpu" or type(indices) is not Tensor:
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
