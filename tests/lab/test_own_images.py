"""Images of a NumPy archive and of a saved data set, read as their owner has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infobatch_lab.images import ImageData
from infobatch_lab.tasks import load

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (20, 8, 8), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(20) % 2


def read(data: str) -> ImageData:
    task: Any = load(data, Path("unused"))
    found: ImageData = task.data
    return found


@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels"), ("x_train", "y_train")])
def test_without_a_test_split_every_fifth_image_of_a_class_is_for_testing(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    x, y = names
    np.savez_compressed(tmp_path / "a.npz", **{x: GREY, y: LABELS})  # type: ignore[arg-type]
    data = read(f"npz:{tmp_path}/a.npz")
    held_out = [0, 1, 10, 11]  # of either class the first and the sixth
    assert torch.equal(data.test.images, torch.from_numpy(GREY[held_out, ..., None]))
    assert data.test.labels.tolist() == [0, 1, 0, 1]
    assert torch.equal(data.train.images, torch.from_numpy(np.delete(GREY, held_out, 0)[..., None]))
    assert (data.num_classes, data.num_channels, data.crop, data.flip) == (2, 1, 1, False)


@pytest.mark.parametrize(
    "images",
    [
        COLOUR,
        COLOUR.astype(np.int64),
        COLOUR / 255,
        np.asfortranarray(COLOUR),
        COLOUR.transpose(0, 3, 1, 2),
    ],
    ids=["uint8", "int64", "float64", "by columns", "channels first"],
)
def test_the_splits_of_an_archive_hold_the_same_images_in_any_form(
    tmp_path: Path, images: Any
) -> None:
    words = np.array(["cat", "ant"])[LABELS]
    np.savez(tmp_path / "a.npz", x=images[:15], y=words[:15], x_test=images[15:],
             y_test=words[15:, None])  # fmt: skip
    data = read(f"npz:{tmp_path}/a.npz")
    assert torch.equal(data.train.images, torch.from_numpy(COLOUR[:15]))
    assert torch.equal(data.test.images, torch.from_numpy(COLOUR[15:]))
    assert data.test.labels.tolist() == [0, 1, 0, 1, 0]  # ant comes before cat
    assert (data.num_classes, data.num_channels, data.flip) == (2, 3, True)


def saved(images: Any, labels: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    pillow = pytest.importorskip("PIL.Image")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [pillow.fromarray(image) for image in images], "label": list(labels)}
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_saved_data_set_is_read_as_it_was_saved(tmp_path: Path) -> None:
    saved(GREY, LABELS).save_to_disk(tmp_path / "one", num_shards=2)
    data = read(f"hf:{tmp_path}/one")
    assert torch.equal(data.test.images, torch.from_numpy(GREY[[0, 1, 10, 11], ..., None]))
    assert (len(data.train), data.num_channels, data.flip) == (16, 1, False)


def test_the_splits_of_a_saved_dict_keep_their_order(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    order = [3, 1, 2, 0, *range(4, 15)]
    train = saved(COLOUR, LABELS + 5).select(order)  # `datasets` keeps such an order aside
    splits = {"train": train, "validation": saved(COLOUR[15:], LABELS[15:] + 5)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "dict")
    data = read(f"hf:{tmp_path}/dict")
    assert torch.equal(data.train.images, torch.from_numpy(COLOUR[order]))
    assert data.train.labels.tolist() == LABELS[order].tolist()
    assert torch.equal(data.test.images, torch.from_numpy(COLOUR[15:]))


def test_saved_images_of_several_sizes_are_resized(tmp_path: Path) -> None:
    images = [COLOUR[i, : 4 + i % 3] for i in range(10)]
    saved(images, LABELS[:10]).save_to_disk(tmp_path / "sizes")
    assert read(f"hf:{tmp_path}/sizes").train.images.shape == (8, 64, 64, 3)
