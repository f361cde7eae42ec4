"""Whose losses are these? Losses that come without indices belong to the next batch in order.

A loader hands out batches in the order in which it drew their indices, so the next losses reported
belong to the next batch drawn. A tracker counts what one iteration has drawn and what was reported
for it, and refuses what cannot be: a batch that was dropped, or reported twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from operator import length_hint
from threading import get_ident
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from infobatch.callers import LoaderCall
from infobatch.errors import OrderError
from infobatch.shard import Batching, Shard
from infobatch.uniform import Bounds

CHUNK = 1 << 14
"""How many indices become Python numbers at once."""

REMEDY = "give update() the indices of the batch, or use infobatch.DataLoader"


class Tracker(ABC):
    """One iteration over a shard: what was drawn of it, and what was reported."""

    def __init__(
        self,
        shard: Shard,
        indices: NDArray[Any],
        num_positions: int,
        call: LoaderCall | None,
    ) -> None:
        self.shard = shard
        self._indices = indices
        self.end = num_positions
        """The position with which the epoch ends here: less than the shard's with drop_last."""
        self.call = call
        self.reported = 0
        """How many positions of the shard were reported."""
        self.is_over = False
        """Whether the epoch was closed, or another iteration has taken over."""
        self._was_refused = False
        self._thread = get_ident()
        self._is_ordered = call is None or call.in_order

    @property
    def read_ahead(self) -> int:
        """Batches that the loader draws before it hands out the first; 0 where that is unknown."""
        return 0 if self.call is None else self.call.read_ahead

    def samples(self, first: int, stop: int) -> list[int]:
        """The samples at these positions; past the rank's own ones, the repeat."""
        samples: list[int] = self._indices[self.shard.entries(slice(first, stop))].tolist()
        if len(samples) < stop - first:
            samples.append(int(self._indices[self.shard.repeat]))
        return samples

    def take(self, num_losses: int) -> slice:
        """The positions of the next losses, or an OrderError: `tracker.take(128)`."""
        if self._thread != get_ident():
            raise OrderError(
                "another thread fetches the batches, so it is not known which of them these losses "
                f"belong to: fetch and report in one thread, or {REMEDY}.",
                "other-thread",
            )
        if not self._is_ordered:
            raise OrderError(
                "in_order of the DataLoader is False, so it is not known which batch these losses "
                f"belong to: leave in_order at True, or {REMEDY}.",
                "in-order-false",
            )
        positions = self._take(num_losses)
        self.reported = positions.stop
        return positions

    def _dropped(self, num_samples: int) -> OrderError:
        """The error for batches that were fetched and not reported; what came before is right."""
        self._was_refused = True
        return OrderError(
            f"{num_samples} samples were fetched and never reported: report every batch, or "
            f"{REMEDY}.",
            "dropped-batch",
        )

    @abstractmethod
    def _take(self, num_losses: int) -> slice: ...

    @property
    @abstractmethod
    def new_batch(self) -> slice | None:
        """The positions of a batch that was fetched and not reported yet; None without one."""

    @property
    @abstractmethod
    def has_new_batch(self) -> bool:
        """Whether something was drawn since the last report."""

    @abstractmethod
    def note_report(self) -> None:
        """Note that the current batch was reported, by index."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether the loader has handed out everything, as far as that can be known."""

    @property
    @abstractmethod
    def is_certain(self) -> bool:
        """Whether what was reported belongs to its samples, in an epoch that was broken off."""

    @property
    def num_certain(self) -> int:
        """How many positions were reported, without the last batch if only a part of it was."""
        return self.reported

    @abstractmethod
    def check_complete(self, *, by_new_loop: bool) -> None:
        """Raise an OrderError where batches were dropped; an early break is legal."""

    def check_current(self) -> None:
        if self.is_over:
            raise OrderError(
                "the epoch was closed, or another iteration began, while this iteration over it "
                f"was running: finish one iteration before you begin the next, or {REMEDY}.",
                "two-iterations",
            )

    def left_over(self) -> OrderError:
        return OrderError(
            f"the loader ran to its end, but {self.end - self.reported} of {self.end} samples were "
            "never reported, and the losses of this epoch were discarded: report every batch, "
            "replace an infinite loader (it fetches the next epoch too early) by a stock "
            f"DataLoader, or {REMEDY}.",
            "samples-left-over",
        )


