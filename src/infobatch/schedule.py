"""Step-based learning-rate schedules on epochs that shrink.

Epochs of fewer steps would leave a schedule behind its curve. So it follows the pruner's place in
the epoch: after a part p of an epoch's steps, it stands where full training stands after a part p
of its own, and at each epoch's end exactly where full training does. With `shrink="batch"` a pruned
epoch has as many steps as a full one, and the schedule takes a step with each of them.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from infobatch.distributed import world_size
from infobatch.errors import check_whole
from infobatch.plan import Plan
from infobatch.samplers import Shrink
from infobatch.shard import steps_of


def may_step_per_batch(scheduler: object) -> bool:
    """Whether it is a torch scheduler that asks for no metric: `may_step_per_batch(curve)`."""
    return isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau)


def steps_taken(scheduler: LRScheduler) -> int:
    """How many steps a scheduler has taken, as far as it tells: `steps_taken(curve)`."""
    if hasattr(scheduler, "last_epoch"):
        return int(scheduler.last_epoch)
    chained = getattr(scheduler, "_schedulers", None)  # a ChainedScheduler itself does not tell
    return steps_taken(chained[0]) if chained else 0


class Progress(Protocol):
    """What a schedule asks of a Pruner or an InfoBatch."""

    @property
    def num_samples(self) -> int: ...
    @property
    def num_epochs(self) -> int | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def num_reported(self) -> int: ...
    @property
    def num_steps_done(self) -> int: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def shrink(self) -> Shrink: ...


class Schedule(LRScheduler):
    """Keeps a scheduler that steps per batch on the curve of full training.

    Make the scheduler for full training, and call `step()` of the `Schedule` after each step of the
    optimizer. `batch_size` (of one rank), `drop_last` and `accumulate` (batches per step of the
    optimizer) are those of the training loop.

    >>> import torch
    >>> from infobatch import Pruner
    >>> pruner = Pruner(num_samples=100, num_epochs=2)
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> curve = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=20)
    >>> schedule = Schedule(curve, pruner, batch_size=10)
    >>> _ = pruner.update(torch.ones(10), pruner.plan.indices[:10]), optimizer.step()
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.95]
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        pruner: Progress,
        *,
        batch_size: int,
        drop_last: bool = False,
        accumulate: int = 1,
    ) -> None:
        # No super().__init__(): it would set the learning rate, which is the wrapped one's to set.
        if not may_step_per_batch(scheduler):
            raise TypeError(
                f"scheduler is a {type(scheduler).__name__}, expected a torch scheduler that steps "
                "per batch; one that steps per epoch or on a metric needs no Schedule."
            )
        if pruner.num_epochs is None:
            raise ValueError(
                "pruner has num_steps, a budget of steps, which keeps a scheduler on its curve: "
                "step it without a Schedule."
            )
        self.scheduler = scheduler
        """The wrapped scheduler."""
        self._num_epochs = pruner.num_epochs
        self._pruner = pruner
        self._batch_size = check_whole("batch_size", batch_size, at_least=1)
        self._drop_last = drop_last
        self._accumulate = check_whole("accumulate", accumulate, at_least=1)
        # Where the wrapped one stands, not the pruner, which may be ahead of it or begin anew.
        self._num_steps = self._seen = steps_taken(scheduler)
        self._stepped_at: int | None = None
        """The pruner's steps at the last `step()`."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch of full training, for which the scheduler is made."""
        return self._steps(self._pruner.num_samples)

    def step(self, epoch: int | None = None) -> None:
        """Move the wrapped scheduler to where full training would be now."""
        # Others may have moved it: `scheduler.load_state_dict(...)` after this was made.
        self._num_steps += steps_taken(self.scheduler) - self._seen
        if self._pruner.shrink == "epoch":
            self._move_to(self._target())
        elif self._pruner.num_steps_done != self._stepped_at:
            # Once for each step of the optimizer: accelerate calls this once per process.
            self._move_to(self._num_steps + 1)
        self._stepped_at = self._pruner.num_steps_done

    def _move_to(self, target: int) -> None:
        while self._num_steps < target:
            self.scheduler.step()
            self._num_steps += 1
        self._seen = steps_taken(self.scheduler)

    def _steps(self, num_samples: int) -> int:
        """Optimizer steps for so many samples, of all ranks together."""
        of_rank = -(-num_samples // world_size())
        num_batches = steps_of(of_rank, self._batch_size, drop_last=self._drop_last)
        return -(-num_batches // self._accumulate)

    def _target(self) -> int:
        pruner = self._pruner
        if pruner.epoch >= self._num_epochs:
            return self.steps_per_epoch * self._num_epochs
        of_epoch = self.steps_per_epoch * self._steps(pruner.num_reported)
        return self.steps_per_epoch * pruner.epoch + of_epoch // max(
            1, self._steps(len(pruner.plan))
        )

    def get_last_lr(self) -> list[Any]:
        """The current learning rates."""
        return self.scheduler.get_last_lr()

    def get_lr(self) -> list[Any]:
        """What the wrapped scheduler computes; `get_last_lr` is what to log."""
        return self.scheduler.get_lr()

    def __getattr__(self, name: str) -> Any:
        # The attributes of a torch scheduler (optimizer, base_lrs, last_epoch, ...) are those of
        # the wrapped one.
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped scheduler, and the number of its steps."""
        return {"scheduler": self.scheduler.state_dict(), "num_steps": self._num_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict()` was taken. Load the state of the pruner, too."""
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self._num_steps, self._seen = state_dict["num_steps"], steps_taken(self.scheduler)
        self._stepped_at = None
