"""The run: plan an epoch, take its losses, close it, go on. A thin shell around its parts."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from infobatch import distributed
from infobatch import state as states
from infobatch.callers import LoaderCall, loader_call
from infobatch.epoch import NO_BATCH, Epoch, on_host
from infobatch.errors import OrderError, check_fraction, check_whole, warn
from infobatch.indexed import Wrapper, length_of, wrapped_by
from infobatch.losses import (
    as_indices,
    check_one_number,
    masked_scores,
    mean_scores,
    per_sample,
    score_per_sample,
    totals,
    weighted_batch,
    weighted_mean,
    weighted_ratio,
)
from infobatch.no_compile import no_compile
from infobatch.plan import Plan
from infobatch.rules import Rule, resolve
from infobatch.samplers import AnyTracker, Batches, Reader, ShardSampler, Shrink
from infobatch.shard import Shard
from infobatch.state import Savings, Settings, savings_of
from infobatch.tracking import BatchTracker, LoadedBatch


class Pruner:
    """Decides which samples each epoch trains, and with which weights, from their losses.

    `InfoBatch` is a data set with a pruner; use a `Pruner` if your loop has only indices.

    Args:
        num_samples: The size of the data set.
        num_epochs: How many epochs you train. Give this or `num_steps`.
        prune_ratio: The fraction to skip. With the default rule it is a fraction of the samples
            below the mean loss, 0.5 by default; other rules have their own meaning and default.
        delta: The fraction of the training, from 0 to 1, in which epochs may be pruned. After it,
            every sample is trained.
        num_steps: How many batches you train, if you count batches instead of epochs.
        rule: Which samples to skip: a name of `infobatch.rules.RULES`, or a `Rule`.
        seed: The seed of the random choice and order of samples; the same on all ranks.

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
        num_samples = check_whole("num_samples", num_samples, at_least=1)
        if (num_epochs is None) == (num_steps is None):
            raise TypeError(
                f"num_epochs is {num_epochs} and num_steps is {num_steps}, expected one of "
                "them: say how long training is."
            )
        if num_epochs is not None:
            num_epochs = check_whole("num_epochs", num_epochs, at_least=1)
        if num_steps is not None:
            num_steps = check_whole("num_steps", num_steps, at_least=1)
        delta = check_fraction("delta", delta, one_allowed=True)
        settings = Settings(num_samples, num_epochs, num_steps, delta, resolve(rule, prune_ratio))
        self._settings = settings
        with on_host():
            self._state = states.initial(settings, check_whole("seed", seed))
        self._epoch: Epoch | None = None
        self._is_checked = False
        """Whether all ranks are known to stand at this epoch."""
        self._steps_done = 0
        self._loaded: LoadedBatch | None = None
        self._last_weights: Tensor | int = 0
        """The weights of the batch reported last, or its size where all of them are 1."""
        self._device = torch.device("cpu")
        self._shrink: Shrink = "epoch"
        self._uniform_size = 0
        """The batch size of the loader in use, where its batches have one weight each."""
        self._num_batches = 0
        """Of the epoch that ended last; not in checkpoints, since it depends on the ranks."""
        self._num_idle = 0
        """Iterations in a row that reported nothing."""
        self._sampler = ShardSampler(self)

    def __repr__(self) -> str:
        return f"Pruner({progress_of(self)})"

    # Settings ------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """The size of the data set."""
        return self._settings.num_samples

    @property
    def num_epochs(self) -> int | None:
        """How many epochs are trained; None if `num_steps` was given."""
        return self._settings.num_epochs

    @property
    def num_steps(self) -> int | None:
        """How many batches are trained; None if `num_epochs` was given."""
        return self._settings.num_steps

    @property
    def delta(self) -> float:
        """The part of the training, from 0 to 1, that may prune."""
        return self._settings.delta

    @property
    def rule(self) -> Rule:
        """The rule that decides which samples to skip."""
        return self._settings.rule

    @property
    def seed(self) -> int:
        """The seed of the random choice and order of samples. A checkpoint restores its own."""
        return self._state.seed

    # Queries: none of them changes anything ------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._state.epoch

    @property
    @no_compile
    def plan(self) -> Plan:
        """What the current epoch trains. It does not change while the epoch runs."""
        return self._current().plan

    @property
    def sampler(self) -> ShardSampler:
        """The epoch's samples on this rank one by one, for loaders that make their own batches."""
        return self._sampler

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
        return Batches(
            self,
            batch_size,
            drop_last=drop_last,
            shrink=shrink,
            sharded=sharded,
            uniform=uniform,
        )

    @property
    def shrink(self) -> Shrink:
        """The `shrink` of the loader that was read last: "epoch" or "batch"."""
        return self._shrink

    @property
    def scores(self) -> Tensor:
        """The last loss of each sample before this epoch, NaN if it has none; a copy."""
        return self._state.scores.clone()

    @property
    def savings(self) -> Savings:
        """How much was saved so far, including the running epoch."""
        return self._state.savings + self._running_savings()

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers about the last epoch, to log once per epoch: `run.log(train_data.metrics)`.

        Some of them need a whole epoch (the loss over all samples, `num_batches`, ...) and are of
        the epoch that ended last. docs/logging.md explains each.
        """
        running, run = self._running_savings(), self.savings
        epoch = running if running.num_trained else self._state.last_savings
        return {
            "infobatch/kept_fraction": 1 - epoch.fraction,
            "infobatch/saved": run.fraction,
            "infobatch/num_trained": run.num_trained,
            "infobatch/num_nonfinite": self.num_nonfinite,
            **({"infobatch/num_batches": self._num_batches} if self._num_batches else {}),
            **self._state.metrics.as_dict(),
        }

    @property
    def num_batches(self) -> int:
        """How many batches the epoch that ended last had in this process, to average losses.

        It counts calls of `update`, so micro-batches count one by one. `len(loader)` is already
        that of the next epoch. After a resume, only the batches since then count.
        """
        return self._num_batches

    @property
    def num_steps_done(self) -> int:
        """How many batches were reported so far, or what `set_step` said last."""
        return self._steps_done

    @property
    def num_reported(self) -> int:
        """How many samples of the running epoch were reported so far, by all ranks together."""
        return 0 if self._epoch is None else self._epoch.num_reported

    @property
    def num_nonfinite(self) -> int:
        """How many losses of the finished epochs were NaN or infinite."""
        return self._state.num_nonfinite

    @property
    @no_compile
    def batch_weights(self) -> Tensor:
        """The weights of the current batch, for losses that you weight yourself; a copy.

        With `uniform=True`, `update` also multiplies by len(batch) / batch_size; do the same with
        losses that you weight yourself.
        """
        epoch, loaded = self._epoch, self._loaded
        if loaded is not None:
            if loaded.is_new:
                if loaded.epoch != self.epoch:
                    raise OrderError(NO_BATCH, "no-batch")
                return self._current().weights_by_index(loaded.indices, self._device).clone()
        elif epoch is not None and epoch.tracker is not None:
            if not epoch.is_by_index:
                fetched = epoch.tracker.new_batch
                if fetched is not None:
                    return epoch.weights_in_order(fetched, self._device).clone()
            elif epoch.tracker.has_new_batch:
                raise OrderError(
                    "batch_weights was read before update(losses, indices), when the samples of "
                    "the batch were not known: call update first, then batch_weights is for the "
                    "same batch.",
                    "weights-before-update",
                )
        last = self._last_weights
        if isinstance(last, Tensor):
            return last.clone()
        if last == 0:
            raise OrderError(NO_BATCH, "no-batch")
        return torch.ones(last, dtype=torch.float32, device=self._device)

    def shard(self, *, sharded: bool, uniform_size: int = 0) -> Shard:
        """What is left of the current epoch: this rank's part, or all of it; samplers ask this."""
        return self._current().shard(sharded=sharded, uniform_size=uniform_size)

    def _running_savings(self) -> Savings:
        num_trained = self.num_reported
        return savings_of(self.plan, num_trained) if num_trained else Savings(0, 0)

    # A step --------------------------------------------------------------------------------------

    @no_compile
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
        if self._uniform_size:
            check_one_number(losses, scores=scores, mask=mask, denominators=denominators)
            return self._update_uniform(losses, indices)
        if denominators is not None:
            return self._update_ratio(losses, denominators, indices, scores=scores, mask=mask)
        rows = per_sample(losses, mask)
        if scores is not None:
            recorded = score_per_sample(scores, rows)
        else:
            recorded = rows if mask is None else masked_scores(rows, mask)
        weights = self._record(recorded, indices, is_loss=scores is None)
        if weights is not None:
            return weighted_mean(rows, weights)
        # An epoch that prunes nothing returns exactly the loss without the library.
        return losses.mean() if mask is None else rows.mean()

    def _update_ratio(
        self,
        losses: Tensor,
        denominators: Tensor,
        indices: Tensor | Sequence[int] | None,
        *,
        scores: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        if mask is not None:
            raise ValueError(
                "mask and denominators were both given, expected one of them: set losses and "
                "denominators to 0 where the mask is 0."
            )
        sums, of_samples = totals(losses, denominators)
        if scores is None:
            recorded = mean_scores(sums, of_samples)
        else:
            recorded = score_per_sample(scores, sums)
        weights = self._record(recorded, indices, is_loss=False)
        return weighted_ratio(sums, of_samples, weights).to(losses.dtype)

    def _update_uniform(self, loss: Tensor, indices: Tensor | Sequence[int] | None) -> Tensor:
        num_samples = self._num_in_hand() if indices is None else len(indices)
        recorded = loss.detach().expand(num_samples)
        if indices is not None:
            indices = as_indices(indices, recorded)
            if indices.is_cpu and loss.is_cpu:  # on a device that would be a read
                self._current().check_one_weight(indices)
        weights = self._record(recorded, indices, is_loss=True)
        return weighted_batch(loss, weights, num_samples / self._uniform_size)

    def _num_in_hand(self) -> int:
        """The size of the current batch."""
        if self._loaded is not None:
            return self._loaded.num_left
        tracker = None if self._epoch is None else self._epoch.tracker
        if not isinstance(tracker, BatchTracker):
            raise OrderError(NO_BATCH, "no-batch")
        return tracker.num_left

    def _record(
        self, recorded: Tensor, indices: Tensor | Sequence[int] | None, *, is_loss: bool
    ) -> Tensor | None:
        """Record the scores of a batch; returns its weights, None where all are 1."""
        loaded = self._loaded if indices is None else None
        if indices is not None and self._loaded is not None:
            self._loaded.by_index = True
        if loaded is not None and loaded.weights is not None:  # reported again after its epoch
            self._last_weights = loaded.take_weights(recorded.shape[0])
            self._steps_done += 1
            return self._last_weights
        epoch = self._epoch or self._current()
        self._device = recorded.device
        if not self._is_checked:
            self._check_ranks()
        weights: Tensor | None
        if indices is not None:
            weights = epoch.record_by_index(recorded, as_indices(indices, recorded))
        elif loaded is not None:
            if loaded.epoch != self.epoch:
                raise OrderError(NO_BATCH, "no-batch")
            epoch.check_undisturbed()
            again = loaded.was_reported
            samples = loaded.take(recorded.shape[0])
            weights = epoch.record_by_index(recorded, samples, is_repeat=again)
        else:
            weights = epoch.record_in_order(recorded)
        if not is_loss:
            epoch.scores_given = True
        self._last_weights = recorded.shape[0] if weights is None else weights
        self._steps_done += 1
        self._num_idle = 0
        if epoch.is_complete(loaded):
            if loaded is not None:
                loaded.weights = epoch.weights_by_index(loaded.indices, self._device)
            self._close(self.epoch + 1)
        return weights

    def hand_out(self, indices: Tensor) -> None:
        """Set the samples of the current batch. A loader that knows them calls this."""
        self._loaded = LoadedBatch(indices, self.epoch, before=self._loaded)

    # An epoch ------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Move to `epoch`, closing a running epoch with the losses reported so far."""
        epoch = check_whole("epoch", epoch, at_least=0)
        if epoch != self.epoch:
            self._close(epoch)
            self._loaded = None

    def set_step(self, num_steps_done: int) -> None:
        """Set how many of `num_steps` are done, if a framework counts the steps.

        Call it before `update`: the last `update` of an epoch decides whether the next one prunes.
        """
        self._steps_done = check_whole("num_steps_done", num_steps_done, at_least=0)

    def load_scores(self, scores: Tensor) -> None:
        """Start from known scores, with NaN for samples that have none.

        Call it before the first `update`. The first epoch is then pruned like any other.
        """
        if self.savings.num_trained:
            raise OrderError(
                "load_scores() came after the first update(), which brings scores of its own: call "
                "it before training, or resume with load_state_dict().",
                "late-scores",
            )
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (self.num_samples,):
            given = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"scores is {given}, expected a tensor of {self.num_samples} scores, one per "
                "sample, NaN where there is none."
            )
        with on_host():
            loaded = scores.detach().to("cpu", torch.float32)
            if bool(loaded.isinf().any()):
                raise ValueError("scores has infinite entries, expected numbers or NaN.")
            self._leave_epoch()
            self._state.scores.copy_(loaded)

    def sync(self) -> None:
        """Exchange what the ranks have reported of the running epoch. Every rank must call it.

        After it, until the next `update`, `state_dict()` of any rank is complete.
        """
        if distributed.world_size() > 1:
            with on_host():
                self._check_ranks()
                self._current().sync(self._device)

    def begin(self, iteration: object, reader: Reader[AnyTracker]) -> AnyTracker:
        """Tell a sampler, when it is first drawn from, what this epoch trains.

        An epoch whose loop was broken off ends here. If that loop is still alive, this is a peek:
        it sees the same epoch, and nothing moves.
        """
        call = loader_call()
        self._check_data_of(call, reader)
        peeks = self._end_earlier_iteration(call)
        epoch = self._current()
        with on_host():
            shard = epoch.shard(sharded=reader.sharded, uniform_size=reader.uniform_size)
            tracker = reader.track(shard, epoch.indices(shard).numpy(), call)
        if peeks:
            return tracker
        self._loaded = None
        self._shrink, self._uniform_size = reader.shrink, reader.uniform_size
        if epoch.is_open:
            epoch.check_same_part(shard)  # reported by index so far, without a loader
        elif tracker.end == 0:
            # drop_last leaves nothing of what a resume has left: that was all of the epoch.
            self._close(self.epoch + 1)
        else:
            is_scaled = reader.shrink == "batch" and epoch.plan.rescaled
            scale = len(epoch.plan) / self.num_samples if is_scaled else 1.0
            epoch.begin(tracker, iteration, scale)
        return tracker

    def _check_data_of(self, call: LoaderCall | None, reader: object) -> None:
        """Raise if the loader reads other data, where our indices mean other samples."""
        if call is None:
            return
        dataset, is_part = call.dataset, False
        while isinstance(dataset, (Subset, Wrapper)):
            is_part = is_part or isinstance(dataset, Subset)
            dataset = wrapped_by(dataset)
            if is_part and getattr(dataset, "_own", None) is self:
                raise OrderError(
                    "the loader reads a Subset of this InfoBatch (random_split makes one, too), "
                    "where its indices mean other samples: take the subset first, and wrap that: "
                    "InfoBatch(Subset(dataset, indices), num_epochs).",
                    "subset",
                )
        # A sampler of someone else's between the loader and ours may translate our indices.
        if call.sampler is not reader or getattr(dataset, "_own", None) is self:
            return
        num_samples = length_of(call.dataset)
        if num_samples not in (None, self.num_samples):
            raise OrderError(
                f"the loader reads a data set of {num_samples} samples, but its batches are made "
                f"for {self.num_samples} samples: give the loader the data set that you wrapped in "
                "this InfoBatch, or counted for this Pruner.",
                "other-data",
            )

    def _end_earlier_iteration(self, call: LoaderCall | None) -> bool:
        """Close an epoch whose iteration is over; returns whether it is still being read."""
        epoch = self._epoch
        tracker = None if epoch is None else epoch.tracker
        if epoch is None or tracker is None:
            return False
        goes_on = call is not None and call.goes_on_from(tracker.call)
        if goes_on and epoch.num_reported < len(epoch.plan):
            epoch.discard()
            raise tracker.left_over()  # a loader that never ends
        if not epoch.is_open:
            self._warn_if_idle(epoch)
            return False
        if epoch.is_being_read(call):
            epoch.disturb()
            return True
        self._close(self.epoch + 1, by_new_loop=True)
        return False

    def _warn_if_idle(self, epoch: Epoch) -> None:
        """Say that `update` seems to be missing, once it should have been called."""
        tracker = epoch.tracker
        if tracker is None or tracker.call is None or not tracker.is_finished:
            return
        self._num_idle += 1
        if self._num_idle > 1:
            return
        if epoch.start:
            warn(
                f"epoch {self.epoch} was resumed, and an iteration over the {tracker.end} "
                "samples left of it reported none: if the loader drops them (drop_last=True), go "
                f"on with set_epoch({self.epoch + 1})."
            )
        else:
            warn(
                "an epoch was read to its end and no losses were reported: without "
                "update(losses) nothing is pruned, and every epoch has the same order."
            )

    def _close(self, next_epoch: int, *, by_new_loop: bool = False) -> None:
        """Merge what the epoch has reported, and stand at the start of another."""
        epoch = self._epoch
        if epoch is not None and not epoch.is_open:
            self._warn_if_idle(epoch)
        with on_host():
            self._check_ranks()
            if epoch is not None:
                self._check_complete(epoch, by_new_loop=by_new_loop)
            if epoch is None and distributed.world_size() > 1:
                epoch = self._current()
            state, settings, closed = self._state, self._settings, self.epoch
            num_nonfinite = state.num_nonfinite
            state = replace(state, steps_done=self._steps_done)
            if epoch is None:
                self._state = states.at_epoch(state, settings, next_epoch)
            else:
                result = epoch.merged(self._device)
                self._state = states.after(state, settings, epoch.plan, result, next_epoch)
                self._num_batches = epoch.num_batches or self._num_batches
            self._leave_epoch()
            self._check_ranks()
        num_nonfinite = self.num_nonfinite - num_nonfinite
        if num_nonfinite:
            warn(
                f"{num_nonfinite} losses of epoch {closed} are NaN or infinite: their samples stay "
                "in training and out of the threshold."
            )

    def _check_complete(self, epoch: Epoch, *, by_new_loop: bool) -> None:
        """Raise if batches were dropped, before anything is merged; a new loop then works."""
        loaded = self._loaded
        try:
            if loaded is not None and loaded.epoch == self.epoch:
                loaded.check_finished(may_be_cut=by_new_loop)
                if loaded.is_cut:
                    epoch.forget(loaded.indices)
            epoch.check_complete(by_new_loop=by_new_loop)
        except OrderError:
            epoch.discard()
            self._loaded = None
            raise

    def _leave_epoch(self) -> None:
        if self._epoch is not None:
            self._epoch.close()
        self._epoch, self._is_checked = None, False
        if isinstance(self._last_weights, Tensor):
            self._last_weights = self._last_weights.clone()  # a view keeps the whole plan alive

    def _current(self) -> Epoch:
        if self._epoch is None:
            with on_host():
                self._epoch = Epoch(states.plan_of(self._state, self._settings))
        return self._epoch

    def _check_ranks(self) -> None:
        """Raise if ranks differ, once per epoch: a difference would leave them waiting for ever.

        A plan is a function of all this, so it need not be drawn to be compared.
        """
        if self._is_checked:
            return
        self._is_checked = True
        if distributed.world_size() == 1:
            return
        checksum = 0
        for tensor in (self._state.scores, *self._state.memory.values()):
            checksum = zlib.crc32(np.ascontiguousarray(tensor.numpy()).data, checksum)
        try:
            distributed.check_same(
                self._device,
                num_samples=self.num_samples,
                seed=self.seed,
                num_epochs=self.num_epochs,
                num_steps=self.num_steps,
                rule=f"{self.rule!r} until {self.delta}",
                epoch=self.epoch,
                prunes=self._state.prunes,
                num_reported=self.num_reported,
                torch=torch.__version__,
                numpy=np.__version__,
                scores=f"a set with checksum {checksum:08x}",
            )
        except Exception:
            self._is_checked = False
            raise

    # A checkpoint --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-exact resume needs, as tensors, numbers, strings and bytes."""
        epoch = self._epoch
        reported = None if epoch is None else epoch.reported()
        running = None if epoch is None or reported is None else (epoch.plan, reported)
        with on_host():
            return states.to_dict(self._state, self._settings, self._steps_done, running)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict()` was taken.

        Raises a `StateError` if the checkpoint belongs to another run. `num_epochs` (or
        `num_steps`) may be larger than it was: the running epoch keeps its plan, and the new
        length counts from the next epoch on.
        """
        with on_host():
            checkpoint = states.from_dict(state, self._settings)
        checkpoint.warn()
        self._restore(checkpoint)

    def _restore(self, checkpoint: states.Checkpoint) -> None:
        with on_host():
            self._leave_epoch()
            # Into the memory there is: new memory takes longer to get than a checkpoint to read.
            scores = self._state.scores.copy_(checkpoint.state.scores)
            memory = {name: values.clone() for name, values in checkpoint.state.memory.items()}
            self._state = replace(checkpoint.state, scores=scores, memory=memory)
            self._steps_done = checkpoint.steps_done
            self._loaded, self._last_weights = None, 0
            self._num_batches, self._uniform_size = 0, 0
            if checkpoint.running is None:
                return
            plan, reported = checkpoint.running
            if reported.num_done < len(plan):
                self._epoch = Epoch(plan, reported)
                return
            # All of it was reported, though nothing closed it.
            state = replace(self._state, steps_done=self._steps_done)
            self._state = states.after(state, self._settings, plan, reported, self.epoch + 1)

    def __getstate__(self) -> dict[str, Any]:
        # A copy is in the middle of no iteration: it goes on from a checkpoint. As arrays, since a
        # tensor made here would be gone when a spawned process looks for it.
        saved = self.state_dict()
        arrays = {name: values.numpy() for name, values in saved["memory"].items()}
        saved.update({name: saved[name].numpy() for name in ("scores", "metrics")}, memory=arrays)
        return {
            **self.__dict__,
            "_state": saved,
            "_epoch": None,
            "_is_checked": False,
            "_loaded": None,
            "_last_weights": 0,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        saved = dict(state["_state"])
        with on_host():
            for name in ("scores", "metrics"):
                saved[name] = torch.from_numpy(saved[name])
            saved["memory"] = {
                name: torch.from_numpy(values) for name, values in saved["memory"].items()
            }
            checkpoint = states.from_dict(saved, self._settings)
            self._state = states.initial(self._settings, checkpoint.state.seed)
        self._restore(checkpoint)

    def __copy__(self) -> Pruner:
        return copy.deepcopy(self)  # or two of them would share one sampler


def progress_of(pruner: Pruner) -> str:
    """The size, length, epoch, rule and saving of a run, for `repr`.

    >>> progress_of(Pruner(num_samples=4, num_epochs=2, rule="full"))
    'num_samples=4, num_epochs=2, epoch=0, rule=Full(), saved=0.0%'
    """
    length = f"num_epochs={pruner.num_epochs}"
    if pruner.num_epochs is None:
        length = f"num_steps={pruner.num_steps}"
    return (
        f"num_samples={pruner.num_samples}, {length}, epoch={pruner.epoch}, rule={pruner.rule!r}, "
        f"saved={pruner.savings.fraction:.1%}"
    )