class BatchTracker(Tracker):
    """An iteration by `batches()`: where batches begin and end is known.

    torch asks for one list of indices per batch it hands out, after `read_ahead` lists at the
    start; it goes on asking, once per batch, when there are no more. So the number of calls tells
    how many batches were handed out, up to a constant that the first report fixes.
    """

    def __init__(
        self,
        shard: Shard,
        indices: NDArray[Any],
        batching: Batching | Bounds,
        call: LoaderCall | None = None,
    ) -> None:
        super().__init__(shard, indices, batching.num_positions, call)
        self._batching = batching
        self._num_calls = 0
        self._num_reported = 0
        """Whole batches reported."""
        self._drawn_to = 0
        self._begin, self._stop = 0, batching.bound(1)
        """The positions of the batch whose losses come next."""
        self._lead: int | None = None
        """Calls less batches reported, as the first report found it."""
        self._calls_at_report = 0

    def draw(self) -> list[int]:
        """The samples of the next batch."""
        self._num_calls += 1
        if self._num_calls > self._batching.num_batches:
            raise StopIteration
        self.check_current()
        first, self._drawn_to = self._drawn_to, self._batching.bound(self._num_calls)
        return self.samples(first, self._drawn_to)

    def _take(self, num_losses: int) -> slice:
        if self.reported == self._begin:
            lead = self._num_calls - self._num_reported
            if lead != self._lead:
                self._check_lead(lead)
        elif self._num_calls > self._calls_at_report:
            raise self._dropped(self._stop - self.reported)
        stop = self.reported + num_losses
        if stop > self._stop:
            raise OrderError(
                f"losses has {num_losses} entries, more than are left of the current batch "
                f"({self._stop - self.reported}): report one loss per sample and every batch once, "
                f"or {REMEDY}.",
                "reported-twice",
            )
        positions = slice(self.reported, stop)
        self._calls_at_report = self._num_calls
        if stop == self._stop:
            self._num_reported += 1
            self._begin, self._stop = stop, self._batching.bound(self._num_reported + 1)
        return positions

    def _check_lead(self, lead: int) -> None:
        """Raise if more or fewer batches were fetched than reported before this one."""
        if self._lead is None:
            self._lead = lead
        if lead > self._lead:
            first, stop = self._num_reported, self._num_reported + lead - self._lead
            raise self._dropped(self._batching.bound(stop) - self._batching.bound(first))
        called = self._num_calls > self._calls_at_report
        if lead < self._lead:
            # At the end something that reads ahead of the training loop has nothing more to fetch,
            # and hands out the batches it holds.
            has_read_to_the_end = self._num_calls > self._batching.num_batches
            holds_batches = has_read_to_the_end and self._lead > self.read_ahead + 1
            if not holds_batches or called or self._num_reported == self._num_batches:
                raise OrderError(
                    "losses were reported for more batches than were fetched, more than are left "
                    f"of the current batch: report every batch once, or {REMEDY}.",
                    "reported-twice",
                )

    @property
    def num_left(self) -> int:
        """How many losses are left to report of the current batch, or of the next one."""
        return self._stop - self.reported

    @property
    def _num_batches(self) -> int:
        return self._batching.num_batches

    @property
    def new_batch(self) -> slice | None:
        if not self.has_new_batch:
            return None
        is_first = self._lead is None
        expected = self.read_ahead + 1 if is_first else self._lead
        if self._num_calls - self._num_reported != expected or self.reported != self._begin:
            raise OrderError(
                "batch_weights was read before update(), which a loader that reads ahead does not "
                "allow: call update(losses) first, then batch_weights is for the same batch.",
                "weights-before-update",
            )
        return slice(self._begin, self._stop)

    def note_report(self) -> None:
        self._calls_at_report = self._num_calls

    @property
    def has_new_batch(self) -> bool:
        return self._num_calls > self._calls_at_report and self._num_reported < self._num_batches

    @property
    def is_finished(self) -> bool:
        return self._num_calls >= self._num_batches + max(self.read_ahead, 1)

    @property
    def is_certain(self) -> bool:
        # Batches that were fetched before the first report, beyond what the loader reads ahead,
        # were dropped or wait in something that reads ahead.
        return self._lead is None or self._lead <= self.read_ahead + 1

    @property
    def num_certain(self) -> int:
        # Which part it was is not known: a collate_fn may have left samples out.
        return self._begin

    def check_complete(self, *, by_new_loop: bool) -> None:
        if not self.is_finished or self._was_refused:
            return
        # With workers a break at the very last batch looks like one that was dropped. The batches
        # reported before are right in both cases, so a new loop simply goes on.
        if by_new_loop and self.is_certain and self.read_ahead:
            return
        raise self.left_over()


