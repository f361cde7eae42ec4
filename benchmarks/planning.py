"""Planning an epoch: threshold, draw, weights, shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from datacull import DCDataset, DCLogger, RCAPDataLoader, RCAPImportance, RS2DataLoader
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.numpy_scripts import SCRIPTS
from benchmarks.table import Aim, Row, Section
from benchmarks.timing import best_times, exponential, permute
from infobatch.plan import Plan, draw
from infobatch.rules import RULES, Memory, Rule

SIZES = (50_000, 1_280_000, 14_000_000, 100_000_000)
LARGE = 1_280_000
"""From here on a plan is more than the calls it takes."""
AIMS = {"mean": 2.0, "tiers": 3.0}
PEER_LIMIT = 2_000_000
"""The peer shuffles Python lists: beyond this it takes long to wait for."""
PAPER_TABLE_11 = {1_280_000: (0.1234, 0.0130, 0.0012), 14_000_000: (1.6301, 0.2326, 0.0064)}


def plan_once(rule: Rule, scores: Tensor, memory: Memory) -> Plan:
    return draw(rule.groups(scores, memory, epoch=1), seed=0, epoch=1)


def after_first_epoch(rule: Rule, scores: Tensor) -> Memory:
    """What the rule remembers of a full first epoch with these losses."""
    unseen = torch.full_like(scores, torch.nan)
    return rule.remember(unseen, rule.init(len(scores)), 0, torch.arange(len(scores)), scores)


def turns_for(size: int) -> int:
    return max(2, min(20, 40_000_000 // size))


def section(sizes: Sequence[int] = SIZES) -> Section:
    rows = [row for size in sizes for row in rows_of(size)]
    return Section(
        "Planning an epoch",
        "Threshold, draw, weights and shuffle of one epoch on exponentially distributed scores, "
        "against `torch.randperm(N)`, `torch.sort(scores)`, the same rule as a plain NumPy script "
        "and what `datacull` does between two epochs that keep a half: RS2 with replacement beside "
        "Random*, and beside the mean rule RCAP, another algorithm (a draw by loss within each "
        "class), without the log of losses that it reads from disk; up to "
        f"N = {PEER_LIMIT:,}.",
        rows,
    )


def rows_of(size: int) -> list[Row]:
    scores = exponential(size)
    ours: dict[str, Callable[[], object]] = {}
    for name in SCRIPTS:
        rule = RULES[name]()
        ours[name] = partial(plan_once, rule, scores, after_first_epoch(rule, scores))
    peers = datacull_peers(scores) if size <= PEER_LIMIT else {}
    times = best_times(
        turns_for(size),
        {
            "randperm": partial(permute, size),
            "sort": lambda: torch.sort(scores),
            **ours,
            **{
                f"NumPy {name}": partial(script, scores.numpy(), np.random.default_rng(1))
                for name, script in SCRIPTS.items()
            },
            **{f"datacull {name}": task for name, task in peers.items()},
        },
    )
    rows = []
    for name in ours:
        others = {
            "randperm": times["randperm"],
            "sort": times["sort"],
            "NumPy script": times[f"NumPy {name}"],
        }
        if name in peers:
            others["datacull"] = times[f"datacull {name}"]
        aim = Aim(AIMS[name], "randperm") if name in AIMS and size >= LARGE else None
        rows.append(Row(f"{name}, N = {size:,}", times[name], "s", others, aim))
    return rows


class Labelled(Dataset[tuple[int, int]]):
    """Labels and nothing else: all that the peer looks at."""

    def __init__(self, num_samples: int, num_classes: int) -> None:
        self.targets = np.arange(num_samples) % num_classes

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(self.targets[index])


def datacull_peers(scores: Tensor) -> dict[str, Callable[[], object]]:
    """What `datacull` does between two epochs, by the name of our nearest rule."""
    num_classes = 1000 if len(scores) >= LARGE else 100
    data = DCDataset(Labelled(len(scores), num_classes))
    random = RS2DataLoader(data, pruning_rate=0.5, sampling_with_replacement=True)
    by_class = RCAPDataLoader(data, pruning_rate=0.5)
    with TemporaryDirectory() as folder:
        importance = RCAPImportance(data, DCLogger(str(Path(folder)) + "/"), beta=1.0)

    def resample_by_loss() -> None:
        importance.epoch = -1  # as before the first epoch: from memory, not from a log on disk
        importance.sample_losses = scores.double().numpy()
        by_class.resample(importance.compute_importance())

    return {"random": lambda: random.resample([]), "mean": resample_by_loss}


# The paper's Table 11 -----------------------------------------------------------------------------


def table_11(sizes: Sequence[int] = tuple(PAPER_TABLE_11)) -> Section:
    rows = []
    for size in sizes:
        values = exponential(size).numpy()
        times = best_times(
            turns_for(size),
            {
                "sort": partial(np.sort, values),
                "percentile": partial(np.percentile, values, 80),
                "mean": partial(np.mean, values),
            },
        )
        paper = dict(zip(times, PAPER_TABLE_11.get(size, ()), strict=False))
        for name, ours in times.items():
            others = {"the sort": times["sort"]}
            if name in paper:
                others["the paper's"] = paper[name]
            rows.append(Row(f"{name}, N = {size:,}", ours, "s", others))
    return Section(
        "The paper's Table 11: what a threshold costs",
        "The three operations in NumPy, beside the paper's times on its own machine. A mean is "
        "much cheaper than the others in both; NumPy's sort of today, vectorised, is not dearer "
        "than its percentile, which contradicts the paper.",
        rows,
    )
