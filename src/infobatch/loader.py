"""A DataLoader in which each batch brings its own indices, so that order no longer matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import default_collate

from infobatch.dataset import InfoBatch
from infobatch.errors import OrderError
from infobatch.indexed import CollateIndexed, IndexedBatches
from infobatch.samplers import Shrink


def _changes_items(dataset: InfoBatch[Any]) -> bool:
    """Whether a subclass gives other items than the data set inside."""
    names = ("__getitem__", "__getitems__")
    return any(getattr(type(dataset), name) is not getattr(InfoBatch, name) for name in names)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader for an `InfoBatch`, whose batches carry their indices.

    So `update(losses)` knows the samples of the batch: batches may be dropped, reported twice, or
    come out of order (`in_order=False`). It takes torch's keywords except `shuffle` and `sampler`,
    because the `InfoBatch` decides the order. `shrink`, `sharded` and `uniform` are those of
    `InfoBatch.batches()`. Inside a batch the `collate_fn` must keep the order of the samples. Put a
    prefetcher inside the loader, with `through`.

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
        shrink: Shrink = "epoch",
        sharded: bool = True,
        uniform: bool = False,
    ) -> None:
        if not isinstance(dataset, InfoBatch):
            raise TypeError(f"dataset is a {type(dataset).__name__}, expected an InfoBatch.")
        if batch_size is None:
            raise ValueError(
                "batch_size is None, expected a number: use torch's DataLoader without batches."
            )
        self._data = dataset
        if batch_sampler is None:
            batch_sampler = dataset.batches(
                batch_size, drop_last=drop_last, shrink=shrink, sharded=sharded, uniform=uniform
            )
        else:
            given = {
                "batch_size": (batch_size, 1),
                "drop_last": (drop_last, False),
                "shrink": (shrink, "epoch"),
                "sharded": (sharded, True),
                "uniform": (uniform, False),
            }
            for name, (value, default) in given.items():
                if value != default:
                    raise ValueError(
                        f"{name} is {value!r} beside a batch_sampler, which decides it: give it to "
                        "train_data.batches()."
                    )
        super().__init__(
            # Workers and frameworks see the user's own data set, where its items are those.
            IndexedBatches(dataset if _changes_items(dataset) else dataset.dataset),
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=CollateIndexed(collate_fn or default_collate),  # type: ignore[arg-type]
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            in_order=in_order,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._hand_out(super().__iter__())

    def through(self, reader: Callable[[Iterable[Any]], Iterable[Any]]) -> Iterator[Any]:
        """The batches through a prefetcher: `for x, y in loader.through(prefetch)`.

        `reader` gets an iterable of pairs (indices, batch) and returns one. The indices are removed
        after it.
        """
        return self._hand_out(reader(super().__iter__()))

    def _hand_out(self, indexed: Iterable[tuple[torch.Tensor, Any]]) -> Iterator[Any]:
        """Take the indices out of each batch and tell them to the pruner."""
        epoch: int | None = None
        for indices, batch in indexed:
            epoch = self._data.epoch if epoch is None else epoch
            if self._data.epoch != epoch:
                raise OrderError(
                    "the epoch was closed while this iteration over it was running: begin a new "
                    "iteration after set_epoch() or load_state_dict().",
                    "two-iterations",
                )
            self._data.hand_out(indices)
            yield batch
