"""timm with InfoBatch: `python examples/timm_imagefolder.py FOLDER`, a folder of images per class.

A model, an optimizer, MixUp and CutMix, and a schedule that steps per update, all of timm's.
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.data import ImageDataset, Mixup, create_transform
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.utils.data import DataLoader

import infobatch
from infobatch import mixing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="with a subfolder of images for each class")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    transform = create_transform(options.image_size, is_training=True)
    images = ImageDataset(options.folder, transform=transform)
    num_classes = len(images.reader.class_to_idx)
    train_data = infobatch.InfoBatch(images, options.epochs)
    loader = DataLoader(
        train_data,
        batch_size=options.batch_size,
        sampler=train_data.sampler,
        num_workers=options.workers,
        drop_last=True,  # timm mixes batches of even size only
    )

    model = timm.create_model(options.model, num_classes=num_classes).to(device)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    updates_per_epoch = len(train_data) // options.batch_size  # of full training
    schedule = CosineLRScheduler(
        optimizer, options.epochs * updates_per_epoch, t_in_epochs=False, warmup_t=updates_per_epoch
    )
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=num_classes)

    for epoch in range(options.epochs):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            x, soft_targets = mixup(x, y)
            mixed = mixing.from_timm(mixup, soft_targets, y)
            losses, scores = mixed.losses_and_scores(model(x))
            loss = train_data.update(losses, scores=scores)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epochs_done = train_data.epoch + train_data.num_reported / len(train_data.plan)
            schedule.step_update(round(epochs_done * updates_per_epoch))
        print(epoch, train_data.metrics)
    print(f"{train_data.savings.fraction:.0%} of the samples saved")


if __name__ == "__main__":
    main()
