"""The pruner's state, beside the optimizer's in a checkpoint of the Trainer."""

from __future__ import annotations

from pathlib import Path

import torch

from infobatch import Pruner, StateError

STATE_FILE = "infobatch.pt"


def save(pruner: Pruner, folder: str) -> None:
    """Write the state into the folder of a checkpoint: `save(pruner, "out/checkpoint-500")`."""
    torch.save(pruner.state_dict(), Path(folder) / STATE_FILE)


def load(pruner: Pruner, folder: str) -> None:
    """Load the state from the folder of a checkpoint: `load(pruner, "out/checkpoint-500")`."""
    path = Path(folder) / STATE_FILE
    if not path.exists():
        raise StateError(
            f"{folder} has no {STATE_FILE}: resume from a checkpoint that an InfoBatchTrainer "
            "wrote (without save_only_model).",
            "trainer-checkpoint",
        )
    pruner.load_state_dict(torch.load(path, weights_only=True))
