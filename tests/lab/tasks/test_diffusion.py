from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from infobatch_lab import pets, weights
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.download import Source
from infobatch_lab.errors import UserError, optional
from infobatch_lab.seeding import generator
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.tasks.diffusion import (
    STEPS,
    WIDTHS,
    Diffusion,
    Features,
    frechet_distance,
    inputs_of,
    kernel_distance,
    noise_losses,
    pixels_of,
    sample,
    shares,
    standardised,
)
from infobatch_lab.training import train
from tests.lab.pictures import encoded, scene, write, write_pet, write_table
from tests.lab.tasks.contract import check_contract


@pytest.fixture(scope="module")
def pretrained() -> dict[str, Tensor]:
    """Random weights, in the order and with the head's name of the real file."""
    torch.manual_seed(0)
    state = optional("timm").create_model("tf_efficientnet_lite0").state_dict()
    return {name.replace("classifier.", "_fc."): value for name, value in state.items()}


@pytest.fixture(autouse=True)
def efficientnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretrained: dict[str, Tensor]
) -> Path:
    """The weights where the cache would have them."""
    monkeypatch.setenv("INFOBATCH_DATA", str(tmp_path / "cache"))
    known = weights.EFFICIENTNET_LITE0
    path = tmp_path / "cache" / "weights" / f"{known.package}-{known.version}" / known.inside
    path.parent.mkdir(parents=True)
    torch.save(pretrained, path)
    return path


def pet_faces(folder: Path, num: int = 30) -> Diffusion:
    images = [encoded(scene(seed, (64, 64))[0]) for seed in range(num)]
    write_table(folder / "pet_faces_64.parquet", {"image": list(images), "label": [0] * num})
    task = load("pet-faces", folder)
    assert isinstance(task, Diffusion)
    return task


def test_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WIDTHS, "unet-64", 8)
    task = pet_faces(tmp_path)
    assert task.num_test == 3
    chosen = settings("pet-faces", epochs=3, batch_size=8, num_sampled=4, sampling_steps=3)
    check_contract(task, chosen, tmp_path)
    for name in ("samples.png", "training-images.png"):
        with Image.open(tmp_path / "figures" / name) as grid:
            assert grid.size == (8 * 32, 8 * 32)


def test_distances_wait_for_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WIDTHS, "unet-64", 8)
    task, chosen = pet_faces(tmp_path), settings("pet-faces", num_sampled=4, sampling_steps=2)
    network = task.network(chosen).eval()
    assert task.evaluate(network, chosen, final=False).keys() == {"test_loss"}
    expected = {"test_loss", "frechet_distance", "kernel_distance"}
    assert task.evaluate(network, chosen, final=True).keys() == expected


# Noise --------------------------------------------------------------------------------------------


def test_an_image_turns_into_noise_and_keeps_its_variance() -> None:
    image_share, noise_share = (part.flatten() for part in shares(torch.arange(STEPS)))
    assert (image_share.square() + noise_share.square()).allclose(torch.ones(STEPS))
    assert (image_share.diff() < 0).all()
    assert float(image_share[0]) > 0.999
    assert 0 < float(image_share[-1]) < 0.01


