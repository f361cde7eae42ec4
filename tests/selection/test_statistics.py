"""Statistics check what they are given, and come back from a file as they were."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infobatch.selection import METHODS, Statistics
from tests.selection.samples import everything


def assert_same(one: Statistics, other: Statistics) -> None:
    for field in fields(Statistics):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Statistics):
            assert_same(a, b)
        elif isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype, field.name
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b, field.name


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("num_samples", [1, 30])
def test_a_file_brings_back_what_was_saved(tmp_path: Path, suffix: str, num_samples: int) -> None:
    statistics = replace(everything(num_samples), validation=None)
    assert statistics.changes is not None
    statistics.changes[0, -1] = torch.nan
    statistics.save(tmp_path / f"train{suffix}")
    assert_same(Statistics.load(tmp_path / f"train{suffix}"), statistics)
    assert [path.name for path in tmp_path.iterdir()] == [f"train{suffix}"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_size_alone_can_be_saved(tmp_path: Path, suffix: str) -> None:
    Statistics(7).save(tmp_path / f"train{suffix}")
    assert_same(Statistics.load(tmp_path / f"train{suffix}"), Statistics(7))


def test_a_validation_set_is_saved_beside(tmp_path: Path) -> None:
    everything(30).save(tmp_path / "train.npz")
    assert_same(Statistics.load(tmp_path / "train.npz"), everything(30))
    with pytest.raises(ValueError, match="statistics.validation is a table of its own"):
        everything(30).save(tmp_path / "train.parquet")


def test_other_columns_of_a_table_are_left_alone(tmp_path: Path) -> None:
    """Others read and write parquet, too."""
    import pyarrow.parquet as pq

    replace(everything(5), validation=None).save(tmp_path / "train.parquet")
    table = pq.read_table(tmp_path / "train.parquet")
    assert table.num_rows == 5
    assert table["labels"].to_pylist() == [0, 1, 2, 0, 1]
    assert np.allclose(table["features"].to_pylist(), everything(5).require("features"))


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_save_that_fails_leaves_the_old_file(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"train{suffix}"
    Statistics(el2n=torch.ones(3)).save(path)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        Statistics(el2n=torch.zeros(3)).save(path)
    monkeypatch.undo()
    assert_same(Statistics.load(path), Statistics(el2n=torch.ones(3)))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="other.npz has no statistics"):
        Statistics.load(tmp_path / "other.npz")
    with pytest.raises(ValueError, match=r"path is '.*train.pt', expected a name that ends in"):
        Statistics(3).save(tmp_path / "train.pt")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "num_samples is None and no field is given"),
        ({"num_samples": -1}, "num_samples is -1, expected a whole number of at least 0"),
        ({"num_samples": 3, "el2n": [1.0]}, "el2n has 1 rows, but num_samples says 3 samples"),
        (
            {"labels": [0, 1], "el2n": [1.0]},
            "el2n has 1 rows, but labels says 2 samples",
        ),
        ({"labels": [0.5, 1.0]}, r"labels is torch.float32 of shape \(2,\), expected whole"),
        ({"features": [1.0]}, r"expected numbers of shape \(samples, dimensions\)"),
        ({"grand": [[1.0]]}, r"expected numbers of shape \(samples\)"),
        ({"el2n": [True]}, "el2n is torch.bool"),
    ],
)
def test_malformed_statistics_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Statistics(**given)


def test_numbers_come_in_any_form() -> None:
    statistics = Statistics(
        labels=np.array([1, 0], dtype=np.uint8),  # type: ignore[arg-type]
        el2n=[1, 2],  # type: ignore[arg-type]
        features=torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True),
        correct=torch.tensor([[True], [False]]),
        probabilities=torch.ones(2, 1, dtype=torch.float64),
    )
    assert statistics.require("labels").dtype == torch.int64
    assert statistics.require("el2n").dtype == torch.float32
    assert statistics.require("features").dtype == torch.float32
    assert not statistics.require("features").requires_grad
    assert statistics.require("correct").tolist() == [[1], [0]]
    assert (
        statistics.require("probabilities").dtype == torch.float64
    )  # precision is not thrown away


def test_two_statistics_make_one() -> None:
    together = Statistics(el2n=[1.0, 2.0], grand=[1.0, 1.0]) | Statistics(el2n=[3.0, 4.0])  # type: ignore[arg-type]
    assert together.require("el2n").tolist() == [3.0, 4.0]
    assert together.require("grand").tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="of 2 and of 3 samples cannot be put together"):
        Statistics(2) | Statistics(el2n=torch.ones(3))


def test_labels_that_are_no_classes_of_the_model_are_refused() -> None:
    statistics = replace(everything(6), labels=torch.tensor([0, 1, 2, 3, 0, 1]))
    with pytest.raises(
        ValueError, match="labels go from 0 to 3, expected classes of probabilities"
    ):
        METHODS["craig"](statistics, 2)


def test_a_missing_pyarrow_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        Statistics(3).save(tmp_path / "train.parquet")


def test_choosing_loads_nothing_beyond_torch_and_numpy() -> None:
    code = """
import sys, torch, numpy
import infobatch
assert "infobatch.selection" not in sys.modules
before = set(sys.modules)
infobatch.selection.select(range(10), "random", 0.5, per_class=False)
new = {m.split(".")[0] for m in set(sys.modules) - before}
print(sorted(new - {"infobatch", "numpy", "torch", *sys.stdlib_module_names}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
