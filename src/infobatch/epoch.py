"""One epoch: its plan, which losses belong to which samples, and the losses reported so far.

An epoch is planned, then open (in order or by index), then closed. While it is open the plan stands
still and losses are written beside it: a step costs a slice and a copy in order, a lookup and a
scatter by index.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infobatch import distributed
from infobatch.buffer import HOST, EntryOf, LossBuffer
from infobatch.callers import LoaderCall
from infobatch.distributed import has_loss, no_losses
from infobatch.errors import OrderError, warn
from infobatch.plan import Plan
from infobatch.scores import NO_SCORE
from infobatch.shard import Shard
from infobatch.tracking import LoadedBatch, Tracker
from infobatch.uniform import UniformShard, uniform_shard


@contextmanager
def on_host() -> Iterator[None]:
    """Make tensors that last, on the host, whatever mode and default device the user has set."""
    with torch.inference_mode(False), torch.device("cpu"):
        yield


@dataclass(frozen=True, eq=False)
class EpochLosses:
    """The losses of an epoch in the order of its plan."""

    losses: Tensor
    """float32, on the host; see `no_losses` for where none is known."""
    trained: Tensor | None = None
    """Entries known to be trained, though the losses that other ranks have of them may not be."""
    scores_given: bool = False
    """Whether some of them are scores that were given in place of the losses."""
    of_batches: bool = False
    """Whether a sample's loss is that of its whole batch, reported as one number."""

    @cached_property
    def known(self) -> Tensor:
        """Which losses are known, and are scores: not those of samples that have none."""
        # Most epochs have no such sample. A look at the smallest loss takes no memory, unlike a
        # comparison of them all.
        if np.fmin.reduce(self.losses.numpy()) > NO_SCORE:
            return self._reported
        return self._reported & (self.losses != NO_SCORE)

    @cached_property
    def done(self) -> Tensor:
        """Which entries were trained."""
        return self._reported if self.trained is None else self._reported | self.trained

    @cached_property
    def _reported(self) -> Tensor:
        return has_loss(self.losses)

    @cached_property
    def num_done(self) -> int:
        return int(self.done.count_nonzero())  # a sum would make whole numbers of them all first


