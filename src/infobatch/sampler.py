"""The plan as a torch Sampler, and which batch is in hand.

A stock DataLoader returns batches in the order in which it drew their indices, so the next losses
reported belong to the next places of this rank's share. A `Pass` watches that this holds: it
compares what the loader has drawn with what was reported, and refuses what cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from operator import length_hint

from torch import Tensor
from torch.utils.data import DistributedSampler, Sampler

from infobatch.errors import OrderError
from infobatch.share import Share

CHUNK = 1 << 14
"""How many indices become Python numbers at once."""

REMEDY = "give update() the indices of the batch, or use infobatch.DataLoader"


class Turn:
    """Whose turn it is: the pass that losses are reported for; None between epochs."""

    current: Pass | None = None

    def __getstate__(self) -> dict[str, object]:
        return {}  # a copy is in the middle of no iteration

    def __setstate__(self, state: dict[str, object]) -> None: ...


class PlanSampler(Sampler[int]):
    """The indices of the current epoch, for a DataLoader: all of them, the same on all ranks.

    Every iteration is a `Pass` of its own, which begins with the first index drawn: asking for an
    iterator, once or twice, changes nothing.
    """

    sharded = False
    """Whether it gives this rank's share only."""

    def __init__(
        self,
        share: Callable[[bool], Share],
        begin: Callable[[bool], Share],
        set_epoch: Callable[[int], None],
    ) -> None:
        self._share = share
        self._begin = begin
        self._turn = Turn()
        self._set_epoch = set_epoch

    @property
    def current(self) -> Pass | None:
        """The pass that losses are reported for; None between epochs."""
        return self._turn.current

    def set_epoch(self, epoch: int) -> None:
        """For loops that tell their sampler the epoch, as torch's DistributedSampler wants it."""
        self._set_epoch(epoch)

    def begin(self, newcomer: Pass) -> Share:
        """A loader draws its first index: what to go through."""
        share = self._begin(self.sharded)
        self._turn.current = newcomer
        return share

    def end(self) -> None:
        """The epoch is over."""
        self._turn.current = None

    def __iter__(self) -> Pass:
        return Pass(self)

    def __len__(self) -> int:
        return len(self._share(self.sharded))


class ShareSampler(PlanSampler, DistributedSampler[int]):
    """With a process group, this rank's share of the epoch: `sampler=train_data.sampler`.

    It has the name of a DistributedSampler since it does the work of one: frameworks that share
    out the samples of any other kind (Lightning) leave it alone.
    """

    sharded = True

    @property
    def unsharded(self) -> PlanSampler:
        """The whole epoch, for frameworks that shard by themselves; report it by index."""
        whole = PlanSampler(self._share, self._begin, self._set_epoch)
        whole._turn = self._turn
        return whole


