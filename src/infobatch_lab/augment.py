"""Augmentation of a whole batch of images at once: shift, mirror, normalise, mix.

Written by hand because torchvision's transforms draw one shift for all images of a batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def crop_and_flip(images: Tensor, rng: torch.Generator, *, crop: int, flip: bool) -> Tensor:
    """Shift each image by up to `crop` pixels, its border reflected; mirror half of them.

    >>> image = torch.arange(9, dtype=torch.uint8).reshape(1, 3, 3, 1)
    >>> crop_and_flip(image, torch.Generator(), crop=0, flip=False).equal(image)
    True
    """
    if not crop and not flip:
        return images
    num, height, width, channels = images.shape
    shift = torch.randint(-crop, crop + 1, (2, num, 1), generator=rng)
    rows = reflect(torch.arange(height) + shift[0], height)
    columns = reflect(torch.arange(width) + shift[1], width)
    if flip:
        mirrored = torch.rand(num, 1, generator=rng) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    # One gather of pixels for all of it.
    pixels = (torch.arange(num)[:, None] * height + rows)[:, :, None] * width + columns[:, None, :]
    flat = images.reshape(-1, channels)
    return flat.index_select(0, pixels.flatten().to(images.device)).reshape(images.shape)


def reflect(positions: Tensor, length: int) -> Tensor:
    """Mirror positions beyond an edge at that edge: -1 becomes 1."""
    return (length - 1) - ((length - 1) - positions.abs()).abs()


def mean_and_std(images: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation of each channel, summed in float64."""
    channels = images.shape[-1]
    total, squares = torch.zeros(channels, dtype=torch.float64), torch.zeros(channels).double()
    for part in images.split(1000):
        values = part.reshape(-1, channels).double()
        total += values.sum(0)
        squares += values.square().sum(0)
    num = images.numel() / channels
    mean = total / num
    std = (squares / num - mean.square()).clamp(min=1e-12).sqrt()
    return mean.float(), std.float()


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn uint8 images with channels last into float32 inputs, in the channels_last format."""
    return ((images.float() - mean) / std).permute(0, 3, 1, 2)


def mix(
    images: Tensor, rng: torch.Generator, *, mixup: float, cutmix: float
) -> tuple[Tensor, Tensor, float]:
    """MixUp or CutMix of a batch, chosen by a coin where both are given.

    Returns the mixed images, the partner each was mixed with, and the share that each keeps of
    itself. `mixup` and `cutmix` are the alphas of their papers' Beta distributions.
    """
    seed = int(torch.randint(2**62, (), generator=rng))
    dice = np.random.default_rng(seed)
    partner = torch.randperm(len(images), generator=rng).to(images.device)
    if cutmix and (not mixup or dice.random() < 0.5):
        return cut(images, partner, float(dice.beta(cutmix, cutmix)), dice)
    lam = float(dice.beta(mixup, mixup))
    return images * lam + images[partner] * (1 - lam), partner, lam


def cut(
    images: Tensor, partner: Tensor, lam: float, dice: np.random.Generator
) -> tuple[Tensor, Tensor, float]:
    """Replace a box of each image by its partner's; the share is counted in pixels."""
    height, width = images.shape[-2:]
    box_height, box_width = (round(side * (1 - lam) ** 0.5) for side in (height, width))
    top = int(dice.integers(height - box_height + 1))
    left = int(dice.integers(width - box_width + 1))
    box = (..., slice(top, top + box_height), slice(left, left + box_width))
    mixed = images.clone(memory_format=torch.preserve_format)
    mixed[box] = images[partner][box]
    return mixed, partner, 1 - box_height * box_width / (height * width)
