"""GLISTER (Killamsetty et al., AAAI 2021): what lowers the loss of a validation set most.

One gradient step on the mean loss of the chosen subset would move the last layer by -(eta / k)
times the sum of their gradients. Each step chooses argmax_x <g_x, g_val>, the sample whose gradient
agrees most with the validation set's, and then moves the last layer and computes g_val anew. The
gradients stand on the last layer and are never formed. Per class, g_val is the gradient of the
class's own validation samples, as in DeepCore: with those of all classes, a class would choose
samples that help other classes. Cost: O(k (n + m) c d) for m validation samples.
"""

from __future__ import annotations

import torch
from torch import Generator

from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import gradients, with_one

ETA = 0.1
"""The learning rate of the imagined step."""


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose greedily by the agreement with the validation gradient, updated after each choice."""
    assert statistics.validation is not None  # in `needs`, so it was checked
    errors, inputs = gradients(statistics).factors
    validation = statistics.validation
    val_inputs = with_one(validation.require("features").to(inputs.dtype))
    one_hot = validation.require("probabilities") - validation.errors()
    # Softmax ignores a constant, so the logarithm of the probabilities can stand for the logits.
    logits = validation.require("probabilities").to(inputs.dtype).clamp(min=1e-30).log()
    chosen = []
    is_chosen = torch.zeros(len(errors), dtype=torch.bool, device=errors.device)
    for _ in range(budget):
        val_gradient = (logits.softmax(1) - one_hot).T @ val_inputs  # (classes, 1 + dimensions)
        gains = ((errors @ val_gradient) * inputs).sum(1).masked_fill_(is_chosen, -torch.inf)
        index = int(gains.argmax())
        chosen.append(index)
        is_chosen[index] = True
        logits -= ETA / budget * torch.outer(val_inputs @ inputs[index], errors[index])
    return Chosen(torch.tensor(chosen))
