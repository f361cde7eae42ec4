"""A run, step by step: a data set, a network, a rule, and what came of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR
from torch.utils.data import DataLoader

from infobatch import InfoBatch
from infobatch.mixing import Mixed
from infobatch.schedule import Schedule
from infobatch_lab import models
from infobatch_lab.augment import crop_and_flip, generator, mean_and_std, mix, normalise
from infobatch_lab.data import Task
from infobatch_lab.errors import UserError, optional
from infobatch_lab.processes import num_processes, rank, total
from infobatch_lab.provenance import provenance
from infobatch_lab.report.runs import FORMAT
from infobatch_lab.runs import Run
from infobatch_lab.settings import Settings, rule_of

EVAL_BATCH = 500
NUM_BINS = 40


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    epoch: int
    part: float
    """Of the whole run, from 0 to 1."""
    finished: dict[str, Any] | None = None
    """The history of an epoch that has just ended."""


class Training:
    """A run at any of its steps: `steps()` goes on with it, `state_dict()` can be taken between."""

    def __init__(self, settings: Settings, task: Task, *, workers: int = 0) -> None:
        self.settings = settings
        self.task = task
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(settings.seed)
        self.model = models.create(settings.model, task.num_channels, task.num_classes)
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward = self._wrapped(self.model)
        self.optimizer = optimizer_of(settings, self.model)
        self.train_data: InfoBatch[Any] = InfoBatch(
            task.train,
            settings.epochs,
            delta=settings.delta,
            rule=rule_of(settings),
            seed=settings.seed,
        )
        batch_size = self._local_batch_size()
        self.loader = DataLoader(
            self.train_data,
            batch_size=batch_size,
            sampler=self.train_data.sampler,
            collate_fn=as_fetched,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=leave_group,
            pin_memory=self.device.type == "cuda",
            # An iterator draws a seed for its workers; a resumed run has one more of them.
            generator=torch.Generator(),
        )
        of_process = -(-len(task.train) // num_processes())
        steps_per_epoch = -(-of_process // batch_size)
        self.schedule = Schedule(
            curve_of(settings, self.optimizer, settings.epochs * steps_per_epoch),
            self.train_data,
            batch_size=batch_size,
        )
        mean, std = mean_and_std(task.train.images)
        self._mean, self._std = mean.to(self.device), std.to(self.device)
        self.history: list[dict[str, Any]] = []
        self.timing: list[dict[str, Any]] = []
        self.loss_distribution: dict[str, Any] | None = None
        self.num_steps = 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._train_seconds = self._pruning_seconds = 0.0
        self._loss_sum = torch.zeros(2, dtype=torch.float64, device=self.device)

    def _wrapped(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        forward: Any = DistributedDataParallel(model) if num_processes() > 1 else model
        return torch.compile(forward, dynamic=True) if self.settings.compile else forward

    def _local_batch_size(self) -> int:
        """The batch size is that of all processes together."""
        batch_size, processes = self.settings.batch_size, num_processes()
        if batch_size % processes:
            raise UserError(
                f"batch_size is {batch_size}, expected a multiple of the {processes} processes."
            )
        return batch_size // processes

    # Going on -------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Progress]:
        """Go on to the end. Between two steps the run may be saved, and left."""
        num_epochs = self.settings.epochs
        for epoch in range(self.train_data.epoch, num_epochs):
            for reported in self._train(epoch):
                yield Progress(epoch, (epoch + reported) / num_epochs)
            self._finish(epoch)
            yield Progress(epoch, (epoch + 1) / num_epochs, self.history[-1])

    def _train(self, epoch: int) -> Iterator[float]:
        """An epoch, or what is left of it; gives the part that is done, after each step but the
        last: what that one closes is counted first.
        """
        start = perf_counter()
        plan = self.train_data.plan
        self._pruning_seconds += perf_counter() - start
        if epoch == self.settings.epochs // 2 and self.loss_distribution is None:
            self.loss_distribution = loss_distribution(self.train_data)
        if self.train_data.num_reported == 0:
            self._lr = self.schedule.get_last_lr()[0]
        self.model.train()
        for images, labels in self.loader:
            self._step(images.to(self.device), labels.to(self.device))
            self._train_seconds += perf_counter() - start
            if self.train_data.epoch == epoch:
                yield self.train_data.num_reported / len(plan)
            start = perf_counter()

    def _step(self, images: Tensor, labels: Tensor) -> None:
        settings, train_data, task = self.settings, self.train_data, self.task
        place = (settings.seed, train_data.epoch, train_data.num_reported, rank())
        rng = generator("augment", *place)
        images = crop_and_flip(images, rng, crop=task.crop, flip=task.flip)
        inputs = normalise(images, self._mean, self._std)
        scores: Tensor | None = None
        if settings.mixup or settings.cutmix:
            losses, scores = self._mixed_losses(inputs, labels, rng)
        else:
            losses = cross_entropy(
                self._logits(inputs),
                labels,
                label_smoothing=settings.label_smoothing,
                reduction="none",
            )
        start = perf_counter()
        loss = train_data.update(losses, scores=scores)
        self._pruning_seconds += perf_counter() - start
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.num_steps += 1
        self._loss_sum[0] += loss.detach() * len(labels)
        self._loss_sum[1] += len(labels)

    def _mixed_losses(
        self, inputs: Tensor, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        settings = self.settings
        mixed, partner, lam = mix(inputs, rng, mixup=settings.mixup, cutmix=settings.cutmix)
        how = Mixed(labels, partner, lam, label_smoothing=settings.label_smoothing)
        return how.losses_and_scores(self._logits(mixed))

    def _logits(self, inputs: Tensor) -> Tensor:
        # The last batch may be one image, and a deep network makes one pixel of a small one: too
        # little for batch normalisation, which the same image twice is not.
        num_samples = len(inputs)
        if num_samples == 1:
            inputs = inputs.repeat(2, 1, 1, 1)
        with self._precision():
            return self._forward(inputs)[:num_samples].float()

    def _precision(self) -> AbstractContextManager[Any]:
        return (
            torch.autocast(self.device.type, dtype=torch.bfloat16)
            if self.settings.amp
            else nullcontext()
        )

    def _finish(self, epoch: int) -> None:
        """Test, and write down what the epoch was."""
        start = perf_counter()
        accuracy = self._accuracy()
        eval_seconds = perf_counter() - start
        loss_sum, num_trained = total(self._loss_sum).tolist()
        before = sum(line["num_trained"] for line in self.history)
        num_kept = self.train_data.savings.num_trained - before
        self.history.append(
            {
                "epoch": epoch,
                "num_trained": num_kept,
                "kept_fraction": num_kept / len(self.task.train),
                "train_loss": loss_sum / num_trained,
                "accuracy": accuracy,
                "lr": self._lr,
            }
        )
        self.timing.append(
            {
                "epoch": epoch,
                "train_seconds": self._train_seconds,
                "eval_seconds": eval_seconds,
                "pruning_seconds": self._pruning_seconds,
            }
        )
        self._begin_epoch()

    @torch.inference_mode()
    def _accuracy(self) -> float:
        """On the test split, of which each process takes its share."""
        self.model.eval()
        images, labels = self.task.test.images, self.task.test.labels
        counts = torch.zeros((), dtype=torch.float64, device=self.device)
        batches = list(zip(images.split(EVAL_BATCH), labels.split(EVAL_BATCH), strict=True))
        for x, y in batches[rank() :: num_processes()]:
            with self._precision():
                logits = self.model(normalise(x.to(self.device), self._mean, self._std))
            counts += (logits.argmax(1) == y.to(self.device)).sum()
        return float(total(counts)) / len(labels)

    # What came of it, and what is needed to go on ------------------------------------------------

    def result(self) -> Run:
        """The line of JSON of a finished run."""
        savings = self.train_data.savings
        return {
            "format": FORMAT,
            **asdict(self.settings),
            **provenance(),
            "num_samples": len(self.task.train),
            "num_test": len(self.task.test),
            "accuracy": self.history[-1]["accuracy"],
            "num_trained": savings.num_trained,
            "num_full": savings.num_full,
            "samples_saved": savings.fraction,
            "num_steps": self.num_steps,
            **{
                name: sum(line[name] for line in self.timing)
                for name in ("train_seconds", "eval_seconds", "pruning_seconds")
            },
            "history": self.history,
            "timing": self.timing,
            "loss_distribution": self.loss_distribution,
        }

    def sync(self) -> None:
        """Make the state of rank 0 the state of all processes; all must call it."""
        if num_processes() == 1:
            return
        if self.train_data.num_reported:
            self.train_data.sync()
        self._loss_sum = total(self._loss_sum) * (rank() == 0)

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings, for a bit-exact resume; call `sync()` first."""
        return {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.train_data.state_dict(),
            "schedule": self.schedule.state_dict(),
            "history": self.history,
            "timing": self.timing,
            "loss_distribution": self.loss_distribution,
            "num_steps": self.num_steps,
            "train_seconds": self._train_seconds,
            "pruning_seconds": self._pruning_seconds,
            "loss_sum": self._loss_sum,
            "lr": self._lr,
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict()` was taken."""
        if state["settings"] != asdict(self.settings):
            raise UserError("the checkpoint is that of a run with other settings.")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.train_data.load_state_dict(state["data"])
        self.schedule.load_state_dict(state["schedule"])
        self.history, self.timing = state["history"], state["timing"]
        self.loss_distribution, self.num_steps = state["loss_distribution"], state["num_steps"]
        self._train_seconds, self._pruning_seconds = (
            state["train_seconds"],
            state["pruning_seconds"],
        )
        # Each process counts its own part; what all had counted goes on as rank 0's.
        self._loss_sum = state["loss_sum"].to(self.device) * (rank() == 0)
        self._lr = state["lr"]
        torch.set_rng_state(state["random"].cpu())


def as_fetched(batch: Any) -> Any:
    """A batch comes from the data set in one piece: there is nothing to collate."""
    return batch


def leave_group(worker: int) -> None:
    """Ctrl-C goes to a whole group, but is for the process that trains: it ends its workers."""
    os.setpgrp()


def optimizer_of(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer, with the weight decay that is usual for it."""
    parameters, lr = model.parameters(), settings.lr
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr, weight_decay=0.05)
    if settings.optimizer == "radam":
        return torch.optim.RAdam(parameters, lr, weight_decay=0.05, decoupled_weight_decay=True)
    library = optional("pytorch_optimizer")
    made: torch.optim.Optimizer = (
        library.LARS(parameters, lr=lr, momentum=0.9, weight_decay=5e-4)
        if settings.optimizer == "lars"
        else library.Lamb(parameters, lr=lr, weight_decay=0.05)
    )
    return made


def curve_of(settings: Settings, optimizer: torch.optim.Optimizer, num_steps: int) -> LRScheduler:
    """The learning rate of full training, by step."""
    if settings.schedule == "onecycle":
        return OneCycleLR(optimizer, settings.lr, total_steps=num_steps, cycle_momentum=False)
    if settings.schedule == "cosine":
        return CosineAnnealingLR(optimizer, num_steps)
    return LambdaLR(optimizer, lambda step: 1.0)


def loss_distribution(train_data: InfoBatch[Any]) -> dict[str, Any] | None:
    """The scores before pruning, those kept, and those kept counted with their weights (Fig. 6)."""
    scores, plan = train_data.scores, train_data.plan
    kept = scores[plan.indices]
    seen, kept_seen = ~scores.isnan(), ~kept.isnan()
    if not bool(seen.any()):
        return None
    values = scores[seen].numpy()
    # The long tail goes into the last bin.
    edges = np.linspace(0.0, max(float(np.quantile(values, 0.99)), 1e-6), NUM_BINS + 1)

    def counts(of: Tensor, weights: Tensor | None = None) -> list[float]:
        clipped = of.numpy().clip(edges[0], edges[-1])
        histogram, _ = np.histogram(
            clipped, edges, weights=None if weights is None else weights.numpy()
        )
        return [float(count) for count in histogram]

    return {
        "epoch": train_data.epoch,
        "edges": edges.tolist(),
        "before": counts(scores[seen]),
        "after": counts(kept[kept_seen]),
        "rescaled": counts(kept[kept_seen], plan.weights[kept_seen]),
    }
