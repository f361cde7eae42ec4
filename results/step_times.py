"""How long a step of each task takes with a full batch, and with one of 61 % of its samples.

`tiers` with `shrink="batch"` makes such batches. If a step's time were proportional to its samples,
the second would take 61 % of the first. Use a machine that does nothing else.

python results/step_times.py camvid sst2
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import torch
from torch.utils.data import DataLoader

from infobatch_lab.images import default_folder
from infobatch_lab.seeding import generator
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.training import optimizer_of

KEPT = 0.61
NUM_STEPS = 9


def seconds(data: str) -> tuple[int, float, int, float]:
    """The batch size and the median seconds of a step: of full batches, then of smaller ones."""
    chosen, task = settings(data), load(data, default_folder())
    network = task.network(chosen).train()
    optimizer = optimizer_of(chosen, network)
    sizes = (chosen.batch_size, round(KEPT * chosen.batch_size))
    times: dict[int, list[float]] = {size: [] for size in sizes}
    loaders = [
        iter(DataLoader(task.train, size, shuffle=True, collate_fn=task.collate)) for size in sizes
    ]
    for step in range(NUM_STEPS):
        for size, loader in zip(sizes, loaders, strict=True):  # in turns
            start = perf_counter()
            losses, _ = task.batch_losses(network, next(loader), chosen, generator("time", step))
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            times[size].append(perf_counter() - start)
    full, smaller = sizes
    return full, median(times[full][1:]), smaller, median(times[smaller][1:])


def main() -> None:
    torch.set_num_threads(1)
    print("| task | samples | a step, ms | samples | a step, ms | time of a smaller step |")
    print("| --- | --: | --: | --: | --: | --: |")
    for data in sys.argv[1:]:
        full, full_time, smaller, time = seconds(data)
        row = (f"`{data}`", full, round(1e3 * full_time), smaller, round(1e3 * time))
        print(f"| {' | '.join(map(str, row))} | {time / full_time:.0%} |")


if __name__ == "__main__":
    main()
