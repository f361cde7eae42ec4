"""The three-line interface: a data set that knows what to skip."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from infobatch.pruner import Pruner
from infobatch.rules import Rule

Item = TypeVar("Item", covariant=True)

OWN = {"dataset", "num_samples", "num_epochs", "num_steps", "delta", "rule", "seed"}
"""What is set on the wrapper itself."""


def fetch(dataset: Any, indices: list[int]) -> Any:
    """The items of a batch, in one call where the data set can: `fetch(dataset, [3, 7])`."""
    at_once = getattr(dataset, "__getitems__", None)
    return at_once(indices) if callable(at_once) else [dataset[index] for index in indices]


class InfoBatch(Pruner, Dataset[Item]):
    """A map-style data set with a pruner: use its `sampler`, and `update` with per-sample losses.

    >>> train_data = InfoBatch([(0.0, 1), (1.0, 0)], num_epochs=10)
    >>> train_data[1], len(train_data), len(train_data.sampler)
    ((1.0, 0), 2, 2)
    """

    def __init__(
        self,
        dataset: Dataset[Item] | Sequence[Item],
        num_epochs: int | None = None,
        prune_ratio: float | None = None,
        delta: float = 0.875,
        *,
        num_steps: int | None = None,
        rule: Rule | str | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(
                "dataset is an IterableDataset, which cannot skip samples: expected a data set "
                "with __getitem__ and __len__ (unpack the shards of a webdataset into files, load "
                "Hugging Face data without streaming=True, or put what fits into a list)."
            )
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"dataset is a {type(dataset).__name__}, expected a data set with __getitem__ and "
                "__len__; for any other loop use infobatch.Pruner."
            )
        num_samples = len(dataset)  # type: ignore[arg-type]  # torch's Dataset declares no __len__
        if num_samples == 0:
            raise ValueError("dataset is empty, expected at least one sample.")
        self.dataset: Any = dataset
        super().__init__(
            num_samples, num_epochs, prune_ratio, delta, num_steps=num_steps, rule=rule, seed=seed
        )

    def __getitem__(self, index: int) -> Item:
        item: Item = self.dataset[index]
        return item

    def __getitems__(self, indices: list[int]) -> Any:
        """A whole batch; a DataLoader asks this."""
        return fetch(self.dataset, indices)

    def __len__(self) -> int:
        return self.num_samples

    def __getattr__(self, name: str) -> Any:
        # What people read of a data set (targets, classes). Private and special names are not
        # forwarded: protocols found on the wrapped data set would be taken for ours.
        if hasattr(type(self), name):  # a property that failed: its own error is the one to show
            return object.__getattribute__(self, name)
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        wrapped = self.__dict__.get("dataset")
        if not name.startswith("_") and name not in OWN and hasattr(wrapped, name):
            raise AttributeError(
                f"{name} belongs to the wrapped data set, where setting it here would change "
                f"nothing: set train_data.dataset.{name}."
            )
        super().__setattr__(name, value)

    def __copy__(self) -> InfoBatch[Item]:
        # A shallow copy shares the data, not the state of the pruner.
        return copy.deepcopy(self, {id(self.dataset): self.dataset})

    def state_dict(self) -> dict[str, Any]:
        # Loaders that save their data set also ask its copies in workers: nothing to tell.
        return super().state_dict() if get_worker_info() is None else {}

    def load_state_dict(self, state: Any) -> None:
        if get_worker_info() is None:
            super().load_state_dict(state)
