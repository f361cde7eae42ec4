"""Variants of data sets: what they change, what they leave, and that they do not vary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from infobatch_lab.images import ImageData, Images, read_digits
from infobatch_lab.variants import long_tail, noisy, redundant, small, validation

VARIANTS = (long_tail, redundant, noisy, small, validation)


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return read_digits(Path("unused"), lambda *_: None)


def rows(images: Images) -> Counter[bytes]:
    """The images with their labels, as a bag."""
    flat = images.images.flatten(1)
    return Counter(
        bytes(x.tolist()) + bytes([int(y)]) for x, y in zip(flat, images.labels, strict=True)
    )


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_does_not_depend_on_torchs_generator(
    digits: ImageData, variant: Callable[[ImageData], ImageData]
) -> None:
    torch.manual_seed(1)
    first = variant(digits)
    torch.manual_seed(2)
    second = variant(digits)
    assert same(first.train.images, second.train.images)
    assert same(first.train.labels, second.train.labels)
    assert same(first.test.images, second.test.images)


@pytest.mark.parametrize("variant", [long_tail, redundant, noisy])
def test_the_test_images_stay(digits: ImageData, variant: Callable[[ImageData], ImageData]) -> None:
    assert variant(digits).test is digits.test


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_original_is_not_changed(
    digits: ImageData, variant: Callable[[ImageData], ImageData]
) -> None:
    before = rows(digits.train)
    variant(digits)
    assert rows(digits.train) == before


def test_a_long_tail_falls_by_the_same_factor_to_a_hundredth() -> None:
    labels = torch.arange(5).repeat(1000)
    even = Images(torch.zeros(5000, 2, 2, 1, dtype=torch.uint8), labels)
    found = long_tail(ImageData(even, even, num_classes=5, crop=0, flip=False))
    assert found.train.labels.bincount().tolist() == [1000, 316, 100, 32, 10]


def test_a_long_tail_has_images_of_the_original_each_once(digits: ImageData) -> None:
    assert rows(long_tail(digits).train) <= rows(digits.train)


def test_redundant_images_are_pairs_one_pixel_apart(digits: ImageData) -> None:
    train = redundant(digits).train
    half = len(train) // 2
    assert len(train) == len(digits.train) // 2 * 2
    assert rows(Images(train.images[:half], train.labels[:half])) <= rows(digits.train)
    assert same(train.labels[:half], train.labels[half:])
    assert same(train.images[:half, :, :-1], train.images[half:, :, 1:])


def test_a_fifth_of_noisy_labels_is_wrong_in_every_way(digits: ImageData) -> None:
    noisy_train = noisy(digits).train
    moved = (noisy_train.labels - digits.train.labels) % 10
    assert int((moved != 0).sum()) == round(0.2 * len(digits.train))
    assert set(moved.tolist()) == set(range(10))
    assert same(noisy_train.images, digits.train.images)


def test_small_images_are_few_and_show_the_same_at_half_the_size() -> None:
    images = torch.zeros(6500, 4, 6, 1, dtype=torch.uint8)
    images[7, :2, :2] = torch.tensor([[10, 20], [30, 41]])[..., None]  # the mean is 25.25
    images[7, 2:, 4:] = 200
    labels = torch.arange(6500) % 10
    data = ImageData(Images(images, labels), Images(images[:9], labels[:9]), 10, crop=4, flip=True)
    made = small(data)
    assert (len(made.train), len(made.test), made.crop) == (6000, 9, 2)
    assert same(made.train.labels, labels[:6000])
    for split in (made.train, made.test):
        assert split.images[7, ..., 0].tolist() == [[25, 0, 0], [0, 0, 200]]
        assert int(split.images.sum()) == 225


def test_validation_splits_the_training_images(digits: ImageData) -> None:
    found = validation(digits)
    assert len(found.test) == round(0.2 * len(digits.train))
    assert rows(found.train) + rows(found.test) == rows(digits.train)
