"""Comparisons of tasks other than classification: several jobs, and matched forward passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lab.files import infobatch
from tests.lab.pictures import scene, write
from tests.lab.pretrained import WORDS, put


def masks(folder: Path) -> str:
    """Segmentation, in the frame's own loop."""
    for seed in range(10):
        image, mask = scene(seed)
        write(folder / "images" / f"{seed}.png", image)
        write(folder / "masks" / f"{seed}.png", np.minimum(mask, 1))
    return f"masks:{folder}"


def instructions(folder: Path) -> str:
    """A language model, in the Trainer's loop."""
    folder.mkdir()
    rows = [
        {"instruction": word, "output": " ".join([word, *WORDS[: number % 5]])}
        for number, word in enumerate(WORDS * 3)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"instructions:{folder / 'rows.jsonl'}"


@pytest.mark.parametrize(("write_data", "metric"), [(masks, "mIoU"), (instructions, "test_loss")])
def test_jobs_and_matched_forward_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_data: Callable[[Path], str], metric: str
) -> None:
    put(monkeypatch, tmp_path / "cache")
    data, out = write_data(tmp_path / "data"), tmp_path / "runs"
    asked = ["compare", "--data", data, "--rules", "full,mean", "--seeds", 1, "--epochs", 5,
             "--batch-size", 4, "--jobs", 2, "--match-forwards", "mean", "--out", out,
             "--json"]  # fmt: skip
    done = infobatch(*asked)
    assert done.returncode == 0, done.stderr
    rows = {(row["rule"], row["match_forwards"]): row for row in json.loads(done.stdout)}
    assert rows.keys() == {("full", None), ("mean", None), ("full", "mean")}
    assert all(row["seeds"] == [0] for row in rows.values())

    runs: dict[tuple[str, str | None], dict[str, Any]] = {
        (run["rule"], run["match_forwards"]): run
        for run in map(json.loads, (out / "runs.jsonl").read_text().splitlines())
    }
    full, mean, matched = runs["full", None], runs["mean", None], runs["full", "mean"]
    num_samples = full["num_samples"]
    assert mean["num_trained"] < full["num_trained"] == 5 * num_samples
    assert matched["num_trained"] == matched["epochs"] * num_samples < full["num_trained"]
    assert abs(matched["num_trained"] - mean["num_trained"]) <= num_samples / 2
    assert rows["full", "mean"]["samples_saved"] > rows["full", None]["samples_saved"] == 0
    assert all(metric in row for row in rows.values())
    assert not list(out.glob("*queue.json"))
