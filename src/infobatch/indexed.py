"""Data sets and collate functions that carry the index of a sample along with it.

One file for all who need it: `infobatch.DataLoader`, the integrations, and users whose
`collate_fn` changes the order of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset, Subset


def fetch(dataset: Any, indices: list[int]) -> Any:
    """The items of a batch, in one call where the data set can: `fetch(dataset, [3, 7])`."""
    at_once = getattr(dataset, "__getitems__", None)
    return at_once(indices) if callable(at_once) else [dataset[index] for index in indices]


class Wrapper(Dataset[Any]):
    """A data set around another, with its length and public attributes: `len(Wrapper(data))`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._dataset, name)


def wrapped_by(dataset: Wrapper | Subset[Any]) -> Any:
    """The data set inside: `wrapped_by(Subset(data, [3, 7]))`."""
    return dataset._dataset if isinstance(dataset, Wrapper) else dataset.dataset


def length_of(dataset: Any) -> int | None:
    """The number of samples; None where a data set does not say: `length_of(["a", "b"])`."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, AttributeError):
        return None


class WithIndices(Wrapper):
    """A data set whose items are pairs (index, item).

    >>> WithIndices(["a", "b", "c"])[1]
    (1, 'b')
    """

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Any]]:
        return list(zip(indices, fetch(self._dataset, indices), strict=True))


class IndexedBatches(Wrapper):
    """A data set whose batches carry their indices: `IndexedBatches(data).__getitems__([3, 7])`."""

    def __getitems__(self, indices: list[int]) -> tuple[list[int], Any]:
        return indices, fetch(self._dataset, indices)


class IndexedItems(Wrapper):
    """A data set whose items, dicts, carry their index under `key`.

    >>> IndexedItems([{"x": 5}], key="index")[0]
    {'x': 5, 'index': 0}
    """

    def __init__(self, dataset: Any, key: str) -> None:
        super().__init__(dataset)
        self._key = key

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._dataset[index], self._key: index}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        items = fetch(self._dataset, indices)
        return [{**item, self._key: index} for index, item in zip(indices, items, strict=True)]


class CollateIndexedItems:
    """Collates the items of `IndexedItems` as before; the indices stand in the batch."""

    def __init__(self, collate: Callable[[list[Any]], Any], key: str) -> None:
        self._collate, self._key = collate, key

    def __call__(self, items: list[dict[str, Any]]) -> Any:
        indices = torch.tensor([item.pop(self._key) for item in items])
        batch = self._collate(items)
        batch[self._key] = indices
        return batch


class CollateIndexed:
    """Collates the items as before, with their indices beside them: (indices, batch)."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, indexed: tuple[list[int], Any]) -> tuple[torch.Tensor, Any]:
        indices, items = indexed
        return torch.tensor(indices), self._collate(items)
