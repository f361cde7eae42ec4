"""Image classification with a pretrained network, fine-tuned for a few epochs; accuracy.

`finetune` is on heads of cats and dogs from the Oxford-IIIT Pet photographs (Parkhi et al., 2012),
37 breeds; `finetune:PATH` is a user's own folder of images.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from infobatch_lab.download import Fetching
from infobatch_lab.errors import UserError, optional
from infobatch_lab.images import IMAGE_SIZE, ImageData, read_folder
from infobatch_lab.own_images import split
from infobatch_lab.pets import FILES, FOLDER, REMEDY, TABLE, read_heads
from infobatch_lab.pictures import Bytes, decode, read_table
from infobatch_lab.tasks.base import Recipe
from infobatch_lab.tasks.classification import Classification
from infobatch_lab.weights import EFFICIENTNET_LITE0, path_of

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings

CROP = 6
"""How far an image may be shifted, in pixels."""


class FineTuning(Classification):
    """Images with labels, and EfficientNet-lite0, trained on ImageNet, with a new head."""

    name = "image classification, fine-tuned"
    models = ("efficientnet-lite0",)

    def __init__(self, data: ImageData, weights: Path) -> None:
        super().__init__(data)
        self._weights = weights
        # The network has learned on pixels between -1 and 1.
        self._mean = self._std = torch.full((3,), 127.5)

    def network(self, settings: Settings) -> nn.Module:
        network: nn.Module = optional("timm").create_model(
            "tf_efficientnet_lite0", num_classes=self.data.num_classes
        )
        load_body(network, torch.load(self._weights, weights_only=True))
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def load_body(network: nn.Module, pretrained: dict[str, Tensor]) -> None:
    """Give the network all pretrained weights but those of the head.

    The file names the layers differently from timm, but has them in the same order.
    """
    names = [name for name in network.state_dict() if not name.startswith("classifier.")]
    values = [value for name, value in pretrained.items() if not name.startswith("_fc.")]
    network.load_state_dict(dict(zip(names, values, strict=True)), strict=False)


# Data ---------------------------------------------------------------------------------------------


def read_pets(folder: Path, progress: Fetching) -> ImageData:
    """Every fifth image of a breed is for testing, as in a folder without splits."""
    path = folder / TABLE
    if path.exists():
        images, labels = read_pet_table(path)
    else:
        path = folder / FOLDER
        images, labels = read_heads(path, IMAGE_SIZE, progress)
    by_breed = sorted(range(len(labels)), key=labels.__getitem__)
    ordered = np.stack([images[row] for row in by_breed])
    return replace(split(ordered, np.sort(labels), None, path), crop=CROP)


def read_pet_table(path: Path) -> tuple[list[Bytes], list[int]]:
    """The images of the table, and their labels."""
    table = read_table(path, ("label", "image"), REMEDY)
    labels = table["label"]
    if not all(isinstance(label, int) for label in labels):
        raise UserError(
            f"{path} has a row whose label is no whole number: replace the file, or train on "
            "images of your own with --data finetune:PATH."
        )
    return [decode(image, (IMAGE_SIZE, IMAGE_SIZE)) for image in table["image"]], labels


def pets(folder: Path, progress: Fetching) -> FineTuning:
    """Heads of cats and dogs, and the network's weights."""
    return FineTuning(read_pets(folder, progress), path_of(EFFICIENTNET_LITE0, progress))


def own_images(path: Path, progress: Fetching) -> FineTuning:
    """A user's own images, and the network's weights."""
    return FineTuning(read_folder(path, progress), path_of(EFFICIENTNET_LITE0, progress))


DEFAULTS = {
    "model": "efficientnet-lite0",
    "epochs": 15,
    "batch_size": 32,
    "optimizer": "adamw",
    "lr": 1e-3,
}

RECIPES: dict[str, Recipe] = {
    "finetune": Recipe(FineTuning, pets, FILES, DEFAULTS),
    "finetune:": Recipe(FineTuning, own_images, "", DEFAULTS),
}
