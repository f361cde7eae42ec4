"""A masked autoencoder: a small ViT that fills in three quarters of an image; a linear probe.

As in He et al. (2022) and the paper's A.4: the encoder sees the visible patches alone, a light
decoder predicts the pixels of the others, each patch normalised by itself, and the loss of an image
is its mean over the masked patches. Labels are used for the metrics only. The network is written
here, from torch's own layers, because its encoder takes only some of the patches, others for each
image.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from infobatch_lab import images
from infobatch_lab.augment import crop_and_flip, mean_and_std, normalise
from infobatch_lab.download import Fetching
from infobatch_lab.errors import optional
from infobatch_lab.images import ImageData, Images, with_first
from infobatch_lab.metrics import Metric
from infobatch_lab.options import setting
from infobatch_lab.pictures import write_grid
from infobatch_lab.seeding import generator
from infobatch_lab.tasks.base import BatchLosses, Forward, Recipe, Task
from infobatch_lab.tasks.classification import as_fetched

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings

PATCHES = 8
"""Patches along a side, whatever the image's size: an image is 64 tokens."""

EVAL_BATCH = 250
NUM_WATCHED = 1000
NUM_SHOWN = 8

PROBE = Metric("probe_accuracy", "%", scale=100.0, margin=0.5, counts_samples=True)

# Network ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """The depth and width of the encoder, then of the decoder."""

    depth: int
    width: int
    decoder_depth: int
    decoder_width: int


SIZES = {
    "mae-mini": Size(depth=4, width=96, decoder_depth=1, decoder_width=64),
    "mae-tiny": Size(depth=12, width=192, decoder_depth=4, decoder_width=128),
}


class MaskedAutoencoder(nn.Module):
    """Encoder and decoder. A patch is a row of `num_values` numbers."""

    def __init__(self, size: Size, num_values: int) -> None:
        super().__init__()
        self.embed = nn.Linear(num_values, size.width)
        self.encoder = blocks(size.depth, size.width)
        self.to_decoder = nn.Linear(size.width, size.decoder_width)
        self.mask_token = nn.Parameter(torch.randn(size.decoder_width) * 0.02)
        self.decoder = blocks(size.decoder_depth, size.decoder_width)
        self.to_pixels = nn.Linear(size.decoder_width, num_values)
        self.places: Tensor
        self.decoder_places: Tensor
        self.register_buffer("places", sine_places(size.width), persistent=False)
        self.register_buffer("decoder_places", sine_places(size.decoder_width), persistent=False)

    def forward(self, patches: Tensor, visible: Tensor) -> Tensor:
        """Predict all patches from those at the places `visible`, (images, kept)."""
        tokens = self.to_decoder(self.encode(patches, visible))
        num_images, width = len(tokens), tokens.shape[2]
        hidden = self.mask_token.to(tokens.dtype).expand(num_images, PATCHES**2, width)
        filled = hidden.scatter(1, visible[..., None].expand(-1, -1, width), tokens)
        predicted: Tensor = self.to_pixels(self.decoder(filled + self.decoder_places))
        return predicted

    def encode(self, patches: Tensor, visible: Tensor | None = None) -> Tensor:
        """Tokens of the visible patches, or of all."""
        tokens = self.embed(patches) + self.places
        if visible is not None:
            tokens = at_places(tokens, visible)
        encoded: Tensor = self.encoder(tokens)
        return encoded


def blocks(depth: int, width: int) -> nn.Sequential:
    """Transformer blocks with the norm first, and a last norm."""
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(
                width,
                nhead=width // 32,
                dim_feedforward=4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(depth)
        ),
        nn.LayerNorm(width),
    )


