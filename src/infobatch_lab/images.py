"""Image data sets, from their standard files: each split is one uint8 tensor of images.

Missing files are fetched from the data set's own home. Nothing is unpickled.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from infobatch_lab.download import Fetching, Source, fetch
from infobatch_lab.errors import UserError, optional
from infobatch_lab.files import check_size, opened
from infobatch_lab.pictures import picture

Bytes = NDArray[np.uint8]

IMAGE_SIZE = 64
"""Images of a folder are resized to squares of this side."""

IMAGE_TYPES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class Images(Dataset[Any]):
    """Images (samples, height, width, channels) in uint8 with labels, fetched in whole batches.

    >>> images = Images(torch.zeros(4, 8, 8, 1, dtype=torch.uint8), torch.arange(4))
    >>> x, y = images.__getitems__([3, 1])
    >>> x.shape, y
    (torch.Size([2, 8, 8, 1]), tensor([3, 1]))
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(indices)
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images to train and to test on, and what augmentation may do to them."""

    train: Images
    test: Images
    num_classes: int
    crop: int
    """The largest shift of a training image, in pixels."""
    flip: bool
    """Whether a mirrored image still shows its class."""

    @property
    def num_channels(self) -> int:
        return self.train.images.shape[3]


def with_first(data: ImageData, num_train: int) -> ImageData:
    """The same data, with the first so many images to train on."""
    train = Images(data.train.images[:num_train], data.train.labels[:num_train])
    return replace(data, train=train)


def default_folder() -> Path:
    """The default folder of data sets: `INFOBATCH_DATA`, or a cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("INFOBATCH_DATA") or cache / "infobatch")


# scikit-learn's digits ----------------------------------------------------------------------------


def read_digits(folder: Path, progress: Fetching) -> ImageData:
    """1,437 images of 8 x 8 to train, 360 to test; they come with scikit-learn."""
    pixels, labels = optional("sklearn.datasets").load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(pixels.astype(np.uint8).reshape(-1, 8, 8, 1) * 15)[order]
    classes = torch.from_numpy(labels.astype(np.int64))[order]
    return ImageData(
        train=Images(images[360:], classes[360:]),
        test=Images(images[:360], classes[:360]),
        num_classes=10,
        crop=0,
        flip=False,
    )


# idx: MNIST and Fashion-MNIST ---------------------------------------------------------------------

IDX_DIMENSIONS = 3

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

MNIST = (
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)

FASHION_MNIST = (
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)


def read_mnist(folder: Path, progress: Fetching) -> ImageData:
    """60,000 digits of 28 x 28 to train, 10,000 to test."""
    return read_idx_splits(folder / "mnist", MNIST, progress, crop=2, flip=False)


def read_fashion_mnist(folder: Path, progress: Fetching) -> ImageData:
    """60,000 pieces of clothing, 28 x 28, to train, 10,000 to test."""
    return read_idx_splits(folder / "fashion-mnist", FASHION_MNIST, progress, crop=0, flip=True)


def read_idx_splits(
    folder: Path,
    home: tuple[tuple[str, ...], tuple[str, ...]],
    progress: Fetching,
    *,
    crop: int,
    flip: bool,
) -> ImageData:
    """Read the four idx files of a data set, plain or gzipped; missing ones are fetched."""
    urls, checksums = home
    for name, md5 in zip(IDX_FILES, checksums, strict=True):
        if not (folder / name).exists() and not (folder / f"{name}.gz").exists():
            source = Source(tuple(f"{url}{name}.gz" for url in urls), md5)
            fetch(source, folder / f"{name}.gz", progress)
    x, y, x_test, y_test = (read_idx(find_idx(folder, name)) for name in IDX_FILES)
    num_classes = 10
    return ImageData(
        train=labelled(x[..., None], y, num_classes, folder),
        test=labelled(x_test[..., None], y_test, num_classes, folder),
        num_classes=num_classes,
        crop=crop,
        flip=flip,
    )


def find_idx(folder: Path, name: str) -> Path:
    """Find the file of this name, plain or gzipped."""
    plain = folder / name
    return plain if plain.exists() else folder / f"{name}.gz"


