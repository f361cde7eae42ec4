"""The scripts of examples/ run, in their smallest setting."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

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
