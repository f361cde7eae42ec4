"""Networks that are trained only to judge samples by, and what they showed while they trained."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from infobatch.selection import Statistics, Visits
from infobatch_lab.checkpoints import UNUSABLE, Checkpoint, CheckpointError
from infobatch_lab.errors import UserError
from infobatch_lab.seeding import seed_of
from infobatch_lab.settings import Settings, declared
from infobatch_lab.sweep import as_full
from infobatch_lab.tasks import Forward, Task
from infobatch_lab.training import Progress, Training

PROXY_PART = 0.25
"""The epochs of the network that judges samples, as a part of the run's."""

EARLY_PART = 0.1
"""The epochs of the networks for EL2N and GraNd, early in training: 20 of 200 in their paper."""

EARLY_RUNS = 10
"""Their number, as in their paper."""

LEAST_EPOCHS = 3
"""TDDS compares visits with those before, and looks at how that changes."""

OF_VISITS = ("forgetting", "tdds")


def proxy_of(cell: Settings) -> Settings:
    """The network that judges the samples of a run: trained as the run, on all samples, shorter."""
    return _shorter(cell, PROXY_PART, LEAST_EPOCHS)


def early_runs_of(cell: Settings) -> list[Settings]:
    """Networks early in training, with seeds of their own."""
    short = _shorter(cell, EARLY_PART, 1)
    seeds = (seed_of("early", cell.seed, run) % 2**31 for run in range(EARLY_RUNS))
    return [replace(short, seed=seed) for seed in seeds]


def _shorter(cell: Settings, part: float, at_least: int) -> Settings:
    # A mixed image has two classes, and a network is neither right nor wrong about it.
    mixing = [name for name in ("mixup", "cutmix") if name in declared(type(cell.options))]
    options = replace(cell.options, **dict.fromkeys(mixing, 0.0))
    epochs = max(at_least, round(part * cell.epochs))
    return replace(as_full(cell), epochs=epochs, options=options)


@dataclass(frozen=True)
class Proxy:
    """A trained network, and the seconds it took."""

    model: nn.Module
    visits: Statistics
    """Of `forgetting` and `tdds`."""
    train_seconds: float
    recording_seconds: float
    """The time that noting the visits took, which is no part of the training time."""


def trained(
    settings: Settings,
    task: Task,
    labels: Tensor,
    folder: Path,
    goes_on: Callable[[Progress], bool],
) -> Proxy | None:
    """The network of these settings, from its file or trained now; None if it was stopped.

    A training that is stopped goes on from its checkpoint.
    """
    file = folder / f"{settings.name}.pt"
    if file.exists():
        return _load(file, settings, task)
    training = ProxyTraining(settings, task, labels)
    checkpoint = Checkpoint(folder / f"{settings.name}-checkpoint.pt")
    if checkpoint.path.exists():
        try:
            checkpoint.load_into(training)
        except CheckpointError as error:
            checkpoint.discard(str(error))
            training = ProxyTraining(settings, task, labels)
    if training.run(goes_on) is not None:
        checkpoint.save(training)
        return None
    part = file.with_suffix(f".{os.getpid()}.part")
    torch.save(training.outcome(), part)
    os.replace(part, file)
    checkpoint.delete()
    return _load(file, settings, task)


def _load(file: Path, settings: Settings, task: Task) -> Proxy:
    model = task.network(settings)
    try:
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        correct, changes = saved["correct"], saved["changes"]
        seconds = saved["train_seconds"], saved["recording_seconds"]
    except UNUSABLE as error:
        raise UserError(
            f"{file} cannot be read ({type(error).__name__}): delete it, so that it is made anew."
        ) from error
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    visits = Statistics(correct=correct, changes=changes)
    return Proxy(model.to(device).eval(), visits, *seconds)


class ProxyTraining(Training):
    """A run that notes each visit of each sample, and tests nothing."""

    def __init__(self, settings: Settings, task: Task, labels: Tensor) -> None:
        super().__init__(settings, task)
        self.visits = Visits(len(labels), OF_VISITS)
        self.recording_seconds = 0.0
        self._labels = labels

    def _wrapped(self, model: nn.Module) -> Forward:
        forward = super()._wrapped(model)

        def heard(*args: Any, **kwargs: Any) -> Any:
            logits: Tensor = forward(*args, **kwargs)
            self._logits = logits.detach()
            return logits

        return heard

    def _step(self, batch: Any) -> None:
        done = self.train_data.num_reported
        indices = self.train_data.plan.indices[done : done + self.settings.batch_size]
        super()._step(batch)
        start = perf_counter()
        # A batch of one image goes through the network twice.
        logits = self._logits[: len(indices)]
        self.visits.record(indices, logits, self._labels[indices])
        spent = perf_counter() - start
        self.recording_seconds += spent
        self._train_seconds -= spent  # which the loop adds with the step's

    def _evaluate(self, epoch: int) -> dict[str, float]:
        return {}

    def outcome(self) -> dict[str, Any]:
        """All that is kept of a finished training."""
        visits = self.visits.statistics()
        return {
            "model": self.model.state_dict(),
            "correct": visits.correct,
            "changes": visits.changes,
            "train_seconds": sum(epoch["train_seconds"] for epoch in self.timing),
            "recording_seconds": self.recording_seconds,
        }

    def _loop_state(self) -> dict[str, Any]:
        visits = {"visits": self.visits.state_dict(), "recording_seconds": self.recording_seconds}
        return {**super()._loop_state(), **visits}

    def _load_loop_state(self, state: dict[str, Any]) -> None:
        super()._load_loop_state(state)
        self.visits.load_state_dict(state["visits"])
        self.recording_seconds = state["recording_seconds"]
