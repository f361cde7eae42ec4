"""The scripts of examples/ run, in their smallest setting."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from tests.conftest import same_state

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *options])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def saved(output: str) -> int:
    """The percentage in the last line."""
    return int(output.splitlines()[-1].split("%")[-2].split()[-1])


def save_digits(folder: Path, num_images: int, size: int = 8) -> None:
    """Images of scikit-learn's digits, in a folder per class."""
    digits = load_digits()
    for number in range(num_images):
        to = folder / str(digits.target[number])
        to.mkdir(parents=True, exist_ok=True)
        grey = Image.fromarray((digits.images[number] * 15).astype("uint8"))
        grey.convert("RGB").resize((size, size)).save(to / f"{number}.png")


def test_pytorch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("pytorch.py", monkeypatch, "--epochs", "5")
    assert saved(capsys.readouterr().out) > 15


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_lightning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "5", "--folder", str(tmp_path)]
    run("lightning_digits.py", monkeypatch, *options)
    result = capsys.readouterr().out.splitlines()[-1]
    assert saved(result) > 15
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    run("lightning_digits.py", monkeypatch, *options, "--resume", str(checkpoint))
    assert capsys.readouterr().out.splitlines()[-1] == result


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # timm leaves that to Python
def test_timm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_digits(tmp_path, 64)
    options = ["--model", "test_vit", "--image-size", "160", "--epochs", "4", "--batch-size", "8"]
    run("timm_imagefolder.py", monkeypatch, str(tmp_path), *options, "--workers", "0")
    assert saved(capsys.readouterr().out) > 5


def torchrun(script: str, runs: list[list[str]]) -> str:
    """Runs of a script on two processes, one after the other; what they print."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    example = ["-m", "tests.integrations.run_example", str(EXAMPLES / script), json.dumps(runs)]
    done = subprocess.run(
        [*launch, *example],
        # So that rank 0, and not torchrun, opens the port at which the processes meet.
        env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=EXAMPLES.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imagenet_on_two_processes_and_resumed(tmp_path: Path) -> None:
    for split, num_images in (("train", 48), ("val", 20)):
        save_digits(tmp_path / split, num_images, size=36)
    whole, stopped, resumed = (tmp_path / name for name in ("whole", "stopped", "resumed"))
    for folder in (whole, stopped, resumed):
        folder.mkdir()
    network = ["--arch", "shufflenet_v2_x0_5", "--image-size", "32"]
    options = [str(tmp_path), *network, "--batch-size", "8", "--workers", "0", "--output"]
    output = torchrun(
        "imagenet.py",
        [
            [*options, str(whole), "--epochs", "3"],
            [*options, str(stopped), "--epochs", "2"],
            [*options, str(resumed), "--epochs", "3", "--resume", str(stopped / "checkpoint.pt")],
        ],
    )
    assert saved(output) > 5
    one, other = (
        torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (whole, resumed)
    )
    assert same_state(one["model"], other["model"])
    assert same_state(one["data"], other["data"])
    assert one["data"]["scores"].isfinite().all()  # what both ranks have trained


def test_gpt_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inspect.getsource(inspect).encode()[:40_000]
    tokens, checkpoint = tmp_path / "tokens.bin", tmp_path / "checkpoint.pt"
    np.frombuffer(text, dtype="uint8").astype("uint16").tofile(tokens)
    sizes = ["--num-tokens", "128", "--length", "64", "--width", "32", "--layers", "1"]
    steps = ["--steps", "120", "--accumulate", "2", "--batch-size", "8", "--save-every", "70"]
    options = [str(tokens), *sizes, *steps, "--checkpoint", str(checkpoint)]
    run("gpt.py", monkeypatch, *options)
    result = capsys.readouterr().out.splitlines()[-1]
    assert saved(result) > 10
    assert float(result.split()[2].rstrip(",")) < 3.5  # a uniform guess has 4.85
    assert torch.load(checkpoint, weights_only=True)["step"] == 70
    run("gpt.py", monkeypatch, *options, "--resume")
    assert capsys.readouterr().out.splitlines()[-1] == result


def test_detector(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--scenes", "20", "--image-size", "64", "--batch-size", "4"]
    run("detector.py", monkeypatch, "--epochs", "3", *sizes)
    assert saved(capsys.readouterr().out) > 10


def test_the_detectors_losses_have_torchvisions_loss_as_their_mean() -> None:
    example = runpy.run_path(str(EXAMPLES / "detector.py"))
    model, scenes = example["detector"](10, 64), example["Scenes"](4, 64, seed=0)
    images, targets = example["collate"]([scenes[i] for i in range(4)])
    losses = model(images, targets)["losses"]
    assert losses.shape == (4,)
    model.__class__ = type(model).__mro__[1]  # torchvision's own
    torch.testing.assert_close(losses.mean(), sum(model(images, targets).values()))


def test_variable_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kind(name: str) -> str:
        return "class" if isinstance(getattr(builtins, name), type) else "function"

    names = [name for name in dir(builtins) if callable(getattr(builtins, name))]
    file = tmp_path / "names.tsv"
    file.write_text("".join(f"{kind(name)}\t{name}\n" for name in names))
    run("variable_lengths.py", monkeypatch, str(file), "--epochs", "8")
    result = capsys.readouterr().out.splitlines()[-1]
    assert saved(result) > 10
    assert float(result.split()[1].rstrip("%,")) > 70
