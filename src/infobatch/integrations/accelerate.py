"""accelerate: the batches of a loader that went through `prepare`.

In an `infobatch.DataLoader` the indices ride inside the batch, through everything that accelerate
does to a loader: it shards, reads one batch ahead, and repeats samples to even the last batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from infobatch import InfoBatch
from infobatch.indexed import IndexedBatches

try:
    import accelerate  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "infobatch.integrations.accelerate needs accelerate: pip install infobatch[accelerate]."
    ) from error


class PreparedLoader(Iterable[Any]):
    """Wraps what `accelerator.prepare()` returns, so that `update(losses)` knows the samples.

    >>> import infobatch, torch
    >>> train_data = InfoBatch(torch.zeros(100, 2), num_epochs=10)
    >>> loader = infobatch.DataLoader(train_data, batch_size=8, sharded=False)
    >>> loader = PreparedLoader(accelerate.Accelerator(cpu=True).prepare(loader), train_data)
    >>> for batch in loader:
    ...     loss = train_data.update(batch.sum(1))
    >>> train_data.epoch
    1
    """

    def __init__(self, prepared: Any, train_data: InfoBatch[Any]) -> None:
        if not isinstance(getattr(prepared, "dataset", None), IndexedBatches):
            raise TypeError(
                f"prepared is a {type(prepared).__name__} whose batches have no indices, expected "
                "what accelerator.prepare() makes of "
                "infobatch.DataLoader(train_data, sharded=False)."
            )
        if getattr(prepared, "use_stateful_dataloader", False):
            raise ValueError(
                "use_stateful_dataloader is True, and after a resume such a loader skips samples "
                "that the pruner has left out already: leave it at False."
            )
        self._prepared = prepared
        self._data = train_data

    def __iter__(self) -> Iterator[Any]:
        data, prepared, epoch = self._data, self._prepared, None
        # accelerate counts iterations and tells the sampler: after a resume, the wrong number.
        prepared.set_epoch(data.epoch)
        for indices, batch in prepared:
            if data.epoch != epoch:  # the first batch
                epoch, num_samples = data.epoch, len(data.sampler.unsharded)
            if prepared.remainder > -1:
                # accelerate takes it from the size of the data set, and gather_for_metrics would
                # cut the last batch of a shorter epoch there.
                prepared.remainder = num_samples % prepared.total_batch_size
            data.hand_out(indices)
            yield batch
        # All processes come here together, where none could know by itself that all is reported;
        # not so with uneven batches, whose epoch ends when all begin the next.
        comes_together = getattr(prepared.batch_sampler, "even_batches", True)
        if data.epoch == epoch and data.num_reported and comes_together:
            data.set_epoch(epoch + 1)

    def __len__(self) -> int:
        return len(self._prepared)
