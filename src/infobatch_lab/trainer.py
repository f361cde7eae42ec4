"""Runs whose loop is that of transformers' Trainer, in the laboratory's frame.

The frame's own loop is a generator, taken one step at a time. The Trainer's loop cannot be left
between two steps and entered again, so here it is the caller: a callback hands over to the frame
after each step. Everything else is the frame's: network, optimizer, learning rate, evaluation,
history, checkpoint file and line.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from infobatch import StateError
from infobatch_lab import rules
from infobatch_lab.checkpoints import CheckpointError
from infobatch_lab.language import transformers
from infobatch_lab.processes import rank, total
from infobatch_lab.training import (
    Progress,
    Training,
    batch_size_of,
    curve_of,
    full_steps,
    loss_distribution,
    steps_of,
)

transformers()  # before others import it: says what is missing

from transformers import PrinterCallback, TrainerCallback, TrainingArguments  # noqa: E402

from infobatch.integrations.transformers import INDEX, InfoBatchTrainer  # noqa: E402

if TYPE_CHECKING:
    from infobatch import InfoBatch


class FrameTrainer(InfoBatchTrainer):
    """An `InfoBatchTrainer` that hands its losses to the frame, and saves when the frame asks."""

    hear_loss: Callable[[Tensor, int], None]
    hear_pruning: Callable[[float], None]

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        start = perf_counter()
        values = super().set_initial_training_values(args, dataloader)  # with the first plan
        self.hear_pruning(perf_counter() - start)
        # The Trainer's loss calls `update` in its middle, so only `update` itself can be timed.
        update = timed(self.pruner.update, self.hear_pruning)
        self.pruner.update = update  # type: ignore[method-assign]
        return values

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        num_samples = len(inputs[INDEX])
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.hear_loss(loss.detach(), num_samples)
        return loss

    def save_checkpoint(self) -> Path:
        """Write the Trainer's own checkpoint, and return its folder; all processes must call it."""
        self._save_checkpoint(self.model, trial=None)
        return Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")


