"""One run from its start, or from a checkpoint, to its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from infobatch import StateError
from infobatch_lab.data import Task
from infobatch_lab.errors import UserError, optional
from infobatch_lab.processes import all_agree_to_stop, rank, wait_for_all
from infobatch_lab.runs import Run
from infobatch_lab.settings import Settings
from infobatch_lab.training import Progress, Training


class CheckpointError(UserError):
    """A checkpoint that cannot be resumed, and why."""


@dataclass(frozen=True)
class Stopped:
    """A run was asked to stop, and has left a checkpoint."""

    epoch: int


@dataclass(frozen=True)
class SetAside:
    """A checkpoint that cannot be resumed was given another name, so that the run starts anew."""

    sentence: str


@dataclass(frozen=True)
class Keeping:
    """What a run leaves behind on its way."""

    checkpoint: Path
    resume: bool = False
    every: int = 5
    """Epochs between checkpoints; 0 for none but the one of Ctrl-C."""
    tensorboard: Path | None = None

    def forget(self) -> None:
        """Delete the checkpoint: the run is finished, and written down."""
        for left in (self.checkpoint, *parts_of(self.checkpoint)):
            left.unlink(missing_ok=True)

    def set_aside(self, reason: str) -> SetAside:
        """Give a checkpoint that cannot be resumed another name."""
        aside = self.checkpoint.with_suffix(".unusable")
        os.replace(self.checkpoint, aside)
        return SetAside(f"{reason} It is now {aside.name}, and the run starts anew.")


def train(
    settings: Settings,
    task: Task,
    keeping: Keeping,
    *,
    workers: int = 0,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Run | Stopped:
    """Train to the end, or until `stop()` says so. The checkpoint is left, until the result is
    safe: `keeping.forget()`.
    """
    training = Training(settings, task, workers=workers)
    if keeping.resume and keeping.checkpoint.exists():
        resume(training, keeping.checkpoint)
    log = tensorboard_log(keeping.tensorboard)
    for progress in training.steps():
        report(progress)
        if progress.finished is not None:
            log(progress.finished)
        done = progress.part == 1
        if not done and all_agree_to_stop(stop()):
            save(training, keeping.checkpoint)
            return Stopped(progress.epoch)
        due = progress.finished is not None and keeping.every
        if due and (progress.epoch + 1) % keeping.every == 0 and not done:
            save(training, keeping.checkpoint)
    return training.result()


def save(training: Training, path: Path) -> None:
    """Write a checkpoint, whole or not at all; all processes must call it."""
    training.sync()
    if rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            torch.save(training.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    wait_for_all()  # a launcher ends the others when one has ended


def parts_of(checkpoint: Path) -> list[Path]:
    """What killed processes were writing. Each has a file of its own, since one whose comparison
    was killed may still be at work when the next one takes over.
    """
    return sorted(checkpoint.parent.glob(f"{checkpoint.stem}.*.part"))


def resume(training: Training, path: Path) -> None:
    """Go on with a checkpoint, or say in one sentence why not."""
    try:
        state = torch.load(path, weights_only=True)
        training.load_state_dict(state)
    except StateError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except UNUSABLE as error:
        raise CheckpointError(
            f"{path} cannot be resumed ({type(error).__name__}): delete it to start anew."
        ) from error


UNUSABLE = (
    EOFError, IndexError, KeyError, OSError, RuntimeError, TypeError, UnpicklingError, ValueError,
)  # fmt: skip
"""What damaged checkpoints, and those of other versions, fail with."""


def tensorboard_log(folder: Path | None) -> Callable[[dict[str, Any]], None]:
    """A function that logs an epoch; without a folder, one that does nothing."""
    if folder is None or rank() != 0:
        return lambda epoch: None
    writer = optional("torch.utils.tensorboard").SummaryWriter(str(folder))

    def log(epoch: dict[str, Any]) -> None:
        for name in ("train_loss", "accuracy", "kept_fraction", "num_trained", "lr"):
            writer.add_scalar(name, epoch[name], epoch["epoch"])
        writer.flush()

    return log