def read_idx(path: Path) -> Bytes:
    """Read an array of bytes in the idx format; gzipped if the name ends in .gz."""
    with opened(path) as file:
        start = file.read(4)
        if len(start) < 4 or start[:3] != b"\0\0\x08":
            raise UserError(
                f"{path} is no idx file of bytes (it begins with {start.hex(' ') or 'nothing'}, "
                "expected 00 00 08): delete it to fetch it anew, or replace it."
            )
        num_dimensions = start[3]
        if num_dimensions > IDX_DIMENSIONS:
            raise UserError(
                f"{path} has {num_dimensions} dimensions, expected at most {IDX_DIMENSIONS}: "
                "delete it to fetch it anew, or replace it."
            )
        sizes = file.read(4 * num_dimensions)
        if len(sizes) < 4 * num_dimensions:
            raise damaged(path, 4 + len(sizes), 4 + 4 * num_dimensions)
        shape = tuple(int(n) for n in np.frombuffer(sizes, dtype=">u4"))
        expected = math.prod(shape)
        check_size(path, expected)
        content = file.read(expected + 1)
    if len(content) != expected:
        before = 4 + 4 * num_dimensions
        raise damaged(path, before + len(content), before + expected)
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def damaged(path: Path, size: int, expected: int) -> UserError:
    """The error for a file of the wrong size."""
    return UserError(
        f"{path} has {size:,} bytes{' or more' * (size > expected)}, expected {expected:,}: it is "
        "damaged or not complete; delete it to fetch it anew, or replace it."
    )


# CIFAR's binary versions --------------------------------------------------------------------------

