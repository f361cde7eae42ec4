"""Past one machine: a cost model, checked against what was measured, and shards in simulation.

docs/scale.md explains both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.table import Aim, Row, Section
from benchmarks.timing import exponential
from infobatch.groups import Groups
from infobatch.plan import Plan, draw
from infobatch.rules import Mean

KEPT = 1 - 0.5 * (1 - np.exp(-1))
"""What the mean rule keeps of exponentially distributed scores with r = 0.5."""


# The model ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Of a run with N samples on K ranks that keeps the fraction q of an epoch."""

    n: int
    k: int = 1
    q: float = float(KEPT)

    @property
    def bytes_at_rest(self) -> float:
        """Scores."""
        return 4 * self.n

    @property
    def bytes_during_epoch(self) -> float:
        """Scores, the plan's indices and weights; the rank's own losses, and its own indices."""
        own_indices = 8 / self.k if self.k > 1 else 0
        return (4 + self.q * (8 + 4 + 4 / self.k + own_indices)) * self.n

    @property
    def bytes_planning(self) -> float:
        """Scores, groups; samples and their order in int32; the plan."""
        return (4 + 1 + self.q * (4 + 4 + 8 + 4)) * self.n

    @property
    def bytes_merged(self) -> float:
        """What a rank sends, and receives, in a ring."""
        return 2 * (self.k - 1) / self.k * 4 * self.q * self.n

    @property
    def bytes_of_checkpoint(self) -> float:
        return 4 * self.n


MODELLED = {"plan", "memory", "merge", "checkpoint"}
"""The sections that the model is compared with."""


def figure(section: Section, what: str) -> float:
    return next(row.ours for row in section.rows if row.what == what)


def model_section(measured: Mapping[str, Section]) -> Section:
    """What the model says of the points that were measured."""
    plan, fitted_at = measured["plan"], 14_000_000
    seconds_per_sample = figure(plan, f"mean, N = {fitted_at:,}") / fitted_at
    rows = [
        Row(
            f"plan, N = {n:,}",
            figure(plan, f"mean, N = {n:,}"),
            "s",
            {"the model": seconds_per_sample * n},
        )
        for n in (1_280_000, fitted_at, 100_000_000)
    ]
    memory, n = measured["memory"], 10_000_000
    costs = Costs(n)
    # Half of the losses are there when half of them are reported. What was measured is the larger
    # of a pruned epoch and a full one, which has all indices, half of the losses and no weights.
    halfway = costs.bytes_during_epoch - costs.q * 2 * n
    halfway_full = (4 + 8 + 2) * n
    for stage, model in (
        ("at rest", costs.bytes_at_rest),
        ("half reported", max(halfway, halfway_full)),
        ("planning, peak", costs.bytes_planning),
    ):
        what = f"{stage}, in order, N = {n:,}"
        rows.append(Row(what, figure(memory, what), "B", {"the model": model / n}))
    for k in (2, 4):
        what = f"bytes, {k} processes, N = 1,280,000"
        model = Costs(1_280_000, k).bytes_merged / 1e6
        rows.append(Row(what, figure(measured["merge"], what), "MB", {"the model": model}))
    for n in (1_280_000, 14_000_000):
        size = figure(measured["checkpoint"], f"size, N = {n:,}")
        model = Costs(n).bytes_of_checkpoint / 1e6
        rows.append(Row(f"checkpoint, N = {n:,}", size, "MB", {"the model": model}))
    return Section(
        "The cost model against these measurements",
        "The model of docs/scale.md. One number is fitted, the time to plan: "
        f"{seconds_per_sample * 1e9:.0f} ns per sample, taken at N = {fitted_at:,}, where it is "
        "exact by construction.",
        rows,
    )


# Shards -------------------------------------------------------------------------------------------


