"""Labelled images of a user's own: a NumPy archive, or a Hugging Face data set on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from infobatch_lab.arrays import Archive
from infobatch_lab.download import Fetching
from infobatch_lab.errors import UserError, optional
from infobatch_lab.files import opened
from infobatch_lab.images import IMAGE_SIZE, Bytes, ImageData, Images
from infobatch_lab.options import in_words
from infobatch_lab.pictures import ARROW_ERRORS, picture
from infobatch_lab.visible import short, visible

Labels = NDArray[Any]

HELD_OUT = ("test", "validation", "valid", "val")
"""What a split for testing is called; the first that is there is taken."""


def split(
    images: Bytes, labels: Labels, held_out: tuple[Bytes, Labels] | None, path: Path
) -> ImageData:
    """Both splits. Without one for testing, every fifth image of a class is for it.

    Labels are numbers or texts. Colour images may be mirrored, grey ones may not: a mirrored digit
    is no digit.
    """
    if held_out is None:
        order = np.argsort(labels, kind="stable")
        _, starts = np.unique(labels[order], return_index=True)
        in_class = np.arange(len(labels)) - np.repeat(starts, np.diff([*starts, len(labels)]))
        is_test = np.zeros(len(labels), dtype=bool)
        is_test[order] = in_class % 5 == 0
        held_out = images[is_test], labels[is_test]
        images, labels = images[~is_test], labels[~is_test]
    classes = np.unique(labels)
    if len(classes) < 2:
        raise UserError(f"{path} has {len(classes)} classes to train on, expected at least two.")
    if len(held_out[0]) == 0 or held_out[0].shape[1:] != images.shape[1:]:
        raise UserError(
            f"{path} has images of shape {images.shape} to train and {held_out[0].shape} to test "
            "on, expected some of both, of one size."
        )
    if unknown := sorted(set(held_out[1].tolist()) - set(classes.tolist())):
        raise UserError(f"{path} tests the class {short(unknown[0])}, which it does not train.")
    train, test = (
        Images(torch.tensor(x), torch.from_numpy(np.searchsorted(classes, y).astype(np.int64)))
        for x, y in ((images, labels), held_out)
    )
    return ImageData(
        train, test, len(classes), crop=min(images.shape[1:3]) // 8, flip=images.shape[3] == 3
    )


# A NumPy archive ----------------------------------------------------------------------------------

NAMES = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x", "y", "x_test", "y_test"),
    ("images", "labels", "test_images", "test_labels"),
)
"""The arrays of an archive; the first line of which the first two are there is taken."""


def read_npz(path: Path, progress: Fetching) -> ImageData:
    """Read arrays of images and labels, to train on and perhaps to test on."""
    archive = Archive(path)
    found = [names for names in NAMES if {*names[:2]} <= {*archive.names}]
    if not found:
        known = visible(", ".join(archive.names), most=300) or "none"
        wanted = in_words([" and ".join(names[:2]) for names in NAMES])
        raise UserError(f"{path} has the arrays {known}, expected {wanted}.")
    x, y, x_test, y_test = found[0]
    held_out = None
    if {x_test, y_test} <= {*archive.names}:
        held_out = labelled(archive, x_test, y_test)
    return split(*labelled(archive, x, y), held_out, path)


def labelled(archive: Archive, x: str, y: str) -> tuple[Bytes, Labels]:
    """Images and their labels, checked."""
    images, labels = pixels_of(archive.read(x), f"{x} of {archive.path}"), archive.read(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "biuUS":
        raise UserError(
            f"{archive.path} holds labels in {labels.dtype} of shape {labels.shape} for "
            f"{len(images):,} images, expected one whole number or text per image."
        )
    return images, labels


def pixels_of(values: NDArray[Any], name: str) -> Bytes:
    """Images in uint8, (samples, height, width, channels), of one or three channels."""
    if values.ndim == 3:
        values = values[..., None]
    if values.ndim == 4 and values.shape[3] not in (1, 3) and values.shape[1] in (1, 3):
        values = values.transpose(0, 2, 3, 1)
    if values.ndim != 4 or values.shape[3] not in (1, 3) or values.size == 0:
        raise UserError(
            f"{name} has the shape {values.shape}, expected (samples, height, width), with one or "
            "three channels at the end or after the samples."
        )
    low, high = values.min(), values.max()
    if values.dtype.kind in "iu" and low >= 0 and high <= 255:
        return values.astype(np.uint8)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        return (values * 255).round().astype(np.uint8)
    raise UserError(
        f"{name} has {values.dtype} from {low} to {high}, expected whole numbers from 0 to 255, or "
        "floating ones from 0 to 1."
    )


# A Hugging Face data set on disk ------------------------------------------------------------------

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class")
ADVICE = "save it again with `save_to_disk` of the package datasets."


def read_saved(folder: Path, progress: Fetching) -> ImageData:
    """Read what `save_to_disk` of the package datasets wrote: one split, or a dict of them.

    Images of one size that is at most 64 x 64 stay as they are, others are brought to 64 x 64.
    """
    try:
        if (folder / "dataset_dict.json").is_file():
            names = read_json(folder / "dataset_dict.json")["splits"]
            held_out = next((name for name in HELD_OUT if name in names), None)
            if "train" not in names or held_out is None:
                wanted = in_words(HELD_OUT)
                raise UserError(
                    f"{folder} has the splits {short(names)}, expected train and {wanted}."
                )
            tables = [read_table(folder / "train"), read_table(folder / held_out)]
        else:
            tables = [read_table(folder)]
    except (*ARROW_ERRORS, AttributeError, IndexError, RecursionError) as error:
        reason = visible(str(error).split("\n")[0], most=200)
        raise UserError(f"{folder} is no saved data set ({reason}): {ADVICE}") from error
    images = decode([row for table in tables for row in table[0]], folder)
    num_train = len(tables[0][0])
    first, *others = (np.array(labels) for _, labels in tables)
    return split(
        images[:num_train], first, (images[num_train:], others[0]) if others else None, folder
    )


def read_json(path: Path) -> Any:
    """A small file of JSON."""
    with opened(path) as file:
        return json.loads(file.read())


def read_table(folder: Path) -> tuple[list[bytes], list[Any]]:
    """The encoded images of a split, and their labels."""
    state = read_json(folder / "state.json")
    if state.get("_indices_files"):
        raise UserError(f"{folder} keeps its order in a file of its own: {ADVICE}")
    arrow = optional("pyarrow")
    parts = []
    for part in state["_data_files"]:
        path = folder / Path(part["filename"]).name  # never outside of the folder
        with opened(path) as file:
            parts.append(arrow.ipc.open_stream(file).read_all())
    table = arrow.concat_tables(parts)
    image, label = (column_of(table, names, folder) for names in (IMAGE_COLUMNS, LABEL_COLUMNS))
    rows, labels = table[image].to_pylist(), table[label].to_pylist()
    contents = [row.get("bytes") if isinstance(row, dict) else None for row in rows]
    encoded = [content for content in contents if isinstance(content, bytes)]
    if len(encoded) < len(rows):
        raise UserError(f"{folder} has no encoded images in {image!r}: {ADVICE}")
    if len({type(label) for label in labels}) != 1 or not isinstance(labels[0], int | str):
        raise UserError(f"{folder} has {label!r} without a whole number or a text for each image.")
    return encoded, labels


def column_of(table: Any, names: Sequence[str], folder: Path) -> str:
    """The first of these columns that the table has."""
    for name in names:
        if name in table.column_names:
            return name
    known = visible(", ".join(table.column_names), most=300)
    raise UserError(f"{folder} has the columns {known}, expected one called {in_words(names)}.")


def decode(encoded: Sequence[bytes], folder: Path) -> Bytes:
    """All images as one array."""
    kinds = []
    for content in encoded:
        with picture(content) as image:
            kinds.append((image.size, image.mode))
    size, _ = kinds[0]
    if {other for other, _ in kinds} != {size} or max(size) > IMAGE_SIZE:
        size = (IMAGE_SIZE, IMAGE_SIZE)
    mode = "L" if all(mode in ("1", "L") for _, mode in kinds) else "RGB"
    images = np.empty((len(encoded), size[1], size[0], len(mode)), dtype=np.uint8)
    for row, content in zip(images, encoded, strict=True):
        with picture(content) as image:
            row[:] = np.asarray(image.convert(mode).resize(size)).reshape(row.shape)
    return images