class Epoch:
    """An epoch of a run: `Epoch(plan)`, or `Epoch(plan, losses)` for one that is resumed.

    After a resume the entries that are done stand in front, so that what is left is always a run of
    entries from `start` on.
    """

    def __init__(self, plan: Plan, resumed_from: EpochLosses | None = None) -> None:
        self.plan = plan
        self.start = 0 if resumed_from is None else resumed_from.num_done
        self.tracker: Tracker | None = None
        """The iteration that losses in order are reported for."""
        self.num_updates = 0
        self._num_repeats = 0
        """Updates with a batch that was reported before."""
        self.scores_given = resumed_from is not None and resumed_from.scores_given
        """Whether scores were given in place of losses."""
        self._resumed_from = resumed_from
        self._done_first = None if resumed_from is None else done_first(resumed_from.done)
        self._uniform: dict[tuple[bool, int, int], UniformShard] = {}
        self._iteration: weakref.ref[object] | None = None
        self._was_disturbed = False
        self._scale = 1.0
        self._shard: Shard | None = None
        self._buffer: LossBuffer | None = None
        self._is_in_order = False
        self._entry_of: EntryOf | None = None
        """Set where losses come with their indices."""
        self._all_one_by_index = False
        self._num_own = 0
        """Positions of the shard that were reported."""
        self._world_size = 1
        self._synced: EpochLosses | None = None
        self._synced_at = 0

    # Queries -------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether losses were reported in this process."""
        return self.num_updates > 0

    @property
    def is_by_index(self) -> bool:
        """Whether the losses so far came with their indices."""
        return self.is_open and self._entry_of is not None

    @property
    def num_batches(self) -> int:
        """How many batches were reported in this process."""
        return self.num_updates - self._num_repeats

    @property
    def num_reported(self) -> int:
        """How many samples were reported, by all ranks together: they take equally many steps."""
        shard = self._shard
        if isinstance(shard, UniformShard) and shard.world_size > 1:
            return shard.num_done(self._num_own)
        return min(self.start + self._num_own * self._world_size, len(self.plan))

    def shard(self, *, sharded: bool, uniform_size: int = 0) -> Shard:
        """What is left of the epoch: this rank's part of it, or all of it.

        With a `uniform_size`, in batches of that size in which all samples have the same weight.
        """
        if uniform_size:
            return self._uniform_shard(uniform_size, sharded=sharded)
        if not sharded:
            return Shard(self.start, len(self.plan))
        return Shard(self.start, len(self.plan), distributed.rank(), distributed.world_size())

    def _uniform_shard(self, batch_size: int, *, sharded: bool) -> UniformShard:
        """Cut once: `len(loader)` is asked often."""
        world_size = distributed.world_size()  # `len(loader)` may be asked before the group exists
        if (sharded, batch_size, world_size) not in self._uniform:
            with on_host():
                self._uniform[sharded, batch_size, world_size] = uniform_shard(
                    self.plan.weights,
                    None if self._resumed_from is None else self._resumed_from.done,
                    batch_size,
                    rank=distributed.rank() if sharded else 0,
                    world_size=world_size if sharded else 1,
                    multiple=world_size,
                )
        return self._uniform[sharded, batch_size, world_size]

    def indices(self, shard: Shard) -> Tensor:
        """The samples of the epoch's entries, in the order in which `shard` counts them."""
        order = self._order_of(shard)
        return self.plan.indices if order is None else self.plan.indices[order]

    def _order_of(self, shard: Shard | None) -> Tensor | None:
        """The entry of the plan that each entry of the epoch is; None: the same one."""
        return shard.order if isinstance(shard, UniformShard) else self._done_first

    # Iterations ----------------------------------------------------------------------------------

    def is_being_read(self, call: LoaderCall | None) -> bool:
        """Whether an earlier iteration may still hand out batches, when `call` begins a new one."""
        tracker = self.tracker
        if tracker is None or tracker.is_finished:
            return False
        if tracker.call is not None:
            if call is not None and call.starts_again(tracker.call):
                return False
            alive: weakref.ref[Any] | None = tracker.call.iterator
        else:
            alive = self._iteration
        if alive is not None and alive() is not None:
            gc.collect()  # an iteration that only a reference cycle keeps alive is over
        return alive is not None and alive() is not None

    def begin(self, tracker: Tracker, iteration: object, scale: float) -> None:
        """Expect losses for a new iteration; `scale` multiplies the weights of the plan."""
        if self.tracker is not None:
            self.tracker.is_over = True
        self.tracker, self._iteration = tracker, weakref.ref(iteration)
        self._shard, self._scale = tracker.shard, scale
        self._buffer = self._entry_of = None
        self._is_in_order = False

    def check_same_part(self, shard: Shard) -> None:
        """Raise if a loader goes on with another part of an epoch than it was begun with."""
        if self._shard is not None and self._shard.world_size != shard.world_size:
            raise OrderError(
                f"epoch {self.plan.epoch} was begun with indices of the whole plan, and goes on "
                "with this rank's part of it: give each epoch to one loader, or call set_epoch().",
                "whole-epoch",
            )
        if isinstance(shard, UniformShard):
            raise self._mixed("with one loss per sample")

    def disturb(self) -> None:
        """Remember that a second iteration began while this epoch was being read."""
        self._was_disturbed = True

    # A step --------------------------------------------------------------------------------------

    def weights_in_order(self, positions: slice, device: torch.device) -> Tensor:
        """The weights of a batch that was fetched and not reported; changes nothing."""
        assert self._shard is not None
        entries = self._shard.entries(positions)
        return self._new_buffer_or_own(device).weights(entries)

    def weights_by_index(self, indices: Tensor, device: torch.device) -> Tensor:
        """The same for a batch whose samples are known."""
        shard = self._shard or self.shard(sharded=False)
        entry_of = self._entry_of or self._lookup(shard)
        if indices.is_cpu:
            entry_of.on_host(indices.numpy())  # raises for a sample that the epoch does not have
        return self._new_buffer_or_own(device).weights(entry_of.on_device(indices, device))

    def check_one_weight(self, indices: Tensor) -> None:
        """Raise if the samples, on the host, have different weights."""
        entry_of = self._entry_of or self._lookup(self._shard or self.shard(sharded=False))
        entries = torch.from_numpy(entry_of.on_host(indices.numpy()))
        weights = self._new_buffer_or_own(HOST).weights(entries)
        if bool((weights != weights[0]).any()):
            raise OrderError(
                f"the samples of a batch weigh from {weights.min()} to {weights.max()}, but a loss "
                "that is one number can have one weight only: report batches as "
                "batches(uniform=True) makes them.",
                "mixed-weights",
            )

    def record_in_order(self, losses: Tensor) -> Tensor | None:
        """Record the next losses in order; returns their weights, None where all are 1."""
        tracker = self.tracker
        if tracker is None:
            raise OrderError(NO_BATCH, "no-batch")
        if self._was_disturbed:
            self.check_undisturbed()
        if not self._is_in_order:
            self._check_in_order()
        positions = tracker.take(losses.shape[0])
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = self._make_buffer(in_order=True)
            self._is_in_order = True
        if buffer.arrays is None or not losses.is_cpu:
            buffer.to(losses.device)
        shard = tracker.shard
        entries = positions if shard.is_everything else shard.entries(positions)
        buffer.write_in_order(entries, losses)
        self._num_own = positions.stop
        self.num_updates += 1
        if self._all_one and positions.stop <= shard.num_own:
            return None
        if buffer.arrays is not None:
            return torch.from_numpy(buffer.arrays.weights[entries])
        return buffer.weights(entries)

    def check_undisturbed(self) -> None:
        """Raise if it is not known which batch losses without indices belong to."""
        if self._was_disturbed:
            raise OrderError(
                "a second iteration over the training data began while this one was running, so it "
                "is not known which batch these losses belong to: peek at a batch before or after "
                "an epoch, or give update() the indices of the batch.",
                "two-iterations",
            )

    def record_by_index(
        self, losses: Tensor, indices: Tensor, *, is_repeat: bool = False
    ) -> Tensor | None:
        """Record losses by the indices of their samples; returns what `record_in_order` does.

        `is_repeat` says that the same batch was recorded before, which a device does not show.
        """
        entry_of, buffer = self._entry_of, self._buffer
        if entry_of is None or buffer is None:
            entry_of, buffer = self._open_by_index()
        if buffer.arrays is None or not losses.is_cpu:
            buffer.to(losses.device)
        if self.tracker is not None:
            self.tracker.note_report()
        arrays = buffer.arrays
        samples = indices.numpy() if indices.is_cpu else None
        on_host = None if samples is None else entry_of.on_host(samples)
        if arrays is not None and on_host is not None:
            self._num_own += arrays.write_by_index(on_host, losses)
            self.num_updates += 1
            self._num_repeats += is_repeat
            if self._all_one_by_index:
                return None
            return torch.from_numpy(arrays.weights.take(on_host))
        entries = entry_of.on_device(indices, losses.device)
        buffer.write_by_index(entries, losses)
        self._num_own += 0 if is_repeat else len(indices)
        self.num_updates += 1
        self._num_repeats += is_repeat
        return None if self._all_one_by_index else buffer.weights(entries)

    def _open_by_index(self) -> tuple[EntryOf, LossBuffer]:
        if self.is_open:
            raise self._mixed("without indices")
        self._check_kind()
        self._world_size = distributed.world_size()
        if self._shard is None:
            self._shard = self.shard(sharded=False)
        # Not kept before it is known that the losses can be recorded.
        self._all_one_by_index = self._all_one and self._shard.world_size == 1
        self._entry_of, self._buffer = self._lookup(self._shard), self._make_buffer()
        self._is_in_order = False
        return self._entry_of, self._buffer

    @cached_property
    def _all_one(self) -> bool:
        return self.plan.num_pruned == 0

    def _check_in_order(self) -> None:
        if self.is_open:
            raise self._mixed("with indices")
        self._check_kind()
        assert self._shard is not None
        self._entry_of = self._buffer = None
        self._world_size = distributed.world_size()
        if self._shard.world_size < self._world_size:
            raise OrderError(
                f"this loader reads the whole epoch on each of {self._world_size} ranks: "
                "give update() the indices of the batch, or read this rank's part of it "
                "(sharded=True, train_data.sampler).",
                "whole-epoch",
            )

    def _check_kind(self) -> None:
        """Raise if a resumed epoch goes on with another kind of loss."""
        before = self._resumed_from
        if before is not None and before.of_batches != self._is_uniform:
            kind = "one number per batch" if before.of_batches else "one loss per sample"
            raise self._mixed(f"with {kind}")

    @property
    def _is_uniform(self) -> bool:
        return isinstance(self._shard, UniformShard)

    def _mixed(self, how: str) -> OrderError:
        return OrderError(
            f"epoch {self.plan.epoch} was begun {how}: report all batches of an epoch in the same "
            "way.",
            "mixed-reports",
        )

    def _make_buffer(self, *, in_order: bool = False) -> LossBuffer:
        with on_host():
            order = self._order_of(self._shard)
            weights = self.plan.weights if order is None else self.plan.weights[order]
            if self._scale != 1:
                weights = weights * self._scale
            shard = self._shard or self.shard(sharded=False)
            return LossBuffer(weights, shard, in_order=in_order)

    def _new_buffer_or_own(self, device: torch.device) -> LossBuffer:
        buffer = self._buffer or self._make_buffer()
        buffer.to(device)
        return buffer

    def _lookup(self, shard: Shard) -> EntryOf:
        with on_host():
            indices = self.indices(shard)
            return EntryOf(indices, shard, self.plan.num_samples, self.plan.epoch)

    def is_complete(self, loaded: LoadedBatch | None) -> bool:
        """Whether the last update was the epoch's last, on all ranks together.

        Where a framework shards by itself, or a rank may leave samples out of what it reports by
        index, a rank cannot know: then the epoch ends when the next one begins.
        """
        shard = self._shard
        assert shard is not None
        end = len(shard) if self.tracker is None else self.tracker.end
        if self._is_in_order:
            return self._num_own == end
        if shard.world_size < self._world_size:
            return False
        if shard.world_size > 1:
            # A rank may leave samples out of its reports; what was handed out is the same on all.
            return loaded is not None and loaded.is_last_of(end)
        if self._num_own >= end:
            # Samples that came twice on a device were counted twice, so count what is there.
            assert self._buffer is not None
            self._num_own = int(self._buffer.is_reported().count_nonzero())
        return self._num_own >= end

    # Results -------------------------------------------------------------------------------------

    def check_complete(self, *, by_new_loop: bool) -> None:
        """Raise where batches were dropped; forget losses that may belong to other samples."""
        tracker = self.tracker
        if tracker is None or not self.is_open or tracker.reported == tracker.end:
            return
        if self.is_by_index:
            return
        tracker.check_complete(by_new_loop=by_new_loop)
        if not tracker.is_certain:
            self.discard()
            warn(
                "the losses of an epoch were not recorded, because it is not known which samples "
                "they belong to (its loop was left early while something read ahead of it, batches "
                "were dropped before the first update, or one was reported twice): use "
                "infobatch.DataLoader, which knows the samples of each batch."
            )
        elif self._buffer is not None and self._shard is not None:
            self._buffer.forget(self._shard.entries(slice(tracker.num_certain, tracker.reported)))
            self._num_own = min(self._num_own, tracker.num_certain)

    def forget(self, samples: Tensor) -> None:
        """Forget the losses of a batch of which only a part was reported: of which is not known."""
        assert self._entry_of is not None
        assert self._buffer is not None
        self._buffer.forget(torch.from_numpy(self._entry_of.on_host(samples.cpu().numpy())))
        self._num_own = int(self._buffer.is_reported().count_nonzero())

    def discard(self) -> None:
        """Forget what was reported: the epoch stands where it began in this process."""
        self.close()
        self.tracker = self._iteration = self._buffer = self._entry_of = self._shard = None
        self.num_updates = self._num_repeats = self._num_own = 0
        self.scores_given = self._resumed_from is not None and self._resumed_from.scores_given
        self._was_disturbed = self._is_in_order = False
        self._synced, self._synced_at = None, 0

    def close(self) -> None:
        """Let nothing more be read or reported."""
        if self.tracker is not None:
            self.tracker.is_over = True

    def merged(self, device: torch.device) -> EpochLosses:
        """What all ranks have reported; one collective, where there are several."""
        losses = distributed.merge_losses(self._losses(self._resumed_from), device)
        before = self._resumed_from
        if before is None:
            return EpochLosses(losses, None, self.scores_given, self._is_uniform)
        return EpochLosses(losses, before.done, self.scores_given, before.of_batches)

    def sync(self, device: torch.device) -> None:
        """Know what all ranks have reported, until the next update."""
        self._synced, self._synced_at = self.merged(device), self.num_updates

    def reported(self) -> EpochLosses | None:
        """What this rank knows to be reported, for a checkpoint; None for nothing."""
        with on_host():
            found = self._known()
        return found if found is not None and found.num_done else None

    def _known(self) -> EpochLosses | None:
        if self._synced is not None and self._synced_at == self.num_updates:
            return self._synced
        before = self._synced or self._resumed_from
        if self._num_own == 0:
            return before
        shard, buffer = self._shard, self._buffer
        assert shard is not None
        assert buffer is not None
        if self._entry_of is not None:
            own = buffer.is_reported()
        else:
            own = torch.arange(len(shard)) < self._num_own
        done = self._in_plan_order(shard.done(own))
        if before is not None:
            done |= before.done
        return EpochLosses(self._losses(before), done, self.scores_given, self._is_uniform)

    def _losses(self, before: EpochLosses | None) -> Tensor:
        """What was known before and what this rank has reported since, in the plan's order."""
        if self._buffer is None or self._num_own == 0:
            return no_losses(len(self.plan)) if before is None else before.losses
        num_in_order = self._num_own if self._entry_of is None else None
        losses = self._in_plan_order(self._buffer.losses(num_in_order))
        return losses if before is None else torch.where(has_loss(losses), losses, before.losses)

    def _in_plan_order(self, of_epoch: Tensor) -> Tensor:
        order = self._order_of(self._shard)
        if order is None:
            return of_epoch
        of_plan = torch.empty_like(of_epoch)
        of_plan[order] = of_epoch
        return of_plan


def done_first(done: Tensor) -> Tensor | None:
    """The order that puts what is done in front; None where it stands there already.

    >>> done_first(torch.tensor([False, True, False, True]))
    tensor([1, 3, 0, 2])
    """
    if bool(done[: int(done.count_nonzero())].all()):
        return None
    return torch.cat([done.nonzero(), (~done).nonzero()]).squeeze(1)


NO_BATCH = (
    "no batch is waiting for its losses: give the loader "
    "batch_sampler=train_data.batches(batch_size) (or use infobatch.DataLoader, or give update() "
    "the indices of the batch), report a batch once, and weigh a second loss of the same batch "
    "with batch_weights."
)
