"""The Trainer's loop on epochs that shrink: its loader, schedule, epochs and checkpoints."""

from __future__ import annotations

from typing import Any, Literal

import transformers
from torch.utils.data import DataLoader, Sampler

from infobatch import Pruner, StateError
from infobatch.indexed import CollateIndexedItems, IndexedItems
from infobatch.integrations.transformers import checkpoint
from infobatch.integrations.transformers.batches import PlanBatches, PlanOrder
from infobatch.integrations.transformers.checks import check_settings
from infobatch.rules import Rule
from infobatch.schedule import Schedule, may_step_per_batch

INDEX = "infobatch_index"
"""Under this name the index of a sample is in its item, and those of a batch in the batch."""


class PrunedLoop(transformers.Trainer):
    """A Trainer whose epochs are those of its `pruner`; the loss of a step is not its business."""

    prune_ratio: float | None = None
    delta: float = 0.875
    rule: Rule | str | None = None
    shrink: Literal["epoch", "batch"] = "epoch"
    """"epoch": pruned epochs have fewer steps. "batch": as many steps, with smaller batches."""

    train_dataset: Any
    data_collator: Any
    _pruner: Pruner | None = None

    @property
    def pruner(self) -> Pruner:
        """The pruner of the current run, with its `savings`, `scores` and `plan`."""
        if self._pruner is None:
            check_settings(self)
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

    # Data ----------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        check_settings(self)
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
        return loader if self.shrink == "epoch" else self._with_smaller_batches(loader)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return PlanOrder(lambda: self.pruner.plan)

    def _with_smaller_batches(self, loader: Any) -> Any:
        """The same loader, with as many batches in every epoch as full training has."""
        return self.accelerator.prepare(
            DataLoader(
                loader.dataset,
                batch_sampler=PlanBatches(lambda: self.pruner.plan, self._num_smaller_batches),
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
    def _num_smaller_batches(self) -> int:
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

    # A run ---------------------------------------------------------------------------------------

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """The lengths of full training; every run has a pruner of its own."""
        self._pruner = None
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
            checkpoint.save(self.pruner, output_dir)

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
        pruner = self.pruner
        checkpoint.load(pruner, resume_from_checkpoint)
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
            return self._num_smaller_batches // int(self.accelerator.num_processes)
        return len(self.pruner.plan) // self._samples_per_batch

    def _batches_done(self) -> tuple[int, int]:
        """How many batches of the running epoch each process has trained, and samples over."""
        pruner = self.pruner
        if self.shrink == "epoch":
            return divmod(pruner.num_reported, self._samples_per_batch)
        bounds = PlanBatches(lambda: pruner.plan, self._num_smaller_batches).bounds()
        at_steps = bounds[:: int(self.accelerator.num_processes)]
        num_batches = sum(bound <= pruner.num_reported for bound in at_steps) - 1
        return num_batches, pruner.num_reported - at_steps[num_batches]

    # Lengths -------------------------------------------------------------------------------------

    @property
    def _samples_per_batch(self) -> int:
        """Of all processes together."""
        split = self.accelerator.split_batches
        return int(self._train_batch_size) * (1 if split else self.accelerator.num_processes)
