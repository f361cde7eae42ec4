"""Per-sample losses in: one scalar to train with out.

A step stays on the device of the losses and reads nothing back to the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infobatch.scores import NO_SCORE


def per_sample(losses: Tensor, mask: Tensor | None = None) -> Tensor:
    """One loss per sample: the mean over all further dimensions, without the masked-out places.

    >>> per_sample(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), torch.tensor([[1, 1], [1, 0]]))
    tensor([2., 5.])
    """
    # Every step comes here: only what may be wrong is worth a call.
    if (
        not isinstance(losses, Tensor)
        or not losses.is_floating_point()
        or losses.dim() == 0
        or losses.numel() == 0
    ):
        _check_losses(losses)
    if mask is None:
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)
    _check_shape("mask", mask, losses)
    counted = mask.to(losses.device).bool().reshape(len(losses), -1)
    # where, not a product: a masked-out place may hold anything, even NaN.
    kept = torch.where(counted, losses.reshape(len(losses), -1), 0)
    # In float32 at least: half precision cannot hold the sum of many places.
    total = kept.sum(1, dtype=torch.promote_types(losses.dtype, torch.float32))
    return (total / counted.sum(1).clamp(min=1)).to(losses.dtype)


def masked_scores(losses: Tensor, mask: Tensor) -> Tensor:
    """The loss of each sample as its score; none where all of the sample is masked out.

    >>> masked_scores(torch.tensor([2.0, 0.0]), torch.tensor([[1, 1], [0, 0]]))[0]
    tensor(2.)
    """
    counts = mask.to(losses.device).reshape(len(losses), -1).any(1)
    return torch.where(counts, losses.detach().float(), NO_SCORE)


def totals(losses: Tensor, denominators: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of losses and of denominators over each sample, for a loss that is their ratio.

    >>> totals(torch.tensor([[1.0, 3.0], [5.0, 0.0]]), torch.tensor([[1, 1], [1, 0]]))
    (tensor([4., 5.]), tensor([2., 1.]))
    """
    _check_losses(losses)
    _check_shape("denominators", denominators, losses)
    if denominators.is_complex():
        raise TypeError(f"denominators has dtype {denominators.dtype}, expected real numbers.")
    # In float32 at least: half precision cannot hold the sum of many places.
    dtype = torch.promote_types(losses.dtype, torch.float32)
    losses, denominators = losses.to(dtype), denominators.to(losses.device, dtype)
    if losses.dim() > 1:
        losses, denominators = losses.flatten(1).sum(1), denominators.flatten(1).sum(1)
    return losses, denominators


def mean_scores(losses: Tensor, denominators: Tensor) -> Tensor:
    """The loss of each sample by its own denominator; none where nothing of the sample counts."""
    losses, denominators = losses.detach(), denominators.detach()
    return torch.where(denominators > 0, losses / denominators, NO_SCORE)


def score_per_sample(scores: Tensor, losses: Tensor) -> Tensor:
    """Scores that are not the losses, checked: `score_per_sample(errors, losses)`."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        given = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(
            f"scores is {given}, expected a floating-point tensor of one score per sample."
        )
    if scores.shape != losses.shape:
        raise ValueError(
            f"scores has shape {tuple(scores.shape)}, expected one score per sample, "
            f"{tuple(losses.shape)}."
        )
    return scores.detach().to(losses.device)


def as_indices(indices: Tensor | Sequence[int], losses: Tensor) -> Tensor:
    """The samples of a batch as int64, checked: `as_indices([7, 3], losses)`."""
    numbers = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
    if numbers.dtype is torch.int64 and numbers.shape == losses.shape:
        return numbers
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"indices has dtype {numbers.dtype}, expected whole numbers.")
    if numbers.shape != losses.shape:
        raise ValueError(
            f"indices has shape {tuple(numbers.shape)} for {len(losses)} losses, expected one each."
        )
    return numbers.long()


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """The mean of weight x loss, out of place, in the dtype of the losses.

    >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0]))
    tensor(2.5000)
    """
    loss = (losses * weights).mean()
    return loss if losses.dtype is torch.float32 else loss.to(losses.dtype)


def weighted_ratio(losses: Tensor, denominators: Tensor, weights: Tensor | None) -> Tensor:
    """(sum of weight x loss / sum of weight x denominator) x mean weight; None is a weight of 1.

    >>> weighted_ratio(torch.tensor([2.0, 3.0]), torch.tensor([4.0, 2.0]), torch.tensor([2.0, 1.0]))
    tensor(1.0500)
    """
    if weights is not None:
        losses, denominators = losses * weights, denominators * weights
    denominator = denominators.sum()
    # Where nothing counts, or the batch is one repeat of weight 0, the loss is 0 and not 0 / 0.
    loss = losses.sum() / torch.where(denominator == 0, 1, denominator)
    return loss if weights is None else loss * weights.mean()


def weighted_batch(loss: Tensor, weights: Tensor | None, share: float) -> Tensor:
    """The loss of a batch of one weight, times that weight and its share of a full batch.

    >>> weighted_batch(torch.tensor(3.0), torch.tensor([2.0, 2.0, 2.0]), share=3 / 4)
    tensor(4.5000)
    """
    if weights is None:
        return loss * share
    return (loss * (weights[0] * share)).to(loss.dtype)


def check_one_number(loss: Tensor, **others: object) -> None:
    """Raise if a loss is not one number, or comes with what is for one loss per sample."""
    if not isinstance(loss, Tensor) or not loss.is_floating_point() or loss.dim() != 0:
        is_tensor = isinstance(loss, Tensor)
        given = f"shaped {tuple(loss.shape)}" if is_tensor else f"a {type(loss).__name__}"
        raise ValueError(
            f"losses is {given}, but this loader has uniform=True, which is for a loss that is one "
            "number: leave uniform out to report one loss per sample."
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"{name} was given beside a loss that is one number, expected it with one loss per "
                "sample only: leave it out."
            )


def _check_losses(losses: Tensor) -> None:
    if not isinstance(losses, Tensor):
        raise TypeError(
            f"losses is a {type(losses).__name__}, expected a tensor of one loss per sample."
        )
    if not losses.is_floating_point():
        raise TypeError(f"losses has dtype {losses.dtype}, expected floating-point losses.")
    if losses.dim() == 0:
        raise ValueError(
            "losses is a scalar, expected one loss per sample: create the criterion with "
            'reduction="none", or read batches(uniform=True) if there is no such loss.'
        )
    if losses.numel() == 0:
        raise ValueError(f"losses has shape {tuple(losses.shape)}, expected at least one loss.")


def _check_shape(name: str, value: Tensor, losses: Tensor) -> None:
    is_tensor = isinstance(value, Tensor)
    if not is_tensor or value.shape != losses.shape:
        given = f"shaped {tuple(value.shape)}" if is_tensor else f"a {type(value).__name__}"
        raise ValueError(
            f"{name} is {given}, expected a tensor shaped like losses, {tuple(losses.shape)}."
        )
