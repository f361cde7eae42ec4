"""What the library costs on the host, against what plain PyTorch does in its place.

    python benchmarks/core.py                            # everything, a few minutes
    python benchmarks/core.py plan epoch                 # some sections
    python benchmarks/core.py plan --sizes 100000 200000

Times are judged as ratios only: both sides run in turns in one process, and the best of several
turns counts. The targets are those of the default sizes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler

from infobatch import Pruner
from infobatch.plan import Plan, draw
from infobatch.rules import RULES, Memory, Rule

PLAN_TARGETS = {("mean", 1_280_000): 3.0, ("mean", 14_000_000): 2.2}
PLAN_TARGETS |= {("tiers", 1_280_000): 4.0, ("tiers", 14_000_000): 4.0}
EPOCH_TARGET = 1.0
MEMORY_TARGETS = {"at rest": 8, "half reported": 24, "planning, peak": 40, "closing, peak": None}
SLOPE_MARGIN = 0.02
MACHINE_GB = 24

BATCH = 256
LARGE_BATCH = 8192


def heading(text: str) -> None:
    print(f"\n{text}\n{'':<42}{'ours':>11}{'reference':>11}{'ratio':>8}{'target':>20}")


def line(
    what: str, ours: str, reference: str = "", ratio: str = "", target: str = "", met: bool = True
) -> None:
    verdict = ("met" if met else "MISSED") if target else ""
    print(f"{what:<42}{ours:>11}{reference:>11}{ratio:>8}{target:>20}  {verdict}", flush=True)


# Time --------------------------------------------------------------------------------------------


def best_times(turns: int, *tasks: Callable[[], object], touch: int = 0) -> list[float]:
    """The best time of each task; they take turns, so that a slow moment meets all of them.

    Before each, untimed, `touch` bytes of memory are written to and freed.
    """
    times: list[list[float]] = [[] for _ in tasks]
    for _ in range(turns):
        for task, taken in zip(tasks, times, strict=True):
            np.ones(touch, dtype=np.uint8)
            start = perf_counter()
            task()
            taken.append(perf_counter() - start)
    return [min(taken) for taken in times]


def time_line(what: str, ours: float, reference: float, at_most: float | None = None) -> None:
    ratio = ours / reference
    scale, unit = (1e3, "ms") if ours >= 1e-3 else (1e6, "us")
    shown = (f"{ours * scale:.1f} {unit}", f"{reference * scale:.1f} {unit}")
    target = "" if at_most is None else f"<= {at_most:.1f} x"
    line(what, *shown, f"{ratio:.2f}", target, at_most is None or ratio <= at_most)


def exponential(length: int) -> Tensor:
    return torch.empty(length).exponential_(generator=torch.Generator().manual_seed(1))


def permute(length: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(1))


def plan_once(rule: Rule, scores: Tensor, memory: Memory) -> Plan:
    """Threshold, draw, weights and shuffle of epoch 1."""
    return draw(rule.groups(scores, memory, epoch=1), seed=0, epoch=1)


def after_first_epoch(rule: Rule, scores: Tensor) -> Memory:
    """What the rule remembers of a full first epoch with these losses: nothing is held yet."""
    unseen = torch.full_like(scores, torch.nan)
    return rule.remember(unseen, {}, 0, torch.arange(len(scores)), scores)


def plan_section(sizes: Sequence[int] = (1_280_000, 14_000_000)) -> None:
    heading("plan: planning one epoch, against torch.randperm(N)")
    names = ("mean", "tiers", "random", "above", "epsilon-greedy", "ucb")
    for size in sizes:
        scores = exponential(size)
        rules = [RULES[name]() for name in names]
        plans = [
            partial(plan_once, rule, scores, after_first_epoch(rule, scores)) for rule in rules
        ]
        turns = 20 if size < 5_000_000 else 7
        reference, *times = best_times(turns, partial(permute, size), *plans)
        for name, ours in zip(names, times, strict=True):
            time_line(f"{name}, N = {size:,}", ours, reference, PLAN_TARGETS.get((name, size)))


def pruner_with_scores(size: int) -> Pruner:
    """A pruner after a first epoch, reported at once."""
    pruner = Pruner(size, num_epochs=100)
    pruner.update(exponential(size), pruner.plan.indices)
    return pruner


def train_pruned(pruners: list[Pruner], losses: Tensor) -> None:
    pruner = pruners.pop()
    for batch in BatchSampler(pruner.sampler, BATCH, drop_last=False):
        pruner.update(losses if len(batch) == BATCH else losses[: len(batch)])


def train_plain(size: int, losses: Tensor) -> None:
    for batch in BatchSampler(RandomSampler(range(size)), BATCH, drop_last=False):
        (losses if len(batch) == BATCH else losses[: len(batch)]).mean()


def step_times(pruner: Pruner, losses: Tensor) -> tuple[float, float]:
    """One update() in order and one losses.mean(), in turns: the medians over an epoch."""
    updates, means = [], []
    for batch in BatchSampler(pruner.sampler, BATCH, drop_last=False):
        own = losses if len(batch) == BATCH else losses[: len(batch)]
        start = perf_counter()
        pruner.update(own)
        between = perf_counter()
        own.mean()
        means.append(perf_counter() - between)
        updates.append(between - start)
    return median(updates), median(means)


def epoch_section(sizes: Sequence[int] = (1_280_000,), turns: int = 15) -> None:
    heading(
        f"epoch: plan, batches of {BATCH}, update() for each and the closing merge, mean rule;\n"
        "against RandomSampler and losses.mean() on all samples"
    )
    losses = exponential(BATCH).requires_grad_()
    for size in sizes:
        pruners = [pruner_with_scores(size) for _ in range(turns)]
        ours, plain = best_times(
            turns, partial(train_pruned, pruners, losses), partial(train_plain, size, losses)
        )
        time_line(f"an epoch, N = {size:,}", ours, plain, EPOCH_TARGET)
        time_line("one update(), losses.mean()", *step_times(pruner_with_scores(size), losses))


# Memory ------------------------------------------------------------------------------------------


def resident(entry: str) -> int:
    """VmRSS, what this process has in memory, or VmHWM, its peak; in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(text.split()[1]) for text in status if text.startswith(entry)) * 1024


