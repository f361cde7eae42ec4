"""How much time pruning saves in each task: the time of a step, and that of the published runs.

A step is timed with a full batch, and with one of 61 % of its samples, as `tiers` makes them with
`shrink="batch"`. If its time were proportional to its samples, the second would take 61 %.

The seconds of the published runs cannot be compared: they shared a machine. So the time of a run is
put together from what can be: its steps, the time of a step with as many samples, and the part of
its own training time that went into planning and `update`.

Use a machine that does nothing else. All seconds are written to step-times.json, beside this file.

python results/step_times.py camvid sst2 pet-faces=unet-32
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import torch
from torch.utils.data import DataLoader

from infobatch_lab.images import default_folder
from infobatch_lab.lines import Run
from infobatch_lab.provenance import provenance
from infobatch_lab.runs import read
from infobatch_lab.seeding import generator
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.training import optimizer_of

KEPT = 0.61
NUM_STEPS = 9


def seconds(data: str, model: str | None) -> dict[int, list[float]]:
    """The seconds of each step, by batch size: of full batches, then of smaller ones."""
    chosen, task = settings(data, model=model), load(data, default_folder())
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
    return times


def time_saved(run: Run, part: float, ratio: float) -> float:
    """The part of full training's time that a pruned run saves.

    A step with `part` of the samples takes `ratio` of the time; between that and a full batch the
    time is taken from a straight line. With fewer batches every step is a full one.
    """
    slope = (1 - ratio) / (1 - part) if run.shrink == "batch" else 1.0
    steps = mean(1 - slope * (1 - kept) for kept in run.kept_fractions)
    planning = (run.pruning_seconds or 0.0) / (run.train_seconds or 1.0)
    return 1 - steps / (1 - planning)


def rows_of_runs(data: str, runs: Iterable[Run], part: float, ratio: float) -> list[str]:
    """A row of the second table for each rule and mode that prunes; means over the seeds."""
    methods: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.rule != "full":
            methods[run.rule, run.shrink].append(run)
    rows = []
    for (rule, shrink), found in methods.items():
        name = f"`{rule}`" + (", smaller batches" if shrink == "batch" else "")
        samples = mean(1 - mean(run.kept_fractions) for run in found)
        time = mean(time_saved(run, part, ratio) for run in found)
        rows.append(f"| `{data}` | {name} | {samples:.1%} | {time:.1%} |")
    return rows


def main() -> None:
    torch.set_num_threads(1)
    print("| task | samples | a step, ms | samples | a step, ms | time of a smaller step |")
    print("| --- | --: | --: | --: | --: | --: |")
    table, record = [], {}
    for argument in sys.argv[1:]:
        data, _, model = argument.partition("=")
        record[data] = times = seconds(data, model or None)
        full, smaller = times
        full_time, time = (median(times[size][1:]) for size in times)  # the first warms up
        row = (f"`{data}`", full, round(1e3 * full_time), smaller, round(1e3 * time))
        print(f"| {' | '.join(map(str, row))} | {time / full_time:.0%} |")
        runs, _ = read([Path(__file__).parent / data / "runs.jsonl"])
        table += rows_of_runs(data, runs, smaller / full, time / full_time)
    print("\n| task | method | samples saved | time saved |\n| --- | --- | --: | --: |")
    print("\n".join(table))
    log = {**provenance(), "command": " ".join(sys.argv), "seconds": record}
    Path(__file__).with_name("step-times.json").write_text(json.dumps(log) + "\n")


if __name__ == "__main__":
    main()
