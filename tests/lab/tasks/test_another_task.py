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
from infobatch_lab.errors import UserError
from infobatch_lab.metrics import Metric
from infobatch_lab.queue import QueueFile, QueueState
from infobatch_lab.settings import Settings, settings
from infobatch_lab.sweep import grid
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


class Doomed(Line):
    """A line that diverges with one of the seeds."""

    def network(self, settings: Settings) -> nn.Module:
        network = super().network(settings)
        if settings.seed == 1:
            nn.init.constant_(next(network.parameters()), torch.inf)
        return network


class Fragile(Doomed):
    """And whose metric fails on a network that is not finite."""

    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        found = super().evaluate(network, settings, final=final)
        if final and found["error"] != found["error"]:
            raise ArithmeticError("NaN")
        return found


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
@pytest.mark.parametrize("kind", [Doomed, Fragile])
def test_a_run_that_diverges_has_no_line_and_the_others_go_on(
    kind: type[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "line", Recipe(kind, kind, "", RECIPES["line"].defaults))
    options = ["compare", "--data", "line", "--seeds", "3", "--rules", "full"]
    result = CliRunner().invoke(app, options)
    lines = [json.loads(line) for line in Path("runs/runs.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == [0, 2]
    sentence = str(result.exception)
    assert isinstance(result.exception, UserError)
    assert "2 of 3 runs are finished, and `infobatch report runs` shows them." in sentence
    assert "line-full-seed1" in sentence
    assert "lower --lr" in sentence
    assert not list(Path("runs/checkpoints").glob("*.pt"))
    assert "nothing is queued" in CliRunner().invoke(app, ["queue"]).stdout


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_a_run_that_diverges_after_its_checkpoint_was_set_aside_has_no_line_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RECIPES, "line", Recipe(Doomed, Doomed, "", RECIPES["line"].defaults))
    doomed = settings("line", rule="full", seed=1)
    damaged = Path("runs/checkpoints", f"{doomed.name}.pt")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no checkpoint")
    result = CliRunner().invoke(
        app, ["compare", "--data", "line", "--seeds", "3", "--rules", "full"]
    )
    assert "These diverged: line-full-seed1" in str(result.exception)
    assert len(Path("runs/runs.jsonl").read_text().splitlines()) == 2


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_after_a_command_whose_runs_diverge_the_queue_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RECIPES, "line", Recipe(Doomed, Doomed, "", RECIPES["line"].defaults))
    queue = QueueFile(Path("runs/runs.jsonl"))
    queue.path.parent.mkdir()
    doomed = tuple(grid("line", seeds=[0, 1], rule="full"))
    queue.write([QueueState(doomed), QueueState(tuple(grid("line", seeds=[2], rule="full")))])
    result = CliRunner().invoke(app, ["queue", "run"])
    lines = [json.loads(line) for line in Path("runs/runs.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == [0, 2]
    assert "line, linear, 4 epochs" in result.stdout
    assert isinstance(result.exception, UserError)
    assert "1 of 2 runs are finished" in str(result.exception)
    assert f"These diverged: {doomed[1].name}. Use a lower --lr." in str(result.exception)
    assert queue.read() == []


def test_a_metric_that_fails_on_a_finite_network_fails_loudly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: Any, **kwargs: Any) -> dict[str, float]:
        raise ArithmeticError("a fault of the metric")

    monkeypatch.setattr(Line, "evaluate", broken)
    result = CliRunner().invoke(app, ["compare", "--data", "line", "--seeds", "1"])
    assert isinstance(result.exception, ArithmeticError)
