from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.errors import optional
from infobatch_lab.images import Images
from infobatch_lab.seeding import generator
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.tasks.swin import SIZES, Swin
from infobatch_lab.training import train
from tests.lab.files import cifar_records, write_cifar
from tests.lab.pictures import scene, write
from tests.lab.tasks.contract import check_contract

optional("timm")

SMALL: tuple[int, dict[str, Any]] = (8, {"embed_dim": 12, "depths": (1, 2), "num_heads": (2, 2)})


def few_images(folder: Path) -> Swin:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name in names:
        images, labels = cifar_records(9, num_labels=1, num_classes=10)
        write_cifar(folder / "cifar-10-batches-bin" / f"{name}.bin", images, labels, 1)
    task = load("swin", folder)
    assert isinstance(task, Swin)
    train = Images(task.data.train.images[:33], task.data.train.labels[:33])  # a last batch of one
    return Swin(replace(task.data, train=train))


@pytest.mark.parametrize("changes", [{}, {"mixup": 0.0, "cutmix": 0.0, "label_smoothing": 0.0}])
def test_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setitem(SIZES, "swin-mini", SMALL)
    chosen = settings("swin", epochs=3, batch_size=8, **changes)
    check_contract(few_images(tmp_path), chosen, tmp_path)


def test_the_recipe_mixes_and_scores_samples_apart_from_their_losses(tmp_path: Path) -> None:
    task, chosen = few_images(tmp_path), settings("swin")
    batch = task.data.train.__getitems__(list(range(8)))
    losses, scores = task.batch_losses(task.network(chosen), batch, chosen, generator("test"))
    assert scores is not None
    assert not scores.allclose(losses)
    assert ((scores >= 0) & (scores <= 2)).all()


@pytest.mark.parametrize(("model", "num_stages"), [("swin-mini", 2), ("swin-tiny", 4)])
def test_images_of_any_size_are_so_many_patches(
    tmp_path: Path, model: str, num_stages: int
) -> None:
    for name in ("cat", "dog"):
        for seed in range(5):
            write(tmp_path / name / f"{seed}.png", scene(seed)[0])
    task = load(f"swin:{tmp_path}", Path("unused"))  # 64 x 64
    network = task.network(settings(f"swin:{tmp_path}", model=model))
    assert len(network.layers) == num_stages  # type: ignore[arg-type]
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 2)


def test_a_folder_of_images_per_class_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "swin-mini", SMALL)
    rng = np.random.default_rng(0)
    for name, shade in (("dark", 0), ("light", 200)):
        for number in range(10):
            image = rng.integers(shade, shade + 56, (20, 20, 3)).astype(np.uint8)
            write(tmp_path / "mine" / name / f"{number}.png", image)
    chosen = settings(f"swin:{tmp_path / 'mine'}", epochs=1, batch_size=2)
    run = train(chosen, load(chosen.data, Path("unused")), Checkpoint(tmp_path / "run.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_trained"], run["num_test"]) == (16, 16, 4)
    assert run["accuracy"] == 1  # the folders are the labels