class Pass(Iterator[int]):
    """One iteration of a loader over the plan, and the reports that come back for it.

    Positions are places in the share. Between what was drawn and what was reported there is a gap,
    as wide as the loader reads ahead, and constant while the loader still draws.

    How a loader draws shows how it is set up: torch's BatchSampler calls `iter()` on a pass once
    per batch, or with drop_last once per place of a batch, at the start; other loaders never do.
    """

    def __init__(self, sampler: PlanSampler) -> None:
        self._sampler = sampler
        self._indices = chain.from_iterable(self._chunks())
        self._chunk: Iterator[int] = iter(())
        self._end_of_chunk = 0
        self._iter_calls = self._iter_calls_at_start = 0
        self._drawn_at_report = 0
        self._reported_of_batch = 0
        self._batch_size: int | None = None
        self.reported = self.end = 0
        self.ran_out = False
        """Whether the loader asked for more than there is."""

    def _chunks(self) -> Iterator[Iterator[int]]:
        share = self._sampler.begin(self)
        indices = share.indices
        if self._iter_calls_at_start > 1:
            self._batch_size = self._iter_calls_at_start
            if len(indices) < self._batch_size and share.done is not None:
                # Too little is left of a resumed epoch to fill a batch: that was all of it.
                self._sampler.set_epoch(share.plan.epoch + 1)
                return
            indices = self._whole_batches(indices, self._batch_size)
        self.end = len(indices)
        for start in range(0, len(indices), CHUNK):
            self._check_current()
            chunk = indices[start : start + CHUNK].tolist()
            self._chunk = iter(chunk)
            self._end_of_chunk += len(chunk)
            yield self._chunk
        self._check_current()
        # A loader that calls iter() for each batch comes here for a last one that is not full too;
        # whether it wants more, its next call shows.
        if self._iter_calls == self._iter_calls_at_start:
            self.ran_out = True

    @staticmethod
    def _whole_batches(indices: Tensor, batch_size: int) -> Tensor:
        """What drop_last leaves, so that the epoch ends with its last whole batch."""
        num_kept = len(indices) // batch_size * batch_size
        if num_kept == 0:
            raise ValueError(
                f"drop_last leaves nothing of an epoch of {len(indices)} samples in batches of "
                f"{batch_size}: use smaller batches, or drop_last=False."
            )
        return indices[:num_kept]

    def __iter__(self) -> Iterator[int]:
        """Note that a batch begins, and give the bare chain of lists: it is as fast as one."""
        self._iter_calls += 1
        num_drawn = self.drawn
        if num_drawn == 0:
            self._iter_calls_at_start += 1
        else:
            self._check_current()
            self._batch_size = self._batch_size or num_drawn
            self.ran_out = num_drawn == self.end
        return self._indices

    def __next__(self) -> int:
        return next(self._indices)

    @property
    def drawn(self) -> int:
        """How far the loader has drawn; the list iterator counts for us."""
        return self._end_of_chunk - length_hint(self._chunk)

    @property
    def new_batch(self) -> slice | None:
        """The places of a batch that was fetched and not reported yet; None without one."""
        drawn = self.drawn
        if drawn == self._drawn_at_report:
            return None
        if self._batch_size is None:  # the first batch; other loaders may have drawn several
            may_read_ahead = self._iter_calls == 0
        else:
            may_read_ahead = drawn - self.reported > self._batch_size
        if may_read_ahead or self._drawn_at_report > self.reported:
            raise OrderError(
                "batch_weights was read before update(), which a loader that reads ahead does not "
                "allow: call update(losses) first, then batch_weights is for the same batch."
            )
        return slice(self.reported, drawn)

    def take(self, num_losses: int) -> slice:
        """The places of the next losses, or an OrderError: `places = current_pass.take(128)`."""
        drawn = self.drawn
        drawing = drawn < self.end
        fetched = drawn - self._drawn_at_report
        of_batch, batch_size = self._reported_of_batch, self._batch_size
        if fetched and self.reported:
            if fetched > of_batch:
                raise OrderError(
                    f"{fetched - of_batch} samples were fetched and never reported: "
                    f"report every batch, or {REMEDY}."
                )
            if fetched < of_batch and drawing:
                raise OrderError(
                    f"{of_batch} losses were reported for a batch of {fetched}: "
                    f"report every batch once, or {REMEDY}."
                )
            of_batch, batch_size = 0, batch_size or of_batch
        of_batch += num_losses
        if self.reported + num_losses > drawn or (
            drawing and batch_size is not None and of_batch > batch_size
        ):
            raise OrderError(
                f"losses has {num_losses} entries, more than are left of the batch in hand: report "
                f"one loss per sample and every batch once, or {REMEDY}."
            )
        places = slice(self.reported, self.reported + num_losses)
        self.reported, self._drawn_at_report = places.stop, drawn
        self._reported_of_batch, self._batch_size = of_batch, batch_size
        return places

    def check_finished(self) -> None:
        """Refuse samples left over where the loader ran to its end; an early break is legal."""
        missing = self.end - self.reported
        if not missing or not self.ran_out or self.reported == 0:
            return
        # Loaders other than torch's do not show whether they drop a last batch that is not full.
        batch_size = self._batch_size or self._reported_of_batch
        if self._iter_calls == 0 and missing == self.end % batch_size:
            return
        raise OrderError(
            f"the loader ran to its end, but {missing} of {self.end} samples were "
            "never reported: report every batch (a break among the last, prefetched ones looks the "
            "same), replace an infinite loader (it fetches the next epoch too early) by a stock "
            f"DataLoader, or {REMEDY}."
        )

    def state_dict(self) -> dict[str, int]:
        """For torchdata's StatefulDataLoader; where to go on is the pruner's own state."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to do: a pass begins where the pruner stands."""

    def _check_current(self) -> None:
        if self._sampler.current not in (self, None):
            raise OrderError(
                "two iterations over the same sampler are mixed: finish one before you start the "
                f"next, or {REMEDY}."
            )


