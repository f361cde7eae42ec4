"""A task that is not classification goes through the whole frame, with a loss as its metric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from infobatch_lab.cli import app
from infobatch_lab.download import Fetching
from infobatch_lab.metrics import Metric
from infobatch_lab.settings import Settings, settings
from infobatch_lab.tasks import RECIPES, BatchLosses, Forward, Recipe, Task
from tests.lab.tasks.contract import check_contract


class Line(Task):
    """A straight line through noisy points; the metric is measured at the end only."""

    name = "regression"
    metric = Metric("error", "mm", higher_is_better=False, scale=1000, margin=50, decimals=1)
    models = ("linear",)

    def __init__(self, folder: Path, progress: Fetching) -> None:
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(90, 3, generator=rng)
        y = x.sum(1) + 0.1 * torch.randn(90, generator=rng)
        self.train = TensorDataset(x[:70], y[:70])
        self.test, self.num_test = (x[70:], y[70:]), 20

    def network(self, settings: Settings) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.1), nn.Flatten(0))

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        x, y = batch
        noise = 0.1 * torch.randn(x.shape, generator=rng)
        losses = (forward(x + noise) - y).square()
        return BatchLosses(losses, scores=losses.detach().sqrt())

    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        torch.rand(3)  # training must not notice
        if not final:
            return {}
        with torch.inference_mode():
            return {"error": float((network(self.test[0]) - self.test[1]).square().mean())}

    def figures(self, network: nn.Module, settings: Settings, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "line.txt").write_text(str([p.tolist() for p in network.parameters()]))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    defaults = {"model": "linear", "epochs": 4, "batch_size": 8, "lr": 0.05, "delta": 0.8}
    monkeypatch.setitem(RECIPES, "line", Recipe(Line, Line, "", defaults))
    monkeypatch.chdir(tmp_path)


def test_the_contract(tmp_path: Path) -> None:
    task = Line(tmp_path, lambda *_: None)
    check_contract(task, settings("line", epochs=3), tmp_path)
    assert list((tmp_path / "figures").iterdir())


def test_it_is_trained_compared_and_reported() -> None:
    options = ["compare", "--data", "line", "--seeds", "3", "--rules", "full,mean"]
    result = CliRunner().invoke(app, [*options, "--match-forwards", "mean", "--json"])
    assert result.exit_code == 0, result.output
    full, matched, mean = json.loads(result.stdout)
    assert (full["rule"], matched["match_forwards"], mean["delta"]) == ("full", "mean", 0.8)
    assert mean["verdict"] in ("lossless", "worse", "undecided")
    lines = [json.loads(line) for line in Path("runs/runs.jsonl").read_text().splitlines()]
    assert {line["task"] for line in lines} == {"regression"}
    assert all(list(line["history"][0]).count("error") == 0 for line in lines)
    assert mean["error"] == pytest.approx(
        sum(line["error"] for line in lines if line["rule"] == "mean") / 3
    )
    assert len(list(Path("runs/figures").glob("*/line.txt"))) == len(lines) == 9
    table = CliRunner().invoke(app, options).stdout
    assert "error" in table
    assert f"{1000 * full['error']:.1f} ± " in table
    report = CliRunner().invoke(app, ["report", "runs"])
    assert report.exit_code == 0, report.output
    page = Path(report.stdout.strip()).read_text()
    assert ">Error, mm</th>" in page
    assert ">Difference to full, mm</th>" in page
    assert "50 mm of error" in page
    assert "accuracy" not in page.split("How to read this")[0].split("</style>")[1]


def test_options_of_other_tasks_are_refused() -> None:
    result = CliRunner().invoke(app, ["train", "--data", "line", "--mixup", "0.2"])
    assert "mixup is no setting of line, whose task is regression" in str(result.exception)
