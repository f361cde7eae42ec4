"""The contract of a task. A task is one file: data, a network, losses, a metric, defaults.

The frame does the rest: the loop, pruning, checkpoints that resume to the last bit, processes,
comparison with full training, tables, figures and the command line. `docs/experiments.md` shows
how to add a task, and `classification.py` is the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from infobatch_lab.download import Fetching
from infobatch_lab.metrics import Metric

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings
    from infobatch_lab.subsets import Choice
    from infobatch_lab.training import Training

Forward = Callable[..., Any]
"""The network as the loop calls it: wrapped for several processes, compiled, or in bfloat16."""


class BatchLosses(NamedTuple):
    """One loss per sample, and one score per sample where the rule should see something else."""

    losses: Tensor
    scores: Tensor | None = None


@dataclass(frozen=True)
class NoOptions:
    """The options of a task that has none of its own."""


class Task(ABC):
    """Data to train on, a network, the losses of a batch, and a metric."""

    name: ClassVar[str]
    """The kind of task, for tables: "classification"."""
    metric: ClassVar[Metric]
    """Runs are compared by this one of the metrics that `evaluate` returns at the end of a run."""
    models: ClassVar[tuple[str, ...]]
    """The networks it knows, by name; a name that ends in ":" stands for a family of them."""
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass of settings that only this task has, declared with `setting(...)`. They
    become options of the command line, and `settings.options` in the methods below."""

    train: Dataset[Any]
    """Map-style. With `__getitems__` a batch is fetched in one call."""
    num_test: int
    """How many samples the metric is measured on."""

    choice: Choice | None = None
    """Which samples `train` has, where they were chosen from a larger data set."""

    collate: Callable[[Any], Any] = staticmethod(default_collate)
    """Makes a batch of fetched items, as in torch's DataLoader; a static method, or a function."""

    @abstractmethod
    def network(self, settings: Settings) -> nn.Module:
        """A new network on the CPU, with its random weights from torch's global generator."""

    @abstractmethod
    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        """The losses of a batch, which is on the network's device: one per sample, in order.

        All randomness (augmentation, masks, noise) comes from `rng`, which is on the CPU and
        depends on the place in the run: a resumed run then repeats it. The frame multiplies the
        losses with the weights of their samples, takes the mean and calls `backward()`.
        """

    @abstractmethod
    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """Metrics after an epoch, by name; the network is in evaluation mode.

        With `final` the value of `metric` must be among them. An expensive one may be left out
        before. Torch's global generator is seeded alike for every run of a seed, and restored.
        """

    def training(self, settings: Settings, *, workers: int = 0) -> Training:
        """A run at its first step, in the frame's own loop; override it for another loop."""
        from infobatch_lab.training import Training

        return Training(settings, self, workers=workers)

    def labelled(self) -> Dataset[Any] | None:
        """Pairs (input of the network, class), in the order of `train` and without augmentation:
        `--select` judges samples by them. None for a task without classes.
        """
        return None

    def figures(  # noqa: B027  # most tasks have none
        self, network: nn.Module, settings: Settings, folder: Path
    ) -> None:
        """Write images that a person wants to see of a finished run; by default there are none."""


@dataclass(frozen=True)
class Recipe:
    """A value of `--data`: its task, how its files are read, and the settings that suit it."""

    task: type[Task]
    read: Callable[[Path, Fetching], Task]
    """Gets the folder of data sets, or PATH where the value of `--data` is `name:PATH`."""
    files: str = ""
    """Where its files are, below the folder of data sets; the documentation must say it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values for `Settings` and for the task's `Options`: model, epochs and batch_size at least."""
