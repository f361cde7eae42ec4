from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from infobatch_lab.augment import crop_and_flip, mean_and_std, mix, normalise
from infobatch_lab.seeding import generator


def numbered(num: int = 6, side: int = 8, channels: int = 3) -> Tensor:
    return torch.randint(0, 256, (num, side, side, channels), dtype=torch.uint8)


def slow_crops(image: Tensor, crop: int) -> list[Tensor]:
    """Every shift of an image with a reflected border, and its mirror image, one by one."""
    padded = np.pad(image.numpy(), ((crop, crop), (crop, crop), (0, 0)), mode="reflect")
    side = image.shape[0]
    shifted = [
        padded[y : y + side, x : x + side] for y in range(2 * crop + 1) for x in range(2 * crop + 1)
    ]
    return [torch.from_numpy(s.copy()) for s in shifted]


def test_every_image_is_a_crop_of_itself_mirrored_or_not() -> None:
    images = numbered(40)
    changed = crop_and_flip(images, generator("test"), crop=2, flip=True)
    mirrored = 0
    for before, after in zip(images, changed, strict=True):
        crops = slow_crops(before, 2)
        plain = any(after.equal(crop) for crop in crops)
        flipped = any(after.equal(crop.flip(1)) for crop in crops)
        assert plain or flipped
        mirrored += flipped
    assert 8 < mirrored < 32


def test_all_shifts_are_drawn_alike() -> None:
    image = numbered(1)
    changed = crop_and_flip(image.repeat(2500, 1, 1, 1), generator(1), crop=2, flip=False)
    crops = slow_crops(image[0], 2)
    counts = [sum(bool(c.equal(crop)) for c in changed) for crop in crops]
    assert sum(counts) == 2500
    assert min(counts) > 60  # 100 expected
    assert max(counts) < 140


def test_without_crop_and_flip_nothing_changes() -> None:
    images = numbered()
    assert crop_and_flip(images, generator(1), crop=0, flip=False) is images


def test_what_is_drawn_depends_on_the_key_alone() -> None:
    images = numbered()
    one, same, other = (
        crop_and_flip(images, generator("augment", *key), crop=2, flip=True)
        for key in ((0, 1), (0, 1), (1, 0))
    )
    assert one.equal(same)
    assert not one.equal(other)


def test_normalised_images_have_mean_0_and_deviation_1() -> None:
    images = numbered(1500)
    inputs = normalise(images, *mean_and_std(images))
    assert inputs.shape == (1500, 3, 8, 8)
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.std((0, 2, 3)), torch.ones(3), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("mixup", "cutmix"), [(1.0, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_a_mixed_image_holds_both_with_their_shares(mixup: float, cutmix: float) -> None:
    # Image k is the constant k, so the mean of a mixed image says what it is made of.
    images = torch.arange(10.0).reshape(-1, 1, 1, 1).expand(10, 3, 8, 8).contiguous()
    shares = set()
    for draw in range(30):
        mixed, partner, lam = mix(images, generator(draw), mixup=mixup, cutmix=cutmix)
        assert sorted(partner.tolist()) == list(range(10))
        expected = lam * torch.arange(10.0) + (1 - lam) * partner.float()
        torch.testing.assert_close(mixed.mean((1, 2, 3)), expected)
        shares.add(round(lam, 4))
        is_cut = bool(((mixed == images) | (mixed == images[partner])).all())
        assert is_cut or mixup
    assert len(shares) > 4
    assert images[3].eq(3).all()
