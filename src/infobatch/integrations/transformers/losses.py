"""The loss of each target of each sample, for the heads of transformers.

A head's own loss is one number: the sum of the losses of all targets, divided by their number. The
functions here stop before the sum. Each returns the losses, with one row per sample, and which
places are targets; the mean over the targets is the loss of the head.

The class of a model does not tell which head it has: of two language models one shifts the labels
and the other does not. So `fitting_heads` gives every head that fits the shapes, and the right one
is the one whose losses add up to the model's own loss (`is_made_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Losses = tuple[Tensor, Tensor]
"""The loss of each place of each sample, and which places are targets."""

Heads = dict[str, Callable[[], Losses]]
"""Heads by name; a call computes the losses."""

IGNORED = -100
"""The label of what is no target, all over transformers."""


def classes(
    logits: Tensor, labels: Tensor, *, ignored: int = IGNORED, label_smoothing: float = 0.0
) -> Losses:
    """The cross entropy of each label: sequence, token and image classes, masked and seq2seq LMs.

    >>> losses, targets = classes(torch.zeros(2, 3, 8), torch.tensor([[1, 2, -100], [3, -100, 0]]))
    >>> losses.shape, targets.sum()
    (torch.Size([2, 3]), tensor(4))
    """
    labels = labels.reshape(logits.shape[:-1])
    losses = F.cross_entropy(
        logits.float().flatten(0, -2),
        labels.flatten(),
        ignore_index=ignored,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses.view(labels.shape), labels != ignored


def next_tokens(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Losses:
    """Causal language models: the logits at a token are for the label after it."""
    labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    return classes(logits, labels, label_smoothing=label_smoothing)


def sum_of_means(*terms: Losses) -> Losses:
    """Several losses, each a mean over targets of its own, as one mean over all of them.

    >>> tokens = torch.tensor([[1.0, 3.0], [5.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    >>> answer = torch.tensor([2.0, 4.0]), torch.tensor([True, True])
    >>> losses, targets = sum_of_means(tokens, answer)  # (1 + 3 + 5) / 3 + (2 + 4) / 2
    >>> losses[targets].mean()
    tensor(6.)
    """
    num_targets = torch.stack([targets.sum() for _, targets in terms])
    scales = num_targets.sum() / num_targets.clamp(min=1)
    rows = [
        (losses * scale).reshape(len(losses), -1)
        for (losses, _), scale in zip(terms, scales, strict=True)
    ]
    return torch.cat(rows, 1), torch.cat([t.reshape(len(t), -1) for _, t in terms], 1)


def spans(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> Losses:
    """Question answering: the mean of two cross entropies over places; an answer may be outside."""
    ignored = start_logits.shape[1]
    start, end = (
        classes(logits, positions.clamp(0, ignored), ignored=ignored)
        for logits, positions in ((start_logits, starts), (end_logits, ends))
    )
    losses, targets = sum_of_means(start, end)
    return losses / 2, targets


def squared_errors(predictions: Tensor, labels: Tensor) -> Losses:
    """Regression, of one number or several."""
    losses = (predictions - labels.reshape(predictions.shape)) ** 2
    return losses, torch.ones_like(losses, dtype=torch.bool)


def multi_label(logits: Tensor, labels: Tensor) -> Losses:
    """Multi-label classification: each label is a binary cross entropy of its own."""
    losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
    return losses, torch.ones_like(losses, dtype=torch.bool)


def pixels(logits: Tensor, labels: Tensor, *, ignored: int) -> Losses:
    """Segmentation: the cross entropy of each pixel, at the size of the labels."""
    logits = F.interpolate(logits, labels.shape[-2:], mode="bilinear", align_corners=False)
    if logits.shape[1] > 1:
        return classes(logits.movedim(1, -1), labels, ignored=ignored)
    # A foreground alone. Here transformers counts the ignored pixels too, with a loss of 0.
    counts = (labels >= 0) & (labels != ignored)
    losses = F.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="none")
    return losses * counts, torch.ones_like(counts)


def masked_patches(reconstruction: Tensor, images: Tensor, masked: Tensor) -> Losses:
    """Masked image modelling: the absolute error of each pixel of a masked patch."""
    num_patches = int(masked[0].numel() ** 0.5)
    size = images.shape[-1] // num_patches
    grid = masked.bool().reshape(-1, 1, num_patches, num_patches)
    targets = grid.repeat_interleave(size, 2).repeat_interleave(size, 3).expand_as(images)
    return (images - reconstruction).abs(), targets


def fitting_heads(
    outputs: Mapping[str, Any],
    inputs: Mapping[str, Any],
    *,
    shifts_labels: bool = False,
    label_smoothing: float = 0.0,
    ignored_pixel: int = 255,
) -> Heads:
    """The heads that fit what a model takes and returns, the likeliest first.

    >>> outputs, inputs = {"logits": torch.zeros(2, 3)}, {"labels": torch.tensor([0, 2])}
    >>> list(fitting_heads(outputs, inputs))
    ['classes']
    """
    logits, labels = outputs.get("logits"), inputs.get("labels")
    log_probs = outputs.get("log_probs")
    # Of trl, which needs no logits; beside logits they come from a second pass, for metrics.
    if log_probs is not None and (log_probs.requires_grad or logits is None):
        return {"log probabilities": lambda: (-log_probs, outputs["label_mask"])}
    if {"start_positions", "end_positions"} <= inputs.keys() and "start_logits" in outputs:
        of_places = outputs["start_logits"], outputs["end_logits"]
        places = inputs["start_positions"], inputs["end_positions"]
        return {"spans": partial(spans, *of_places, *places)}
    if {"pixel_values", "bool_masked_pos"} <= inputs.keys() and "reconstruction" in outputs:
        image = outputs["reconstruction"], inputs["pixel_values"], inputs["bool_masked_pos"]
        return {"masked patches": partial(masked_patches, *image)}
    if logits is None or labels is None:
        return {}
    if labels.is_floating_point() or logits.shape[-1] == 1:
        return of_numbers(logits, labels)
    is_one_each = logits.dim() == 2 and labels.numel() == len(logits)
    if is_one_each or labels.shape == logits.shape[:-1]:
        heads = of_labels(logits, labels, label_smoothing)
        return dict(reversed(heads.items())) if shifts_labels else heads
    if logits.dim() == 4 and labels.dim() == 3:
        return {"pixels": partial(pixels, logits, labels, ignored=ignored_pixel)}
    return {}


def of_numbers(logits: Tensor, labels: Tensor) -> Heads:
    """The heads whose labels are numbers: `of_numbers(outputs["logits"], inputs["labels"])`."""
    heads: Heads = {}
    if logits.numel() == labels.numel():
        heads["regression"] = partial(squared_errors, logits, labels)
    if logits.shape == labels.shape:
        heads["multi-label"] = partial(multi_label, logits, labels)
    return heads


def of_labels(logits: Tensor, labels: Tensor, label_smoothing: float) -> Heads:
    """The heads with a class for each label: `of_labels(logits, labels, label_smoothing=0.1)`."""
    heads: Heads = {}
    heads["classes"] = partial(classes, logits, labels, label_smoothing=label_smoothing)
    if labels.dim() > 1:
        heads["next tokens"] = partial(next_tokens, logits, labels, label_smoothing=label_smoothing)
    return heads


def is_made_of(
    loss: Tensor,
    losses: Tensor,
    targets: Tensor,
    *,
    num_items: Tensor | int | None = None,
    num_processes: int = 1,
) -> bool:
    """Whether the Trainer's loss is the sum of `losses` over `targets`, however it is normalized.

    The Trainer divides by the targets of a batch, or by `num_items`, those of a whole step, and
    then multiplies by the processes; some models divide by nothing. This reads from the device.

    >>> is_made_of(torch.tensor(3.0), torch.tensor([2.0, 4.0]), torch.tensor([True, True]))
    True
    """
    total = torch.where(targets, losses, 0).sum().float()
    divisors: list[Tensor | int] = [targets.sum(), 1]
    if num_items is not None:
        divisors.append(num_items)
    rtol = 1e-4 if loss.dtype == torch.float32 else 1e-2
    return any(
        bool(torch.isclose(loss.float(), total / by * times, rtol=rtol))
        for by in divisors
        for times in {1, num_processes}
    )
