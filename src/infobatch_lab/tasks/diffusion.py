"""A diffusion model: a small U-Net that parts images from noise; Frechet distance.

As in Ho et al. (2020) and the paper's A.5, on pixels: each visit of an image draws a step and its
noise, and the loss of the image is its error at that step. The network predicts v, a mixture of
noise and image (Salimans and Ho, 2022), from which an image follows without dividing by its share,
which is nearly 0 at the last steps. Samples are made by DDIM (Song et al.,
2021) and compared with the training images in the features of a pretrained EfficientNet-lite0. The
numbers are no FIDs: those need Inception's weights, and other features give other scales. The two
distances are written here because the packages that have them load these weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pixel_shuffle, pixel_unshuffle, silu
from torch.utils.data import TensorDataset

from infobatch_lab.augment import crop_and_flip
from infobatch_lab.download import Fetching
from infobatch_lab.errors import UserError, optional
from infobatch_lab.images import IMAGE_TYPES
from infobatch_lab.metrics import Metric
from infobatch_lab.options import setting
from infobatch_lab.pets import FILES, FOLDER, REMEDY, TABLE, read_heads
from infobatch_lab.pictures import decode, read_table, write_grid
from infobatch_lab.seeding import generator
from infobatch_lab.tasks.base import BatchLosses, Forward, Recipe, Task
from infobatch_lab.tasks.finetune import load_body
from infobatch_lab.weights import EFFICIENTNET_LITE0, path_of

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings

SIDE = 32
"""The side that all images are brought to."""

STEPS = 1000
"""Steps from an image to noise."""

FEATURE_SIDE = 96
"""The side at which the pretrained network sees images."""

HELD_OUT_DRAWS = 4
"""Steps and noises per image that is held out."""

EVAL_BATCH = 125
GRID = 8

FRECHET = Metric("frechet_distance", higher_is_better=False, margin=3.0, decimals=1)

# Network ------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions with the step between them, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.weight)  # a block begins as its shortcut

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = self.conv1(silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        result: Tensor = self.shortcut(x) + self.conv2(silu(self.norm2(inner)))
        return result


class Attention(nn.Module):
    """Every place looks at every other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.attention = nn.MultiheadAttention(width, num_heads=4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.norm(x).flatten(2).transpose(1, 2)
        mixed: Tensor = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return x + mixed.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Predicts v of a noisy image. Works on squares of 2 x 2 pixels: a quarter of the cost.

    Written here, because diffusers would be a dependency for this network and `sample` alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        wide, self.time_width = 2 * width, 4 * width
        time = self.time_width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.width = width
        self.stem = nn.Conv2d(12, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width, time), Block(width, width, time)])
        self.shrink = nn.Conv2d(width, wide, 3, stride=2, padding=1)
        self.deep = nn.ModuleList([Block(wide, wide, time), Block(wide, wide, time)])
        self.attention = Attention(wide)
        self.enlarge = nn.Conv2d(wide, width, 3, padding=1)
        self.up = nn.ModuleList([Block(2 * width, width, time), Block(2 * width, width, time)])
        self.norm, self.out = nn.GroupNorm(8, width), nn.Conv2d(width, 12, 3, padding=1)

    def forward(self, images: Tensor, steps: Tensor) -> Tensor:
        time = silu(self.time(waves(steps, self.width)))
        x = self.stem(pixel_unshuffle(images, 2))
        skips = []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
        x = self.deep[0](self.shrink(x), time)
        x = self.deep[1](self.attention(x), time)
        x = self.enlarge(interpolate(x, scale_factor=2.0, mode="nearest"))
        for block in self.up:
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return pixel_shuffle(self.out(silu(self.norm(x))), 2)


