"""A DataLoader in which each batch brings its own indices: order means nothing any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import Dataset, default_collate

from infobatch.dataset import InfoBatch, fetch
from infobatch.errors import OrderError


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader for an `InfoBatch`; `update(losses)` then knows the samples of the batch.

    It takes torch's keywords, but for `shuffle` and `sampler`: the order is the plan's. Batches may
    be dropped, reported twice, or come out of order (`in_order=False`). Its workers read ahead;
    what else does so must sit inside, by `through`. With a process group it has this rank's share;
    with `sharded=False` all of the epoch, for frameworks that shard it out by themselves.

    >>> train_data = InfoBatch([0.0, 1.0, 2.0], num_epochs=10)
    >>> sorted(DataLoader(train_data, batch_size=3).__iter__().__next__().tolist())
    [0.0, 1.0, 2.0]
    """

    def __init__(
        self,
        dataset: InfoBatch[Any],
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
        sharded: bool = True,
    ) -> None:
        if not isinstance(dataset, InfoBatch):
            raise TypeError(f"dataset is a {type(dataset).__name__}, expected an InfoBatch.")
        if batch_size is None:
            raise ValueError(
                "batch_size is None, expected a number: use torch's DataLoader without batches."
            )
        self._data = dataset
        sampler = dataset.sampler if sharded else dataset.sampler.unsharded
        super().__init__(
            Numbered(dataset.dataset),
            batch_size=batch_size if batch_sampler is None else 1,
            sampler=sampler if batch_sampler is None else None,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=NumberedCollate(collate_fn or default_collate),  # type: ignore[arg-type]
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
        return self._take_out(super().__iter__())

    def through(self, reader: Callable[[Iterable[Any]], Iterable[Any]]) -> Iterator[Any]:
        """The batches through something that reads ahead: `for x, y in loader.through(prefetch)`.

        The reader gets (indices, batch) pairs and hands them on; the indices are taken out last.
        """
        return self._take_out(reader(super().__iter__()))

    def _take_out(self, numbered: Iterable[tuple[torch.Tensor, Any]]) -> Iterator[Any]:
        for indices, batch in numbered:
            if self._data.sampler.current is None:
                raise OrderError(
                    "the epoch was closed while this iteration over it was running: begin a new "
                    "iteration after set_epoch() or load_state_dict()."
                )
            self._data.hand_out(indices)
            yield batch


class Wrapped(Dataset[Any]):
    """A data set around another, with its length and public attributes: `len(Wrapped(data))`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._dataset, name)


class Numbered(Wrapped):
    """A data set whose batches carry their indices: `Numbered(data).__getitems__([3, 7])`."""

    def __getitems__(self, indices: list[int]) -> tuple[list[int], Any]:
        return indices, fetch(self._dataset, indices)


class NumberedCollate:
    """Collates the items as before, with their indices beside: (indices, batch)."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, numbered: tuple[list[int], Any]) -> tuple[torch.Tensor, Any]:
        indices, items = numbered
        return torch.tensor(indices), self._collate(items)
