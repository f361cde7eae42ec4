"""The epoch that is running: its plan, this rank's share, and what was reported of it so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from infobatch import distributed
from infobatch.errors import OrderError
from infobatch.plan import Plan
from infobatch.record import (
    IndexedRecord,
    OrderedRecord,
    Record,
    Reported,
    no_losses,
)
from infobatch.share import Share


@contextmanager
def on_host() -> Iterator[None]:
    """Make tensors that last, on the host, whatever mode and default device the user has set."""
    with torch.inference_mode(False), torch.device("cpu"):
        yield


class RunningEpoch:
    """Made with the epoch's first need for a plan, gone when it ends: `RunningEpoch(plan)`."""

    def __init__(self, plan: Plan, before: Reported | None = None) -> None:
        self.plan = plan
        self._before = before
        """What was reported before a resume."""
        self._share: Share | None = None
        self._record: Record | None = None
        self._synced: Reported | None = None
        self._synced_at = 0
        self._num_ranks = 1
        self.agreed = False
        """Whether all ranks are known to stand here."""
        self.num_updates = 0
        self.num_idle_passes = 0
        """Iterations to the end of what a resume has left, without a report."""
        self.num_to_report: int | None = None
        """With how many samples reported here the epoch ends; None where that is not known."""

    @property
    def num_reported(self) -> int:
        """How many samples were reported, by all ranks together: they take equally many steps."""
        before = 0 if self._before is None else self._before.num_done
        return min(before + self._num_own * self._num_ranks, len(self.plan))

    @property
    def is_by_index(self) -> bool:
        """Whether the batches so far came with their indices."""
        return self._num_own > 0 and isinstance(self._record, IndexedRecord)

    @property
    def _num_own(self) -> int:
        return 0 if self._record is None else self._record.num_reported

    def share(self, *, sharded: bool) -> Share:
        """What is left of the plan: this rank's share, or all of it."""
        done = None if self._before is None else self._before.done
        if not sharded:
            return Share(self.plan, done)
        return Share(self.plan, done, distributed.rank(), distributed.num_ranks())

    def begin_pass(self, *, sharded: bool) -> Share:
        """A loader begins to draw: what it goes through."""
        if self._share is None or self._num_own == 0:
            self._record, self._share = None, self.share(sharded=sharded)
        if self._share.num_ranks != self.share(sharded=sharded).num_ranks:
            raise OrderError(
                f"epoch {self.plan.epoch} was begun with indices of the whole plan, and goes on "
                "with this rank's share of it: give each epoch to one loader, or call set_epoch()."
            )
        return self._share

    def record(self, kind: type[Record]) -> Record:
        """Where to write losses down: `running.record(OrderedRecord)`."""
        if isinstance(self._record, kind) and self._record.num_reported:
            return self._record
        if self._share is None:
            self._share = self.share(sharded=False)
        if self._num_own == 0:
            self._num_ranks = distributed.num_ranks()
        if kind is OrderedRecord and self._share.num_ranks < self._num_ranks:
            raise OrderError(
                "sampler.unsharded is the whole epoch, of which this is one of "
                f"{self._num_ranks} ranks: give update() the indices of the batch, or use "
                "train_data.sampler, this rank's share."
            )
        if self._num_own == 0 and not isinstance(self._record, kind):
            with on_host():
                self._record = kind(self._share)
        if not isinstance(self._record, kind):
            raise OrderError(
                f"epoch {self.plan.epoch} was begun "
                f"{'without' if kind is IndexedRecord else 'with'} indices: report all batches of "
                "an epoch in the same way."
            )
        return self._record

    def merged(self, device: torch.device) -> Reported:
        """What all ranks have reported; one collective, where there are several."""
        losses = distributed.merge_losses(self._losses(self._before), device)
        return Reported(losses, None if self._before is None else self._before.done)

    def sync(self, device: torch.device) -> None:
        """Know what all ranks have reported, until the next update."""
        self._synced, self._synced_at = self.merged(device), self.num_updates

    def reported(self) -> Reported | None:
        """What this rank knows to be reported, or None; for a checkpoint, without a collective."""
        with on_host():
            found = self._reported()
        return found if found is not None and found.num_done else None

    def _reported(self) -> Reported | None:
        if self._synced is not None and self._synced_at == self.num_updates:
            return self._synced
        known = self._synced or self._before
        if self._record is None or self._num_own == 0:
            return known
        known = known or Reported(no_losses(len(self.plan)))
        done = self._record.share.done_on_all_ranks(self._record.is_reported())
        return Reported(self._losses(known), known.done | done)

    def _losses(self, start: Reported | None) -> Tensor:
        """What was known at the start and what this rank has reported since."""
        losses = no_losses(len(self.plan)) if start is None else start.losses.clone()
        if self._record is not None and self._num_own:
            self._record.write_into(losses)
        return losses
