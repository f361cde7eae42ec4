"""The examples of transformers and accelerate, on little data and in few epochs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

import tests.vision  # noqa: F401  # transformers imports torchvision where it finds it

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *options: str) -> Any:
    return runpy.run_path(str(EXAMPLES / name))["main"](options)


def test_text_on_its_own_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = run("transformers_text.py", "--epochs", "6")
    assert accuracies["full"] > 0.8
    assert accuracies["mean"] > 0.8
    assert "of the samples saved" in capsys.readouterr().out


def test_text_on_parquet_files_like_those_of_sst2(tmp_path: Path) -> None:
    rows = [
        {"sentence": f"a {w} film", "label": int(w == "fine"), "idx": 0} for w in ("fine", "dull")
    ]
    for name in ("train", "test"):
        Dataset.from_list(rows * 8).to_parquet(tmp_path / f"{name}.parquet")
    files = ["--train", str(tmp_path / "train.parquet"), "--test", str(tmp_path / "test.parquet")]
    assert run("transformers_text.py", *files, "--epochs", "1").keys() == {"full", "mean"}


def test_language_model_on_its_own_instructions() -> None:
    losses = run("transformers_lm.py", "--epochs", "2", "--hidden-size", "32")
    assert losses["full"] < 5  # from log(258) = 5.55
    assert losses["mean"] < 5


def test_language_model_on_a_file_like_alpacas(tmp_path: Path) -> None:
    records = [{"instruction": "Say it.", "input": "", "output": f"word {n}"} for n in range(20)]
    (tmp_path / "data.json").write_text(json.dumps(records))
    options = ["--data", str(tmp_path / "data.json"), "--epochs", "1", "--hidden-size", "32"]
    assert run("transformers_lm.py", *options).keys() == {"full", "mean"}


def test_accelerate() -> None:
    assert run("accelerate_digits.py", "--epochs", "5") > 0.9
