"""Do batches of harder samples spoil batch norm? The same trainings with weighted statistics.

A pruned epoch has fewer easy samples than the data, so the mean and the variance that batch norm
takes from its batches are those of harder samples. Here each sample counts in them as often as it
stands for others: n/m, where m of n samples are kept, also where the rule leaves its weights at 1.
So the statistics are those of all data, in expectation. Everything else is as in `infobatch train`.

Lines with weighted statistics go to a file whose name ends in `-weighted`. Each line also has
`accuracy_recomputed`: the accuracy of the finished network after its statistics were computed anew,
from all training images.

python results/norm_statistics.py fashion-mnist-long-tail 5 results/search-long-tail/norms.jsonl
python results/norm_statistics.py fashion-mnist 3 results/search-fashion/norms.jsonl focus:1
cd results/search-long-tail
python ../paired.py norms-weighted.jsonl norms.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from infobatch_lab import runs
from infobatch_lab.images import default_folder
from infobatch_lab.settings import Settings, settings
from infobatch_lab.tasks import load
from infobatch_lab.training import Training

METHODS = (
    "full:0.875,focus:1,tiers:0.875,focus:0.875,"
    "weighted-tiers:0.875,weighted-focus:0.875,weighted-focus:1"
)
"""Rules, and the part of the epochs in which they prune: with 1 the last batches are pruned too."""

WEIGHTED = "weighted-"
"""Before a rule: batch norm takes weighted statistics."""

BATCH = 500


class WeightedBatchNorm(nn.Module):
    """Batch norm in which sample i counts w_i times: mean = sum w x / sum w, and so the variance.

    >>> norm = WeightedBatchNorm(nn.BatchNorm2d(3))
    >>> norm.weights = torch.tensor([2.0, 1.0])
    >>> x = torch.randn(2, 3, 4, 4)
    >>> same = nn.BatchNorm2d(3)(torch.cat([x[:1], x]))[1:]
    >>> bool(torch.allclose(norm(x), same, atol=1e-5))
    True
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm
        self.weights = torch.ones(1)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        if not self.training:
            result: Tensor = norm(x)
            return result
        shares = (self.weights / self.weights.sum()).to(x.dtype)
        mean = shares @ x.mean((2, 3))
        centred = x - mean[:, None, None]
        variance = shares @ centred.square().mean((2, 3))
        for running, now in ((norm.running_mean, mean), (norm.running_var, variance)):
            assert running is not None
            assert norm.momentum is not None
            running.lerp_(now.detach(), norm.momentum)
        scale = norm.weight * (variance + norm.eps).rsqrt()
        return centred * scale[:, None, None] + norm.bias[:, None, None]


class WeightedNorms(Training):
    """A run whose batch norms count each sample as often as it stands for others."""

    def _prepare(self, workers: int) -> None:
        for part in list(self.model.modules()):
            for name, norm in part.named_children():
                if isinstance(norm, nn.BatchNorm2d) and not isinstance(part, WeightedBatchNorm):
                    setattr(part, name, WeightedBatchNorm(norm))
        super()._prepare(workers)

    def _step(self, batch: Any) -> None:
        begin, counts = self.train_data.num_reported, self.train_data.plan.counts
        assert counts is not None
        for norm in self.model.modules():
            if isinstance(norm, WeightedBatchNorm):
                norm.weights = counts[begin : begin + len(batch[1])]
        super()._step(batch)


@torch.no_grad()
def with_statistics_of_all(training: Training) -> float:
    """The accuracy after the statistics of batch norm were computed from all training images."""
    model, inputs = training.model.eval(), training.task.labelled()
    assert inputs is not None
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
            norm.train()
    rng = torch.Generator().manual_seed(0)  # classes may be sorted
    for images, _ in DataLoader(inputs, BATCH, shuffle=True, generator=rng):
        model(images)
    return training.task.evaluate(model.eval(), training.settings, final=True)["accuracy"]


def wanted(data: str, num_seeds: int, methods: str) -> Iterator[tuple[Settings, bool]]:
    """Settings, and whether the statistics are weighted."""
    for seed in range(num_seeds):
        for name, delta in (method.split(":") for method in methods.split(",")):
            rule = name.removeprefix(WEIGHTED)
            chosen = settings(data, seed=seed, rule=rule, delta=float(delta), shrink="batch")
            yield chosen, name != rule


def main() -> None:
    data, num_seeds, file, *methods = sys.argv[1:]
    task = load(data, default_folder())
    for chosen, is_weighted in wanted(data, int(num_seeds), *(methods or [METHODS])):
        path = Path(file)
        if is_weighted:
            path = path.with_stem(f"{path.stem}-weighted")
        lines = [json.loads(line) for line in path.open()] if path.exists() else []
        done = [(line["rule"], line["delta"], line["seed"]) for line in lines]
        if (chosen.rule, chosen.delta, chosen.seed) in done:
            continue
        training = (WeightedNorms if is_weighted else Training)(chosen, task)
        training.run(lambda progress: True)
        line = training.result()
        line["accuracy_recomputed"] = with_statistics_of_all(training)
        runs.append(path, line)
        print(chosen.name, is_weighted, line["accuracy"], line["accuracy_recomputed"])


if __name__ == "__main__":
    main()
