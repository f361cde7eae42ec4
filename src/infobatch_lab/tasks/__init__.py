"""All tasks, by the value of `--data`. A new task is a file, and a line here."""

from __future__ import annotations

from pathlib import Path

from infobatch_lab.download import Fetching
from infobatch_lab.options import check_choice
from infobatch_lab.tasks import (
    classification,
    diffusion,
    finetune,
    instructions,
    mae,
    segmentation,
    swin,
    text,
)
from infobatch_lab.tasks.base import BatchLosses, Forward, NoOptions, Recipe, Task

__all__ = [
    "RECIPES",
    "BatchLosses",
    "Forward",
    "NoOptions",
    "Recipe",
    "Task",
    "find",
    "load",
]

RECIPES: dict[str, Recipe] = {
    **classification.RECIPES,
    **segmentation.RECIPES,
    **mae.RECIPES,
    **diffusion.RECIPES,
    **swin.RECIPES,
    **finetune.RECIPES,
    **instructions.RECIPES,
    **text.RECIPES,
}
"""A name that ends in ":" is followed by a path: `folder:PATH`."""


def find(data: str) -> Recipe:
    """The recipe for a value of `--data`."""
    check_choice("data", data, list(RECIPES))
    name, colon, _ = data.partition(":")
    return RECIPES[name + colon]


def load(data: str, folder: Path, progress: Fetching = lambda *_: None) -> Task:
    """The task with its data, from files in `folder`, fetched where they are missing."""
    recipe = find(data)
    _, colon, path = data.partition(":")
    return recipe.read(Path(path) if colon else folder, progress)
