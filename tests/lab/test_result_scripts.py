"""The scripts of results/ that train something else than a setting of the command line."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from infobatch_lab.images import Images, read_digits
from infobatch_lab.settings import settings
from infobatch_lab.training import Training
from tests.lab.lines import line_of

RESULTS = Path(__file__).parents[2] / "results"
NORMS = runpy.run_path(str(RESULTS / "norm_statistics.py"))
SCORES = runpy.run_path(str(RESULTS / "error_scores.py"))


def trained(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What it makes of a batch, and the gradient of a loss of that."""
    inputs = x.clone().requires_grad_()
    output = norm(inputs)
    (output * torch.linspace(-1, 1, output[0].numel()).view_as(output[0])).sum().backward()
    assert inputs.grad is not None
    return output.detach(), inputs.grad


def test_a_sample_of_weight_2_counts_as_two_of_it() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, 4)
    norm, reference = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    weighted = NORMS["WeightedBatchNorm"](norm)
    weighted.weights = torch.tensor([2.0, 1.0, 1.0])
    output, _ = trained(weighted, x)
    expected, _ = trained(reference, torch.cat([x[:1], x]))
    assert_close(output, expected[1:])
    assert_close(norm.running_mean, reference.running_mean)
    # torch's own divides by one value less
    assert_close(norm.running_var, reference.running_var, rtol=0.02, atol=0.01)


def test_with_equal_weights_it_is_batch_norm_in_training_and_afterwards() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 4, 4)
    norm, reference = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    weighted = NORMS["WeightedBatchNorm"](norm)
    weighted.weights = torch.full((5,), 3.0)
    for found, expected in zip(trained(weighted, x), trained(reference, x), strict=True):
        assert_close(found, expected)
    norm.load_state_dict(reference.state_dict())
    assert_close(weighted.eval()(x), reference.eval()(x))


def digits() -> Any:
    """A part of them, with error scores."""
    data = read_digits(Path("unused"), lambda *_: None)
    part = Images(data.train.images[:200], data.train.labels[:200])
    return SCORES["ErrorScores"](replace(data, train=part))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_statistics_of_all_do_not_depend_on_what_was_trained_last(weighted: bool) -> None:
    chosen = settings("digits", rule="focus", epochs=3, delta=1.0, shrink="batch")
    training: Training = (NORMS["WeightedNorms"] if weighted else Training)(chosen, digits())
    training.run(lambda progress: True)
    found = NORMS["with_statistics_of_all"](training)
    norms = [part for part in training.model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms
    for norm in norms:
        assert norm.running_mean is not None
        norm.running_mean.fill_(7)
    assert NORMS["with_statistics_of_all"](training) == found > 0.5


def test_a_score_is_the_length_of_p_minus_y() -> None:
    task = digits()
    images, labels = task.train.__getitems__([3, 5, 7])
    network = task.network(settings("digits"))
    rng = torch.Generator()
    found = task.batch_losses(network, (images, labels), settings("digits"), rng.manual_seed(0))
    outputs: list[Tensor] = []
    network.register_forward_hook(lambda *call: outputs.append(call[-1].detach()))
    task.batch_losses(network, (images, labels), settings("digits"), rng.manual_seed(0))
    for i, label in enumerate(labels.tolist()):
        p = torch.softmax(outputs[0][i], 0)
        p[label] -= 1
        assert float(found.scores[i]) == pytest.approx(float(p.norm()), rel=1e-5)
        assert float(found.losses[i].detach()) == pytest.approx(
            -float((p[label] + 1).log()), rel=1e-4
        )


def write(file: Path, values: dict[str, list[float]], **more: Any) -> Path:
    chosen = [settings("digits", rule=r, seed=s) for r, v in values.items() for s in range(len(v))]
    lines = [{**line_of(cell), "accuracy": values[cell.rule][cell.seed], **more} for cell in chosen]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_two_files_are_compared_by_rule_and_seed(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", {"mean": [0.9, 0.92], "focus": [0.5, 0.5]})
    other = write(tmp_path / "other.jsonl", {"full": [0.1], "mean": [0.8, 0.83, 0.7]}, mine=0.9)

    def table(*sources: str) -> list[str]:
        command = [sys.executable, str(RESULTS / "paired.py"), *sources]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )

    # the differences are 10 and 9 points: a mean of 9.5, and 12.7 times half their distance
    assert table(str(one), str(other))[2:] == [
        "| `mean` | 91.00 | +9.50 (+3.15 to +15.85) | 2 |",
        "",
    ]
    assert (
        table(str(one), f"{other}:mine")[2] == "| `mean` | 91.00 | +1.00 (-11.71 to +13.71) | 2 |"
    )
