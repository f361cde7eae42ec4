"""What users see: a data set around their own that skips samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from infobatch.callers import is_starting_workers
from infobatch.errors import OrderError
from infobatch.indexed import WithIndices, fetch
from infobatch.official import instead_of
from infobatch.plan import Plan
from infobatch.pruner import Pruner, progress_of
from infobatch.rules import Rule
from infobatch.samplers import Batches, ShardSampler, Shrink
from infobatch.state import Savings

Item = TypeVar("Item", covariant=True)

WORKER_COPY = (
    "this InfoBatch is a copy inside a DataLoader worker, which has only the data: prune and "
    "report in the process that trains."
)


class InfoBatch(Dataset[Item], Generic[Item]):
    """A map-style data set that skips part of the samples your model has learned.

    Args:
        dataset: Your data set, with `__getitem__` and `__len__`.
        num_epochs: How many epochs you train. Give this or `num_steps`.
        prune_ratio: The fraction to skip. With the default rule it is a fraction of the samples
            below the mean loss, 0.5 by default; other rules have their own meaning and default.
        delta: The fraction of the training, from 0 to 1, in which epochs may be pruned. After it,
            every sample is trained.
        num_steps: How many batches you train, if you count batches instead of epochs.
        rule: Which samples to skip: a name of `infobatch.rules.RULES`, or a `Rule`.
        seed: The seed of the random choice and order of samples; the same on all ranks.

    Give `batches()` to your DataLoader, and report one loss per sample to `update()`:

    >>> import torch
    >>> train_data = InfoBatch(torch.arange(6.0), num_epochs=10)
    >>> batches = train_data.batches(batch_size=2)
    >>> loader = torch.utils.data.DataLoader(train_data, batch_sampler=batches)
    >>> for epoch in range(10):
    ...     for x in loader:
    ...         loss = train_data.update((x - 3) ** 2)  # then loss.backward()
    ...     metrics = train_data.metrics  # to log
    >>> train_data.epoch, train_data.savings.fraction > 0
    (10, True)

    You can read and set the attributes of your data set (`targets`, `transform`) on it.

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
        """The data set that you passed. Its attributes can be read and set on the wrapper, too."""
        self._num_samples = num_samples
        self._own: Pruner | None = Pruner(
            num_samples, num_epochs, prune_ratio, delta, num_steps=num_steps, rule=rule, seed=seed
        )

    # The data ------------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Item:
        item: Item = self.dataset[index]
        return item

    def __getitems__(self, indices: list[int]) -> Any:
        """A whole batch; a DataLoader asks this."""
        if type(self).__getitem__ is not InfoBatch.__getitem__:
            return [self[index] for index in indices]
        return fetch(self.dataset, indices)

    def __len__(self) -> int:
        return self._num_samples

    def __repr__(self) -> str:
        data = type(self.dataset).__name__
        if self._own is None:
            return f"InfoBatch({data} of {self._num_samples} samples, in a DataLoader's worker)"
        return f"InfoBatch({data}, {progress_of(self._own)})"

    def with_indices(self) -> WithIndices:
        """The same data with items (index, item), for a `collate_fn` that reorders a batch.

        Return the indices with the batch, and pass them on: `update(losses, indices)`.
        """
        return WithIndices(self)

    def __getattr__(self, name: str) -> Any:
        # What people read of a data set (targets, classes). Private and special names are not
        # forwarded: protocols found on the wrapped data set would be taken for ours.
        if hasattr(type(self), name):  # a property that failed: its own error is the one to show
            return object.__getattribute__(self, name)
        is_forwarded = not name.startswith("_") and "dataset" in self.__dict__
        if is_forwarded and hasattr(self.dataset, name):
            return getattr(self.dataset, name)
        hint = instead_of(name)
        if hint is not None:
            raise AttributeError(hint)
        if is_forwarded:
            return getattr(self.dataset, name)  # its own error
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # What a wrapped data set has is set there, where it has an effect: timm sets `transform`.
        is_own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        wrapped = self.__dict__.get("dataset")
        if is_own or wrapped is None:
            super().__setattr__(name, value)
        elif hasattr(wrapped, name):
            setattr(wrapped, name, value)
        elif isinstance(wrapped, Subset) and hasattr(wrapped.dataset, name):
            raise AttributeError(
                f"{name} belongs to the data set inside the Subset, which other Subsets may share: "
                f"set train_data.dataset.dataset.{name}, or give each Subset a data set of its own."
            )
        else:
            super().__setattr__(name, value)

    # The pruner ----------------------------------------------------------------------------------

    @property
    def _pruner(self) -> Pruner:
        if self._own is None:
            raise OrderError(WORKER_COPY, "worker-copy")
        return self._own

    def update(
        self,
        losses: Tensor,
        indices: Tensor | Sequence[int] | None = None,
        *,
        scores: Tensor | None = None,
        mask: Tensor | None = None,
        denominators: Tensor | None = None,
    ) -> Tensor:
        """Record the losses of a batch and return their weighted mean, to call `backward()` on.

        Args:
            losses: One row per sample; further dimensions (pixels, tokens) are averaged. With
                `batches(uniform=True)`, the loss of the batch, one number.
            indices: The samples of the batch. Pass them if the loader does not know them, or if
                your `collate_fn` changes the order of a batch.
            scores: One score per sample, recorded in place of the losses.
            mask: Shaped like `losses`. Entries where it is 0 do not count. A sample of which none
                counts has the loss 0, and keeps its score.
            denominators: Shaped like `losses`. Pass them if your loss is the sum of all losses
                divided by the sum of these: class weights, or 1 for each target that is not
                ignored. The score of a sample is then the sum of its losses divided by the sum
                of its denominators; if that sum is 0, the sample keeps its score.

        """
        if get_worker_info() is not None:  # what the copy in a forked worker records is lost
            raise OrderError(WORKER_COPY, "worker-copy")
        return self._pruner.update(
            losses, indices, scores=scores, mask=mask, denominators=denominators
        )

    def batches(
        self,
        batch_size: int,
        *,
        drop_last: bool = False,
        shrink: Shrink = "epoch",
        sharded: bool = True,
        uniform: bool = False,
    ) -> Batches:
        """The batches of each epoch, for `DataLoader(train_data, batch_sampler=...)`.

        Args:
            batch_size: Samples per batch, on this rank.
            drop_last: Leave out a last batch that is not full.
            shrink: "epoch": a pruned epoch has fewer batches, as in the paper. "batch": it has as
                many batches as full training, but smaller ones, so everything that counts steps
                stays right.
            sharded: True: this rank's part of the epoch. False: the whole epoch, for frameworks
                that shard by themselves (accelerate); then report losses by index.
            uniform: True: all samples of a batch have the same weight, for a loss that is one
                number, `update(loss)`. False: report one loss per sample.

        """
        return self._pruner.batches(
            batch_size, drop_last=drop_last, shrink=shrink, sharded=sharded, uniform=uniform
        )

    @property
    def sampler(self) -> ShardSampler:
        """The epoch's samples on this rank one by one, for loaders that make their own batches."""
        return self._pruner.sampler

    @property
    def batch_weights(self) -> Tensor:
        """The weights of the current batch, for losses that you weight yourself; a copy.

        With `uniform=True`, `update` also multiplies by len(batch) / batch_size; do the same with
        losses that you weight yourself.
        """
        return self._pruner.batch_weights

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._pruner.epoch

    @property
    def plan(self) -> Plan:
        """What the current epoch trains. It does not change while the epoch runs."""
        return self._pruner.plan

    @property
    def scores(self) -> Tensor:
        """The last loss of each sample before this epoch, NaN if it has none; a copy."""
        return self._pruner.scores

    @property
    def savings(self) -> Savings:
        """How much was saved so far, including the running epoch."""
        return self._pruner.savings

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers about the last epoch, to log once per epoch: `run.log(train_data.metrics)`.

        Some of them need a whole epoch (the loss over all samples, `num_batches`, ...) and are of
        the epoch that ended last. docs/logging.md explains each.
        """
        return self._pruner.metrics

    @property
    def num_batches(self) -> int:
        """How many batches the epoch that ended last had in this process, to average losses.

        It counts calls of `update`, so micro-batches count one by one. `len(loader)` is already
        that of the next epoch. After a resume, only the batches since then count.
        """
        return self._pruner.num_batches

    @property
    def num_steps_done(self) -> int:
        """How many batches were reported so far, or what `set_step` said last."""
        return self._pruner.num_steps_done

    @property
    def num_reported(self) -> int:
        """How many samples of the running epoch were reported so far, by all ranks together."""
        return self._pruner.num_reported

    @property
    def num_nonfinite(self) -> int:
        """How many losses of the finished epochs were NaN or infinite."""
        return self._pruner.num_nonfinite

    @property
    def num_samples(self) -> int:
        """The size of the data set."""
        return self._num_samples

    @property
    def num_epochs(self) -> int | None:
        """How many epochs are trained; None if `num_steps` was given."""
        return self._pruner.num_epochs

    @property
    def num_steps(self) -> int | None:
        """How many batches are trained; None if `num_epochs` was given."""
        return self._pruner.num_steps

    @property
    def delta(self) -> float:
        """The part of the training, from 0 to 1, that may prune."""
        return self._pruner.delta

    @property
    def rule(self) -> Rule:
        """The rule that decides which samples to skip."""
        return self._pruner.rule

    @property
    def seed(self) -> int:
        """The seed of the random choice and order of samples. A checkpoint restores its own."""
        return self._pruner.seed

    @property
    def shrink(self) -> Shrink:
        """The `shrink` of the loader that was read last: "epoch" or "batch"."""
        return self._pruner.shrink

    def set_epoch(self, epoch: int) -> None:
        """Move to `epoch`, closing a running epoch with the losses reported so far."""
        self._pruner.set_epoch(epoch)

    def set_step(self, num_steps_done: int) -> None:
        """Set how many of `num_steps` are done, if a framework counts the steps.

        Call it before `update`: the last `update` of an epoch decides whether the next one prunes.
        """
        self._pruner.set_step(num_steps_done)

    def load_scores(self, scores: Tensor) -> None:
        """Start from known scores, with NaN for samples that have none.

        Call it before the first `update`. The first epoch is then pruned like any other.
        """
        self._pruner.load_scores(scores)

    def hand_out(self, indices: Tensor) -> None:
        """Set the samples of the current batch. A loader that knows them calls this."""
        self._pruner.hand_out(indices)

    def sync(self) -> None:
        """Exchange what the ranks have reported of the running epoch. Every rank must call it.

        After it, until the next `update`, `state_dict()` of any rank is complete.
        """
        self._pruner.sync()

    # A checkpoint --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-exact resume needs, as tensors, numbers, strings and bytes."""
        # Loaders that save their data set also ask its copies in workers: nothing to tell.
        return self._pruner.state_dict() if get_worker_info() is None else {}

    def load_state_dict(self, state: Any) -> None:
        """Continue where `state_dict()` was taken.

        Raises a `StateError` if the checkpoint belongs to another run. `num_epochs` (or
        `num_steps`) may be larger than it was: the running epoch keeps its plan, and the new
        length counts from the next epoch on.
        """
        if get_worker_info() is None:
            self._pruner.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        # A worker process of a DataLoader needs the data alone, not what is known of each sample.
        return {**self.__dict__, "_own": None} if is_starting_workers() else dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __copy__(self) -> InfoBatch[Item]:
        # A shallow copy shares the data, not the state of the pruner.
        return copy.deepcopy(self, {id(self.dataset): self.dataset})
