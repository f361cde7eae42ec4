"""Every code block of the README and the docs runs, in order, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
import tests.vision  # noqa: F401  # so that the pages can import torchvision and timm

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


def code_of(kind: str, text: str) -> str:
    """Of a diff, the file after it."""
    if kind == "python":
        return text
    return "".join(line[1:] for line in text.splitlines(keepends=True) if not line.startswith("-"))


def test_every_page_is_linked_from_the_readme() -> None:
    readme = PAGES[0].read_text()
    assert all(f"(docs/{page.name})" in readme for page in PAGES[1:])


# torch.compile hides this warning itself, but not where warnings are made errors, as they are here.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # what Lightning has to say
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert blocks, f"{page.name} shows no code"
    namespace = a_users_namespace()
    for kind, text in blocks:
        exec(compile(code_of(kind, text), page.name, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_diff_of_the_readme_saves() -> None:
    namespace = a_users_namespace()
    kind, text = BLOCK.findall(PAGES[0].read_text())[0]
    exec(code_of(kind, text), namespace)
    assert namespace["train_data"].epoch == 10
    assert namespace["train_data"].savings.fraction > 0.2