CIFAR10 = Source(
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR100 = Source(
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    "03b5dce01913d631647c71ecec9e9cb8",
)


def read_cifar10(folder: Path, progress: Fetching) -> ImageData:
    """50,000 colour images of 32 x 32 to train, 10,000 to test, in 10 classes."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return read_cifar(
        folder / "cifar-10-batches-bin", (*names, "test_batch.bin"), CIFAR10, progress
    )


def read_cifar100(folder: Path, progress: Fetching) -> ImageData:
    """50,000 colour images of 32 x 32 to train, 10,000 to test, in 100 classes."""
    return read_cifar(folder / "cifar-100-binary", ("train.bin", "test.bin"), CIFAR100, progress)


def read_cifar(
    folder: Path, names: tuple[str, ...], source: Source, progress: Fetching
) -> ImageData:
    """Read CIFAR's binary files: all but the last are for training."""
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        fetch(source, folder, progress, missing=missing)
    # CIFAR-100 has two label bytes per image, of which the second is the class.
    num_labels, num_classes = (2, 100) if source is CIFAR100 else (1, 10)
    parts = [read_cifar_file(folder / name, num_labels) for name in names]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return ImageData(
        train=labelled(images, labels, num_classes, folder),
        test=labelled(*parts[-1], num_classes, folder),
        num_classes=num_classes,
        crop=4,
        flip=True,
    )


def read_cifar_file(path: Path, num_labels: int) -> tuple[Bytes, Bytes]:
    """Read images and labels: a record is the label bytes, then a red, a green and a blue plane."""
    with opened(path) as file:
        content, record = file.read(), num_labels + 3 * 32 * 32
    if len(content) == 0 or len(content) % record:
        raise damaged(path, len(content), (len(content) // record + 1) * record)
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    planes = rows[:, num_labels:].reshape(-1, 3, 32, 32)
    return planes.transpose(0, 2, 3, 1), rows[:, num_labels - 1]


def labelled(images: Bytes, labels: Bytes, num_classes: int, folder: Path) -> Images:
    """Put images and labels together, and check that they fit."""
    if images.ndim != 4 or labels.shape != images.shape[:1]:
        raise UserError(
            f"{folder} holds images of shape {images.shape} and labels of shape {labels.shape}, "
            "expected one label per image: replace its files."
        )
    if len(labels) == 0 or labels.max() >= num_classes:
        raise UserError(
            f"{folder} has labels up to {labels.max(initial=0)} for {len(labels)} images, expected "
            f"0 to {num_classes - 1}: replace its files."
        )
    return Images(
        torch.from_numpy(np.array(images, order="C")),
        torch.from_numpy(labels.astype(np.int64)),
    )


# Tiny-ImageNet ------------------------------------------------------------------------------------


def read_tiny_imagenet(folder: Path, progress: Fetching) -> ImageData:
    """100,000 colour images of 64 x 64 to train, 10,000 to test, in 200 classes.

    As the archive has them: `train/CLASS/images`, and `val/images` beside `val_annotations.txt`,
    since the images of `test` have no labels.
    """
    home = folder / "tiny-imagenet-200"
    if not home.is_dir():
        raise UserError(
            f"{home} is missing: unpack tiny-imagenet-200.zip there, or name another folder with "
            "--data-dir."
        )
    train = images_per_class(home / "train")
    test: dict[str, list[Path]] = {}
    annotations = home / "val" / "val_annotations.txt"
    with opened(annotations) as file:
        lines = file.read().decode(errors="replace").splitlines()
    for line in lines:
        name, label, *_ = [*line.split("\t"), ""]
        if label not in train:
            raise UserError(f"{annotations} has the class {label!r}, which train has not.")
        test.setdefault(label, []).append(home / "val" / "images" / name)
    return decode_splits(train, test)


# A folder of images -------------------------------------------------------------------------------


def read_folder(folder: Path, progress: Fetching) -> ImageData:
    """Read a folder of images per class.

    Folders `train` and `test` (or `val`) are the splits; without them, every fifth image of a class
    is for testing.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder, expected one with a folder of images per class.")
    splits = split_folders(folder)
    if splits is None:
        files = images_per_class(folder)
        train = {name: [f for i, f in enumerate(of) if i % 5] for name, of in files.items()}
        test = {name: of[::5] for name, of in files.items()}
    else:
        train, test = map(images_per_class, splits)
        if unknown := sorted(set(test) - set(train)):
            raise UserError(f"{splits[1]} has the class {unknown[0]!r}, which train has not.")
    return decode_splits(train, test)


def read_unlabelled(folder: Path) -> ImageData:
    """Read a folder of images, which all get the class 0. Splits are as in `read_folder`."""
    splits = split_folders(folder)
    if splits is None:
        files = images_in(folder)
        train, test = [f for i, f in enumerate(files) if i % 5], files[::5]
    else:
        train, test = map(images_in, splits)
    if not train or not test:
        raise UserError(
            f"{folder} has {len(train)} images to train and {len(test)} to test on, expected some "
            "of both."
        )
    return decode_splits({"": train}, {"": test})


def is_unlabelled(folder: Path) -> bool:
    """Whether a folder, or its folder `train`, has images, and no folders of images."""
    home = folder / "train" if (folder / "train").is_dir() else folder
    return home.is_dir() and bool(images_in(home)) and not folders_of_images(home)


def split_folders(folder: Path) -> tuple[Path, Path] | None:
    """The folders to train and to test on; None where there is no folder `train`."""
    if not (folder / "train").is_dir():
        return None
    held_out = [folder / name for name in ("test", "val") if (folder / name).is_dir()]
    if not held_out:
        raise UserError(f"{folder} has a folder train but none called test or val.")
    return folder / "train", held_out[0]


def images_in(folder: Path) -> list[Path]:
    """List the image files that lie in a folder itself."""
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in IMAGE_TYPES)


def folders_of_images(folder: Path) -> dict[str, list[Path]]:
    """List the image files below each folder in it that has some."""
    found = {
        entry.name: sorted(f for f in entry.rglob("*") if f.suffix.lower() in IMAGE_TYPES)
        for entry in sorted(folder.iterdir())
        if entry.is_dir()
    }
    return {name: files for name, files in found.items() if files}


def images_per_class(folder: Path) -> dict[str, list[Path]]:
    """List the image files of each class."""
    found = folders_of_images(folder)
    if len(found) < 2:
        raise UserError(
            f"{folder} has {len(found)} folders with images, expected one for each of at least two "
            "classes."
        )
    return found


def decode_splits(train: dict[str, list[Path]], test: dict[str, list[Path]]) -> ImageData:
    """Both splits, with the classes of train in the order of their names."""
    classes = sorted(train)
    return ImageData(
        train=decode(train, classes),
        test=decode(test, classes),
        num_classes=len(classes),
        crop=IMAGE_SIZE // 8,
        flip=True,
    )


def decode(files: dict[str, list[Path]], classes: list[str]) -> Images:
    """Decode all images into one array of one size."""
    paths = [(path, classes.index(name)) for name, of in files.items() for path in of]
    if not paths:
        raise UserError("no images are left for testing: give each class at least two.")
    images = np.empty((len(paths), IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    for row, (path, _) in zip(images, paths, strict=True):
        row[:] = decode_file(path)
    return Images(torch.from_numpy(images), torch.tensor([label for _, label in paths]))


def decode_file(path: Path) -> Bytes:
    """Decode one image file, in colour, resized."""
    with picture(path) as image:
        return np.asarray(image.convert("RGB").resize((IMAGE_SIZE, IMAGE_SIZE)))
