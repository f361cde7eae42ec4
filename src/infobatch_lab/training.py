"""A run, step by step. Knows no task by name: a task brings data, network, losses and metric."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR
from torch.utils.data import DataLoader

from infobatch import InfoBatch, StateError
from infobatch.schedule import Schedule
from infobatch_lab import rules
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.errors import UserError, optional
from infobatch_lab.lines import FORMAT, Line
from infobatch_lab.processes import all_agree_to_stop, rank, total, world_size
from infobatch_lab.provenance import load_average, provenance
from infobatch_lab.seeding import generator, seed_of
from infobatch_lab.settings import Settings
from infobatch_lab.tasks import Forward, Task

NUM_BINS = 40

SIGNS = ("loss_left", "skipped_loss", "gradient_noise")
"""The metrics of `train_data` that a history keeps: what a user can know about pruning's worth."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    epoch: int
    fraction: float
    """The part of the whole run that is done, from 0 to 1."""
    finished: dict[str, Any] | None = None
    """The history of an epoch that has just ended."""
    note: str = ""
    """What is done before the first epoch."""


@dataclass(frozen=True)
class Stopped:
    """A run was asked to stop, and has left a checkpoint."""

    epoch: int


class DivergedError(UserError):
    """Raised for a run whose weights are infinite or NaN: it has no metric."""


