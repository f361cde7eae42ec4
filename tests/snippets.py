"""The code of the pages. `python tests/snippets.py` runs the README's loop with torch alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(python|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Labelled(TensorDataset):
    """Small images in two classes, with `targets` as torchvision's data sets have them."""

    def __init__(self) -> None:
        x = torch.randn(200, 1, 2, 2)
        y = (x.sum((1, 2, 3)) > 0).long()
        super().__init__(x, y)
        self.targets = y.tolist()


def a_users_namespace() -> dict[str, Any]:
    """What a reader has before the first block: data, a model, an optimizer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    return {
        "torch": torch,
        "nn": nn,
        "infobatch": infobatch,
        "DataLoader": DataLoader,
        "dataset": Labelled(),
        "train_data": Labelled(),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "num_epochs": 10,
        "__name__": "__docs__",
    }


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The kind and the text of each block of code."""
    return BLOCK.findall(page.read_text())


def code_of(kind: str, text: str) -> str:
    """Of a diff, the file after it."""
    if kind == "python":
        return text
    return "".join(line[1:] for line in text.splitlines(keepends=True) if not line.startswith("-"))


def run_the_readmes_loop() -> infobatch.InfoBatch[Any]:
    namespace = a_users_namespace()
    exec(code_of(*blocks_of(README)[0]), namespace)
    train_data: infobatch.InfoBatch[Any] = namespace["train_data"]
    return train_data


if __name__ == "__main__":
    torch.manual_seed(0)
    fraction = run_the_readmes_loop().savings.fraction
    assert fraction > 0.2, fraction
    print(f"{infobatch.__file__} {infobatch.__version__}: {fraction:.0%} of the samples saved")