def sine_places(width: int) -> Tensor:
    """Sines and cosines of row and column: a fixed vector for each place."""
    speeds = 100 ** -torch.linspace(0, 1, width // 4)
    angles = torch.arange(PATCHES)[:, None] * speeds
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows = waves[:, None, :].expand(PATCHES, PATCHES, -1)
    columns = waves[None, :, :].expand(PATCHES, PATCHES, -1)
    return torch.cat([rows, columns], dim=2).reshape(PATCHES**2, width)


def patches_of(inputs: Tensor) -> Tensor:
    """(images, channels, side, side) to (images, patches, values), row by row."""
    num, channels, side = inputs.shape[:3]
    of = side // PATCHES
    cells = inputs.reshape(num, channels, PATCHES, of, PATCHES, of)
    return cells.permute(0, 2, 4, 3, 5, 1).reshape(num, PATCHES**2, of * of * channels)


def pixels_of(patches: Tensor, channels: int) -> Tensor:
    """The way back, to (images, side, side, channels)."""
    num, _, values = patches.shape
    of = round((values / channels) ** 0.5)
    cells = patches.reshape(num, PATCHES, PATCHES, of, of, channels)
    return cells.permute(0, 1, 3, 2, 4, 5).reshape(num, PATCHES * of, PATCHES * of, channels)


def at_places(rows: Tensor, places: Tensor) -> Tensor:
    """Of each image, the rows at its places."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[2]))


def split_places(num_images: int, mask_ratio: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each image the places of its visible and of its masked patches, at least one of each."""
    order = torch.rand(num_images, PATCHES**2, generator=rng).argsort(dim=1)
    num_visible = min(max(round(PATCHES**2 * (1 - mask_ratio)), 1), PATCHES**2 - 1)
    return order[:, :num_visible], order[:, num_visible:]


def normalised(patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each patch with mean 0 and variance 1; and its mean and deviation."""
    mean = patches.mean(2, keepdim=True)
    std = (patches.var(2, keepdim=True) + 1e-6).sqrt()
    return (patches - mean) / std, mean, std


# Task ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaeOptions:
    """How much is hidden, and how its use is measured."""

    mask_ratio: float = setting(
        "Fraction of the patches that are masked",
        default=0.75,
        valid=lambda value: 0 < value < 1,
        expected="0 < mask_ratio < 1",
    )
    finetune_epochs: int = setting(
        "Epochs of fine-tuning with labels after a run; 0: none",
        default=3,
        valid=lambda value: value >= 0,
        expected="a whole number of at least 0",
    )


class MaskedImages(Task):
    """Images to fill in, with labels for a probe."""

    name = "masked autoencoder"
    metric = PROBE
    models = tuple(SIZES)
    Options = MaeOptions
    collate = staticmethod(as_fetched)

    def __init__(self, data: ImageData) -> None:
        self.data = data
        self.train = data.train
        self.num_test = len(data.test)
        self._mean, self._std = mean_and_std(data.train.images)

    def _patches(self, pixels: Tensor) -> Tensor:
        device = pixels.device
        return patches_of(normalise(pixels, self._mean.to(device), self._std.to(device)))

    def network(self, settings: Settings) -> nn.Module:
        return MaskedAutoencoder(
            SIZES[settings.model], self._patches(self.data.train.images[:1]).shape[2]
        )

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        pixels, _ = batch
        pixels = crop_and_flip(pixels, rng, crop=self.data.crop, flip=self.data.flip)
        return BatchLosses(
            masked_losses(forward, self._patches(pixels), settings.options.mask_ratio, rng)
        )

    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """The loss on test images under the same masks after each epoch; the labels at the end."""
        assert isinstance(network, MaskedAutoencoder)
        found = {"test_loss": self._test_loss(network, settings)}
        if final:
            found["probe_accuracy"] = self._probe(network)
            if settings.options.finetune_epochs:
                found["finetuned_accuracy"] = self._finetune(network, settings)
        return found

    @torch.inference_mode()
    def _test_loss(self, network: nn.Module, settings: Settings) -> float:
        device, losses = next(network.parameters()).device, []
        rng = generator("masks of test images")
        for pixels in self.data.test.images[:NUM_WATCHED].split(EVAL_BATCH):
            patches = self._patches(pixels.to(device))
            losses.append(masked_losses(network, patches, settings.options.mask_ratio, rng))
        return float(torch.cat(losses).mean())

    @torch.inference_mode()
    def _features(self, network: MaskedAutoencoder, split: Images) -> Tensor:
        """The mean token of each image, nothing masked."""
        device = next(network.parameters()).device
        return torch.cat(
            [
                network.encode(self._patches(pixels.to(device))).mean(1).float().cpu()
                for pixels in split.images.split(EVAL_BATCH)
            ]
        )

    def _probe(self, network: MaskedAutoencoder) -> float:
        """The test accuracy of a logistic regression on what the encoder makes of images."""
        linear = optional("sklearn.linear_model").LogisticRegression(max_iter=1000)
        x, x_test = (self._features(network, s).numpy() for s in (self.data.train, self.data.test))
        mean, std = x.mean(0), x.std(0) + 1e-6
        linear.fit((x - mean) / std, self.data.train.labels.numpy())
        return float(linear.score((x_test - mean) / std, self.data.test.labels.numpy()))

    def _finetune(self, network: MaskedAutoencoder, settings: Settings) -> float:
        """The test accuracy of a copy that is trained on with labels, in a loop without pruning."""
        device, train = next(network.parameters()).device, self.data.train
        classifier = Classifier(copy.deepcopy(network), self.data.num_classes).to(device).train()
        optimizer = torch.optim.AdamW(classifier.parameters(), weight_decay=0.05)
        num_steps = settings.options.finetune_epochs * -(-len(train) // settings.batch_size)
        curve = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, num_steps)
        rng = generator("finetune", settings.seed)
        for _ in range(settings.options.finetune_epochs):
            for places in torch.randperm(len(train), generator=rng).split(settings.batch_size):
                pixels, labels = (part.to(device) for part in train.__getitems__(places.tolist()))
                pixels = crop_and_flip(pixels, rng, crop=self.data.crop, flip=self.data.flip)
                loss = cross_entropy(classifier(self._patches(pixels)).float(), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                curve.step()
        classifier.eval()
        with torch.inference_mode():
            predicted = [
                classifier(self._patches(pixels.to(device))).argmax(1).cpu()
                for pixels in self.data.test.images.split(EVAL_BATCH)
            ]
        return float((torch.cat(predicted) == self.data.test.labels).double().mean())

    @torch.inference_mode()
    def figures(self, network: nn.Module, settings: Settings, folder: Path) -> None:
        """Test images, what is visible of them, and what is made of that."""
        device = next(network.parameters()).device
        pixels = self.data.test.images[:NUM_SHOWN]
        patches = self._patches(pixels.to(device))
        rng = generator("masks of test images")
        visible, _ = split_places(len(pixels), settings.options.mask_ratio, rng)
        visible = visible.to(device)
        _, mean, std = normalised(patches)
        seen = torch.zeros(patches.shape[:2], device=device).scatter(1, visible, 1.0)[..., None]
        # The network predicts patches normalised by themselves; the image's own say how far.
        guessed = network(patches, visible).float() * std + mean
        shown = (patches, patches * seen, patches * seen + guessed * (1 - seen))
        write_grid(
            folder / "reconstructions.png", torch.stack([self._pixels(part) for part in shown])
        )

    def _pixels(self, patches: Tensor) -> Tensor:
        """Patches as images that can be shown."""
        values = pixels_of(patches.cpu(), self.data.num_channels) * self._std + self._mean
        return values.round().clamp(0, 255).to(torch.uint8).expand(-1, -1, -1, 3)


class UnlabelledImages(MaskedImages):
    """Images to fill in, without labels: the loss on test images is all that can be measured."""

    metric = Metric("test_loss", higher_is_better=False, margin=0.01, decimals=3)

    def __init__(self, data: ImageData) -> None:
        super().__init__(data)
        self.num_test = min(len(data.test), NUM_WATCHED)

    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """The loss on test images under the same masks."""
        return super().evaluate(network, settings, final=False)


class Classifier(nn.Module):
    """An encoder, the mean of its tokens, and a linear layer."""

    def __init__(self, autoencoder: MaskedAutoencoder, num_classes: int) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        self.head = nn.Linear(autoencoder.embed.out_features, num_classes)

    def forward(self, patches: Tensor) -> Tensor:
        logits: Tensor = self.head(self.autoencoder.encode(patches).mean(1))
        return logits


def masked_losses(
    forward: Forward, patches: Tensor, mask_ratio: float, rng: torch.Generator
) -> Tensor:
    """Of each image, the mean squared error over its masked patches."""
    visible, masked = (
        places.to(patches.device) for places in split_places(len(patches), mask_ratio, rng)
    )
    predicted = at_places(forward(patches, visible), masked).float()
    target, _, _ = normalised(at_places(patches, masked))
    return (predicted - target).square().mean((1, 2))


# Recipes ------------------------------------------------------------------------------------------


def first_of_cifar10(folder: Path, progress: Fetching) -> MaskedImages:
    """The first 10,000 images of CIFAR-10."""
    return MaskedImages(with_first(images.read_cifar10(folder, progress), 10_000))


def cifar100(folder: Path, progress: Fetching) -> MaskedImages:
    """All of CIFAR-100."""
    return MaskedImages(images.read_cifar100(folder, progress))


def own_images(folder: Path, progress: Fetching) -> MaskedImages:
    """A user's own images, in a folder for each class, or without labels in one folder."""
    if images.is_unlabelled(folder):
        return UnlabelledImages(images.read_unlabelled(folder))
    return MaskedImages(images.read_folder(folder, progress))


DEFAULTS = {
    "model": "mae-mini",
    "optimizer": "adamw",
    "lr": 1e-3,
    "epochs": 30,
    "batch_size": 128,
}

RECIPES: dict[str, Recipe] = {
    "mae": Recipe(MaskedImages, first_of_cifar10, "as `cifar10`", DEFAULTS),
    "mae-cifar100": Recipe(MaskedImages, cifar100, "as `cifar100`", DEFAULTS),
    "mae:": Recipe(MaskedImages, own_images, "", DEFAULTS),
}