def sharded_section(num_samples: int = 2_000_000, num_shards: int = 64) -> Section:
    """The design of docs/scale.md in one process, against scores that every rank has."""
    scores = exponential(num_samples).numpy()
    shards = [scores[shard::num_shards] for shard in range(num_shards)]
    threshold = agreed_mean(shards)
    replicated = float(scores.mean(dtype=np.float64))
    quantile_place = int(0.85 * num_samples)
    plans = plan_shards(shards, threshold, prune_ratio=0.5)
    sizes = [len(plan) for plan in plans]
    num_kept = sum(sizes)
    of_mean_rule = draw(Mean().groups(exponential(num_samples), {}, 1), 0, 1)
    weight = sum(float(plan.weights.double().sum()) for plan in plans)
    selected = agreed_order_statistic(shards, quantile_place)
    partitioned = np.partition(scores, quantile_place)[quantile_place]
    excess = num_kept / len(of_mean_rule) - 1
    return Section(
        "Sharded scores, simulated",
        "Each shard plans its own samples, and only the threshold is agreed on, as docs/scale.md "
        f"has it: {num_shards} shards of {num_samples:,} scores in one process, against scores "
        "that every rank has. The last row is of drawn counts alone.",
        [
            Row("relative error of the mean", abs(threshold / replicated - 1), "", aim=Aim(1e-12)),
            Row("error of the 85 % quantile", abs(float(selected - partitioned)), "", aim=Aim(0)),
            Row("most kept less fewest kept", max(sizes) - min(sizes), "", aim=Aim(0)),
            Row("mean weight", weight / num_samples, ""),
            Row("kept beyond the mean rule", 100 * excess, "%"),
            Row("the same, 1,024 shards of a billion", 100 * drawn_excess(10**9, 1024), "%"),
        ],
    )


def agreed_mean(shards: list[NDArray[np.float32]]) -> float:
    """From a sum and a count of each shard, added up in the order of the ranks."""
    parts = [(shard.sum(dtype=np.float64), len(shard)) for shard in shards]
    return float(sum(total for total, _ in parts) / sum(count for _, count in parts))


def agreed_order_statistic(shards: list[NDArray[np.float32]], place: int) -> np.float32:
    """The score at this place of all, sorted: digit by digit, from histograms that add up."""
    keys = [ordered_bits(shard) for shard in shards]
    prefix = 0
    for shift, bits in ((21, 11), (10, 11), (0, 10)):
        histogram = np.zeros(2**bits, dtype=np.int64)
        for key in keys:
            of_prefix = key[key >> (shift + bits) == prefix]
            digits = (of_prefix >> shift) & (2**bits - 1)
            histogram += np.bincount(digits, minlength=2**bits)
        digit = int(np.searchsorted(histogram.cumsum(), place, side="right"))
        place -= int(histogram[:digit].sum())
        prefix = prefix << bits | digit
    return from_ordered_bits(prefix)


def ordered_bits(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Whole numbers in the order of the floats."""
    bits = values.view(np.uint32).astype(np.int64)
    return np.where(bits >> 31, 0xFFFFFFFF - bits, bits + 0x80000000)


def from_ordered_bits(key: int) -> np.float32:
    bits = key - 0x80000000 if key >> 31 else 0xFFFFFFFF - key
    return np.uint32(bits).view(np.float32)


def plan_shards(
    shards: list[NDArray[np.float32]], threshold: float, prune_ratio: float
) -> list[Plan]:
    """Equally many samples of each shard: the most that one of them needs."""
    lows = [int(np.count_nonzero(shard < threshold)) for shard in shards]
    needed = [
        len(shard) - low + round(low * (1 - prune_ratio))
        for shard, low in zip(shards, lows, strict=True)
    ]
    most = min(max(needed), min(len(shard) for shard in shards))
    plans = []
    for rank, (shard, low) in enumerate(zip(shards, lows, strict=True)):
        keep_of_low = (most - (len(shard) - low)) / low if low else 1.0
        of = torch.from_numpy((shard < threshold).view(np.uint8))
        plans.append(draw(Groups(of, keep=(1.0, keep_of_low)), seed=rank, epoch=1))
    return plans


def drawn_excess(num_samples: int, num_shards: int) -> float:
    """How much more than the mean rule: the largest of the shards' needs, beyond their mean."""
    rng, size = np.random.default_rng(0), num_samples // num_shards
    lows = rng.binomial(size, 1 - np.exp(-1), size=num_shards)
    needed = size - 0.5 * lows
    return float(needed.max() / needed.mean() - 1)
