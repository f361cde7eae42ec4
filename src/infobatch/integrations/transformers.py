"""transformers' Trainer, and what is built on it (trl's SFTTrainer), on epochs that shrink.

The index of a sample rides in the batch and is taken out before the model sees it, so nothing that
reads ahead, shards or accumulates can put a loss on the wrong sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Sampler

from infobatch import Plan, Pruner, StateError
from infobatch.indexed import CollateIndexedItems, IndexedItems
from infobatch.rules import Rule
from infobatch.schedule import Schedule, may_step_per_batch

try:
    import accelerate  # noqa: F401  # the Trainer needs it, and says so later
    import transformers
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "infobatch.integrations.transformers needs transformers and accelerate: "
        "pip install infobatch[transformers]."
    ) from error

INDEX = "infobatch_index"
"""Under this name the index of a sample is in its item, and those of a batch in the batch."""

IGNORED = -100
"""The label of what is no target, all over transformers."""

STATE_FILE = "infobatch.pt"
"""The pruner's state, beside the optimizer's in a checkpoint."""


class InfoBatchTrainer(transformers.Trainer):
    """A Trainer that prunes: write it where you wrote `Trainer`; nothing else changes.

    It is also a mixin, `class MyTrainer(InfoBatchTrainer, SFTTrainer): ...`. Settings are
    attributes of the class, with the meaning they have for `InfoBatch`.

    >>> class MyTrainer(InfoBatchTrainer):
    ...     rule = "tiers"
    """

    prune_ratio: float | None = None
    delta: float = 0.875
    rule: Rule | str | None = None
    shrink: Literal["epoch", "batch"] = "epoch"
    """"epoch": pruned epochs have fewer steps. "batch": they have as many, of lighter batches."""

    train_dataset: Any
    data_collator: Any
    _pruner: Pruner | None = None
    _loss_is_known = False

    @property
    def pruner(self) -> Pruner:
        """What the current run prunes: its `savings`, `scores` and `plan`."""
        if self._pruner is None:
            self._check_settings()
            args, budget = self.args, {}
            if args.max_steps > 0:
                budget["num_steps"] = args.max_steps * args.gradient_accumulation_steps
            else:
                budget["num_epochs"] = int(args.num_train_epochs)
            self._pruner = Pruner(
                len(self.train_dataset),
                prune_ratio=self.prune_ratio,
                delta=self.delta,
                rule=self.rule,
                seed=args.seed if args.data_seed is None else args.data_seed,
                **budget,
            )
        return self._pruner

    def token_losses(
        self, outputs: Mapping[str, Any], labels: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of each target of each sample, and which places are targets.

        Override it if your model has another loss than the cross entropy of its labels. `outputs`
        are the model's, without its loss; both answers have one row per sample.
        """
        logits, log_probs = outputs.get("logits"), outputs.get("log_probs")
        # Of trl, which needs no logits; beside logits they come from a second pass, for metrics.
        if log_probs is not None and (log_probs.requires_grad or logits is None):
            return -log_probs, outputs["label_mask"]
        if logits is None or labels is None or labels.is_floating_point():
            raise ValueError(
                "the loss of each sample is not known: it needs labels that are classes or tokens, "
                "and a model that returns logits (use_liger_kernel=False); for any other loss "
                "override token_losses()."
            )
        if self._loss_shifts_labels:
            labels = pad(labels, (0, 1), value=IGNORED)[..., 1:]
        losses = cross_entropy(
            logits.float().flatten(0, -2),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=self.args.label_smoothing_factor,
        )
        return losses.view(labels.shape), labels != IGNORED

    # Data ----------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        self._check_settings()
        dataset, collate = self.train_dataset, self.data_collator
        used = dataset
        if hasattr(dataset, "remove_columns"):  # of datasets: not to decode what is not used
            used = self._remove_unused_columns(dataset, description="training")
        self.train_dataset = IndexedItems(used, INDEX)
        self.data_collator = CollateIndexedItems(collate, INDEX)
        try:
            loader = super().get_train_dataloader()
        finally:
            self.train_dataset, self.data_collator = dataset, collate
        return loader if self.shrink == "epoch" else self._with_lighter_batches(loader)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return PlanOrder(lambda: self.pruner.plan)

    def _with_lighter_batches(self, loader: Any) -> Any:
        """The same loader, with as many batches in every epoch as full training has."""
        return self.accelerator.prepare(
            DataLoader(
                loader.dataset,
                batch_sampler=PlanBatches(lambda: self.pruner.plan, self._num_lighter_batches),
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                persistent_workers=loader.persistent_workers,
                multiprocessing_context=loader.multiprocessing_context,
                prefetch_factor=loader.prefetch_factor,
                worker_init_fn=loader.worker_init_fn,
                in_order=loader.in_order,
            )
        )

    @property
    def _num_lighter_batches(self) -> int:
        """The batches of an epoch, of all processes together: equally many for each of them."""
        num_samples, per_step = len(self.train_dataset), self._samples_per_batch
        drop_last = self.args.dataloader_drop_last
        num_steps = num_samples // per_step if drop_last else -(-num_samples // per_step)
        split = self.accelerator.split_batches
        return num_steps * (1 if split else int(self.accelerator.num_processes))

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if INDEX not in self._signature_columns:
            self._signature_columns.append(INDEX)

    # A step --------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The Trainer's own loss in its own normalisation, weighted where the epoch is pruned."""
        indices = inputs.pop(INDEX, None)
        if indices is None:  # an evaluation
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs.get("labels")
        with outputs_of(model) as outputs:
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        is_pruned = self.pruner.plan.num_pruned > 0
        with torch.set_grad_enabled(is_pruned):
            losses, targets = self.token_losses(outputs, labels)
        self._check_loss(loss, losses, targets, indices, num_items_in_batch, outputs)
        if self.args.max_steps > 0:
            # An epoch's last step may have fewer batches, and counts like any other.
            accumulate = self.args.gradient_accumulation_steps
            self.pruner.set_step((self.state.global_step + 1) * accumulate - 1)
        self.pruner.update(losses.detach(), indices, mask=targets)
        if is_pruned:
            of_sample = torch.where(targets, losses, 0).reshape(len(losses), -1).sum(1)
            # The Trainer's loss is the sum over all targets by a number that is its own business.
            total = of_sample.detach().sum()
            # A batch may be learned to the last bit: avoid 0 / 0.
            per_target = torch.where(total == 0, 0, loss.detach() / total)
            loss = (of_sample * self.pruner.batch_weights * self._scale).sum() * per_target
        return (loss, outputs) if return_outputs else loss

    @property
    def _scale(self) -> float:
        """What makes the mean weight of lighter batches 1."""
        plan = self.pruner.plan
        is_scaled = self.shrink == "batch" and plan.rescaled
        return len(plan) / plan.num_samples if is_scaled else 1.0

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The Trainer's own schedule, made for full training, kept on its curve."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if isinstance(scheduler, Schedule):  # given by the user, wrapped for an earlier run
            scheduler = scheduler.scheduler
        keeps_steps = self.args.max_steps > 0 or self.shrink == "batch"
        if not keeps_steps and may_step_per_batch(scheduler):
            scheduler = Schedule(
                scheduler,
                self.pruner,
                batch_size=self._samples_per_batch // self.accelerator.num_processes,
                drop_last=self.args.dataloader_drop_last,
                accumulate=self.args.gradient_accumulation_steps,
            )
        self.lr_scheduler = scheduler
        return scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["infobatch/saved"] = self.pruner.savings.fraction
        super().log(logs, start_time)

    # A run ---------------------------------------------------------------------------------------

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """The lengths of full training; every run has a pruner of its own."""
        self._pruner, self._loss_is_known = None, False
        num_epochs, *rest = super().set_initial_training_values(args, dataloader)
        # With max_steps shorter epochs make more of them; each has at least one step.
        return (max(num_epochs, args.max_steps), *rest)

    def _run_epoch(
        self,
        *,
        epoch: int,
        train_dataloader: Any,
        steps_in_epoch: int,
        num_update_steps_per_epoch: int,
        steps_trained_in_current_epoch: int,
        epochs_trained: int,
        **others: Any,
    ) -> None:
        # The Trainer counts with the lengths of its first epoch; gradients left over at a shorter
        # one's end would leak into the next. It gets those of this epoch.
        pruner, accumulate = self.pruner, self.args.gradient_accumulation_steps
        pruner.set_epoch(epoch)
        num_batches = len(train_dataloader)
        if num_batches == 0:
            raise ValueError(
                f"dataloader_drop_last leaves nothing of epoch {epoch}, which keeps "
                f"{len(pruner.plan)} samples: use smaller batches, or dataloader_drop_last=False."
            )
        num_steps = -(-num_batches // accumulate)
        num_done = 0
        if epoch == epochs_trained and not self.args.ignore_data_skip:
            num_done = steps_trained_in_current_epoch // accumulate
        end_of_epoch = self.state.global_step + num_steps - num_done
        if pruner.num_epochs is not None:
            num_left = pruner.num_epochs - epoch - 1
            self._set_end(end_of_epoch + num_left * num_update_steps_per_epoch)
        super()._run_epoch(
            epoch=epoch,
            train_dataloader=train_dataloader,
            steps_in_epoch=num_batches,
            num_update_steps_per_epoch=num_steps,
            steps_trained_in_current_epoch=steps_trained_in_current_epoch,
            epochs_trained=epochs_trained,
            **others,
        )
        if self.state.global_step == end_of_epoch:
            pruner.set_epoch(epoch + 1)

    def _set_end(self, num_steps: int) -> None:
        """At which step training ends, as far as is known: what it saves and evaluates last."""
        self.state.max_steps = num_steps
        for callback in self.callback_handler.callbacks:
            if getattr(callback, "training_bar", None) is not None:
                callback.training_bar.total = num_steps

    # A checkpoint --------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.pruner.sync()
        if self.args.should_save:
            torch.save(self.pruner.state_dict(), Path(output_dir) / STATE_FILE)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        place: tuple[int, int] = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is None:
            return place
        path = Path(resume_from_checkpoint) / STATE_FILE
        if not path.exists():
            raise StateError(
                f"{resume_from_checkpoint} has no {STATE_FILE}: resume from a checkpoint that an "
                "InfoBatchTrainer wrote (without save_only_model).",
                "trainer-checkpoint",
            )
        pruner = self.pruner
        pruner.load_state_dict(torch.load(path, weights_only=True))
        num_batches, num_over = self._batches_done()
        if self.args.dataloader_drop_last and num_batches == self._batches_of_epoch:
            pruner.set_epoch(pruner.epoch + 1)
            num_batches = 0
        if num_over or num_batches % self.args.gradient_accumulation_steps:
            raise StateError(
                f"the checkpoint is in the middle of epoch {pruner.epoch}, after "
                f"{pruner.num_reported} samples, which is no whole number of steps here: resume "
                "with the same batch size, number of processes and gradient accumulation.",
                "trainer-checkpoint",
            )
        return pruner.epoch, num_batches

    @property
    def _batches_of_epoch(self) -> int:
        """Of one process, with drop_last."""
        if self.shrink == "batch":
            return self._num_lighter_batches // int(self.accelerator.num_processes)
        return len(self.pruner.plan) // self._samples_per_batch

    def _batches_done(self) -> tuple[int, int]:
        """How many batches of the running epoch each process has trained, and samples over."""
        pruner = self.pruner
        if self.shrink == "epoch":
            return divmod(pruner.num_reported, self._samples_per_batch)
        bounds = PlanBatches(lambda: pruner.plan, self._num_lighter_batches).bounds()
        at_steps = bounds[:: int(self.accelerator.num_processes)]
        num_batches = sum(bound <= pruner.num_reported for bound in at_steps) - 1
        return num_batches, pruner.num_reported - at_steps[num_batches]

    # What cannot be pruned -----------------------------------------------------------------------

    @property
    def _samples_per_batch(self) -> int:
        """Of all processes together."""
        split = self.accelerator.split_batches
        return int(self._train_batch_size) * (1 if split else self.accelerator.num_processes)

    def _check_settings(self) -> None:
        args = self.args
        if getattr(args, "packing", False) or getattr(args, "padding_free", False):
            raise ValueError(
                "packing (or padding_free) merges samples, and a merged sample has no loss of its "
                "own: set packing=False and padding_free=False."
            )
        if not (
            hasattr(self.train_dataset, "__len__") and hasattr(self.train_dataset, "__getitem__")
        ):
            raise TypeError(
                f"train_dataset is a {type(self.train_dataset).__name__}, which cannot skip "
                "samples: expected a data set with __getitem__ and __len__."
            )
        if args.train_sampling_strategy != "random":
            raise ValueError(
                f"train_sampling_strategy is {args.train_sampling_strategy!r}, expected 'random': "
                "the order of an epoch is the pruner's."
            )
        if args.max_steps <= 0 and args.num_train_epochs != int(args.num_train_epochs):
            raise ValueError(
                f"num_train_epochs is {args.num_train_epochs}, expected a whole number: give "
                "max_steps to end within an epoch."
            )
        num_sharing_a_batch = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        if args.n_gpu > 1 or num_sharing_a_batch > 1:
            raise ValueError(
                "several devices share a batch (DataParallel, or tensor, context or sequence "
                "parallelism), expected one process per device with batches of its own: start "
                "with torchrun or accelerate launch."
            )

    def _check_loss(
        self,
        loss: Tensor,
        losses: Tensor,
        targets: Tensor,
        indices: Tensor,
        num_items: Any,
        outputs: Mapping[str, Any],
    ) -> None:
        """Refuse a batch whose rows are no samples, or a loss that is not made of `losses`."""
        if len(losses) != len(indices):
            raise ValueError(
                f"the batch has {len(losses)} rows for {len(indices)} samples, expected one each: "
                "use a data collator that neither packs nor splits samples."
            )
        if self._loss_is_known or not loss.isfinite():  # read on the host once in a run
            return
        total = torch.where(targets, losses, 0).sum()
        counts = [targets.sum()] if num_items is None else [targets.sum(), num_items]
        known = [total / n * k for n in counts for k in (1, self.accelerator.num_processes)]
        rtol = 1e-4 if loss.dtype == torch.float32 else 1e-2
        if outputs.get("aux_loss") is not None or not any(
            torch.isclose(loss.float(), mean.float(), rtol=rtol) for mean in known
        ):
            raise ValueError(
                f"the loss is {loss.item():.6g}, but {known[0].item():.6g} by the targets of the "
                "batch, so it has other terms, which would not be weighted: leave them out (aux "
                "losses, loss_type='dft'), or override token_losses()."
            )
        self._loss_is_known = True


class PlanOrder(Sampler[int]):
    """The whole epoch, for all processes, even when resumed: the Trainer skips what is done."""

    def __init__(self, plan: Callable[[], Plan]) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[int]:
        return iter(self._plan().indices.tolist())

    def __len__(self) -> int:
        return len(self._plan())


class PlanBatches(Sampler[list[int]]):
    """The whole epoch in a given number of batches, for all processes, even when resumed.

    Their sizes vary from epoch to epoch, so accelerate, which shards them, finds no `batch_size`.
    """

    batch_size = None
    drop_last = False

    def __init__(self, plan: Callable[[], Plan], num_batches: int) -> None:
        self._plan, self._num_batches = plan, num_batches

    def bounds(self) -> list[int]:
        """Where each batch begins, and where the last one ends."""
        num_kept = len(self._plan())
        if num_kept < self._num_batches:
            raise ValueError(
                f'shrink is "batch", but {num_kept} samples are kept for {self._num_batches} '
                'batches: use larger batches, or shrink = "epoch".'
            )
        return [j * num_kept // self._num_batches for j in range(self._num_batches + 1)]

    def __iter__(self) -> Iterator[list[int]]:
        indices = self._plan().indices.tolist()
        return (indices[a:b] for a, b in pairwise(self.bounds()))

    def __len__(self) -> int:
        return self._num_batches


@contextmanager
def outputs_of(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """What a model returns inside, but for its loss, whose graph may be freed."""
    seen: dict[str, Any] = {}

    def note(module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not isinstance(outputs, Mapping):
            raise TypeError(
                f"the model returns a {type(outputs).__name__}, expected a dict of outputs: set "
                "return_dict=True in its config."
            )
        seen.update((name, value) for name, value in outputs.items() if name != "loss")

    handle = model.register_forward_hook(note)
    try:
        yield seen
    finally:
        handle.remove()