class SampleTracker(Tracker):
    """An iteration by `sampler`: someone else makes batches of its samples.

    Between what was drawn and what was reported there is a gap, as wide as the loader reads ahead,
    and constant while the loader still draws: how much was drawn since the last report is the size
    of the batch reported then. The size of the first batch is known for torch's own BatchSampler.
    """

    def __init__(self, shard: Shard, indices: NDArray[Any], call: LoaderCall | None = None) -> None:
        end = len(shard)
        self._batch_size = None if call is None else call.batch_size
        if call is not None and call.batch_size is not None and call.drop_last:
            end -= end % call.batch_size
        super().__init__(shard, indices, end, call)
        self._chunk: Iterator[int] = iter(())
        self._end_of_chunk = 0
        self._drawn_at_report = 0
        self._drawn_at_first_report: int | None = None
        self._reported_of_batch = 0
        self._ran_out = False
        """Whether the loader asked for more than there is."""
        self._was_doubled = False
        """Whether a batch was reported twice, the second time for samples that were not its own."""

    def chunks(self) -> Iterator[Iterator[int]]:
        """The samples, in lists that become numbers at once."""
        for start in range(0, self.end, CHUNK):
            self.check_current()
            chunk = self.samples(start, min(start + CHUNK, self.end))
            self._chunk = iter(chunk)
            self._end_of_chunk += len(chunk)
            yield self._chunk
        self._ran_out = True

    @property
    def drawn(self) -> int:
        """How many samples were drawn; a list's iterator knows how many it has left (PEP 424)."""
        return self._end_of_chunk - length_hint(self._chunk)

    def _take(self, num_losses: int) -> slice:
        drawn = self.drawn
        drawing = drawn < self.end
        fetched = drawn - self._drawn_at_report
        of_batch, batch_size = self._reported_of_batch, self._batch_size
        if fetched and self.reported:
            if fetched > of_batch:
                raise self._dropped(fetched - of_batch)
            if fetched < of_batch and drawing:
                self._was_doubled = True
                raise OrderError(
                    f"{of_batch} losses were reported for a batch of {fetched}: "
                    f"report every batch once, or {REMEDY}.",
                    "reported-twice",
                )
            of_batch, batch_size = 0, batch_size or of_batch
        of_batch += num_losses
        if self.reported + num_losses > drawn or (
            drawing and batch_size is not None and of_batch > batch_size
        ):
            raise OrderError(
                f"losses has {num_losses} entries, more than are left of the current batch: report "
                f"one loss per sample and every batch once, or {REMEDY}.",
                "reported-twice",
            )
        if self._drawn_at_first_report is None:
            self._drawn_at_first_report = drawn
        self._drawn_at_report = drawn
        self._reported_of_batch, self._batch_size = of_batch, batch_size
        return slice(self.reported, self.reported + num_losses)

    @property
    def new_batch(self) -> slice | None:
        if not self.has_new_batch:
            return None
        # It is known only where nothing was drawn beyond it.
        is_first, drawn = self._drawn_at_first_report is None, self.drawn
        ahead = self._batch_size is None or drawn - self.reported > self._batch_size
        if self._drawn_at_report > self.reported or (is_first and ahead):
            raise OrderError(
                "batch_weights was read before update(), which a loader that reads ahead does not "
                "allow: call update(losses) first, then batch_weights is for the same batch.",
                "weights-before-update",
            )
        return slice(self.reported, drawn)

    def note_report(self) -> None:
        self._drawn_at_report = self.drawn

    @property
    def has_new_batch(self) -> bool:
        return self.drawn > self._drawn_at_report

    @property
    def _lacks_batches(self) -> bool:
        """Whether the loader ran out and more is missing than a last batch that is not full."""
        is_known = self.call is not None and self.call.batch_size is not None
        size = self._batch_size or self._reported_of_batch or self.end
        # A BatchSampler that we do not know may have left that last batch out.
        most = self.end % size if is_known else size - 1
        return self._ran_out and not self._was_refused and self.end - self.reported > most

    @property
    def _has_dropped(self) -> bool:
        """Whether more was drawn before the first report than the loader reads ahead."""
        first, size = self._drawn_at_first_report, self._batch_size
        if first is None or size is None or first == self.end:
            return False
        return first > (self.read_ahead + 1) * size

    @property
    def is_finished(self) -> bool:
        if self.reported == 0:
            # Others than torch's BatchSampler may draw everything before the first batch; but if a
            # resume has left less than a batch, nobody should wait for it in vain.
            is_known = self.call is not None and self.call.batch_size is not None
            is_rest = self.shard.start > 0
            return self._ran_out and self.read_ahead == 0 and (is_known or is_rest)
        return self._ran_out and not self._lacks_batches

    @property
    def is_certain(self) -> bool:
        return not (self._lacks_batches or self._has_dropped or self._was_doubled)

    def check_complete(self, *, by_new_loop: bool) -> None:
        if not self._lacks_batches:
            return
        # Among the last batches, which workers have fetched ahead, a break looks like a batch that
        # was dropped. A new loop goes on, without what was reported: it may belong elsewhere.
        if by_new_loop and self.read_ahead and not self._has_dropped:
            return
        raise self.left_over()


