"""Image classification: cross entropy, MixUp and CutMix; accuracy on the test split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from infobatch.mixing import Mixed
from infobatch_lab import images, models, own_images
from infobatch_lab.augment import crop_and_flip, mean_and_std, mix, normalise
from infobatch_lab.download import Fetching
from infobatch_lab.images import ImageData, Images
from infobatch_lab.metrics import ACCURACY
from infobatch_lab.options import setting
from infobatch_lab.processes import rank, total, world_size
from infobatch_lab.tasks.base import BatchLosses, Forward, Recipe, Task
from infobatch_lab.variants import long_tail, noisy, redundant, small, validation

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings

EVAL_BATCH = 500


def as_fetched(batch: Any) -> Any:
    """Return the batch as it is: the data set has `__getitems__` and fetches whole batches."""
    return batch


@dataclass(frozen=True)
class MixingOptions:
    """Changes to labels and images before the loss."""

    label_smoothing: float = setting(
        "Label smoothing",
        default=0.0,
        valid=lambda value: 0 <= value < 1,
        expected="0 <= label_smoothing < 1",
    )
    mixup: float = setting(
        "Alpha of MixUp; 0 turns it off",
        default=0.0,
        valid=lambda value: value >= 0,
        expected="a number of at least 0",
    )
    cutmix: float = setting(
        "Alpha of CutMix; 0 turns it off",
        default=0.0,
        valid=lambda value: value >= 0,
        expected="a number of at least 0",
    )


class Classification(Task):
    """Images with labels, and a network of `models.py` or timm."""

    name = "classification"
    metric = ACCURACY
    models = (*models.MODELS, "timm:")
    Options = MixingOptions
    collate = staticmethod(as_fetched)

    def __init__(self, data: ImageData) -> None:
        self.data = data
        self.train = data.train
        self.num_test = len(data.test)
        self._mean, self._std = mean_and_std(data.train.images)

    def _inputs(self, batch: Tensor) -> Tensor:
        return normalise(batch, self._mean.to(batch.device), self._std.to(batch.device))

    def network(self, settings: Settings) -> nn.Module:
        network = models.create(settings.model, self.data.num_channels, self.data.num_classes)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        (pixels, labels), options = batch, settings.options
        smoothing = options.label_smoothing
        pixels = crop_and_flip(pixels, rng, crop=self.data.crop, flip=self.data.flip)
        inputs = self._inputs(pixels)
        if options.mixup or options.cutmix:
            mixed, partner, lam = mix(inputs, rng, mixup=options.mixup, cutmix=options.cutmix)
            how = Mixed(labels, partner, lam, label_smoothing=smoothing)
            return BatchLosses(*how.losses_and_scores(logits(forward, mixed)))
        return BatchLosses(
            cross_entropy(
                logits(forward, inputs), labels, label_smoothing=smoothing, reduction="none"
            )
        )

    def labelled(self) -> Dataset[Any]:
        return Inputs(self.data.train, self._inputs)

    @torch.inference_mode()
    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """Each process tests its part of the test split."""
        test, device = self.data.test, next(network.parameters()).device
        num_right = torch.zeros((), dtype=torch.float64, device=device)
        batches = list(
            zip(test.images.split(EVAL_BATCH), test.labels.split(EVAL_BATCH), strict=True)
        )
        for x, y in batches[rank() :: world_size()]:
            predicted = network(self._inputs(x.to(device))).argmax(1)
            num_right += (predicted == y.to(device)).sum()
        return {"accuracy": float(total(num_right)) / len(test)}


class Inputs(Dataset[Any]):
    """Images as the network takes them, without augmentation, and their labels."""

    def __init__(self, images: Images, prepare: Callable[[Tensor], Tensor]) -> None:
        self._images = images
        self._prepare = prepare

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        pixels, labels = self._images.__getitems__(indices)
        return list(zip(self._prepare(pixels), labels, strict=True))

    def __len__(self) -> int:
        return len(self._images)


def logits(forward: Forward, inputs: Tensor) -> Tensor:
    """The network's output in float32, also for a batch of one image.

    The last batch may be one image, and a deep network makes one pixel of a small one. Batch
    normalisation refuses that, so the network then gets the image twice.
    """
    num_samples = len(inputs)
    if num_samples == 1:
        inputs = inputs.repeat(2, 1, 1, 1)
    output: Tensor = forward(inputs)
    return output[:num_samples].float()


def recipe(
    read: Callable[[Path, Fetching], ImageData],
    files: str,
    model: str,
    epochs: int,
    batch_size: int,
    variant: Callable[[ImageData], ImageData] = lambda data: data,
) -> Recipe:
    """Image classification on one data set, or on a variant of it."""
    return Recipe(
        Classification,
        lambda folder, progress: Classification(variant(read(folder, progress))),
        files,
        {"model": model, "epochs": epochs, "batch_size": batch_size},
    )


IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte"
CIFAR10 = "cifar-10-batches-bin/{data_batch_1,...,data_batch_5,test_batch}.bin"

DIGITS = (images.read_digits, "", "tiny", 40, 32)
CIFAR10_SMALL = (images.read_cifar10, CIFAR10, "resnet8-pooled", 100, 128)
FASHION = (images.read_fashion_mnist, f"fashion-mnist/{IDX}", "convnet", 16, 128)

RECIPES: dict[str, Recipe] = {
    "digits": recipe(*DIGITS),
    "digits-validation": recipe(*DIGITS, validation),
    "mnist": recipe(images.read_mnist, f"mnist/{IDX}", "convnet", 16, 128),
    "fashion-mnist": recipe(*FASHION),
    "fashion-mnist-validation": recipe(*FASHION, validation),
    "fashion-mnist-long-tail": recipe(*FASHION, long_tail),
    "fashion-mnist-redundant": recipe(*FASHION, redundant),
    "fashion-mnist-noisy": recipe(*FASHION, noisy),
    "cifar10": recipe(images.read_cifar10, CIFAR10, "resnet8-pooled", 16, 128),
    "cifar10-small": recipe(*CIFAR10_SMALL, small),
    "cifar10-small-validation": recipe(*CIFAR10_SMALL, lambda data: validation(small(data))),
    "cifar100": recipe(
        images.read_cifar100, "cifar-100-binary/{train,test}.bin", "resnet8-pooled", 16, 128
    ),
    "tiny-imagenet": recipe(
        images.read_tiny_imagenet, "tiny-imagenet-200/{train,val}", "resnet50", 200, 128
    ),
    "folder:": recipe(images.read_folder, "", "resnet18", 30, 64),
    "npz:": recipe(own_images.read_npz, "", "resnet18", 30, 64),
    "hf:": recipe(own_images.read_saved, "", "resnet18", 30, 64),
}
