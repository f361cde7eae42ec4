"""The circle: scores -> plan -> update -> scores. The only file that knows all of it."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infobatch import distributed
from infobatch.checkpoint import (
    FORMAT,
    check_same_plan,
    check_same_run,
    pack,
    pack_running,
    unpack,
    unpack_running,
    warn_of_unknown,
)
from infobatch.errors import OrderError, StateError, check_fraction, check_whole, warn
from infobatch.losses import as_indices, per_sample, score_per_sample, weighted_mean
from infobatch.plan import Plan, draw
from infobatch.record import IndexedRecord, OrderedRecord, Places, Record, Reported
from infobatch.rules import Memory, Rule, check_layout, resolve
from infobatch.rules.base import everything
from infobatch.running import RunningEpoch, on_host
from infobatch.sampler import HandedOut, Pass, ShareSampler
from infobatch.scores import merge, unseen
from infobatch.share import Share
from infobatch.untraced import untraced

NO_BATCH = (
    "no batch is in hand: give the loader sampler=train_data.sampler (or use infobatch.DataLoader, "
    "or give update() the indices of the batch), report a batch once, and weigh a second loss of "
    "the same batch with batch_weights."
)


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

    def __add__(self, other: Savings) -> Savings:
        return Savings(self.num_trained + other.num_trained, self.num_full + other.num_full)


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
        num_epochs: int | None = None,
        prune_ratio: float | None = None,
        delta: float = 0.875,
        *,
        num_steps: int | None = None,
        rule: Rule | str | None = None,
        seed: int = 0,
    ) -> None:
        self.num_samples = check_whole("num_samples", num_samples, at_least=1)
        if (num_epochs is None) == (num_steps is None):
            raise TypeError(
                f"num_epochs is {num_epochs} and num_steps {num_steps}, expected one of them: how "
                "long training is."
            )
        self.num_epochs = self.num_steps = None
        if num_epochs is not None:
            self.num_epochs = check_whole("num_epochs", num_epochs, at_least=1)
        if num_steps is not None:
            self.num_steps = check_whole("num_steps", num_steps, at_least=1)
        self.delta = check_fraction("delta", delta, one_allowed=True)
        self.rule = resolve(rule, prune_ratio)
        self.seed = check_whole("seed", seed)
        with on_host():
            self._scores = unseen(self.num_samples)
            self._memory: Memory = self.rule.init(self.num_samples)
        self._past_savings = self._last_savings = Savings(0, 0)
        self._num_nonfinite = 0
        self._steps_done = 0
        self._handed_out: HandedOut | None = None
        self._last_weights: Tensor | None = None
        self._device = torch.device("cpu")
        self._sampler = ShareSampler(self._share, self._begin_pass, self.set_epoch)
        self._enter(0)

    # What a user reads ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._epoch

    @property
    @untraced
    def plan(self) -> Plan:
        """What the current epoch trains; it stands still while the epoch runs."""
        return self._running_epoch().plan

    @property
    def sampler(self) -> ShareSampler:
        """The plan as a sampler for a stock DataLoader: this rank's share of it."""
        return self._sampler

    @property
    def scores(self) -> Tensor:
        """The last loss of each sample as of the last finished epoch, NaN where unseen; a copy."""
        return self._scores.clone()

    @property
    def savings(self) -> Savings:
        """What was saved so far, the running epoch included."""
        return self._past_savings + self._savings_of_epoch(self.num_reported)

    @property
    def metrics(self) -> dict[str, float]:
        """What to log, once per epoch: `run.log(train_data.metrics)`; of the epoch trained last."""
        running, run = self._savings_of_epoch(self.num_reported), self.savings
        epoch = running if running.num_trained else self._last_savings
        return {
            "infobatch/kept_fraction": 1 - epoch.fraction,
            "infobatch/saved": run.fraction,
            "infobatch/num_trained": run.num_trained,
            "infobatch/num_nonfinite": self.num_nonfinite,
        }

    @property
    def num_reported(self) -> int:
        """How many samples of the running epoch were reported so far, by all ranks together."""
        return 0 if self._running is None else self._running.num_reported

    @property
    def num_nonfinite(self) -> int:
        """How many losses of the finished epochs were NaN or infinite."""
        return self._num_nonfinite

    @property
    @untraced
    def batch_weights(self) -> Tensor:
        """The weights of the batch in hand, for a loss that is not reduced by `update`."""
        in_hand: HandedOut | Pass | None = self._handed_out
        if in_hand is None and self._running is not None and not self._running.is_by_index:
            in_hand = self._sampler.current
        fetched = in_hand.new_batch if in_hand is not None else None
        if fetched is not None:
            kind = OrderedRecord if isinstance(fetched, slice) else IndexedRecord
            self._weighed_by_place = kind is OrderedRecord
            record = self._running_epoch().record(kind)
            record.to(self._device)
            return record.weights(fetched).clone()  # the user's own: the plan stays as it is
        if self._last_weights is None:
            raise OrderError(NO_BATCH)
        return self._last_weights.clone()

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
        handed_out, is_repeat = None if indices is not None else self._handed_out, False
        if handed_out is not None:
            if handed_out.weights_at_close is not None:
                self._last_weights = handed_out.take_weights(len(losses))
                return weighted_mean(losses, self._last_weights)
            is_repeat = handed_out.was_reported
        running, self._device = self._running_epoch(), losses.device
        record, places = self._batch(running, losses, indices)
        if running.num_updates == 0:
            self._agree()
            running.num_to_report = self._num_to_report(record.share)
        record.to(self._device)
        weights = record.weights(places)
        num_reported = record.num_reported
        record.write(places, recorded)
        if is_repeat:  # on a device a record cannot see that
            record.num_reported = num_reported
        # What prunes nothing is to the last bit what it would be without the library.
        as_given = mask is None and record.all_one(places)
        loss = given.mean() if as_given else weighted_mean(losses, weights)
        self._last_weights, self._weighed_by_place = weights, False
        running.num_updates += 1
        self._steps_done += 1
        num_to_report = running.num_to_report
        if num_to_report is not None and self._ends_epoch(record, num_to_report):
            if handed_out is not None:
                handed_out.weights_at_close = record.weights(handed_out.indices)
            self._close(self._epoch + 1)
        return loss

    def _num_to_report(self, share: Share) -> int | None:
        """With how many samples of a share the epoch ends; None where a framework shares it out."""
        if share.num_ranks < distributed.num_ranks():
            return None
        current = self._sampler.current
        return len(share) if current is None else current.end  # less with drop_last

    def _ends_epoch(self, record: Record, num_to_report: int) -> bool:
        """Whether a batch just reported is the last: of all ranks, so that all end together."""
        if record.share.num_ranks > 1 and isinstance(record, IndexedRecord):
            # A rank may leave samples out of its reports; what was handed out is the same on all.
            return self._handed_out is not None and self._handed_out.is_last_of(num_to_report)
        return record.has(num_to_report)

    def _batch(
        self, running: RunningEpoch, losses: Tensor, indices: Tensor | Sequence[int] | None
    ) -> tuple[Record, Places]:
        """Which samples these losses belong to, and where to write them down."""
        handed_out = self._handed_out
        if indices is not None:
            if self._weighed_by_place:
                raise OrderError(
                    "batch_weights was read before update(losses, indices), when the batch's "
                    "samples were not known: call update first, or leave the indices out."
                )
            return running.record(IndexedRecord), as_indices(indices, losses)
        if handed_out is not None and handed_out.epoch == self._epoch:
            return running.record(IndexedRecord), handed_out.take(losses.shape[0])
        if handed_out is not None or self._sampler.current is None:
            raise OrderError(NO_BATCH)
        return running.record(OrderedRecord), self._sampler.current.take(losses.shape[0])

    # An epoch ------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Stand at this epoch; another one that is running ends with what it has reported."""
        epoch = check_whole("epoch", epoch, at_least=0)
        if epoch != self._epoch:
            self._close(epoch)
            self._handed_out = None

    def sync(self) -> None:
        """Bring together what all ranks have reported of the running epoch; all must call it.

        After it, and until the next `update`, the state of any rank is the whole state.
        """
        if distributed.num_ranks() > 1:
            with on_host():
                self._agree()
                self._running_epoch().sync(self._device)

    def _close(self, next_epoch: int) -> None:
        """Merge what the epoch has reported, and stand at the start of another."""
        with on_host():
            self._agree()
            num_nonfinite, closed = self._merge(), self._epoch
            self._enter(next_epoch)
            self._agree()
        if num_nonfinite:
            warn(
                f"{num_nonfinite} losses of epoch {closed} are NaN or infinite: their samples stay "
                "in training and out of the threshold."
            )

    def _merge(self) -> int:
        """Take the losses that all ranks reported as scores; how many of them are not finite."""
        running, current = self._running, self._sampler.current
        if running is None and distributed.num_ranks() == 1:
            return 0
        running = self._running_epoch()
        if running.num_updates and current is not None and not running.is_by_index:
            current.check_finished()
        if self._handed_out is not None and self._handed_out.epoch == self._epoch:
            self._handed_out.check_finished()
        return self._take(running.merged(self._device))

    def _take(self, reported: Reported) -> int:
        """Take what was reported as scores; how many of the losses are not finite."""
        if reported.num_done == 0:
            return 0
        indices, losses = self.plan.indices, reported.losses
        if not reported.known.all():
            indices, losses = indices[reported.known], losses[reported.known]
        self._last_savings = self._savings_of_epoch(reported.num_done)
        self._past_savings += self._last_savings
        remembered = self.rule.remember(self._scores, self._memory, self._epoch, indices, losses)
        check_layout(self.rule, self._memory, remembered)
        self._memory = self._without_scores(remembered)
        num_nonfinite = merge(self._scores, indices, losses)
        self._num_nonfinite += num_nonfinite
        return num_nonfinite

    def _without_scores(self, memory: Memory) -> Memory:
        """A memory that stays as it is when the scores change, which a rule may have returned."""
        ours = self._scores.untyped_storage().data_ptr()
        return {
            name: values.clone() if values.untyped_storage().data_ptr() == ours else values
            for name, values in memory.items()
        }

    def _agree(self) -> None:
        """See that all ranks stand at the same place, before a step could wait for ever."""
        if distributed.num_ranks() == 1 or self._running_epoch().agreed:
            return
        distributed.check_same(
            self._device,
            num_samples=self.num_samples,
            seed=self.seed,
            num_epochs=self.num_epochs or 0,
            num_steps=self.num_steps or 0,
            rule=zlib.crc32(f"{self.rule!r} until {self.delta}".encode()),
            epoch=self._epoch,
            num_reported=self.num_reported,
            plan=zlib.crc32(self.plan.fingerprint.encode()),
        )
        self._running_epoch().agreed = True

    def _enter(self, epoch: int) -> None:
        self._epoch = epoch
        self._steps_at_start = self._steps_done
        self._running: RunningEpoch | None = None
        self._sampler.end()
        self._weighed_by_place = False
        """Whether the weights of a batch not yet reported were taken from its place in the plan."""
        if self._last_weights is not None:  # a view that would keep the whole plan alive
            self._last_weights = self._last_weights.clone()

    def _running_epoch(self) -> RunningEpoch:
        if self._running is None:
            prunes = self._prunes(self._epoch, self._steps_at_start)
            plan = self._draw(self._scores, self._memory, self.seed, self._epoch, prunes)
            self._running = RunningEpoch(plan)
        return self._running

    def _prunes(self, epoch: int, steps_at_start: int) -> bool:
        """Eq. 10: whether an epoch begins before the annealing does."""
        if self.num_steps is not None:
            return steps_at_start < self.delta * self.num_steps
        assert self.num_epochs is not None
        return epoch < self.delta * self.num_epochs

    def _draw(self, scores: Tensor, memory: Memory, seed: int, epoch: int, prunes: bool) -> Plan:
        with on_host():
            groups = self.rule.groups(scores, memory, epoch) if prunes else everything(scores)
            if groups.num_samples != self.num_samples:
                raise ValueError(
                    f"{self.rule!r} groups {groups.num_samples} samples, expected "
                    f"{self.num_samples}."
                )
            return draw(groups, seed, epoch)

    def _savings_of_epoch(self, num_trained: int) -> Savings:
        """Of this epoch, with so many of its samples trained."""
        num_full = round(self.num_samples * num_trained / len(self.plan)) if num_trained else 0
        return Savings(num_trained, num_full)

    # A loader ------------------------------------------------------------------------------------

    def hand_out(self, indices: Tensor) -> None:
        """Take these samples for the batch in hand; a loader that knows them calls this."""
        self._handed_out = HandedOut(indices, self._epoch, before=self._handed_out)

    def _share(self, sharded: bool) -> Share:
        return self._running_epoch().share(sharded=sharded)

    def _begin_pass(self, sharded: bool) -> Share:
        last, running = self._sampler.current, self._running_epoch()
        if running.num_updates and last is not None:
            # The last iteration was cut short: nothing else begins a new one after an update.
            self._close(self._epoch + 1)
        elif last is not None and last.ran_out and self.num_reported:
            running.num_idle_passes += 1
            if running.num_idle_passes > 1:
                warn(
                    f"epoch {self._epoch} was resumed, and iterations over the {last.end} samples "
                    "left of it reported none: if the loader drops them (drop_last=True), go on "
                    f"with set_epoch({self._epoch + 1})."
                )
        self._handed_out = None
        return self._running_epoch().begin_pass(sharded=sharded)

    # A checkpoint --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a bit-exact resume needs: tensors, numbers, strings and bytes."""
        reported = None if self._running is None else self._running.reported()
        return {
            "format": FORMAT,
            "num_samples": self.num_samples,
            "num_epochs": self.num_epochs,
            "num_steps": self.num_steps,
            "delta": self.delta,
            "rule": repr(self.rule),
            "seed": self.seed,
            "epoch": self._epoch,
            "steps_at_start": self._steps_at_start,
            "steps_done": self._steps_done,
            "scores": self._scores.clone(),
            "memory": pack(self._memory),
            "num_trained": self._past_savings.num_trained,
            "num_full": self._past_savings.num_full,
            "last_num_trained": self._last_savings.num_trained,
            "last_num_full": self._last_savings.num_full,
            "num_nonfinite": self._num_nonfinite,
            "plan": self.plan.fingerprint if reported else "",
            "running": pack_running(reported) if reported else pack({}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken; refuses the checkpoint of another run."""
        try:
            with on_host():
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
            num_steps=self.num_steps,
            delta=self.delta,
            rule=repr(self.rule),
        )
        scores, memory = state["scores"].cpu(), unpack(state["memory"])
        seed, epoch, steps_at_start = state["seed"], state["epoch"], state["steps_at_start"]
        parts, running = unpack(state["running"]), None
        if parts:
            plan = self._draw(scores, memory, seed, epoch, self._prunes(epoch, steps_at_start))
            check_same_plan(plan, state["plan"])
            reported = unpack_running(plan, parts)
            warn_of_unknown(reported, epoch)
            running = RunningEpoch(plan, before=reported)
        past_savings = Savings(state["num_trained"], state["num_full"])
        last_savings = Savings(state["last_num_trained"], state["last_num_full"])
        num_nonfinite, steps_done = state["num_nonfinite"], state["steps_done"]
        # Nothing can fail from here on, so a refused checkpoint changes nothing.
        self._enter(epoch)
        self.seed, self._memory = seed, memory
        self._scores.copy_(scores)
        self._steps_at_start, self._steps_done = steps_at_start, steps_done
        self._past_savings, self._last_savings = past_savings, last_savings
        self._num_nonfinite = num_nonfinite
        self._running, self._handed_out, self._last_weights = running, None, None
        if running is not None and reported.done.all():  # all of it, though nothing closed it
            self._take(reported)
            self._enter(epoch + 1)

    def __getstate__(self) -> dict[str, Any]:
        # A copy is in the middle of no iteration: it goes on after what was reported. That is sent
        # as bytes, since a tensor made here would be gone when a spawned process looks for it.
        reported = None if self._running is None else self._running.reported()
        running = None if reported is None else (self.plan, pack_running(reported))
        return {**self.__dict__, "_running": running, "_handed_out": None, "_last_weights": None}

    def __copy__(self) -> Pruner:
        return copy.deepcopy(self)  # or two of them would be told of one sampler's passes

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with on_host():
            if state["_running"] is not None:
                plan, packed = state["_running"]
                self._running = RunningEpoch(plan, before=unpack_running(plan, unpack(packed)))
            # Tensors sent to a spawned process are shared with its parent; what changes must not
            # be.
            self._scores = self._scores.clone()
            self._memory = {name: values.clone() for name, values in self._memory.items()}
