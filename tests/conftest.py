from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from infobatch import InfoBatch
from infobatch.rules import (
    IES,
    RCAP,
    RS2,
    RULES,
    UCB,
    Above,
    Every,
    Focus,
    Full,
    Mean,
    Memory,
    PerClass,
    Probabilities,
    Revisit,
    Rule,
    SeTa,
    Tiers,
    Until,
    Windows,
)

# One thread, here and in processes started from here: so sums are rounded alike on any machine.
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines announce AMX and kill the process that uses it: bfloat16 does without it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch.set_num_threads(1)

# The same examples everywhere, and no deadline: nothing here depends on the clock.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=200)
hypothesis.settings.load_profile("steady")


class Numbers(Dataset[int]):
    """Item i is i, so a batch says which samples it holds."""

    def __init__(self, length: int) -> None:
        self.targets = [i % 3 for i in range(length)]
        self.classes = ["a", "b", "c"]

    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return len(self.targets)


def loss_of(samples: Tensor, epoch: int = 0) -> Tensor:
    """A loss that is different for every sample and epoch, with a long tail."""
    return ((samples * 2654435761) % 1009).float() ** 2 / 1009 + epoch


def labels(num_samples: int) -> list[int]:
    return [i % 3 for i in range(num_samples)]


@dataclass(frozen=True)
class ByLoss(Rule):
    """Keeps a sample with a probability that grows with its loss. Biased with `rescale=False`."""

    rescale: bool = True

    @property
    def unbiased(self) -> bool:
        return self.rescale

    @property
    def max_groups(self) -> None:
        return None

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Probabilities:
        p = (scores / (2 * scores.nanmean())).clamp(0.1, 1)
        return Probabilities(p.nan_to_num(nan=1.0), rescale=self.rescale)


def every_rule(num_samples: int) -> dict[str, Rule]:
    """Each rule of the table and the settings and combinations that are rules of their own."""
    rules: dict[str, Rule] = {name: make() for name, make in RULES.items()}
    rules["mean-0.9"] = Mean(0.9)
    rules["mean-unscaled"] = Mean(rescale=False)
    rules["above-0.3"] = Above(0.3)
    rules["tiers-3"] = Tiers(((0.1, 0.9), (0.5, 0.6), (1.0, 0.2)))
    rules["focus-trimmed"] = Focus(trim=0.2)
    rules["every-focus-trimmed"] = Every(Focus(trim=0.2), 2)
    rules["until"] = Until(Mean(), 100)
    rules["every-mean"] = Every(Mean(), 3)
    rules["per-class-mean"] = PerClass(Mean(), labels(num_samples))
    rules["per-class-tiers"] = PerClass(Tiers(), labels(num_samples))
    rules["every-per-class-full"] = Every(PerClass(Full(), labels(num_samples)), 2)
    rules["every-per-class-mean"] = Every(PerClass(Mean(), labels(num_samples)), 2)
    rules["every-per-class-ucb"] = Every(PerClass(UCB(), labels(num_samples)), 2)
    rules["per-class-rs2"] = PerClass(RS2(), labels(num_samples))
    rules["per-class-ies"] = PerClass(IES(), labels(num_samples))
    rules["per-class-windows"] = PerClass(Windows(), labels(num_samples))
    rules["every-seta"] = Every(SeTa(), 2)
    rules["rcap-labels"] = RCAP(labels=labels(num_samples))
    rules["every-rcap"] = Every(RCAP(labels=labels(num_samples)), 2)
    rules["revisit-mean"] = Revisit(Mean(), 1)
    rules["revisit-by-loss"] = Revisit(ByLoss(), 1)
    rules["revisit-per-class-ucb"] = Revisit(PerClass(UCB(), labels(num_samples)), 2)
    rules["by-loss"] = ByLoss()
    rules["by-loss-unscaled"] = ByLoss(rescale=False)
    rules["every-by-loss"] = Every(ByLoss(), 3)
    rules["every-per-class-by-loss"] = Every(PerClass(ByLoss(), labels(num_samples)), 3)
    return rules


RULE_NAMES = sorted(every_rule(3))
UNBIASED = [name for name in RULE_NAMES if every_rule(3)[name].unbiased]
BIASED = [name for name in RULE_NAMES if not every_rule(3)[name].unbiased]


def train_epoch(data: InfoBatch[int], batch_size: int = 8) -> None:
    """One epoch by index, with `loss_of`."""
    epoch = data.epoch
    for indices in data.plan.indices.split(batch_size):
        data.update(loss_of(indices, epoch), indices)


def same_state(one: Any, other: Any) -> bool:
    """Whether two checkpoints are equal, bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[k], other[k]) for k in one)
    if isinstance(one, Tensor):
        return bool(one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes())
    return bool(one == other)


SLOW = (
    "integrations/",
    "lab/tasks/",
    "lab/test_cli",
    "lab/test_gradients",
    "lab/test_queue",
    "lab/test_report",
    "lab/test_sweep",
    "lab/test_training",
    "test_benchmarks",
    "test_distributed",
    "test_docs",
    "test_recipes",
)
"""Files in which every test starts processes or trains; elsewhere single tests are marked."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out whose tests are all slow: importing what they need takes half a minute."""
    is_fast = config.option.markexpr == "not slow"
    return True if is_fast and any(part in collection_path.as_posix() for part in SLOW) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(part in item.nodeid for part in SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def data() -> InfoBatch[int]:
    return InfoBatch(Numbers(100), num_epochs=10)


@pytest.fixture(autouse=True)
def _seed_torch() -> None:
    torch.manual_seed(0)
