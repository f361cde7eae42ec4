from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.errors import UserError
from infobatch_lab.images import Images
from infobatch_lab.lines import run_of
from infobatch_lab.seeding import generator
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.tasks.mae import (
    PATCHES,
    SIZES,
    MaskedAutoencoder,
    MaskedImages,
    Size,
    masked_losses,
    patches_of,
    pixels_of,
    split_places,
)
from infobatch_lab.training import train
from tests.lab.files import write_cifar
from tests.lab.pictures import scene, write
from tests.lab.tasks.contract import check_contract

SMALL = Size(depth=1, width=32, decoder_depth=1, decoder_width=32)


def few_images(folder: Path, num_train: int = 41, num_test: int = 20) -> MaskedImages:
    """CIFAR-10's own files, with a colour for each class."""
    nums = {**{f"data_batch_{n}": num_train for n in range(1, 6)}, "test_batch": num_test}
    for name, num in nums.items():
        labels = torch.arange(num) % 10
        noise = torch.randint(0, 100, (num, 3, 32, 32), generator=generator(name))
        pixels = noise + (labels * 15)[:, None, None, None]
        path = folder / "cifar-10-batches-bin" / f"{name}.bin"
        write_cifar(path, pixels.numpy(), labels.numpy(), 1)
    task = load("mae", folder)
    assert isinstance(task, MaskedImages)
    assert len(task.data.train) == 5 * num_train
    train = Images(task.data.train.images[:num_train], task.data.train.labels[:num_train])
    return MaskedImages(replace(task.data, train=train))


@pytest.mark.parametrize("mask_ratio", [0.75, 0.5])
def test_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask_ratio: float) -> None:
    monkeypatch.setitem(SIZES, "mae-mini", SMALL)
    chosen = settings("mae", epochs=3, batch_size=8, mask_ratio=mask_ratio, finetune_epochs=1)
    check_contract(few_images(tmp_path), chosen, tmp_path)
    with Image.open(tmp_path / "figures" / "reconstructions.png") as shown:
        assert shown.size == (8 * 32, 3 * 32)


def test_patches_are_squares_row_by_row_and_can_be_put_together_again() -> None:
    images = torch.arange(2 * 3 * 32 * 32).reshape(2, 3, 32, 32).float()
    patches = patches_of(images)
    assert patches.shape == (2, 64, 48)
    assert set(patches[1, 9].tolist()) == set(images[1, :, 4:8, 4:8].flatten().tolist())
    assert pixels_of(patches, 3).equal(images.permute(0, 2, 3, 1))


@pytest.mark.parametrize(("mask_ratio", "num_masked"), [(0.75, 48), (0.999, 63), (0.001, 1)])
def test_every_patch_is_visible_or_masked(mask_ratio: float, num_masked: int) -> None:
    visible, masked = split_places(5, mask_ratio, generator("test"))
    assert masked.shape == (5, num_masked)
    for row in torch.cat([visible, masked], dim=1):
        assert sorted(row.tolist()) == list(range(PATCHES**2))


def test_the_network_sees_nothing_of_a_masked_patch() -> None:
    torch.manual_seed(0)
    network = MaskedAutoencoder(SMALL, 48).eval()
    patches = torch.randn(3, 64, 48)
    visible, masked = split_places(3, 0.75, generator("test"))
    with torch.no_grad():
        before = network(patches, visible)
        hidden = patches.scatter(1, masked[..., None].expand(-1, -1, 48), 7.0)
        assert network(hidden, visible).equal(before)
        shown = patches.scatter(1, visible[..., None].expand(-1, -1, 48), 7.0)
        assert not network(shown, visible).allclose(before)


def test_the_loss_of_an_image_is_over_its_masked_patches_each_normalised_by_itself() -> None:
    patches = torch.randn(3, 64, 48, generator=generator("patches")) * 5 + 2
    guess = torch.randn(3, 64, 48, generator=generator("guess"))

    def forward(_: Tensor, visible: Tensor) -> Tensor:
        assert visible.shape == (3, 16)
        return guess

    found = masked_losses(forward, patches, 0.75, generator("test"))
    _, masked = split_places(3, 0.75, generator("test"))
    for image in range(3):
        errors = []
        for place in masked[image].tolist():
            of = patches[image, place].double()
            target = (of - of.mean()) / of.std()
            errors.append(float((guess[image, place] - target).square().mean()))
        assert float(found[image]) == pytest.approx(sum(errors) / 48, rel=1e-4)


