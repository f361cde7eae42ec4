from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from infobatch_lab import pets, tasks, weights
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.download import Source
from infobatch_lab.errors import UserError, optional
from infobatch_lab.settings import settings
from infobatch_lab.tasks.finetune import FineTuning
from infobatch_lab.training import train
from tests.lab.pictures import write, write_pet
from tests.lab.pretrained import no_registry
from tests.lab.tasks.contract import check_contract


@pytest.fixture(scope="module")
def pretrained() -> dict[str, torch.Tensor]:
    """Random weights, in the order and with the head's name of the real file."""
    torch.manual_seed(0)
    state = optional("timm").create_model("tf_efficientnet_lite0").state_dict()
    return {name.replace("classifier.", "_fc."): value for name, value in state.items()}


@pytest.fixture(autouse=True)
def _cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretrained: dict[str, torch.Tensor]
) -> None:
    no_registry(monkeypatch, tmp_path / "cache")
    known = weights.EFFICIENTNET_LITE0
    path = tmp_path / "cache" / "weights" / f"{known.package}-{known.version}" / known.inside
    path.parent.mkdir(parents=True)
    torch.save(pretrained, path)


def encoded(seed: int, side: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_pets(folder: Path, rows: list[dict[str, Any]] | None = None) -> None:
    if rows is None:
        rows = [{"label": number % 3, "image": encoded(number)} for number in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "pet_faces_64.parquet")


def load(data: str, folder: Path) -> FineTuning:
    task = tasks.load(data, folder)
    assert isinstance(task, FineTuning)
    return task


def test_the_contract(tmp_path: Path) -> None:
    write_pets(tmp_path)
    chosen = settings("finetune", epochs=2, batch_size=8)
    check_contract(load("finetune", tmp_path), chosen, tmp_path)


def test_the_network_is_the_pretrained_one_with_a_new_head(
    tmp_path: Path, pretrained: dict[str, torch.Tensor]
) -> None:
    write_pets(tmp_path)
    torch.manual_seed(1)
    state = load("finetune", tmp_path).network(settings("finetune")).state_dict()
    for name, value in pretrained.items():
        if not name.startswith("_fc."):
            assert state[name].equal(value), name
    assert state["classifier.weight"].shape == (3, 1280)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    write_pets(tmp_path)
    task = load("finetune", tmp_path)
    path = weights.path_of(weights.EFFICIENTNET_LITE0)
    shuffled = torch.load(path, weights_only=True)
    torch.save(dict(reversed(shuffled.items())), path)
    with pytest.raises(RuntimeError, match="size mismatch"):
        task.network(settings("finetune"))


def test_every_fifth_pet_of_a_breed_is_for_testing(tmp_path: Path) -> None:
    labels = [7] * 6 + [2] * 5
    write_pets(tmp_path, [{"label": n, "image": encoded(i)} for i, n in enumerate(labels)])
    data = load("finetune", tmp_path).data
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4
    assert data.test.labels.tolist() == [0, 1, 1]
    with Image.open(io.BytesIO(encoded(5))) as last_of_the_first_breed:
        assert np.array_equal(data.test.images[2], np.asarray(last_of_the_first_breed))


def test_the_network_sees_pixels_between_minus_1_and_1(tmp_path: Path) -> None:
    write_pets(tmp_path)
    task, seen = load("finetune", tmp_path), []

    class Spy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return self.weight.expand(len(x), 3)

    task.evaluate(Spy(), settings("finetune"), final=True)
    pixels = task.data.test.images.permute(0, 3, 1, 2).double()
    torch.testing.assert_close(seen[0].double(), pixels / 127.5 - 1, rtol=0, atol=1e-6)


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    for kind in ("cats", "dogs"):
        (tmp_path / "mine" / kind).mkdir(parents=True)
        for number in range(6):
            (tmp_path / "mine" / kind / f"{number}.png").write_bytes(encoded(number, side=20))
    task = load(f"finetune:{tmp_path / 'mine'}", tmp_path)
    assert (len(task.data.train), task.num_test, task.data.num_classes) == (8, 4, 2)


def test_a_folder_of_ones_own_is_trained(tmp_path: Path) -> None:
    for split, num in (("train", 6), ("val", 3)):
        for name, shade in (("dark", 0), ("light", 200)):
            for number in range(num):
                image = np.full((20, 20, 3), shade + number, dtype=np.uint8)
                write(tmp_path / "mine" / split / name / f"{number}.png", image)
    chosen = settings(f"finetune:{tmp_path / 'mine'}", epochs=1, batch_size=4)
    task = load(chosen.data, tmp_path)
    for part in (task.data.train, task.data.test):
        assert (part.images.float().mean((1, 2, 3)) > 100).long().equal(part.labels)
    run = train(chosen, task, Checkpoint(tmp_path / "run.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_trained"], run["num_test"]) == (12, 12, 6)
    assert math.isfinite(run["history"][0]["train_loss"])
    assert 0 <= run["accuracy"] <= 1  # of random weights nothing more is known


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"label": "cat", "image": b""}], "a row whose label is no whole number"),
        ([{"label": 0, "image": b"x"}] * 2, "an image of the table cannot be read as an image"),
        ([{"label": 0, "image": encoded(0)}], "has 0 classes to train on, expected at least two"),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, rows: list[dict[str, Any]], sentence: str
) -> None:
    write_pets(tmp_path, rows)
    with pytest.raises(UserError, match=sentence):
        tasks.load("finetune", tmp_path)


def test_a_table_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "pet_faces_64.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"cannot be read as a parquet file .*: replace it, or del"):
        tasks.load("finetune", tmp_path)


def test_without_the_table_heads_are_cut_from_the_photographs(tmp_path: Path) -> None:
    shades = {"Bengal": 200, "beagle": 100}
    for breed, shade in shades.items():
        for number in range(1, 7):
            pixels = np.zeros((80, 100, 3), dtype=np.uint8)
            pixels[10:70, 20:90] = shade + number
            write_pet(tmp_path / "oxford-iiit-pet", f"{breed}_{number}", (21, 11, 90, 70), pixels)
    data = load("finetune", tmp_path).data
    assert (data.train.images.shape, data.num_classes) == ((8, 64, 64, 3), 2)
    assert data.test.images[:, 0, 0, 0].tolist() == [101, 106, 201, 206]  # every fifth
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    for images in (data.train.images, data.test.images):
        assert (images == images[:, :1, :1, :1]).all()  # nothing but the head

    write_pets(tmp_path)
    assert load("finetune", tmp_path).data.num_classes == 3  # the table is read where there is one


def test_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Source(("http://127.0.0.1:9/annotations.tar.gz",), "0")
    monkeypatch.setattr(pets, "ANNOTATIONS", nowhere)
    with pytest.raises(UserError, match=r"oxford-iiit-pet/annotations/xmls is missing and could"):
        tasks.load("finetune", tmp_path)
