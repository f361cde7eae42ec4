"""Checkpoints of runs: written whole or not at all, resumed to the last bit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import torch

from infobatch import StateError
from infobatch_lab.errors import UserError
from infobatch_lab.files import check_file, check_target
from infobatch_lab.processes import rank, wait_for_all

if TYPE_CHECKING:
    from infobatch_lab.training import Training


class CheckpointError(UserError):
    """A checkpoint that cannot be resumed, and why."""


@dataclass(frozen=True)
class DiscardedCheckpoint:
    """A checkpoint that cannot be resumed was renamed, and the run starts anew."""

    sentence: str


@dataclass(frozen=True)
class Checkpoint:
    """Where a run is saved, how often, and whether it resumes from there."""

    path: Path
    resume: bool = False
    every: int = 5
    """Epochs between checkpoints; 0 for none but the one of Ctrl-C."""

    def delete(self) -> None:
        """Delete the checkpoint of a run whose line is written, and what killed processes left."""
        for left in (self.path, *self.path.parent.glob(f"{self.path.stem}.*.part")):
            left.unlink(missing_ok=True)

    def discard(self, reason: str) -> DiscardedCheckpoint:
        """Rename a checkpoint that cannot be resumed."""
        renamed = self.path.with_suffix(".unusable")
        os.replace(self.path, renamed)
        return DiscardedCheckpoint(f"{reason} It is now {renamed.name}, and the run starts anew.")

    def save(self, training: Training) -> None:
        """Write a checkpoint, whole or not at all; all processes must call it."""
        training.sync()
        if rank() == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Each process has a file of its own: one whose comparison was killed may still be
            # writing when the next one takes over.
            part = self.path.with_suffix(f".{os.getpid()}.part")
            check_target(part)
            state = training.state_dict()
            try:
                with part.open("wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
            except RuntimeError as error:  # torch's word for a full disk
                raise UserError(f"{part} cannot be written: {error}.") from error
            os.replace(part, self.path)
        wait_for_all()  # a launcher ends the others when one has ended

    def load_into(self, training: Training) -> None:
        """Go on with the checkpoint, or say in one sentence why not."""
        try:
            check_file(self.path)
            training.load_state_dict(torch.load(self.path, weights_only=True))
        except StateError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        except UNUSABLE as error:
            raise CheckpointError(
                f"{self.path} cannot be resumed ({type(error).__name__}): delete it to start anew."
            ) from error


UNUSABLE = (
    EOFError, IndexError, KeyError, OSError, RuntimeError, TypeError, UnpicklingError, ValueError,
)  # fmt: skip
"""What damaged checkpoints, and those of other versions, fail with."""
