"""Influence functions (Koh & Liang, ICML 2017): norm of H^-1 g.

How far the parameters move if a sample is left out: g is the gradient of its loss, H the Hessian of
the mean loss, damped by 0.01. Both stand on the last layer, where H is exact: the mean of
(diag(p) - p p^T) x [1, h][1, h]^T. Cost: O(n c^2 d^2 + (c d)^3), memory O((c d)^2): limited to
c (d + 1) <= 8192 parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import gradients, rows_in_block, with_one

DAMPING = 0.01
MOST_PARAMETERS = 8192


def score(statistics: Statistics) -> Tensor:
    """The norm of the influence of each sample."""
    errors, inputs = gradients(statistics).factors
    factor = damped_hessian(statistics)
    blocks = torch.arange(len(errors)).split(rows_in_block(len(factor)))
    return torch.cat([solve(factor, errors[block], inputs[block]).norm(dim=1) for block in blocks])


def influences(statistics: Statistics) -> Tensor:
    """H^-1 g of each sample, (samples, parameters)."""
    errors, inputs = gradients(statistics).factors
    return solve(damped_hessian(statistics), errors, inputs)


def solve(factor: Tensor, errors: Tensor, inputs: Tensor) -> Tensor:
    """H^-1 g for gradients given as factors, with the Cholesky factor of H."""
    flat = (errors.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)
    return torch.cholesky_solve(flat.T, factor).T


def damped_hessian(statistics: Statistics) -> Tensor:
    """The Cholesky factor of the damped Hessian of the last layer."""
    features = statistics.require("features")
    inputs = with_one(features)
    probabilities = statistics.require("probabilities").to(inputs.dtype)
    (num_samples, width), num_classes = inputs.shape, probabilities.shape[1]
    if num_classes * width > MOST_PARAMETERS:
        most = MOST_PARAMETERS // num_classes - 1
        raise ValueError(
            f"features has {features.shape[1]} dimensions for {num_classes} classes, expected at "
            f"most {most}, since the Hessian of the last layer must fit: project the features, "
            "for instance on their leading principal directions."
        )
    hessian = inputs.new_empty(num_classes, width, num_classes, width)
    for a in range(num_classes):
        for b in range(a, num_classes):
            weights = probabilities[:, a] * (float(a == b) - probabilities[:, b])
            block = (inputs * weights.unsqueeze(1)).T @ inputs / num_samples
            hessian[a, :, b], hessian[b, :, a] = block, block
    hessian = hessian.view(num_classes * width, num_classes * width)
    hessian.diagonal().add_(DAMPING)
    factor: Tensor = torch.linalg.cholesky(hessian)
    return factor