class Training:
    """A run at any of its steps: `steps()` goes on with it, `state_dict()` can be taken between."""

    def __init__(self, settings: Settings, task: Task, *, workers: int = 0) -> None:
        self.settings = settings
        self.task = task
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(settings.seed)
        self.model = task.network(settings).to(self.device)
        self.optimizer = optimizer_of(settings, self.model)
        self.history: list[dict[str, Any]] = []
        self.timing: list[dict[str, Any]] = []
        self.loss_distribution: dict[str, Any] | None = None
        self.num_steps = 0
        self.num_samples = num_samples_of(task)
        self._provenance = provenance()  # now: files may change while it runs
        self._start_counters()
        self._prepare(workers)

    def _prepare(self, workers: int) -> None:
        """Make what the loop needs. A task whose loop is a framework's has a `Training` that
        replaces this and the loop, and shares the rest.
        """
        settings, task = self.settings, self.task
        self._forward = self._wrapped(self.model)
        self.train_data: InfoBatch[Any] = InfoBatch(
            task.train,
            settings.epochs if settings.budget is None else None,
            num_steps=steps_of(settings, task.train),
            delta=settings.delta,
            rule=rules.create(settings.rule, settings.prune_ratio),
            seed=settings.seed,
        )
        self.loader, self.schedule = loader_and_schedule(
            self.train_data, settings, self.optimizer, collate=task.collate, workers=workers
        )

    def _start_counters(self) -> None:
        """Reset the counters of an epoch."""
        self._train_seconds = self._pruning_seconds = 0.0
        self._loss_sum = torch.zeros(2, dtype=torch.float64, device=self.device)

    def _wrapped(self, model: nn.Module) -> Forward:
        """The network for a step: for several processes, compiled, in bfloat16, as asked for."""
        network: Any = DistributedDataParallel(model) if world_size() > 1 else model
        if self.settings.compile:
            network = torch.compile(network, dynamic=True)

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self._precision():
                return network(*args, **kwargs)

        return forward

    def _precision(self) -> AbstractContextManager[Any]:
        return (
            torch.autocast(self.device.type, dtype=torch.bfloat16)
            if self.settings.amp
            else nullcontext()
        )

    # Training -------------------------------------------------------------------------------------

    def run(self, goes_on: Callable[[Progress], bool]) -> Progress | None:
        """Go on until `goes_on` says no, and return where; None at the end.

        It is called between two steps, where the run may be saved.
        """
        for progress in self.steps():
            if not goes_on(progress):
                return progress
        return None

    def steps(self) -> Iterator[Progress]:
        """Go on to the end. Between two steps the run may be saved, and left."""
        while self._done(self.train_data.epoch, 0.0) < 1:
            epoch = self.train_data.epoch
            for fraction in self._train(epoch):
                yield Progress(epoch, self._done(epoch, fraction))
            self._finish(epoch)
            yield Progress(epoch, self._done(epoch, 1.0), self.history[-1])

    def _done(self, epoch: int, fraction: float) -> float:
        """The part of the run that is done with a fraction of an epoch, from 0 to 1."""
        num_steps = self.train_data.num_steps
        if num_steps is not None:
            return self.num_steps / num_steps
        return (epoch + fraction) / self.settings.epochs

    def _train(self, epoch: int) -> Iterator[float]:
        """Train an epoch, or what is left of it.

        Yields the fraction that is done after each step but the last, which closes the epoch: its
        history comes first.
        """
        start = perf_counter()
        self._plan()
        if epoch == self.settings.epochs // 2 and self.loss_distribution is None:
            self.loss_distribution = loss_distribution(self.train_data)
        if self.train_data.num_reported == 0:
            self._lr = self.schedule.get_last_lr()[0]
        self.model.train()
        for batch in self.loader:
            self._step(to_device(batch, self.device))
            self._train_seconds += perf_counter() - start
            if self.num_steps == self.train_data.num_steps:
                break
            if self.train_data.epoch == epoch:
                yield self.train_data.num_reported / len(self.train_data.plan)
            start = perf_counter()

    def _plan(self) -> None:
        """Plan the epoch, if that is not done yet and the run goes on, and take the time."""
        start = perf_counter()
        if self._done(self.train_data.epoch, 0.0) < 1:
            len(self.train_data.plan)
        self._pruning_seconds += perf_counter() - start

    def _step(self, batch: Any) -> None:
        train_data, seed = self.train_data, self.settings.seed
        # Random numbers depend on the place in the run, so that a resumed run repeats them: those
        # of the task, and those that a network draws from torch's generators, as dropout does.
        place = seed, train_data.epoch, train_data.num_reported, rank()
        rng = generator("augment", *place)
        torch.manual_seed(seed_of("network", *place))
        losses, scores = self.task.batch_losses(self._forward, batch, self.settings, rng)
        start = perf_counter()
        loss = train_data.update(losses, scores=scores)
        self._pruning_seconds += perf_counter() - start
        self._plan()  # after an epoch's last update: the schedule asks for the next one's length
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.num_steps += 1
        self._loss_sum[0] += loss.detach() * len(losses)
        self._loss_sum[1] += len(losses)

    def _finish(self, epoch: int) -> None:
        """Evaluate, and add the epoch to the history."""
        start = perf_counter()
        metrics = self._evaluate(epoch)
        eval_seconds = perf_counter() - start
        loss_sum, num_trained = total(self._loss_sum).tolist()
        before = sum(line["num_trained"] for line in self.history)
        num_kept = self.train_data.savings.num_trained - before
        self.history.append(
            {
                "epoch": epoch,
                "num_trained": num_kept,
                "kept_fraction": num_kept / self.num_samples,
                "train_loss": loss_sum / num_trained,
                **signs_of(self.train_data),
                **metrics,
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
        self._start_counters()

    def _evaluate(self, epoch: int) -> dict[str, float]:
        """The task's metrics. Random numbers drawn for them do not change the training."""
        final = self._done(epoch, 1.0) == 1
        self.model.eval()
        with own_random_numbers("evaluate", self.settings.seed, epoch), self._precision():
            try:
                metrics = self.task.evaluate(self.model, self.settings, final=final)
            except Exception as error:  # a metric may fail in any way on weights that are NaN
                self._check_finite(epoch, cause=error)
                raise
        if not final:
            return metrics
        if self.task.metric.name not in metrics:
            raise ValueError(
                f"{type(self.task).__name__}.evaluate gave {sorted(metrics)} at the end of a run, "
                f"expected {self.task.metric.name!r} among them."
            )
        if not math.isfinite(metrics[self.task.metric.name]):
            self._check_finite(epoch)
        return metrics

    def _check_finite(self, epoch: int, cause: Exception | None = None) -> None:
        """Raise `DivergedError` if a weight is infinite or NaN."""
        if not all(bool(weights.isfinite().all()) for weights in self.model.parameters()):
            raise DivergedError(
                f"{self.settings.name} diverged: after epoch {epoch} its weights are not finite. "
                "Use a lower --lr."
            ) from cause

    # Results and state ----------------------------------------------------------------------------

    def result(self) -> Line:
        """The line of a finished run."""
        num_trained, last = self.train_data.savings.num_trained, self.history[-1]
        num_full = self.settings.epochs * self.num_samples
        choice = self.task.choice
        known = {"epoch", "num_trained", "kept_fraction", "train_loss", "lr", *SIGNS}
        return {
            "format": FORMAT,
            "task": self.task.name,
            **asdict(self.settings),
            **self._provenance,
            "num_samples": self.num_samples,
            "num_chosen": None if choice is None else len(choice.indices),
            "num_test": self.task.num_test,
            "metric": asdict(self.task.metric),
            **{name: value for name, value in last.items() if name not in known},
            "num_trained": num_trained,
            "num_full": num_full,
            "samples_saved": 1 - num_trained / num_full,
            "num_steps": self.num_steps,
            "collecting_seconds": None if choice is None else choice.collecting_seconds,
            "selecting_seconds": None if choice is None else choice.selecting_seconds,
            **{
                name: seconds_of(self.timing, name)
                for name in ("train_seconds", "eval_seconds", "pruning_seconds")
            },
            "history": self.history,
            "timing": self.timing,
            "loss_distribution": self.loss_distribution,
        }

    def sync(self) -> None:
        """Make the state of rank 0 the state of all processes; all must call it."""
        if world_size() == 1:
            return
        if self.train_data.num_reported:
            self.train_data.sync()
        self._loss_sum = total(self._loss_sum) * (rank() == 0)

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings, for a bit-exact resume; call `sync()` first."""
        return {
            "settings": asdict(self.settings),
            "choice": digest_of(self.task),
            **self._loop_state(),
            "history": self.history,
            "timing": self.timing,
            "loss_distribution": self.loss_distribution,
            "num_steps": self.num_steps,
            "train_seconds": self._train_seconds,
            "pruning_seconds": self._pruning_seconds,
            "loss_sum": self._loss_sum,
            "lr": self._lr,
        }

    def _loop_state(self) -> dict[str, Any]:
        """The state of what `_prepare` has made, and of the network."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.train_data.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict()` was taken."""
        if state["settings"] != asdict(self.settings):
            raise UserError("the checkpoint is that of a run with other settings.")
        if state.get("choice") != digest_of(self.task):
            raise StateError("the checkpoint is that of a run on other samples: delete it.")
        self._load_loop_state(state)
        self.history, self.timing = state["history"], state["timing"]
        self.loss_distribution, self.num_steps = state["loss_distribution"], state["num_steps"]
        self._train_seconds = state["train_seconds"]
        self._pruning_seconds = state["pruning_seconds"]
        # Each process counts its own part; what all had counted goes on as rank 0's.
        self._loss_sum = state["loss_sum"].to(self.device) * (rank() == 0)
        self._lr = state["lr"]

    def _load_loop_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.train_data.load_state_dict(state["data"])
        self.schedule.load_state_dict(state["schedule"])


# One run -----------------------------------------------------------------------------------------


def train(
    settings: Settings,
    task: Task,
    checkpoint: Checkpoint,
    *,
    workers: int = 0,
    tensorboard: Path | None = None,
    figures: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Line | Stopped:
    """Train to the end, or until `stop()` says so, and return the run's line.

    The checkpoint stays until the line is safe: then call `checkpoint.delete()`. Settings with a
    subset want a task that was made by `choosing.prepared`.
    """
    if settings.has_subset and task.choice is None:
        raise ValueError(f"task has all samples, expected those of {settings.label!r} alone.")
    training = task.training(settings, workers=workers)
    load = {"start": load_average()}
    if checkpoint.resume and checkpoint.path.exists():
        checkpoint.load_into(training)
    log = tensorboard_log(tensorboard)

    def goes_on(progress: Progress) -> bool:
        report(progress)
        if progress.finished is not None:
            log(progress.finished)
        done = progress.fraction == 1
        if not done and all_agree_to_stop(stop()):
            checkpoint.save(training)
            return False
        due = progress.finished is not None and checkpoint.every
        if due and (progress.epoch + 1) % checkpoint.every == 0 and not done:
            checkpoint.save(training)
        return True

    left_at = training.run(goes_on)
    if left_at is not None:
        return Stopped(left_at.epoch)
    if figures is not None and rank() == 0:
        training.model.eval()
        with own_random_numbers("figures", settings.seed):
            task.figures(training.model, settings, figures)
    # Times of a machine that had other work are marked by it. It is no part of the machine's name,
    # by which times are compared.
    return {**training.result(), "load": {**load, "end": load_average()}}


def tensorboard_log(folder: Path | None) -> Callable[[dict[str, Any]], None]:
    """A function that logs an epoch; without a folder, one that does nothing."""
    if folder is None or rank() != 0:
        return lambda epoch: None
    writer = optional("torch.utils.tensorboard").SummaryWriter(str(folder))

    def log(epoch: dict[str, Any]) -> None:
        for name, value in epoch.items():
            if name != "epoch":
                writer.add_scalar(name, value, epoch["epoch"])
        writer.flush()

    return log


# Parts --------------------------------------------------------------------------------------------


def num_samples_of(task: Task) -> int:
    """The size of the whole data set, of which a task may have a part."""
    whole = None if task.choice is None else task.choice.num_samples
    return whole or len(task.train)  # type: ignore[arg-type]  # torch's Dataset has no __len__


def digest_of(task: Task) -> str | None:
    """What tells the chosen samples of a task from others; None for all of them."""
    return None if task.choice is None else task.choice.digest


def loader_and_schedule(
    train_data: InfoBatch[Any],
    settings: Settings,
    optimizer: torch.optim.Optimizer,
    *,
    collate: Callable[[Any], Any],
    workers: int = 0,
) -> tuple[DataLoader[Any], LRScheduler]:
    """The batches of a run and its learning rate: the only place that knows `shrink`.

    A budget of steps has a curve of its own length; epochs have that of full training.
    """
    batch_size = batch_size_of(settings)
    shrink: Any = settings.shrink  # one of the choices of the setting
    loader: DataLoader[Any] = DataLoader(
        train_data,
        batch_sampler=train_data.batches(batch_size, shrink=shrink),
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=leave_group,
        pin_memory=torch.cuda.is_available(),
        # An iterator draws a seed for its workers; a resumed run has one more of them.
        generator=torch.Generator(),
    )
    if train_data.num_steps is not None:
        return loader, curve_of(settings, optimizer, train_data.num_steps)
    curve = curve_of(settings, optimizer, full_steps(settings, train_data.num_samples))
    return loader, Schedule(curve, train_data, batch_size=batch_size)


def batch_size_of(settings: Settings) -> int:
    """The batch size of one process."""
    if settings.batch_size % world_size():
        raise UserError(
            f"batch_size is {settings.batch_size}, expected a multiple of the {world_size()} "
            "processes."
        )
    return settings.batch_size // world_size()


def full_steps(settings: Settings, num_samples: int) -> int:
    """How many steps full training takes."""
    samples_per_rank = -(-num_samples // world_size())
    return settings.epochs * -(-samples_per_rank // batch_size_of(settings))


def steps_of(settings: Settings, train: Any) -> int | None:
    """How many steps a run has, where they are counted; None where epochs are."""
    if settings.budget is None:
        return None
    return max(1, round(settings.budget * full_steps(settings, len(train))))


def signs_of(train_data: InfoBatch[Any]) -> dict[str, float]:
    """The signs of the last epoch that are known: `signs_of(train_data)["loss_left"]`."""
    metrics = train_data.metrics
    return {name: metrics[key] for name in SIGNS if (key := f"infobatch/{name}") in metrics}


def seconds_of(timing: list[dict[str, Any]], name: str) -> float | None:
    """The sum over all epochs; None for what a loop does not measure."""
    return sum(line[name] for line in timing) if all(name in line for line in timing) else None


def leave_group(worker: int) -> None:
    """Keep Ctrl-C, which goes to a whole group, from the workers: their parent ends them."""
    os.setpgrp()


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device, inside of tuples, lists and dicts too."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return [to_device(part, device) for part in batch]
    return batch


@contextmanager
def own_random_numbers(*key: int | str) -> Iterator[None]:
    """Seed torch's global generators by a key, and restore them afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(*key))
        yield


def optimizer_of(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer, with the weight decay that is usual for it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    lr = settings.lr
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    if settings.optimizer == "adamw":
        # One pass over the parameters in place of ten; a vocabulary's embeddings are large.
        return torch.optim.AdamW(parameters, lr, weight_decay=0.05, fused=True)
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
    """Histograms of the scores before pruning, of those kept, and of those with their weights."""
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
