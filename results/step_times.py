"""How much time pruning saves in each task: the time of a step, and that of the published runs.

A step is timed with a full batch, and with the first 61 % of the same samples, as many as `tiers`
trains with `shrink="batch"`. If its time were proportional to its samples, the second would take
61 %.

The seconds of the published runs cannot be compared: they shared a machine. So the time of a run is
put together from what can be: its steps, its samples, and the part of its own training time that
went into planning and `update`. The time of a step and that of a sample are taken from a straight
line through the two sizes of batches.

The steps are those of the frame's own loop. `alpaca` trains in transformers' Trainer, whose steps
also compute the losses of the tokens a second time.

Use a machine that does nothing else. All seconds are written to step-times.json, beside this file;
those of tasks that are not named stay as they are.

python results/step_times.py camvid sst2 pet-faces=unet-32
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from statistics import median, stdev
from time import perf_counter
from typing import Any, cast

import torch
from scipy.special import stdtrit
from torch.utils.data import DataLoader

from infobatch_lab.comparison import Method, compare
from infobatch_lab.images import default_folder
from infobatch_lab.lines import Run
from infobatch_lab.provenance import provenance
from infobatch_lab.runs import read
from infobatch_lab.seeding import generator
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.training import optimizer_of

KEPT = 0.61
NUM_STEPS = 41
"""The first warms up, and does not count."""
RECORD = Path(__file__).with_name("step-times.json")


def seconds(data: str, model: str | None) -> dict[int, list[float]]:
    """The seconds of each step, by batch size: of full batches, then of the first part of each."""
    chosen, task = settings(data, model=model), load(data, default_folder())
    network = task.network(chosen).train()
    optimizer = optimizer_of(chosen, network)
    sizes = (chosen.batch_size, round(KEPT * chosen.batch_size))
    times: dict[int, list[float]] = {size: [] for size in sizes}
    places = torch.randperm(NUM_STEPS * sizes[0], generator=generator("time", 0))
    batches = places.remainder(len(cast(Sized, task.train))).view(NUM_STEPS, sizes[0])

    def loader(size: int) -> DataLoader[Any]:
        of_size = batches[:, :size].tolist()
        return DataLoader(task.train, batch_sampler=of_size, collate_fn=task.collate)

    loaders = [iter(loader(size)) for size in sizes]
    for step in range(NUM_STEPS):
        for size, batch_of in zip(sizes, loaders, strict=True):  # in turns
            start = perf_counter()
            losses, _ = task.batch_losses(network, next(batch_of), chosen, generator("time", step))
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            times[size].append(perf_counter() - start)
    return times


def ratio(times: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """The part of a full step's time that a smaller one takes, and half of its 95 % interval.

    >>> ratio({8: [9.0, 4.0, 2.0], 4: [9.0, 2.0, 1.0]})
    (0.5, 0.0)
    """
    full, smaller = (found[1:] for found in times.values())
    ratios = [small / whole for whole, small in zip(full, smaller, strict=True)]
    t = float(stdtrit(len(ratios) - 1, 0.975))
    return median(smaller) / median(full), t * stdev(ratios) / len(ratios) ** 0.5


def line_through(times: Mapping[int, float]) -> tuple[float, float]:
    """The time of a step without samples, and that of each sample, from steps of two sizes.

    >>> line_through({8: 5.0, 4: 3.0})
    (1.0, 0.5)
    """
    (full, full_time), (smaller, time) = times.items()
    per_sample = (full_time - time) / (full - smaller)
    return full_time - full * per_sample, per_sample


def seconds_of(method: Method, times: Mapping[int, float]) -> float:
    """What a run takes on a quiet machine: its steps, its samples, its planning and `update`."""
    per_step, per_sample = line_through(times)
    num_steps, num_trained = (method.mean_of(name) for name in ("num_steps", "num_trained"))
    if num_steps is None or num_trained is None:
        raise ValueError(f"a run of {method.name} does not say its num_steps.")
    return (num_steps * per_step + num_trained * per_sample) / (1 - (method.overhead or 0.0))


def rows_of_runs(data: str, runs: Sequence[Run], times: Mapping[int, float]) -> list[str]:
    """A row of the second table for each method that prunes; means over the seeds."""
    rows = []
    for comparison in compare(runs)[0]:
        for method in comparison.methods:
            if method.rule != "full" and comparison.full is not None:
                samples = comparison.samples_saved(method)
                time = 1 - seconds_of(method, times) / seconds_of(comparison.full, times)
                rows.append(f"| `{data}` | `{method.name}` | {samples:.1%} | {time:.1%} |")
    return rows


def main() -> None:
    if len(sys.argv) == 1:
        raise SystemExit("no task is named: python results/step_times.py camvid sst2")
    torch.set_num_threads(1)
    print("| task | samples | a step, ms | samples | a step, ms | time of a smaller step (95 %) |")
    print("| --- | --: | --: | --: | --: | --: |")
    record = json.loads(RECORD.read_text())["seconds"] if RECORD.exists() else {}
    table = []
    for argument in sys.argv[1:]:
        data, _, model = argument.partition("=")
        record[data] = times = seconds(data, model or None)
        medians = {size: median(found[1:]) for size, found in times.items()}
        (full, full_time), (smaller, time) = medians.items()
        part, half = ratio(times)
        row = (f"`{data}`", full, round(1e3 * full_time), smaller, round(1e3 * time))
        print(f"| {' | '.join(map(str, row))} | {part:.0%} ± {half:.0%} |", flush=True)
        runs, _ = read([RECORD.parent / data / "runs.jsonl"])
        table += rows_of_runs(data, runs, medians)
    print("\n| task | method | samples saved | time saved |\n| --- | --- | --: | --: |")
    print("\n".join(table))
    log = {**provenance(), "command": " ".join(sys.argv), "seconds": record}
    RECORD.write_text(json.dumps(log) + "\n")


if __name__ == "__main__":
    main()
