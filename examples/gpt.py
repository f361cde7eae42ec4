"""A small GPT on a file of tokens, for a fixed number of steps: `python examples/gpt.py TOKENS`.

TOKENS is a binary file of 16-bit numbers, as `numpy.array(tokens, dtype="uint16").tofile(TOKENS)`
writes it. The last tenth is for validation. Every --save-every steps all is saved in --checkpoint.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import infobatch


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """The tokens from `start` to `stop`, cut into windows; item: a window, and it moved on by one.

    A sample needs to be the same in each epoch, so windows have fixed places.
    """

    def __init__(self, path: Path, length: int, *, start: float, stop: float) -> None:
        tokens = np.memmap(path, dtype="uint16", mode="r")
        self.tokens = tokens[int(start * len(tokens)) : int(stop * len(tokens))]
        self.length = length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        first = index * self.length
        window = torch.tensor(self.tokens[first : first + self.length + 1].astype("int64"))
        return window[:-1], window[1:]

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length


class GPT(nn.Module):
    def __init__(self, num_tokens: int, length: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(num_tokens, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_tokens)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        earlier = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device)
        hidden = self.tokens(x) + self.places(places)
        logits: Tensor = self.head(self.layers(hidden, mask=earlier, is_causal=True))
        return logits


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss for each token of each window."""
    return cross_entropy(model(x).transpose(1, 2), y, reduction="none")


def epoch_after_epoch(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def cosine(num_steps: int) -> Callable[[int], float]:
    """The factor of the learning rate: up to 1 while warming up, then down to 0.1."""
    warm_up = num_steps // 20

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        done = (step - warm_up) / (num_steps - warm_up)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    return factor


@torch.no_grad()
def validation_loss(model: nn.Module, loader: DataLoader[Any], device: torch.device) -> float:
    losses = [losses_of(model, x.to(device), y.to(device)) for x, y in loader]
    return float(torch.cat(losses).mean())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--num-tokens", type=int, default=50304, help="of the vocabulary")
    parser.add_argument("--steps", type=int, default=5000, help="of the optimizer")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=4, help="batches per step")
    parser.add_argument("--length", type=int, default=256, help="of a window")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    return parser.parse_args()


def main() -> None:
    options = parse()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # A step of InfoBatch is a call of update(). With the same number of steps as full training, a
    # pruned run has more epochs; give it fewer steps to save time.
    train_data = infobatch.InfoBatch(
        Windows(options.tokens, options.length, start=0.0, stop=0.9),
        num_steps=options.steps * options.accumulate,
    )
    batches = train_data.batches(options.batch_size, drop_last=True)
    loader = DataLoader(train_data, batch_sampler=batches)

    torch.manual_seed(0)
    model = GPT(options.num_tokens, options.length, options.width, options.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(options.steps))
    saved: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "data": train_data,
    }
    first_step = 0
    if options.resume:
        checkpoint = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
        first_step = checkpoint["step"]
        for name, member in saved.items():
            member.load_state_dict(checkpoint[name])

    data = epoch_after_epoch(loader)
    for step in range(first_step + 1, options.steps + 1):
        for _ in range(options.accumulate):
            x, y = next(data)
            loss = train_data.update(losses_of(model, x.to(device), y.to(device)))
            (loss / options.accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % options.save_every == 0:
            print(f"step {step}, epoch {train_data.epoch}: {train_data.metrics}")
            states = {name: member.state_dict() for name, member in saved.items()}
            torch.save({"step": step, **states}, options.checkpoint)

    held_out = Windows(options.tokens, options.length, start=0.9, stop=1.0)
    loss_held_out = validation_loss(model, DataLoader(held_out, options.batch_size), device)
    skipped = train_data.savings.fraction
    print(f"validation loss {loss_held_out:.4f}, {skipped:.0%} of the samples skipped")


if __name__ == "__main__":
    main()
