"""An ImageNet script with InfoBatch: one process or many, resume, a folder of images.

`python examples/imagenet.py FOLDER`, or on eight GPUs
`torchrun --nproc-per-node 8 examples/imagenet.py FOLDER`. FOLDER has `train` and `val`, with a
subfolder of images for each class. After each epoch everything is saved in `checkpoint.pt`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torchvision.transforms import v2

import infobatch


def images(folder: Path, size: int, *, augment: bool) -> Any:
    """The images of a folder, cropped at random or in the middle."""
    if augment:
        crop = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    else:
        crop = [v2.Resize(size * 256 // 224), v2.CenterCrop(size)]
    to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    normalize = v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    transform = v2.Compose([*crop, *to_tensor, normalize])
    return torchvision.datasets.ImageFolder(str(folder), transform)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[Any], device: torch.device) -> float:
    """Of all ranks together; each has its part of the images."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for x, y in loader:
        right = model(x.to(device)).argmax(1) == y.to(device)
        counts += torch.tensor([right.sum(), len(y)], device=device)
    if dist.is_initialized():
        dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    train_data: infobatch.InfoBatch[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> None:
    model.train()
    criterion = nn.CrossEntropyLoss(reduction="none")
    for x, y in loader:
        loss = train_data.update(criterion(model(x.to(device)), y.to(device)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="resnet50", help="a model of torchvision")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="of all processes together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=4, help="of each process")
    parser.add_argument("--output", type=Path, default=Path(), help="a folder")
    parser.add_argument("--resume", type=Path, help="a checkpoint.pt")
    return parser.parse_args()


def main() -> None:
    options = parse()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    to_train = images(options.folder / "train", options.image_size, augment=True)
    to_validate = images(options.folder / "val", options.image_size, augment=False)
    train_data = infobatch.InfoBatch(to_train, options.epochs)
    # Each rank reads its part of the epoch. A last batch of one image would stop a network with
    # batch normalisation, so batches that are not full are left out.
    batches = train_data.batches(options.batch_size // world_size, drop_last=True)
    loader = DataLoader(train_data, batch_sampler=batches, num_workers=options.workers)
    part = Subset(to_validate, range(rank, len(to_validate), world_size))
    val_loader = DataLoader(part, options.batch_size // world_size, num_workers=options.workers)

    torch.manual_seed(0)
    num_classes = len(to_train.classes)
    network = torchvision.models.get_model(options.arch, num_classes=num_classes).to(device)
    model = DistributedDataParallel(network) if world_size > 1 else network
    optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    saved = {"model": network, "optimizer": optimizer, "schedule": schedule, "data": train_data}
    if options.resume:
        checkpoint = torch.load(options.resume, map_location="cpu", weights_only=True)
        for name, member in saved.items():
            member.load_state_dict(checkpoint[name])

    for epoch in range(train_data.epoch, options.epochs):
        # A resumed run draws the crops that the whole run would.
        torch.manual_seed(epoch * world_size + rank)
        train_epoch(model, loader, train_data, optimizer, device)
        schedule.step()
        right = accuracy(network, val_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {right:.1%}, {train_data.metrics}")
            checkpoint = {name: member.state_dict() for name, member in saved.items()}
            torch.save(checkpoint, options.output / "checkpoint.pt")
    if rank == 0:
        print(f"{train_data.savings.fraction:.0%} of the samples saved")
    if world_size > 1:
        # If DistributedDataParallel is the last to hold gloo's group, torch ends the group with
        # Python locked, and may wait for ever for a thread that needs Python.
        del model
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
