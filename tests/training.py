"""A small real training that can be killed and resumed: `python -m tests.training --help`.

Under torchrun it trains with all its processes.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import infobatch
from infobatch.rules import RULES, Every, Mean, Rule


def rule_named(name: str) -> Rule:
    return Every(Mean(), 3) if name == "every-mean" else RULES[name]()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rule", default="mean")
    parser.add_argument(
        "--loader",
        choices=["stock", "lighter", "uniform", "sampler", "ours", "stateful"],
        default="stock",
    )
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint-every", type=int, default=3)
    parser.add_argument("--die-after", type=int, default=-1)
    options = parser.parse_args()
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0:
        options.die_after = -1  # once is enough

    rank, num_ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if num_ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(150, 5)
    y = (x @ torch.randn(5) + torch.randn(150) > 0).long()
    model: nn.Module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    if num_ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    criterion = nn.CrossEntropyLoss(reduction="none")
    num_epochs = 8
    data = infobatch.InfoBatch(TensorDataset(x, y), num_epochs, rule=rule_named(options.rule))
    loader: Any
    if options.loader == "ours":
        loader = infobatch.DataLoader(data, batch_size=16, num_workers=options.workers)
    elif options.loader == "stock":
        loader = torch.utils.data.DataLoader(
            data, batch_sampler=data.batches(16), num_workers=options.workers
        )
    elif options.loader == "lighter":
        loader = torch.utils.data.DataLoader(
            data, batch_sampler=data.batches(16, shrink="batch"), num_workers=options.workers
        )
    elif options.loader == "uniform":
        criterion = nn.CrossEntropyLoss()
        loader = torch.utils.data.DataLoader(
            data, batch_sampler=data.batches(16, uniform=True), num_workers=options.workers
        )
    elif options.loader == "sampler":
        loader = torch.utils.data.DataLoader(
            data, batch_size=16, num_workers=options.workers, sampler=data.sampler
        )
    else:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader(
            data, batch_size=16, num_workers=options.workers, sampler=data.sampler
        )

    checkpoint = options.folder / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        data.load_state_dict(state["data"])
        if options.loader == "stateful":
            loader.load_state_dict(state["loader"])
        step = state["step"]

    for _ in range(data.epoch, num_epochs):
        for inputs, targets in loader:
            loss = data.update(criterion(model(inputs), targets))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % options.checkpoint_every == 0:
                data.sync()
            if step % options.checkpoint_every == 0 and rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": data.state_dict(),
                    "loader": loader.state_dict() if options.loader == "stateful" else {},
                    "step": step,
                }
                torch.save(state, options.folder / "next.pt")
                os.replace(options.folder / "next.pt", checkpoint)
            if step == options.die_after and rank == num_ranks - 1:
                (options.folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
    assert data.epoch == num_epochs
    final = {"model": model.state_dict(), "data": data.state_dict(), "step": step}
    if rank == 0:
        torch.save(final, options.folder / "final.pt")
    if num_ranks > 1:
        # `destroy_process_group` of gloo can wait forever for a rank that has already left.
        os._exit(0)


if __name__ == "__main__":
    main()
