"""The circle: scores -> plan -> update -> scores. The only file that knows all of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infobatch.checkpoint import FORMAT, check_same_run, pack, unpack
from infobatch.errors import OrderError, StateError, check_fraction, check_whole
from infobatch.losses import as_indices, per_sample, score_per_sample, weighted_mean
from infobatch.plan import Plan, draw
from infobatch.record import IndexedRecord, OrderedRecord, Places, Record
from infobatch.rules import Memory, Rule, Until, resolve
from infobatch.sampler import HandedOut, Pass, PlanSampler
from infobatch.scores import merge, unseen
from infobatch.untraced import untraced

NO_BATCH = (
    "no batch is in hand: give the loader sampler=train_data.sampler (or use infobatch.DataLoader, "
    "or give update() the indices of the batch), report a batch once, and weigh a second loss of "
    "the same batch with batch_weights."
)


@contextmanager
def on_host() -> Iterator[None]:
    """Make tensors that last, on the host, whatever mode and default device the user has set."""
    with torch.inference_mode(False), torch.device("cpu"):
        yield


@dataclass(frozen=True)
class Savings:
    """What pruning has saved so far.

    >>> Savings(num_trained=70, num_full=100).fraction
    0.3
    """

    num_trained: int
    """Samples trained."""
    num_full: int
    """Samples that full training would have seen by now."""

    @property
    def fraction(self) -> float:
        return (self.num_full - self.num_trained) / self.num_full if self.num_full else 0.0


class Pruner:
    """Says which samples each epoch trains, with which weights, and learns from their losses.

    >>> pruner = Pruner(num_samples=4, num_epochs=2)
    >>> pruner.update(torch.ones(4), pruner.plan.indices)
    tensor(1.)
    >>> pruner.epoch
    1
    """

    def __init__(
        self,
        num_samples: int,
        num_epochs: int,
        prune_ratio: float | None = None,
        delta: float = 0.875,
        *,
        rule: Rule | str | None = None,
        seed: int = 0,
    ) -> None:
        self.num_samples = check_whole("num_samples", num_samples, at_least=1)
        self.num_epochs = check_whole("num_epochs", num_epochs, at_least=1)
        self.delta = check_fraction("delta", delta, one_allowed=True)
        self.rule = resolve(rule, prune_ratio)
        self.seed = check_whole("seed", seed)
        self._annealed = Until(self.rule, self.delta * self.num_epochs)
        with on_host():
            self._scores = unseen(self.num_samples)
        self._memory: Memory = {}
        self._past_savings = Savings(0, 0)
        self._num_nonfinite = 0
        self._plan: Plan | None = None
        self._record: Record | None = None
        self._handed_out: HandedOut | None = None
        self._last_weights: Tensor | None = None
        self._device = torch.device("cpu")
        self._sampler = PlanSampler(self._begin_pass, self._num_to_draw)
        self._enter(0)

    # What a user reads ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._epoch

    @property
    def plan(self) -> Plan:
        """What the current epoch trains; it stands still while the epoch runs."""
        if self._plan is None:
            self._plan = self._draw(self._scores, self._memory, self.seed, self._epoch)
        return self._plan

    @property
    def sampler(self) -> PlanSampler:
        """The plan as a sampler for a stock DataLoader."""
        return self._sampler

    @property
    def scores(self) -> Tensor:
        """The last loss of each sample as of the last finished epoch, NaN where unseen; a copy."""
        return self._scores.clone()

    @property
    def savings(self) -> Savings:
        """What was saved so far, the running epoch included."""
        return self._savings_with(self.num_reported)

    @property
    def num_reported(self) -> int:
        """How many samples of the running epoch were reported so far."""
        return self._record.num_reported if self._record is not None else 0

    @property
    def num_nonfinite(self) -> int:
        """How many losses of the finished epochs were NaN or infinite."""
        return self._num_nonfinite

    @property
    @untraced
    def batch_weights(self) -> Tensor:
        """The weights of the batch in hand, for a loss that is not reduced by `update`."""
        in_hand: HandedOut | Pass | None = self._handed_out
        if in_hand is None and not isinstance(self._record, IndexedRecord):
            in_hand = self._sampler.current
        fetched = in_hand.new_batch if in_hand is not None else None
        if isinstance(fetched, slice):
            return self.plan.weights[fetched].to(self._device)
        if fetched is not None:
            record = self._record_of(IndexedRecord)
            record.to(self._device)
            return record.weights(fetched)
        if self._last_weights is None:
            raise OrderError(NO_BATCH)
        return self._last_weights

    # A step --------------------------------------------------------------------------------------

    @untraced
    def update(
        self,
        losses: Tensor,
        indices: Tensor | Sequence[int] | None = None,
        *,
        scores: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Record the losses of a batch and return their weighted mean, to call `backward()` on.

        `losses` has one row per sample; further dimensions (pixels, tokens) are averaged, without
        the places where `mask` is 0. `indices` are the samples of the batch, where the loader does
        not tell. `scores` are recorded in place of the losses, where given.
        """
        given, losses = losses, per_sample(losses, mask)
        recorded = losses if scores is None else score_per_sample(scores, losses)
        if self._handed_out is not None and self._is_repeat(losses, indices):
            return weighted_mean(losses, self.batch_weights)
        record, places = self._batch(losses, indices)
        device = losses.device
        record.to(device)
        weights = record.weights(places)
        record.write(places, recorded)
        # An epoch that prunes nothing is to the last bit what it would be without the library.
        as_given = record.all_one and mask is None
        loss = given.mean() if as_given else weighted_mean(losses, weights)
        self._record, self._last_weights, self._device = record, weights, device
        self._num_updates += 1
        if record.has(self._num_to_report()):
            self._close(self._epoch + 1, stacklevel=5)  # above `untraced` and what it calls
        return loss

    def _num_to_report(self) -> int:
        current = self._sampler.current
        if current is None:
            return len(self.plan)
        return self._num_resumed + current.end - current.first  # less with drop_last

    def _is_repeat(self, losses: Tensor, indices: Tensor | Sequence[int] | None) -> bool:
        """Whether a batch handed out is reported again after it has closed its epoch."""
        return (
            indices is None
            and self._handed_out is not None
            and self._handed_out.epoch != self._epoch
            and self._last_weights is not None
            and losses.shape == self._last_weights.shape
        )

    def _batch(
        self, losses: Tensor, indices: Tensor | Sequence[int] | None
    ) -> tuple[Record, Places]:
        """Which samples these losses belong to, and where to write them down."""
        if indices is not None:
            return self._record_of(IndexedRecord), as_indices(indices, losses)
        if self._handed_out is not None and self._handed_out.epoch == self._epoch:
            return self._record_of(IndexedRecord), self._handed_out.take(losses.shape[0])
        if self._handed_out is not None or self._sampler.current is None:
            raise OrderError(NO_BATCH)
        return self._record_of(OrderedRecord), self._sampler.current.take(losses.shape[0])

    def _record_of(self, kind: type[Record]) -> Record:
        if self._record is None or self._record.num_reported == 0:
            with on_host():
                return self._record if isinstance(self._record, kind) else kind(self.plan)
        if not isinstance(self._record, kind):
            raise OrderError(
                f"epoch {self._epoch} was begun {'without' if kind is IndexedRecord else 'with'} "
                "indices: report all batches of an epoch in the same way."
            )
        return self._record

    # An epoch ------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Stand at this epoch; another one that is running ends with what it has reported."""
        epoch = check_whole("epoch", epoch, at_least=0)
        if epoch != self._epoch:
            self._close(epoch)
            self._handed_out = None

    def _close(self, next_epoch: int, *, stacklevel: int = 3) -> None:
        """Merge what the epoch has reported, and stand at the start of another."""
        with on_host():
            num_nonfinite, closed = self._merge(), self._epoch
            self._enter(next_epoch)
        if num_nonfinite:
            warnings.warn(
                f"{num_nonfinite} losses of epoch {closed} are NaN or infinite: their samples stay "
                "in training and out of the threshold.",
                RuntimeWarning,
                stacklevel=stacklevel,
            )

    def _merge(self) -> int:
        """Take the losses reported as scores; returns how many of them are not finite."""
        record, current = self._record, self._sampler.current
        if record is None or record.num_reported == 0:
            return 0
        if isinstance(record, OrderedRecord) and current is not None:
            current.check_finished()
        if self._handed_out is not None and self._handed_out.epoch == self._epoch:
            self._handed_out.check_finished()
        indices, losses = record.reported()
        self._memory = self._annealed.remember(
            self._scores, self._memory, self._epoch, indices, losses
        )
        num_nonfinite = merge(self._scores, indices, losses)
        self._past_savings = self._savings_with(len(indices))
        self._num_nonfinite += num_nonfinite
        return num_nonfinite

    def _enter(self, epoch: int) -> None:
        self._epoch = epoch
        self._plan = self._record = None
        self._num_resumed = self._num_updates = 0
        self._sampler.current = None
        if self._last_weights is not None:  # a view that would keep the whole plan alive
            self._last_weights = self._last_weights.clone()

    def _draw(self, scores: Tensor, memory: Memory, seed: int, epoch: int) -> Plan:
        with on_host():
            groups = self._annealed.groups(scores, memory, epoch)
            if len(groups.of) != self.num_samples:
                raise ValueError(
                    f"{self.rule!r} groups {len(groups.of)} samples, expected {self.num_samples}."
                )
            return draw(groups, seed, epoch)

    def _savings_with(self, num_trained: int) -> Savings:
        """The savings, with so many samples of this epoch trained."""
        past = self._past_savings
        num_full = round(self.num_samples * num_trained / len(self.plan)) if num_trained else 0
        return Savings(past.num_trained + num_trained, past.num_full + num_full)

    # A loader ------------------------------------------------------------------------------------

    def hand_out(self, indices: Tensor) -> None:
        """Take these samples for the batch in hand; a loader that knows them calls this."""
        self._handed_out = HandedOut(indices, self._epoch, before=self._handed_out)

    def _begin_pass(self) -> tuple[Tensor, int]:
        if self._num_updates and self._sampler.current is not None:
            # The last iteration was cut short: nothing else begins a new one after an update.
            self._close(self._epoch + 1)
        self._handed_out = None
        if self._record is None or self._num_resumed == 0:
            return self.plan.indices, 0
        return self._record.remaining()

    def _num_to_draw(self) -> int:
        return len(self.plan) - self._num_resumed

    # A checkpoint --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a bit-exact resume needs: tensors, numbers and strings."""
        return {
            "format": FORMAT,
            "num_samples": self.num_samples,
            "num_epochs": self.num_epochs,
            "delta": self.delta,
            "rule": repr(self.rule),
            "seed": self.seed,
            "epoch": self._epoch,
            "scores": self._scores.clone(),
            "memory": {name: values.clone() for name, values in self._memory.items()},
            "num_trained": self._past_savings.num_trained,
            "num_full": self._past_savings.num_full,
            "num_nonfinite": self._num_nonfinite,
            "running": pack(self.plan, self._record) if self._record else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken; refuses the checkpoint of another run."""
        try:
            self._load(state)
        except (KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"state is not what state_dict() returns ({error!r}): load the pruner's own entry "
                "of the checkpoint."
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        check_same_run(
            state,
            num_samples=self.num_samples,
            num_epochs=self.num_epochs,
            delta=self.delta,
            rule=repr(self.rule),
        )
        scores = state["scores"].clone()
        memory = {name: values.clone() for name, values in state["memory"].items()}
        seed, epoch, running = state["seed"], state["epoch"], state["running"]
        plan = self._draw(scores, memory, seed, epoch) if running else None
        record = unpack(plan, running) if plan is not None else None
        past_savings = Savings(state["num_trained"], state["num_full"])
        num_nonfinite = state["num_nonfinite"]
        # Nothing can fail from here on, so a refused checkpoint changes nothing.
        self._enter(epoch)
        self.seed, self._scores, self._memory = seed, scores, memory
        self._past_savings, self._num_nonfinite = past_savings, num_nonfinite
        self._plan, self._record = plan, record
        self._handed_out = self._last_weights = None
        self._num_resumed = self._num_already_reported()

    def __getstate__(self) -> dict[str, Any]:
        # A copy is in the middle of no iteration: it goes on after what was reported.
        resumed = {"_num_updates": 0, "_num_resumed": self._num_already_reported()}
        return {**self.__dict__, **resumed, "_handed_out": None, "_last_weights": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Tensors sent to a spawned process are shared with its parent; what changes must not be.
        self._scores = self._scores.clone()
        self._memory = {name: values.clone() for name, values in self._memory.items()}
        self._record = copy.deepcopy(self._record)

    def _num_already_reported(self) -> int:
        return 0 if self._record is None else len(self.plan) - len(self._record.remaining()[0])