def run(size: int, by_index: bool) -> Iterator[str]:
    """A full and a pruned epoch; stops where memory is of interest, and says where."""
    losses = exponential(LARGE_BATCH)
    pruner = Pruner(size, num_epochs=100)
    for _ in range(2):
        yield "at rest"
        half = len(pruner.plan) // LARGE_BATCH // 2
        yield "planning, peak"
        for number, batch in enumerate(BatchSampler(pruner.sampler, LARGE_BATCH, drop_last=False)):
            pruner.update(losses[: len(batch)], batch if by_index else None)
            if number == half:
                yield "half reported"
        yield "closing, peak"
    yield "at rest"


def bytes_per_sample(size: int, by_index: bool, stage: str) -> float:
    """The most that a run has in memory at this stage; a peak is that since the stage before."""
    for _ in run(10 * LARGE_BATCH, by_index):  # loads libraries and starts threads
        pass
    before, most = resident("VmRSS"), 0
    for reached in run(size, by_index):
        if reached == stage:
            most = max(most, resident("VmHWM" if "peak" in stage else "VmRSS") - before)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    return most / size


def peak_gigabytes(size: int) -> float:
    """The peak of a process that reports a first epoch at once and plans the second."""
    assert len(pruner_with_scores(size).plan) < size
    return resident("VmHWM") / 1e9


def in_fresh_process(task: Callable[..., float], *arguments: object) -> float:
    # With a fixed threshold malloc returns every large block as soon as it is freed, so that what
    # is resident is what is alive.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


def memory_section(sizes: Sequence[int] = (10_000_000,)) -> None:
    heading("memory: resident bytes per sample, mean rule, the larger of a full and a pruned epoch")
    for size in sizes:
        for stage, at_most in MEMORY_TARGETS.items():
            for name, by_index in (("in order", False), ("by index", True)):
                ours = in_fresh_process(bytes_per_sample, size, by_index, stage)
                what, target = f"{stage}, {name}, N = {size:,}", f"<= {at_most} B"
                met = at_most is None or round(ours, 1) <= at_most
                line(what, f"{ours:.1f} B", target=target if at_most else "", met=met)


# Growth ------------------------------------------------------------------------------------------


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The power of N that the time grows with, by least squares: 1 is proportional."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def grow(sizes: Sequence[int], name: str, bytes_touched: int) -> None:
    times = []
    for size in sizes:
        plan = partial(plan_once, RULES["mean"](), exponential(size), {})
        turns = max(2, min(15, 20_000_000 // size))
        times.append(best_times(turns, plan, partial(permute, size), touch=bytes_touched * size))
        time_line(f"N = {size:,}{name}", *times[-1])
    if len(sizes) > 1:
        own, other = (slope(sizes, column) for column in zip(*times, strict=True))
        what, target = f"slope of log time over log N{name}", f"<= reference + {SLOPE_MARGIN}"
        met = own <= other + SLOPE_MARGIN
        line(what, f"{own:.3f}", f"{other:.3f}", target=target, met=met)


def growth_section(sizes: Sequence[int] = (10**6, 3 * 10**6, 10**7, 3 * 10**7, 10**8)) -> None:
    heading(
        "growth: planning one epoch, mean rule, against torch.randperm(N); as it comes, and\n"
        "with memory touched before each turn, as a virtual machine fetches it slowly from its host"
    )
    grow(sizes, "", bytes_touched=0)
    grow(sizes, ", touched", bytes_touched=48)
    peak = in_fresh_process(peak_gigabytes, max(sizes))
    what, target = f"peak of a process, N = {max(sizes):,}", f"<= {MACHINE_GB} GB"
    line(what, f"{peak:.2f} GB", target=target, met=peak <= MACHINE_GB)


SECTIONS: dict[str, Callable[..., None]] = {
    "plan": plan_section,
    "epoch": epoch_section,
    "memory": memory_section,
    "growth": growth_section,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the library costs on the host.")
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--sizes", nargs="+", type=int, help="N, in place of the defaults")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in options.sections or SECTIONS:
        SECTIONS[name](*([options.sizes] if options.sizes else []))


if __name__ == "__main__":
    main()