def waves(steps: Tensor, width: int) -> Tensor:
    """Sines and cosines of the step, from fast to slow."""
    speeds = STEPS ** -torch.linspace(0, 1, width // 2, device=steps.device)
    angles = steps[:, None] * speeds
    return torch.cat([angles.sin(), angles.cos()], dim=1)


WIDTHS = {"unet-32": 32, "unet-64": 64, "unet-128": 128}

# Diffusion ----------------------------------------------------------------------------------------


def shares(steps: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of image and noise at a step, on a cosine; their squares add up to 1."""
    angle = (steps + 1) / STEPS * (0.995 * math.pi / 2)
    return angle.cos()[:, None, None, None], angle.sin()[:, None, None, None]


def noise_losses(forward: Forward, images: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    """Of each image, the mean squared error of its predicted v."""
    image_share, noise_share = shares(steps)
    predicted: Tensor = forward(image_share * images + noise_share * noise, steps)
    target = image_share * noise - noise_share * images
    return (predicted.float() - target).square().mean((1, 2, 3))


def draw(images: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A step and a noise for each image."""
    steps = torch.randint(STEPS, (len(images),), generator=rng)
    noise = torch.randn(images.shape, generator=rng)
    return steps.to(images.device), noise.to(images.device)


@torch.inference_mode()
def sample(network: nn.Module, noise: Tensor, num_steps: int) -> Tensor:
    """Images made of noise, in `num_steps` steps of DDIM, which adds no noise of its own.

    Written here, as `UNet` is, so that samples and losses take their `shares` from one place.
    """
    image = torch.zeros_like(noise)
    for place in torch.linspace(STEPS - 1, 0, num_steps, device=noise.device).round().long():
        steps = place.expand(len(noise))
        image_share, noise_share = shares(steps)
        x = image_share * image + noise_share * noise
        # What x and v say of the image, kept in its range, and of the noise that goes with it.
        image = (image_share * x - noise_share * network(x, steps).float()).clamp(-1, 1)
        noise = (x - image_share * image) / noise_share
    return image


def inputs_of(pixels: Tensor) -> Tensor:
    """uint8, channels last, to -1 to 1, channels first."""
    return (pixels.float() / 127.5 - 1).permute(0, 3, 1, 2).contiguous()


def pixels_of(images: Tensor) -> Tensor:
    """The way back."""
    return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


# Distances ----------------------------------------------------------------------------------------


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """Between the normal distributions of two sets of features, (samples, features).

    >>> x = torch.tensor([[0.0], [2.0]])
    >>> round(frechet_distance(x, x + 3), 6)
    9.0
    """
    x, y = x.double(), y.double()
    x_cov, y_cov = torch.atleast_2d(x.T.cov()), torch.atleast_2d(y.T.cov())
    values, vectors = torch.linalg.eigh(x_cov)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    # The trace of the root of x_cov @ y_cov, through a symmetric matrix with its eigenvalues.
    cross = torch.linalg.eigvalsh(root @ y_cov @ root).clamp(min=0).sqrt().sum()
    means = (x.mean(0) - y.mean(0)).square().sum()
    return float(means + x_cov.trace() + y_cov.trace() - 2 * cross)


def kernel_distance(x: Tensor, y: Tensor) -> float:
    """KID: the unbiased squared discrepancy under the kernel (x . y / features + 1)^3."""
    x, y = x.double(), y.double()

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.T / a.shape[1] + 1) ** 3

    def within(a: Tensor) -> Tensor:
        values = kernel(a, a)
        return (values.sum() - values.trace()) / (len(a) * (len(a) - 1))

    return float(within(x) + within(y) - 2 * kernel(x, y).mean())


def standardised(real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Scaled alike, so that each feature of the real images has mean 0 and variance 1.

    A few features would outweigh all others.
    """
    mean, std = real.mean(0), real.std(0) + 1e-6
    return (real - mean) / std, (fake - mean) / std


class Features:
    """What EfficientNet-lite0 sees in images: the mean of its last block, 320 numbers."""

    def __init__(self, weights: Path, device: torch.device) -> None:
        network = optional("timm").create_model("tf_efficientnet_lite0")
        load_body(network, torch.load(weights, weights_only=True))
        body = (network.conv_stem, network.bn1, network.blocks, nn.AdaptiveAvgPool2d(1))
        self._body = nn.Sequential(*body, nn.Flatten()).to(device).eval()
        self._body = self._body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        """From uint8; the network has learned on pixels between -1 and 1."""
        device = next(self._body.parameters()).device
        size = (FEATURE_SIDE, FEATURE_SIDE)
        return torch.cat(
            [
                self._body(interpolate(inputs_of(part.to(device)), size, mode="bilinear"))
                for part in pixels.split(EVAL_BATCH)
            ]
        ).float()


# Task ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiffusionOptions:
    """How samples are made for the metric."""

    num_sampled: int = setting(
        "Images to generate for the metric",
        default=1000,
        valid=lambda value: value >= 2,
        expected="a whole number of at least 2",
    )
    sampling_steps: int = setting(
        "Steps to generate an image",
        default=50,
        valid=lambda value: 2 <= value <= STEPS,
        expected=f"a whole number from 2 to {STEPS}",
    )


class Diffusion(Task):
    """Images without labels, and a U-Net."""

    name = "diffusion"
    metric = FRECHET
    models = tuple(WIDTHS)
    Options = DiffusionOptions

    def __init__(self, train: Tensor, held_out: Tensor, weights: Path) -> None:
        self.train = TensorDataset(train)
        self.held_out = held_out
        self.num_test = len(held_out)
        self._images, self._weights = train, weights

    def network(self, settings: Settings) -> nn.Module:
        return UNet(WIDTHS[settings.model])

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        (pixels,) = batch
        images = inputs_of(crop_and_flip(pixels, rng, crop=0, flip=True))
        return BatchLosses(noise_losses(forward, images, *draw(images, rng)))

    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """The loss on images held out after each epoch; the distances of samples at the end."""
        found = {"test_loss": self._held_out_loss(network)}
        if final:
            made = self._samples(network, settings, settings.options.num_sampled)
            features = Features(self._weights, next(network.parameters()).device)
            real, fake = standardised(features(self._images), features(made))
            found["frechet_distance"] = frechet_distance(real, fake)
            found["kernel_distance"] = kernel_distance(real, fake)
        return found

    @torch.inference_mode()
    def _held_out_loss(self, network: nn.Module) -> float:
        """At steps and noises that are always the same."""
        device, losses = next(network.parameters()).device, []
        rng = generator("noise for images held out")
        for pixels in self.held_out.repeat(HELD_OUT_DRAWS, 1, 1, 1).split(EVAL_BATCH):
            images = inputs_of(pixels.to(device))
            losses.append(noise_losses(network, images, *draw(images, rng)))
        return float(torch.cat(losses).mean())

    def _samples(self, network: nn.Module, settings: Settings, num: int) -> Tensor:
        """Images in uint8, from noise that depends on the seed alone."""
        device = next(network.parameters()).device
        rng = generator("samples", settings.seed)
        noise = torch.randn(num, 3, SIDE, SIDE, generator=rng)
        return torch.cat(
            [
                pixels_of(sample(network, part.to(device), settings.options.sampling_steps)).cpu()
                for part in noise.split(EVAL_BATCH)
            ]
        )

    def figures(self, network: nn.Module, settings: Settings, folder: Path) -> None:
        """A grid of samples, and one of training images to compare with."""
        made = self._samples(network, settings, GRID**2)
        write_grid(folder / "samples.png", made.reshape(GRID, GRID, SIDE, SIDE, 3))
        places = [place * len(self._images) // GRID**2 for place in range(GRID**2)]
        real = self._images[places].reshape(GRID, GRID, SIDE, SIDE, 3)
        write_grid(folder / "training-images.png", real)


# Data ---------------------------------------------------------------------------------------------


def read_pet_faces(folder: Path, progress: Fetching) -> Diffusion:
    """Heads of cats and dogs from the Oxford-IIIT Pet photographs: 3,651 in the table."""
    if (folder / TABLE).exists():
        table = read_table(folder / TABLE, ("image",), REMEDY)
        images = [decode(image, (SIDE, SIDE)) for image in table["image"]]
    else:
        images, _ = read_heads(folder / FOLDER, SIDE, progress)
    return of_images(images, folder, progress)


def read_images(folder: Path, progress: Fetching) -> Diffusion:
    """All images in a folder, and in the folders in it."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder, expected one with images.")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_TYPES)
    return of_images([decode(file, (SIDE, SIDE)) for file in files], folder, progress)


def of_images(found: list[Any], folder: Path, progress: Fetching) -> Diffusion:
    """Every tenth image is held out."""
    if len(found) < 3:
        raise UserError(f"{folder} has {len(found)} images, expected at least 3.")
    images = torch.from_numpy(np.stack(found))
    held_out = torch.arange(len(images)) % 10 == 0
    return Diffusion(images[~held_out], images[held_out], path_of(EFFICIENTNET_LITE0, progress))


DEFAULTS = {
    "model": "unet-64",
    "epochs": 40,
    "batch_size": 32,
    "optimizer": "adamw",
    "lr": 1e-3,
    "delta": 0.825,
}

RECIPES: dict[str, Recipe] = {
    "pet-faces": Recipe(Diffusion, read_pet_faces, FILES, DEFAULTS),
    "diffusion:": Recipe(Diffusion, read_images, "", DEFAULTS),
}
