"""Image classification with a pretrained network, fine-tuned for a few epochs; accuracy.

`finetune` is on heads of cats and dogs from the Oxford-IIIT Pet photographs (Parkhi et al., 2012),
37 breeds; `finetune:PATH` is a user's own folder of images.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from infobatch_lab.download import Fetching
from infobatch_lab.errors import UserError, optional
from infobatch_lab.images import IMAGE_SIZE, ImageData, Images, read_folder
from infobatch_lab.tables import Row, read_rows
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


def read_pets(folder: Path) -> ImageData:
    """Every fifth image of a breed is for testing, as in a folder without splits."""
    path = folder / "pet_faces_64.parquet"
    if not path.exists():
        raise UserError(
            f"{path} is missing: put it there, name another folder with --data-dir, or train on "
            "images of your own with --data finetune:PATH."
        )
    rows = read_rows(path)
    of_class: dict[int, list[Row]] = {}
    for row in rows:
        if not isinstance(row.get("label"), int) or not isinstance(row.get("image"), bytes):
            raise UserError(f"{path} has a row without a whole number as label and an image.")
        of_class.setdefault(row["label"], []).append(row)
    splits: tuple[list[Row], list[Row]] = ([], [])
    for label in sorted(of_class):
        for number, row in enumerate(of_class[label]):
            splits[number % 5 == 0].append(row)
    numbers = {label: number for number, label in enumerate(sorted(of_class))}

    def images(rows: list[Row]) -> Images:
        pixels = np.stack([decode(row["image"], path) for row in rows])
        return Images(torch.from_numpy(pixels), torch.tensor([numbers[r["label"]] for r in rows]))

    train, test = splits
    if not train:
        raise UserError(f"{path} has one image of each class, expected at least two of one.")
    return ImageData(images(train), images(test), len(numbers), crop=CROP, flip=True)


def decode(content: bytes, path: Path) -> Any:
    """An encoded image in colour, of the size that all get."""
    try:
        with optional("PIL.Image").open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB").resize((IMAGE_SIZE, IMAGE_SIZE)))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{path} has an image that cannot be read ({error}).") from error


def pets(folder: Path, progress: Fetching) -> FineTuning:
    """Heads of cats and dogs, and the network's weights."""
    return FineTuning(read_pets(folder), path_of(EFFICIENTNET_LITE0, progress))


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
    "finetune": Recipe(FineTuning, pets, "pet_faces_64.parquet", DEFAULTS),
    "finetune:": Recipe(FineTuning, own_images, "", DEFAULTS),
}