def v_of(image: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
    """How fast an image turns into noise, by the angle between them: its slope, measured."""
    angle = torch.acos(shares(steps)[0].double())
    width = 1e-4
    after, before = ((angle + d).cos() * image + (angle + d).sin() * noise for d in (width, -width))
    return ((after - before) / (2 * width)).float()


def test_the_loss_is_that_of_each_images_own_noise() -> None:
    images = torch.rand(4, 3, 32, 32, generator=generator("images")) * 2 - 1
    noise = torch.randn(4, 3, 32, 32, generator=generator("noise"))
    steps = torch.tensor([0, 10, 500, 999])

    def off_by(errors: list[float]) -> Tensor:
        wrong = v_of(images, noise, steps) + torch.tensor(errors)[:, None, None, None]
        return noise_losses(lambda x, t: wrong, images, steps, noise)

    assert off_by([0, 0, 0, 0]).tolist() == pytest.approx([0, 0, 0, 0], abs=1e-5)
    assert off_by([1, 0, 3, 0]).tolist() == pytest.approx([1, 0, 9, 0], abs=1e-3)


def test_what_the_network_sees_is_the_image_with_as_much_noise_as_its_step_says() -> None:
    images = torch.ones(2, 3, 32, 32)
    seen: list[Tensor] = []

    def forward(x: Tensor, steps: Tensor) -> Tensor:
        seen.append(x)
        return x

    noise_losses(forward, images, torch.tensor([0, 999]), torch.full_like(images, -1.0))
    assert seen[0][0].allclose(torch.ones(()), atol=0.01)  # the image
    assert seen[0][1].allclose(-torch.ones(()), atol=0.01)  # the noise


class KnowsTheImage(nn.Module):
    """Takes everything else for noise."""

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self.image = image

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        image_share, noise_share = shares(steps)
        return v_of(self.image, (x - image_share * self.image) / noise_share, steps)


@pytest.mark.parametrize("num_steps", [2, 7, 50])
def test_sampling_arrives_at_the_image_that_the_network_knows(num_steps: int) -> None:
    image = torch.rand(3, 32, 32, generator=generator("image")) * 2 - 1
    noise = torch.randn(5, 3, 32, 32, generator=generator("noise"))
    made = sample(KnowsTheImage(image), noise, num_steps)
    assert made.allclose(image.expand_as(made), atol=1e-3)


class KnowsTheSpread(nn.Module):
    """The best guess where pixels are normal, with a deviation of 0.2."""

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        image_share, noise_share = shares(steps)
        variance = (0.2 * image_share).square() + noise_share.square()
        return v_of(0.04 * image_share * x / variance, noise_share * x / variance, steps)


def test_sampling_turns_normal_noise_into_the_distribution_that_the_network_knows() -> None:
    noise = torch.randn(2, 3, 32, 32, generator=generator("noise"))
    made = sample(KnowsTheSpread(), noise, 400)
    assert made.allclose(0.2 * noise, atol=0.02)


def test_pixels_survive_the_way_to_the_network_and_back() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(-1, -1, -1, 3)
    assert pixels_of(inputs_of(pixels)).equal(pixels)


# Distances ----------------------------------------------------------------------------------------


def test_the_frechet_distance_of_two_normal_distributions() -> None:
    """Where covariances commute it is known: means, and differences of standard deviations."""
    rng = generator("features")
    x = torch.randn(20_000, 3, generator=rng)
    shift, scale = torch.tensor([1.0, 0.0, -2.0]), torch.tensor([1.0, 3.0, 0.5])
    turn = torch.linalg.qr(torch.randn(3, 3, generator=rng))[0]
    expected = float(shift.square().sum() + (scale - 1).square().sum())
    y = torch.randn(20_000, 3, generator=rng) * scale + shift
    assert frechet_distance(x @ turn, y @ turn) == pytest.approx(expected, rel=0.03)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(x[:50], y[:50]) == pytest.approx(frechet_distance(y[:50], x[:50]))


def test_the_kernel_distance_is_unbiased() -> None:
    """Slowly, pair by pair; and about 0 for two samples of one distribution."""
    rng = generator("features")
    x, y = torch.randn(6, 4, generator=rng), torch.randn(5, 4, generator=rng) + 1

    def kernel(a: Tensor, b: Tensor) -> float:
        return float((sum(p * q for p, q in zip(a.tolist(), b.tolist(), strict=True)) / 4 + 1) ** 3)

    def mean(values: list[float]) -> float:
        return math.fsum(values) / len(values)

    within = [
        mean([kernel(a, b) for i, a in enumerate(of) for j, b in enumerate(of) if i != j])
        for of in (x, y)
    ]
    expected = sum(within) - 2 * mean([kernel(a, b) for a in x for b in y])
    assert kernel_distance(x, y) == pytest.approx(expected, rel=1e-5)
    alike = [kernel_distance(*torch.randn(2, 40, 4, generator=rng)) for _ in range(200)]
    assert mean(alike) == pytest.approx(0, abs=0.05)


def test_no_feature_of_real_images_outweighs_another() -> None:
    real = torch.randn(500, 3, generator=generator("real")) * torch.tensor([1.0, 100.0, 0.01]) + 7
    found, _ = standardised(real, real)
    assert found.std(0).allclose(torch.ones(3), atol=1e-3)
    assert found.mean(0).abs().max() < 1e-3


def test_features_are_those_of_the_pretrained_network(
    efficientnet: Path, pretrained: dict[str, Tensor]
) -> None:
    network = optional("timm").create_model("tf_efficientnet_lite0", num_classes=1000).eval()
    network.load_state_dict(
        {name.replace("_fc.", "classifier."): value for name, value in pretrained.items()}
    )
    pixels = torch.randint(0, 256, (3, 32, 32, 3), generator=generator("x")).to(torch.uint8)
    with torch.inference_mode():
        large = nn.functional.interpolate(inputs_of(pixels), (96, 96), mode="bilinear")
        expected = network.blocks(network.bn1(network.conv_stem(large))).mean((2, 3))
    found = Features(efficientnet, torch.device("cpu"))(pixels)
    assert found.shape == (3, 320)
    assert found.allclose(expected, atol=1e-4)


# Files --------------------------------------------------------------------------------------------


def test_a_users_folder_of_images(tmp_path: Path) -> None:
    for seed in range(12):
        write(tmp_path / "images" / f"part{seed % 2}" / f"{seed:02}.png", scene(seed)[0])
    task = load(f"diffusion:{tmp_path / 'images'}", Path("unused"))
    assert isinstance(task, Diffusion)
    assert len(task.train) == 10  # type: ignore[arg-type]
    assert task.num_test == 2


def test_a_users_folder_of_images_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid of training images shows all of them, and none that is held out."""
    monkeypatch.setitem(WIDTHS, "unet-64", 8)
    for number in range(12):
        shade = np.full((20, 20, 3), 20 * number, dtype=np.uint8)
        write(tmp_path / "images" / f"part{number % 2}" / f"{number:02}.png", shade)
    chosen = settings(
        f"diffusion:{tmp_path / 'images'}", epochs=1, batch_size=5, num_sampled=4, sampling_steps=2
    )
    task, figures = load(chosen.data, Path("unused")), tmp_path / "figures"
    run = train(chosen, task, Checkpoint(tmp_path / "run.pt"), figures=figures)
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_trained"], run["num_test"]) == (10, 10, 2)
    assert math.isfinite(run["frechet_distance"])
    assert 0 < run["test_loss"] < 2
    with Image.open(figures / "training-images.png") as grid:
        shown = set(np.asarray(grid).flatten().tolist())
    in_order = [*range(0, 240, 40), *range(20, 240, 40)]  # part0, then part1
    assert shown == {shade for place, shade in enumerate(in_order) if place % 10}


def test_without_the_table_heads_are_cut_from_the_photographs(tmp_path: Path) -> None:
    for number in range(10, 32):
        pixels = np.zeros((80, 100, 3), dtype=np.uint8)
        pixels[10:70, 20:90] = 100 + number
        write_pet(tmp_path / "oxford-iiit-pet", f"pug_{number}", (21, 11, 90, 70), pixels)
    task = load("pet-faces", tmp_path)
    assert isinstance(task, Diffusion)
    assert task.held_out.shape == (3, 32, 32, 3)
    shades = [number + 100 for number in range(10, 32)]
    assert task.held_out[:, 0, 0, 0].tolist() == shades[::10]
    images = torch.stack([task.train[place][0] for place in range(19)])
    assert images[:, 0, 0, 0].tolist() == [s for s in shades if s not in shades[::10]]
    assert (images == images[:, :1, :1, :1]).all()  # nothing but the head

    assert pet_faces(tmp_path).num_test == 3
    assert len(pet_faces(tmp_path).train) == 27  # type: ignore[arg-type]  # the table's


def test_files_that_are_missing_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Source(("http://127.0.0.1:9/annotations.tar.gz",), "0")
    monkeypatch.setattr(pets, "ANNOTATIONS", nowhere)
    with pytest.raises(UserError, match=r"oxford-iiit-pet/annotations/xmls is missing and could"):
        load("pet-faces", tmp_path)
    with pytest.raises(UserError, match="is no folder, expected one with images"):
        load(f"diffusion:{tmp_path / 'nowhere'}", tmp_path)
    write(tmp_path / "one" / "0.png", scene(0)[0])
    with pytest.raises(UserError, match="has 1 images, expected at least 3"):
        load(f"diffusion:{tmp_path / 'one'}", tmp_path)
