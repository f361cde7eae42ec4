"""Samples that were chosen before training: their file, and a task that trains on them alone."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from infobatch_lab.arrays import read_npy
from infobatch_lab.errors import UserError
from infobatch_lab.files import check_file, check_target
from infobatch_lab.tasks import BatchLosses, Forward, Task

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings


@dataclass(frozen=True, eq=False)
class Choice:
    """Chosen samples, in order, and the time that choosing took, where it is known."""

    indices: Tensor
    num_samples: int | None = None
    """The size of the data set that they were chosen from."""
    weights: Tensor | None = None
    """One per chosen sample, for its loss."""
    collecting_seconds: float | None = None
    """The time that the method's statistics took, the training of networks for them included."""
    selecting_seconds: float | None = None
    data: str | None = None
    """The data set, as `--data` names it."""

    @property
    def digest(self) -> str:
        """Eight digits that tell it from other samples, orders and weights."""
        content = hashlib.blake2b(self.indices.numpy().tobytes(), digest_size=4)
        if self.weights is not None:
            content.update(self.weights.numpy().tobytes())
        return content.hexdigest()


# Files --------------------------------------------------------------------------------------------


def save(path: Path, choice: Choice, facts: dict[str, Any]) -> None:
    """Write the indices, and beside them a .json with facts, times and weights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_target(path)
    check_target(beside(path))
    with path.open("wb") as file:
        np.save(file, choice.indices.numpy())
    about = {
        **facts,
        "data": choice.data,
        "num_samples": choice.num_samples,
        "num_chosen": len(choice.indices),
        "digest": choice.digest,
        "collecting_seconds": choice.collecting_seconds,
        "selecting_seconds": choice.selecting_seconds,
        "weights": None if choice.weights is None else choice.weights.tolist(),
    }
    beside(path).write_text(json.dumps(about), encoding="utf-8")


def beside(path: Path) -> Path:
    """The file of facts that belongs to a file of indices."""
    return path.with_suffix(".json")


def load(path: Path) -> Choice:
    """Read a file of indices, with the facts beside it where there are some."""
    found = read_npy(path)
    is_list = found.ndim == 1 and found.dtype.kind in "iu" and len(found) > 0
    indices = found.astype(np.int64) if is_list else found  # beyond int64 they are below 0
    if not is_list or indices.min() < 0 or len(np.unique(indices)) < len(indices):
        raise UserError(f"subset is {path}, expected a list of different indices in it.")
    choice = Choice(torch.from_numpy(indices))
    facts_file = beside(path)
    if not facts_file.exists():
        return choice
    try:
        check_file(facts_file)
        about = json.loads(facts_file.read_text(encoding="utf-8"))
        weights = None if about["weights"] is None else torch.tensor(about["weights"])
        seconds = {name: about[name] for name in ("collecting_seconds", "selecting_seconds")}
        choice = replace(
            choice, num_samples=about["num_samples"], data=about["data"], weights=weights, **seconds
        )
        belongs = about["digest"] == choice.digest
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, RuntimeError):
        belongs = False
    if not belongs:
        raise UserError(f"{facts_file} does not belong to {path.name}: delete it.")
    return choice


DIGEST = re.compile(r"@[0-9a-f]{8}$")


def with_digest(subset: str) -> str:
    """A file's name with what is in it, so that runs on other samples have other settings."""
    return subset if DIGEST.search(subset) else f"{subset}@{load(Path(subset)).digest}"


def from_file(settings: Settings) -> Choice:
    """The samples of `settings.subset`, if the file still has them and they suit the data set."""
    assert settings.subset is not None
    path, _, digest = settings.subset.rpartition("@")
    choice = load(Path(path))
    if choice.digest != digest:
        raise UserError(
            f"subset is {path}, which has other indices than when the run was asked for."
        )
    if choice.data not in (None, settings.data):
        raise UserError(
            f"subset is {path}, whose indices are of {choice.data}, not {settings.data}."
        )
    return choice


def said_of_subset(select: str | None, keep: float | None, subset: str | None) -> str:
    """Chosen samples in words.

    >>> said_of_subset("herding", 0.3, None), said_of_subset(None, None, "runs/mine.npy@0a1b2c3d")
    ('herding 30 %', 'mine.npy')
    """
    if subset is not None:
        return Path(DIGEST.sub("", subset)).name or subset
    if select is None:
        return ""
    return select if keep is None else f"{select} {100 * keep:g} %"


# Tasks --------------------------------------------------------------------------------------------


def on_subset(task: Task, choice: Choice) -> Task:
    """The same task, which trains on the chosen samples, with their weights."""
    num_samples = len(task.train)  # type: ignore[arg-type]  # torch's Dataset has no __len__
    if choice.num_samples not in (None, num_samples) or int(choice.indices.max()) >= num_samples:
        raise UserError(
            f"the subset is one of {choice.num_samples or int(choice.indices.max()) + 1} samples "
            f"or more, but the data set has {num_samples}: choose from this data set."
        )
    part = copy.copy(task)
    part.choice = replace(choice, num_samples=num_samples)
    chosen = Subset(task.train, choice.indices.tolist())
    part.train = chosen
    if choice.weights is not None:
        if type(task).training is not Task.training:
            raise UserError(f"the subset has weights, which the loop of {task.name} does not take.")
        part.train = Weighted(chosen, choice.weights / choice.weights.mean())
        part.collate = partial(collate_weighted, task.collate)
        part.batch_losses = partial(weighted_losses, task)  # type: ignore[method-assign]
    return part


class Weighted(Dataset[Any]):
    """Samples that are fetched in whole batches, each batch with its weights."""

    def __init__(self, samples: Subset[Any], weights: Tensor) -> None:
        self.samples = samples
        self.weights = weights

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.samples[index], self.weights[index]

    def __getitems__(self, indices: list[int]) -> tuple[Any, Tensor]:
        return self.samples.__getitems__(indices), self.weights[torch.tensor(indices)]

    def __len__(self) -> int:
        return len(self.samples)


def collate_weighted(collate: Callable[[Any], Any], fetched: tuple[Any, Tensor]) -> Any:
    """A batch, and its weights."""
    samples, weights = fetched
    return collate(samples), weights


def weighted_losses(
    task: Task, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
) -> BatchLosses:
    """The weights belong to the losses, and not to the scores that a rule prunes by."""
    samples, weights = batch
    losses, scores = task.batch_losses(forward, samples, settings, rng)
    return BatchLosses(losses * weights, losses if scores is None else scores)
