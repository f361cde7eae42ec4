"""A DataLoader in which each batch brings its own indices: order means nothing any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import Dataset, default_collate

from infobatch.dataset import InfoBatch


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader for an `InfoBatch`; `update(losses)` then knows the samples of the batch.

    Batches may be dropped, reported twice, or come out of order (`in_order=False`); what reads
    ahead of the training loop must sit inside the loader, as its workers do.

    >>> train_data = InfoBatch([0.0, 1.0, 2.0], num_epochs=10)
    >>> sorted(DataLoader(train_data, batch_size=3).__iter__().__next__().tolist())
    [0.0, 1.0, 2.0]
    """

    def __init__(
        self,
        data: InfoBatch[Any],
        batch_size: int = 1,
        *,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
    ) -> None:
        if not isinstance(data, InfoBatch):
            raise TypeError(f"data is a {type(data).__name__}, expected an InfoBatch.")
        if batch_size is None:
            raise ValueError(
                "batch_size is None, expected a number: use torch's DataLoader without batches."
            )
        self._data = data
        super().__init__(
            Numbered(data.dataset),
            batch_size=batch_size if batch_sampler is None else 1,
            sampler=data.sampler if batch_sampler is None else None,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=NumberedCollate(collate_fn or default_collate),
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            in_order=in_order,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for indices, batch in super().__iter__():
            self._data.hand_out(indices)
            yield batch


class Numbered(Dataset[Any]):
    """A data set whose items carry their index: `Numbered(data)[3] == (3, data[3])`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Any]]:
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(indices) if callable(fetch) else [self.dataset[index] for index in indices]
        return list(zip(indices, items, strict=True))

    def __len__(self) -> int:
        return len(self.dataset)


class NumberedCollate:
    """Collates the items as before, with their indices beside: (indices, batch)."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, items: list[tuple[int, Any]]) -> tuple[torch.Tensor, Any]:
        return torch.tensor([index for index, _ in items]), self._collate(
            [item for _, item in items]
        )
