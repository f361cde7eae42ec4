"""Small statistics with everything that a method may look at."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from infobatch.selection import Statistics


def everything(num_samples: int, num_classes: int = 3, *, seed: int = 0) -> Statistics:
    """Random numbers in every field, with a validation set."""
    statistics = of_pass(num_samples, num_classes, seed=seed)
    rng = torch.Generator().manual_seed(seed + 1)
    return replace(
        statistics,
        correct=torch.randint(0, 2, (num_samples, 6), generator=rng),
        changes=torch.rand(num_samples, 12, generator=rng),
        grand=torch.rand(num_samples, generator=rng),
        el2n=torch.rand(num_samples, generator=rng),
        perturbation=torch.rand(num_samples, generator=rng),
        validation=of_pass(7, num_classes, seed=seed + 2),
    )


def of_pass(num_samples: int, num_classes: int = 3, *, seed: int = 0) -> Statistics:
    """Labels, probabilities and features, in double precision."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_samples, num_classes, generator=rng, dtype=torch.float64)
    return Statistics(
        labels=torch.arange(num_samples) % num_classes,
        probabilities=logits.softmax(1),
        features=torch.randn(num_samples, 4, generator=rng, dtype=torch.float64),
    )


def whole_numbers(num_samples: int, *, seed: int = 0) -> Tensor:
    """Features with many equal distances, on which single precision makes no rounding errors."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (num_samples, 2), generator=rng).float()


class Network(nn.Module):
    """Two layers with batch norm and dropout, which must be in evaluation mode to be told apart."""

    def __init__(self, num_inputs: int = 5, num_classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(num_inputs, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5)
        )
        self.head = nn.Linear(6, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def pairs(num_samples: int, num_classes: int = 3) -> TensorDataset:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(num_samples, 5, generator=rng)
    return TensorDataset(x, torch.arange(num_samples) % num_classes)


def brute_gradients(statistics: Statistics) -> Tensor:
    """The last layer's gradients, one by one, by autograd; (samples, parameters)."""
    found = []
    features, labels = statistics.require("features"), statistics.require("labels")
    for h, p, label in zip(features, statistics.require("probabilities"), labels, strict=True):
        logits = p.log()
        weight = torch.zeros(len(p), len(h), dtype=h.dtype, requires_grad=True)
        bias = torch.zeros(len(p), dtype=h.dtype, requires_grad=True)
        # Weights of 0 on top of the logits: the gradient there is that of the last layer.
        loss = nn.functional.cross_entropy((logits + weight @ h + bias)[None], label[None])
        of_weight, of_bias = torch.autograd.grad(loss, (weight, bias))
        found.append(torch.cat([of_bias[:, None], of_weight], 1).flatten())
    return torch.stack(found)