class TrainerTraining(Training):
    """A run in the Trainer's loop, with the Trainer's loss: a mean over the batch's targets."""

    def _prepare(self, workers: int) -> None:
        self._batch_size = batch_size_of(self.settings)
        self._workers = workers
        self._resumed: dict[str, Tensor] | None = None
        self._left_at: Progress | None = None

    def run(self, goes_on: Callable[[Progress], bool]) -> Progress | None:
        self._goes_on = goes_on
        with tempfile.TemporaryDirectory() as folder:
            self.trainer = self._trainer(folder)
            resume_from = None
            if self._resumed is not None:
                resume_from = str(write_files(self._resumed, Path(folder, "resumed")))
            try:
                self.trainer.train(resume_from_checkpoint=resume_from)
            except StateError as error:  # the Trainer loads its checkpoint here, not before
                raise CheckpointError(f"the checkpoint cannot be resumed: {error}") from error
        return self._left_at

    def _trainer(self, folder: str) -> FrameTrainer:
        settings, task = self.settings, self.task
        num_samples = len(task.train)  # type: ignore[arg-type]  # torch's Dataset has no __len__
        budget = steps_of(settings, task.train)
        num_steps = full_steps(settings, num_samples) if budget is None else budget
        trainer = FrameTrainer(
            self.model,
            TrainingArguments(
                folder,
                num_train_epochs=settings.epochs,
                max_steps=-1 if budget is None else budget,  # -1: as many as the epochs have
                per_device_train_batch_size=self._batch_size,
                seed=settings.seed,
                use_cpu=self.device.type == "cpu",  # accelerate asks this to see other processes
                max_grad_norm=0.0,  # as in the frame's own loop
                bf16=settings.amp,
                torch_compile=settings.compile,
                ddp_find_unused_parameters=False,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
                dataloader_num_workers=self._workers,
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            task.collate,
            task.train,
            callbacks=[Between(self)],
            optimizers=(self.optimizer, curve_of(settings, self.optimizer, num_steps)),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.rule = rules.create(settings.rule, settings.prune_ratio)
        trainer.delta = settings.delta
        trainer.shrink = "batch" if settings.shrink == "batch" else "epoch"
        trainer.hear_loss = self._hear_loss
        trainer.hear_pruning = self._hear_pruning
        return trainer

    def _hear_loss(self, loss: Tensor, num_samples: int) -> None:
        self._loss_sum[0] += loss * num_samples
        self._loss_sum[1] += num_samples
        self._plan()  # after an epoch's last update: the schedule asks for the next one's length

    def _hear_pruning(self, seconds: float) -> None:
        self._pruning_seconds += seconds

    # Called by the Trainer's callback -------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Note where an epoch starts, or goes on."""
        # Each call of `train` has a pruner of its own. The frame asks it for scores, plan, savings.
        self.train_data = cast("InfoBatch[Any]", self.trainer.pruner)
        self._epoch = self.train_data.epoch
        if self._epoch == self.settings.epochs // 2 and self.loss_distribution is None:
            self.loss_distribution = loss_distribution(self.train_data)
        if self.train_data.num_reported == 0:
            self._lr = self.trainer.lr_scheduler.get_last_lr()[0]
        self._start = perf_counter()

    def after_step(self) -> bool:
        """Whether to go on. The last step of an epoch closes it: its history comes first."""
        self._train_seconds += perf_counter() - self._start
        self.num_steps += 1
        goes_on = True
        is_last = self.num_steps == self.train_data.num_steps  # of a budget, which ends an epoch
        if self.train_data.epoch == self._epoch and not is_last:
            goes_on = self._ask(self.train_data.num_reported / len(self.train_data.plan))
        self._start = perf_counter()
        return goes_on

    def after_epoch(self) -> bool:
        """Whether to go on, after the evaluation."""
        if self._left_at is not None:  # in the middle of it
            return False
        self._finish(self._epoch)
        return self._ask(1.0, self.history[-1])

    def _ask(self, fraction: float, finished: dict[str, Any] | None = None) -> bool:
        progress = Progress(self._epoch, self._done(self._epoch, fraction), finished)
        if not self._goes_on(progress):
            self._left_at = progress
        return self._left_at is None

    # State ----------------------------------------------------------------------------------------

    def sync(self) -> None:
        self._loss_sum = total(self._loss_sum) * (rank() == 0)
        self._saved = self.trainer.save_checkpoint()

    def _loop_state(self) -> dict[str, Any]:
        """The files of the Trainer's own checkpoint, so that one file holds the whole run."""
        files = read_files(self._saved)
        shutil.rmtree(self._saved)
        return {"trainer": files}

    def _load_loop_state(self, state: dict[str, Any]) -> None:
        self._resumed = state["trainer"]


class Between(TrainerCallback):
    """Hands over to the frame between two steps of the Trainer."""

    def __init__(self, training: TrainerTraining) -> None:
        self._training = training

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._training.begin_epoch()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop |= not self._training.after_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop |= not self._training.after_epoch()


P = ParamSpec("P")
T = TypeVar("T")


def timed(function: Callable[P, T], hear: Callable[[float], None]) -> Callable[P, T]:
    """The same function, which tells `hear` the seconds of each call."""

    def call(*args: P.args, **others: P.kwargs) -> T:
        start = perf_counter()
        result = function(*args, **others)
        hear(perf_counter() - start)
        return result

    return call


def read_files(folder: Path) -> dict[str, Tensor]:
    """All files of a folder by name, as tensors, which a checkpoint can hold."""
    return {
        path.name: torch.from_numpy(np.frombuffer(path.read_bytes(), dtype=np.uint8).copy())
        for path in folder.iterdir()
    }


def write_files(files: dict[str, Tensor], folder: Path) -> Path:
    """Write what `read_files` has read."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content.numpy().tobytes())
    return folder
