"""A torchvision detector with InfoBatch, on scenes of digits: `python examples/detector.py`.

torchvision's detectors return the mean loss of a batch. RetinaNet computes one loss per image and
averages them at the end, so `compute_loss` can give the losses before they are averaged. For a
detector that gives only one number, use `batches(batch_size, uniform=True)` and `update(loss)`.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN

import infobatch

Target = dict[str, Tensor]


class RetinaNetPerImage(RetinaNet):  # type: ignore[misc]
    """In training it returns one loss per image; their mean is torchvision's loss of the batch."""

    def compute_loss(
        self, targets: list[Target], head_outputs: dict[str, Tensor], anchors: list[Tensor]
    ) -> dict[str, Tensor]:
        losses = []
        for i, target in enumerate(targets):
            outputs = {name: output[i : i + 1] for name, output in head_outputs.items()}
            terms = super().compute_loss([target], outputs, [anchors[i]])
            losses.append(sum(terms.values()))
        return {"losses": torch.stack(losses)}


def detector(num_classes: int, image_size: int) -> RetinaNetPerImage:
    """A small one. For real images, start from `retinanet_resnet50_fpn_v2` and its weights."""
    levels = {"layer2": "0", "layer3": "1", "layer4": "2"}
    backbone = BackboneWithFPN(resnet18(), levels, [128, 256, 512], out_channels=64)
    anchors = AnchorGenerator(sizes=((16,), (24,), (32,), (48,)), aspect_ratios=((1.0,),) * 4)
    return RetinaNetPerImage(
        backbone, num_classes, image_size, image_size, anchor_generator=anchors
    )


class Scenes(Dataset[tuple[Tensor, Target]]):
    """Item i: an image with one to three digits, and their boxes; the same in each epoch."""

    def __init__(self, num_scenes: int, image_size: int, seed: int) -> None:
        self.num_scenes, self.image_size, self.seed = num_scenes, image_size, seed
        images, self.labels = load_digits(return_X_y=True)
        self.digits = torch.tensor(images).float().view(-1, 8, 8) / 16

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        rng = torch.Generator().manual_seed(self.seed + index)
        scene = torch.zeros(self.image_size, self.image_size)
        boxes, labels = [], []
        for _ in range(int(torch.randint(1, 4, (), generator=rng))):
            digit = int(torch.randint(len(self.digits), (), generator=rng))
            x, y = torch.randint(self.image_size - 24, (2,), generator=rng).tolist()
            large = self.digits[digit].repeat_interleave(3, 0).repeat_interleave(3, 1)
            scene[y : y + 24, x : x + 24] = large
            boxes.append([x, y, x + 24, y + 24])
            labels.append(int(self.labels[digit]))
        target = {"boxes": torch.tensor(boxes).float(), "labels": torch.tensor(labels)}
        return scene.expand(3, -1, -1), target

    def __len__(self) -> int:
        return self.num_scenes


def collate(items: list[Any]) -> tuple[list[Tensor], list[Target]]:
    """Scenes have different numbers of boxes, so a batch is a list."""
    images, targets = zip(*items, strict=True)
    return list(images), list(targets)


def move_to(device: torch.device, images: list[Tensor], targets: list[Target]) -> Any:
    moved = [{name: value.to(device) for name, value in target.items()} for target in targets]
    return [image.to(device) for image in images], moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    to_train = Scenes(options.scenes, options.image_size, seed=0)
    held_out = Scenes(options.scenes // 10, options.image_size, seed=options.scenes)
    train_data = infobatch.InfoBatch(to_train, options.epochs)
    # Detectors train with small batches: a pruned epoch has fewer of them, of the same size.
    batches = train_data.batches(options.batch_size, drop_last=True)
    loader = DataLoader(train_data, batch_sampler=batches, collate_fn=collate)
    held_out_loader = DataLoader(held_out, options.batch_size, collate_fn=collate)

    torch.manual_seed(0)
    model = detector(num_classes=10, image_size=options.image_size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        for images, targets in loader:
            losses = model(*move_to(device, images, targets))["losses"]
            loss = train_data.update(losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, train_data.metrics)

    # In training mode a detector of torchvision returns losses, else boxes.
    with torch.no_grad():
        parts = [model(*move_to(device, *batch))["losses"] for batch in held_out_loader]
    saved = train_data.savings.fraction
    print(f"loss of unseen scenes {torch.cat(parts).mean():.2f}, {saved:.0%} of the samples saved")


if __name__ == "__main__":
    main()