def test_colours_that_tell_the_class_are_found_by_probe_and_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "mae-mini", SMALL)
    task = few_images(tmp_path, num_train=200, num_test=50)
    chosen = settings("mae", batch_size=20, finetune_epochs=10)
    torch.manual_seed(0)
    network = task.network(chosen).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = task.evaluate(network, chosen, final=True)
    assert found["probe_accuracy"] > 0.8
    assert found["finetuned_accuracy"] > 0.3  # by chance 0.1
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())
    assert task.evaluate(network, chosen, final=False).keys() == {"test_loss"}


def test_a_folder_of_images_per_class(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for seed in range(5):
            write(tmp_path / name / f"{seed}.png", scene(seed)[0])
    task = load(f"mae:{tmp_path}", Path("unused"))
    assert isinstance(task, MaskedImages)
    chosen = settings(f"mae:{tmp_path}", batch_size=4)
    batch = task.data.train.__getitems__([0, 1, 2])
    losses, _ = task.batch_losses(task.network(chosen), batch, chosen, generator("test"))
    assert losses.shape == (3,)


def test_a_folder_of_images_per_class_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "mae-mini", SMALL)
    rng = np.random.default_rng(0)
    for name, shade in (("dark", 0), ("light", 200)):
        for number in range(20):
            image = rng.integers(shade, shade + 56, (20, 20, 3)).astype(np.uint8)
            write(tmp_path / "mine" / name / f"{number}.png", image)
    chosen = settings(f"mae:{tmp_path / 'mine'}", epochs=1, batch_size=8, finetune_epochs=1)
    run = train(chosen, load(chosen.data, Path("unused")), Checkpoint(tmp_path / "run.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_trained"], run["num_test"]) == (32, 32, 8)
    assert run["probe_accuracy"] == 1  # the folders are the labels
    assert 0 < run["test_loss"] < 2


def write_unlabelled(folder: Path, num: int) -> None:
    for seed in range(num):
        write(folder / f"{seed:02}.png", scene(seed)[0])


def test_images_without_labels_keep_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "mae-mini", SMALL)
    write_unlabelled(tmp_path / "mine", 30)
    task = load(f"mae:{tmp_path / 'mine'}", Path("unused"))
    assert isinstance(task, MaskedImages)
    assert (len(task.data.train), task.num_test) == (24, 6)
    chosen = settings(f"mae:{tmp_path / 'mine'}", epochs=3, batch_size=8)
    check_contract(task, chosen, tmp_path)


def test_without_labels_the_metric_is_the_loss_on_test_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "mae-mini", SMALL)
    for split, num in (("train", 8), ("val", 3)):
        write_unlabelled(tmp_path / "mine" / split, num)
    (tmp_path / "mine" / "train" / ".thumbnails").mkdir()
    chosen = settings(f"mae:{tmp_path / 'mine'}", epochs=2, batch_size=4)
    line = train(chosen, load(chosen.data, Path("unused")), Checkpoint(tmp_path / "run.pt"))
    assert isinstance(line, dict)
    assert "probe_accuracy" not in line
    run = run_of(line)
    assert (run.num_samples, run.num_test) == (8, 3)
    assert run.metric.name == "test_loss"
    assert not run.metric.higher_is_better
    assert run.value == line["test_loss"] == line["history"][-1]["test_loss"] > 0


def test_loose_images_beside_folders_of_classes_are_no_data(tmp_path: Path) -> None:
    write_unlabelled(tmp_path, 2)
    for name in ("cat", "dog"):
        write_unlabelled(tmp_path / name, 5)
    task = load(f"mae:{tmp_path}", Path("unused"))
    assert isinstance(task, MaskedImages)
    assert task.metric.name == "probe_accuracy"
    assert (len(task.data.train), len(task.data.test)) == (8, 2)


def test_a_single_image_is_too_few(tmp_path: Path) -> None:
    write_unlabelled(tmp_path, 1)
    with pytest.raises(UserError, match="has 0 images to train and 1 to test on, expected some"):
        load(f"mae:{tmp_path}", Path("unused"))