class HandedOut:
    """The batch that a loader gave out last, where the loader knows its samples.

    >>> import torch
    >>> HandedOut(torch.tensor([7, 3, 5]), epoch=0).take(2)
    tensor([7, 3])
    """

    def __init__(self, indices: Tensor, epoch: int, before: HandedOut | None = None) -> None:
        if not isinstance(indices, Tensor) or indices.dim() != 1 or len(indices) == 0:
            raise ValueError("indices must be a tensor of at least one sample.")
        self.indices = indices
        self._num_taken = self._times_reported = 0
        self._num_batches_before = self._num_unreported_before = 0
        self._may_lag = True
        """Whether the batches before were reported once each, but for some at the very start."""
        self._num_handed_out = len(indices)
        self.epoch = epoch
        self.weights_at_close: Tensor | None = None
        """Of the whole batch, where it has closed its epoch, whose plan is gone."""
        if before is not None and before.epoch == epoch:
            before._check_whole()
            self._num_handed_out += before._num_handed_out
            self._num_batches_before = before._num_batches_before + 1
            self._num_unreported_before = before._num_unreported_before
            self._num_unreported_before += before._times_reported == 0
            none_reported = self._num_unreported_before == self._num_batches_before
            self._may_lag = before._may_lag and (before._times_reported == 1 or none_reported)

    @property
    def new_batch(self) -> Tensor | None:
        """The batch, where none of it was reported yet."""
        return self.indices if self._num_taken == 0 else None

    @property
    def was_reported(self) -> bool:
        """Whether all of it was reported before."""
        return self._times_reported > 0

    def is_last_of(self, num_samples: int) -> bool:
        """Whether all of it is reported, and with it so many samples were handed out."""
        return self._num_handed_out == num_samples and self._num_taken == len(self.indices)

    def take(self, num_losses: int) -> Tensor:
        """The samples of the next losses; after the last, a batch may be reported again."""
        return self.indices[self._next(num_losses)]

    def take_weights(self, num_losses: int) -> Tensor:
        """The weights of the next losses of a batch that is reported again after its epoch."""
        assert self.weights_at_close is not None
        return self.weights_at_close[self._next(num_losses)]

    def _next(self, num_losses: int) -> slice:
        first = self._num_taken % len(self.indices)
        if first + num_losses > len(self.indices):
            raise OrderError(
                f"losses has {num_losses} entries, but {len(self.indices) - first} samples are "
                "left of the batch in hand: report one loss per sample."
            )
        self._num_taken = first + num_losses
        self._times_reported += self._num_taken == len(self.indices)
        return slice(first, self._num_taken)

    def check_finished(self) -> None:
        """Refuse what an epoch must not end with: a part of a batch, or traces of reading ahead."""
        self._check_whole()
        if self._may_lag and 0 < self._num_unreported_before == self._times_reported - 1:
            # Each batch came under the name of a later one, and the last name was used up.
            raise OrderError(
                "something reads ahead between infobatch.DataLoader and the training loop, so the "
                "losses came under the names of other batches: iterate over loader.through(it), or "
                "give update() the indices of the batch."
            )

    def _check_whole(self) -> None:
        num_left = len(self.indices) - self._num_taken
        if self._num_taken and num_left:
            raise OrderError(
                f"{num_left} of the {len(self.indices)} samples of a batch were never reported (a "
                "collate_fn that leaves samples out does that): give update() the indices of the "
                "samples you report."
            )
