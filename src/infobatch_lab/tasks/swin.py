"""Image classification with a Swin Transformer (Liu et al., 2021) under MixUp and CutMix; accuracy.

As in the paper's A.3 and Table 3: samples are mixed in pairs, and the score of a sample is the
error of the probability of its class over the two images that contain it (`infobatch.mixing`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from infobatch_lab import images
from infobatch_lab.download import Fetching
from infobatch_lab.errors import optional
from infobatch_lab.images import ImageData, with_first
from infobatch_lab.tasks.base import Recipe
from infobatch_lab.tasks.classification import Classification

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings

SIZES: dict[str, tuple[int, dict[str, Any]]] = {
    "swin-mini": (8, {"embed_dim": 96, "depths": (2, 2), "num_heads": (3, 6)}),
    "swin-tiny": (16, {}),
}
"""Patches along a side, and what differs from timm's Swin-Tiny."""

WINDOW = 4
"""Patches along a window; 7 of the original need images of 224 pixels."""


class Swin(Classification):
    """Images with labels, and timm's Swin for small images."""

    models = tuple(SIZES)

    def network(self, settings: Settings) -> nn.Module:
        side = self.data.train.images.shape[1]
        patches, changes = SIZES[settings.model]
        network: nn.Module = optional("timm").create_model(
            "swin_tiny_patch4_window7_224",
            img_size=side,
            patch_size=side // patches,
            window_size=WINDOW,
            in_chans=self.data.num_channels,
            num_classes=self.data.num_classes,
            drop_path_rate=0.1,
            **changes,
        )
        return network


def recipe(read: Callable[[Path, Fetching], ImageData], files: str) -> Recipe:
    """Swin on one data set, with the mixing, smoothing and optimizer of its authors."""
    return Recipe(
        Swin,
        lambda folder, progress: Swin(read(folder, progress)),
        files,
        {
            "model": "swin-mini",
            "epochs": 30,
            "batch_size": 128,
            "optimizer": "adamw",
            "lr": 2e-3,
            "mixup": 0.8,
            "cutmix": 1.0,
            "label_smoothing": 0.1,
        },
    )


RECIPES: dict[str, Recipe] = {
    "swin": recipe(
        lambda folder, progress: with_first(images.read_cifar10(folder, progress), 10_000),
        "as `cifar10`",
    ),
    "swin-cifar100": recipe(images.read_cifar100, "as `cifar100`"),
    "swin:": recipe(images.read_folder, ""),
}
