"""Data sets made from others: few and small images, a long tail, copies, wrong labels, validation.

Each is a function from `ImageData` to `ImageData` that leaves the test images as they are, but for
`small` and `validation`. Random numbers depend on the variant alone and not on the seed of a run:
every run sees the same data.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from infobatch_lab.images import ImageData, Images, with_first
from infobatch_lab.seeding import generator

SMALLEST_CLASS = 0.01
"""The part of its images that the rarest class of a long tail keeps."""

WRONG_LABELS = 0.2
HELD_OUT = 0.2

NUM_SMALL = 6000
"""The training images of a small data set, few enough for 100 epochs in minutes on a CPU."""


def long_tail(data: ImageData) -> ImageData:
    """Class sizes fall exponentially, from all images of class 0 to 1 % of the last class."""
    rng, labels, last = generator("long-tail"), data.train.labels, data.num_classes - 1
    kept = []
    for label in range(data.num_classes):
        indices = (labels == label).nonzero()[:, 0]
        size = max(1, round(len(indices) * SMALLEST_CLASS ** (label / last)))
        kept.append(indices[shuffled(len(indices), rng)[:size]])
    return replace(data, train=part(data.train, torch.cat(kept).sort().values))


def redundant(data: ImageData) -> ImageData:
    """Half of the training images, each with a copy that is shifted to the right by a pixel."""
    order = shuffled(len(data.train), generator("redundant"))
    half = part(data.train, order[: len(order) // 2])
    # (samples, height, width, channels): the left edge is repeated where the image moved away.
    shifted = torch.cat([half.images[:, :, :1], half.images[:, :, :-1]], dim=2)
    both = Images(torch.cat([half.images, shifted]), torch.cat([half.labels, half.labels]))
    return replace(data, train=both)


def noisy(data: ImageData) -> ImageData:
    """A fifth of the training images get the label of another class."""
    rng, labels = generator("noisy"), data.train.labels.clone()
    wrong = shuffled(len(labels), rng)[: round(WRONG_LABELS * len(labels))]
    moved_by = torch.randint(1, data.num_classes, (len(wrong),), generator=rng)
    labels[wrong] = (labels[wrong] + moved_by) % data.num_classes
    return replace(data, train=Images(data.train.images, labels))


def small(data: ImageData) -> ImageData:
    """The first 6,000 training images; they and the test images at half of their size."""
    few = with_first(data, NUM_SMALL)
    train, test = (Images(half_size(of.images), of.labels) for of in (few.train, few.test))
    return replace(data, train=train, test=test, crop=data.crop // 2)


def validation(data: ImageData) -> ImageData:
    """Train on four fifths of the training images and test on the others."""
    order = shuffled(len(data.train), generator("validation"))
    num_test = round(HELD_OUT * len(order))
    test, train = order[:num_test].sort().values, order[num_test:].sort().values
    return replace(data, train=part(data.train, train), test=part(data.train, test))


def half_size(images: Tensor) -> Tensor:
    """Means of 2 x 2 pixels, rounded."""
    num, height, width, channels = images.shape
    cells = images.reshape(num, height // 2, 2, width // 2, 2, channels)
    return cells.float().mean((2, 4)).round().to(torch.uint8)


def shuffled(num_samples: int, rng: torch.Generator) -> Tensor:
    """All indices, in random order."""
    return torch.randperm(num_samples, generator=rng)


def part(images: Images, indices: Tensor) -> Images:
    """The images at these indices."""
    return Images(images.images[indices], images.labels[indices])