class LoadedBatch:
    """The batch that an `infobatch.DataLoader` handed out last: its samples are known.

    >>> import torch
    >>> LoadedBatch(torch.tensor([7, 3, 5]), epoch=0).take(2)
    tensor([7, 3])
    """

    def __init__(self, indices: Tensor, epoch: int, before: LoadedBatch | None = None) -> None:
        if not isinstance(indices, Tensor) or indices.dim() != 1 or len(indices) == 0:
            kind = type(indices).__name__
            given = f"has shape {tuple(indices.shape)}" if kind == "Tensor" else f"is a {kind}"
            raise ValueError(f"indices {given}, expected a tensor of at least one sample.")
        self.indices = indices
        self.epoch = epoch
        self.by_index = False
        """Whether it was reported with indices that the user gave."""
        self.weights: Tensor | None = None
        """Of the whole batch, where it has closed its epoch, whose plan is gone."""
        self._thread = get_ident()
        self._num_taken = self._times_reported = 0
        self._num_batches_before = self._num_unreported_before = 0
        self._may_lag = True
        """Whether the batches before were reported once each, but for some at the very start."""
        self._num_handed_out = len(indices)
        if before is not None and before.epoch == epoch:
            before._check_whole()
            self._num_handed_out += before._num_handed_out
            self._num_batches_before = before._num_batches_before + 1
            self._num_unreported_before = before._num_unreported_before
            self._num_unreported_before += before._times_reported == 0
            none_reported = self._num_unreported_before == self._num_batches_before
            self._may_lag = before._may_lag and (before._times_reported == 1 or none_reported)

    @property
    def is_new(self) -> bool:
        """Whether none of it was reported yet."""
        return self._num_taken == 0 and not self.by_index

    @property
    def is_cut(self) -> bool:
        """Whether only a part of it was reported."""
        return 0 < self._num_taken < len(self.indices) and not self._times_reported

    @property
    def num_left(self) -> int:
        """How many losses are left to report; all of them, where it may be reported again."""
        return len(self.indices) - self._num_taken % len(self.indices)

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
        assert self.weights is not None
        return self.weights[self._next(num_losses)]

    def _next(self, num_losses: int) -> slice:
        if self._thread != get_ident():
            raise OrderError(
                "another thread fetched this batch and may be ahead of the one that reports: put "
                "the prefetcher inside, `for batch in loader.through(prefetcher)`, or give "
                "update() the indices of the batch.",
                "other-thread",
            )
        first = self._num_taken % len(self.indices)
        if first + num_losses > len(self.indices):
            raise OrderError(
                f"losses has {num_losses} entries, but {len(self.indices) - first} samples are "
                "left of the current batch: report one loss per sample.",
                "reported-twice",
            )
        self._num_taken = first + num_losses
        self._times_reported += self._num_taken == len(self.indices)
        return slice(first, self._num_taken)

    def check_finished(self, *, may_be_cut: bool) -> None:
        """Refuse an epoch that ends with a part of a batch, or with traces of reading ahead."""
        if not may_be_cut:
            self._check_whole()
        if self._may_lag and 0 < self._num_unreported_before == self._times_reported - 1:
            # Each batch came under the name of a later one, and the last name was used up.
            raise OrderError(
                "something reads ahead between infobatch.DataLoader and the training loop, so the "
                "losses were reported for later batches than their own: iterate over "
                "loader.through(it), or give update() the indices of the batch.",
                "read-ahead",
            )

    def _check_whole(self) -> None:
        num_left = len(self.indices) - self._num_taken
        if self._num_taken and num_left:
            raise OrderError(
                f"{num_left} of the {len(self.indices)} samples of a batch were never reported (a "
                "collate_fn that leaves samples out does that): give update() the indices of the "
                "samples you report.",
                "part-of-a-batch",
            )
