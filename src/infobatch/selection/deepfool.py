"""DeepFool (Ducoffe & Precioso, 2018, after Moosavi-Dezfooli et al., CVPR 2016).

The score is -norm(r), where r is the perturbation of the input that DeepFool finds to flip the
model's prediction: the samples nearest to a decision boundary are kept. Each step moves to the
nearest boundary of the linearised network, r += abs(f_l) / norm(w_l)^2 w_l with f_l and w_l the
difference of logits and of their gradients to the nearest rival class l. The whole network is
linearised, not the last layer alone. Cost: up to 50 steps of up to 10 backward passes per sample.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from infobatch.selection.statistics import Statistics

NUM_STEPS = 50
NUM_RIVALS = 9
"""Only the classes with the next highest logits are looked at."""
OVERSHOOT = 0.02
"""A perturbation is made this much larger, so that it does not end on the boundary."""


def score(statistics: Statistics) -> Tensor:
    """The negative norm of each sample's perturbation, as it was collected."""
    return -statistics.require("perturbation")


def perturb(logits_of: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """The perturbation of each input that flips its prediction, or the last one tried.

    The samples must not depend on each other, as they would with batch norm in training.
    """
    total = torch.zeros_like(inputs)
    remaining = torch.arange(len(inputs), device=inputs.device)
    with torch.no_grad():
        order = logits_of(inputs).argsort(dim=1, descending=True, stable=True)
    if order.shape[1] < 2:
        raise ValueError("the model has one output, expected at least 2 classes to flip between.")
    predicted, rivals = order[:, :1], order[:, 1 : 1 + NUM_RIVALS]
    for _ in range(NUM_STEPS):
        total[remaining] += _step(
            logits_of,
            inputs[remaining] + (1 + OVERSHOOT) * total[remaining],
            predicted[remaining],
            rivals[remaining],
        )
        with torch.no_grad():
            now = logits_of(inputs[remaining] + (1 + OVERSHOOT) * total[remaining])
        remaining = remaining[now.argmax(1) == predicted[remaining, 0]]
        if len(remaining) == 0:
            break
    return total


def _step(
    logits_of: Callable[[Tensor], Tensor], inputs: Tensor, predicted: Tensor, rivals: Tensor
) -> Tensor:
    """The shortest way to a boundary of the linearised network."""
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_()
        logits = logits_of(inputs)
        gaps = logits.gather(1, rivals) - logits.gather(1, predicted)
        shortest = torch.full_like(gaps[:, 0], torch.inf)
        step = torch.zeros_like(inputs)
        for gap in gaps.unbind(1):
            (normal,) = torch.autograd.grad(gap.sum(), inputs, retain_graph=True)
            squared = normal.flatten(1).square().sum(1)
            distance = gap.detach().abs() / squared.sqrt()
            nearer = (distance < shortest) & (squared > 0)
            shortest = torch.where(nearer, distance, shortest)
            length = (gap.detach().abs() / squared).view(-1, *[1] * (inputs.dim() - 1))
            step = torch.where(nearer.view_as(length), length * normal, step)
    return step.detach()
