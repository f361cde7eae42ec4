"""The error norm(p - y) as the score, in place of the loss: the same trainings, with other scores.

p is the softmax of a sample's logits and y its label, one-hot. The norm is that of the gradient of
the cross entropy at the logits.

python results/error_scores.py fashion-mnist-long-tail 5 results/search-long-tail/error-scores.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from infobatch_lab import runs
from infobatch_lab.images import default_folder
from infobatch_lab.settings import Settings, settings
from infobatch_lab.tasks import load
from infobatch_lab.tasks.base import BatchLosses, Forward
from infobatch_lab.tasks.classification import Classification
from infobatch_lab.training import Training

RULES = ("mean", "tiers", "focus")


class ErrorScores(Classification):
    """Classification whose rules see norm(p - y)."""

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        outputs: list[Tensor] = []

        def keeping(inputs: Tensor) -> Tensor:
            outputs.append(forward(inputs))
            return outputs[-1]

        losses = super().batch_losses(keeping, batch, settings, rng).losses
        labels: Tensor = batch[1]
        p = outputs[0][: len(labels)].detach().softmax(1)
        return BatchLosses(losses, (p - one_hot(labels, p.shape[1])).norm(dim=1))


def main() -> None:
    data, num_seeds, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    options: dict[str, Any] = {"model": "resnet8", "epochs": 16} if data == "digits" else {}
    task = ErrorScores(cast(Classification, load(data, default_folder())).data)
    lines = [json.loads(line) for line in file.open()] if file.exists() else []
    done = [(line["rule"], line["seed"]) for line in lines]
    for seed in range(num_seeds):
        for rule in RULES:
            if (rule, seed) in done:
                continue
            chosen = settings(data, seed=seed, rule=rule, shrink="batch", **options)
            training = Training(chosen, task)
            training.run(lambda progress: True)
            line = {**training.result(), "score": "norm(p - y)"}
            runs.append(file, line)
            print(chosen.name, line["accuracy"])


if __name__ == "__main__":
    main()
