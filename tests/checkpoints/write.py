"""Writes the checkpoints beside it, of infobatch 0.1 (commit 09a9ee9), with what came after them.

To write them again, run it with the sources of that commit: `python -m tests.checkpoints.write`.
Each file has the settings of a run, its state, and how infobatch 0.1 itself went on from there.
"""

from __future__ import annotations

from multiprocessing import Process
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infobatch import Pruner
from infobatch.rules import Every, Mean, Rule

FOLDER = Path(__file__).parent
NUM_SAMPLES, BATCH, LAST_EPOCH = 24, 5, 6
RULES: dict[str, Rule | str] = {
    "mean": "mean",
    "tiers": "tiers",
    "ucb": "ucb",
    "every-mean": Every(Mean(), 3),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "epochs": {"num_epochs": 6, "delta": 0.7, "seed": 3},
    "steps": {"num_steps": 20, "delta": 0.7, "seed": 4},
}


def make(rule: str, settings: str) -> Pruner:
    return Pruner(NUM_SAMPLES, rule=RULES[rule], **SETTINGS[settings])


def loss_of(samples: Tensor, epoch: int) -> Tensor:
    return ((samples * 7919) % 101).float() + ((samples + epoch) * 31 % 17).float()


def report(pruner: Pruner, samples: Tensor) -> None:
    pruner.update(loss_of(samples, pruner.epoch), samples)


def left(pruner: Pruner) -> Tensor:
    return torch.tensor(list(pruner.sampler))


def train(pruner: Pruner, until: int) -> list[tuple[str, list[int]]]:
    """Train on; returns the plan of each epoch, and what was left of it."""
    history = []
    while pruner.epoch < until:
        samples = left(pruner)
        history.append((pruner.plan.fingerprint, samples.tolist()))
        for batch in samples.split(BATCH):
            report(pruner, batch)
    return history


def write(name: str, rule: str, settings: str, pruner: Pruner) -> None:
    state = pruner.state_dict()
    resumed = make(rule, settings)
    resumed.load_state_dict(state)
    saved = {
        "rule": rule,
        "settings": settings,
        "state": state,
        "plans": train(resumed, LAST_EPOCH),
        "scores": resumed.scores,
    }
    torch.save(saved, FOLDER / f"{name}.pt")


def write_without_sync(rank: int, folder: str) -> None:
    """The state of one rank of two in mid-epoch: it lacks the losses that the other one has."""
    method = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", method, rank=rank, world_size=2)
    pruner = make("mean", "epochs")
    for _ in range(2):
        samples = left(pruner)
        for batch in samples.split(BATCH):
            pruner.update(loss_of(batch, pruner.epoch))
    iterator = iter(pruner.sampler)
    batch = torch.tensor([next(iterator) for _ in range(3)])
    pruner.update(loss_of(batch, pruner.epoch))
    state = pruner.state_dict()
    torch.distributed.destroy_process_group()
    if rank == 0:
        torch.save(state, f"{folder}/state.pt")


def main(folder: str) -> None:
    pruner = make("mean", "epochs")
    write("start", "mean", "epochs", pruner)
    for rule, settings in [("mean", "epochs"), ("tiers", "steps")]:
        pruner = make(rule, settings)
        train(pruner, 2)
        write(f"{rule}-boundary", rule, settings, pruner)
        samples = left(pruner)
        report(pruner, samples[:BATCH])
        report(pruner, samples[[-1, -3]])
        write(f"{rule}-scattered", rule, settings, pruner)
    pruner = make("every-mean", "epochs")
    train(pruner, 2)
    write("every-mean-boundary", "every-mean", "epochs", pruner)
    pruner = make("ucb", "epochs")
    report(pruner, left(pruner)[:BATCH])
    write("ucb-first", "ucb", "epochs", pruner)
    train(pruner, 3)
    write("ucb-boundary", "ucb", "epochs", pruner)
    processes = [Process(target=write_without_sync, args=(rank, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    pruner = make("mean", "epochs")
    pruner.load_state_dict(torch.load(f"{folder}/state.pt"))
    write("mean-without-sync", "mean", "epochs", pruner)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        main(folder)
