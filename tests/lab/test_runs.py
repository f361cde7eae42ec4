"""The schema of a run: what is written is read, and what is no run is left out with a reason."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from infobatch_lab.fields import UnreadableError
from infobatch_lab.lines import run_of
from infobatch_lab.metrics import ACCURACY, Metric
from infobatch_lab.runs import append, prepare, read_file, write_run
from infobatch_lab.settings import settings
from tests.lab.lines import line_of

LOSS = Metric("test_loss", higher_is_better=False, margin=0.1, decimals=3)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "new" / "runs.jsonl"
    prepare(file)
    assert not file.exists()
    cells = [settings("digits", seed=seed) for seed in range(3)]
    for cell in cells:
        append(file, line_of(cell))
    notes: list[str] = []
    assert [run.settings for run in read_file(file, notes.append)] == cells
    assert notes == []


def test_half_a_line_older_formats_and_strange_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    whole = line_of(settings("digits"))
    lines = [
        json.dumps({**whole, "format": 0}),
        json.dumps({"rule": "mean"}),
        "[1, 2]",
        "",
        "\x00\xff",
        json.dumps({**whole, "lr": [0.1]}),
        json.dumps({name: value for name, value in whole.items() if name != "num_trained"}),
        json.dumps(whole),
        json.dumps(whole)[:50],
    ]
    file.write_bytes("\n".join(lines).encode("latin-1"))
    notes: list[str] = []
    assert [run.place for run in read_file(file, notes.append)] == [f"{file}:8"]
    assert f"{file}:1 is left out: format is 0, expected 1 or 2." in notes
    reason = "it is no complete JSON, perhaps half-written."
    assert f"{file}:5 and 1 more are left out: {reason}" in notes
    append(file, whole)
    assert [run.place for run in read_file(file)] == [f"{file}:8", f"{file}:10"]
    assert read_file(tmp_path / "none.jsonl", notes.append) == []


def test_a_line_of_format_1_is_classification_with_fewer_batches() -> None:
    line = line_of(settings("digits", mixup=0.2))
    options = line.pop("options")
    del line["shrink"], line["task"]
    run = run_of({**line, **options, "format": 1})
    assert (run.shrink, run.metric, run.value) == ("epoch", ACCURACY, 0.9)
    assert run.settings == settings("digits", mixup=0.2)
    assert run.compared == run_of(line_of(settings("digits", mixup=0.2))).compared


def loss_line(**changes: Any) -> dict[str, Any]:
    history = [{"epoch": 0, "kept_fraction": 1.0}, {"epoch": 1, "kept_fraction": 0.5,
                                                    "test_loss": 1.5}]  # fmt: skip
    line = line_of(settings("digits"), metric=asdict(LOSS), test_loss=1.5, history=history)
    del line["accuracy"]
    return {**line, **changes}


def test_a_line_describes_its_own_metric() -> None:
    run = run_of(json.loads(json.dumps(loss_line())))
    assert (run.metric, run.value) == (LOSS, 1.5)
    assert run.values[1] == 1.5
    assert run.values[0] != run.values[0]  # not measured
    assert run_of(loss_line(metric={**asdict(LOSS), "colour": "of a later version"})).metric == LOSS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"metric": "test_loss"}, "metric is 'test_loss', expected an object with a name"),
        (
            {"metric": {**asdict(LOSS), "scale": "large"}},
            "scale is 'large', expected a number",
        ),
        ({"metric": {**asdict(LOSS), "name": "fid"}}, "fid is None, expected a number"),
        ({"test_loss": float("inf")}, "test_loss is inf, expected a number"),
        ({"options": [1]}, r"options is \[1\], expected an object"),
        ({"shrink": 3}, "shrink is 3, expected a text"),
    ],
)
def test_a_strange_metric_is_one_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        run_of(loss_line(**changes))


MINE: dict[str, Any] = {
    "data": "mine", "rule": "mean", "seed": 3, "epochs": 4, "num_samples": 100, "num_trained": 300,
    "num_test": 50, "value": 0.9,
}  # fmt: skip


def test_a_run_of_ones_own_loop_is_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "new" / "runs.jsonl"
    write_run(file, **MINE, settings={"lr": 0.1}, train_seconds=2.0)
    write_run(file, **{**MINE, "value": 1.5}, metric=LOSS, history=[{"kept_fraction": 0.5}])
    notes: list[str] = []
    first, second = read_file(file, notes.append)
    assert notes == []
    assert (first.rule, first.seed, first.value, first.num_trained) == ("mean", 3, 0.9, 300)
    assert dict(first.compared)["lr"] == 0.1
    assert (second.metric, second.value, second.kept_fractions) == (LOSS, 1.5, (0.5,))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"value": 1.5}, "accuracy is 1.5, expected a fraction of 1"),
        ({"value": math.nan}, "accuracy is nan, expected a number"),
        ({"value": torch.tensor(0.9)}, "Tensor is not JSON serializable"),
        ({"rule": ""}, "rule is '', expected a text"),
        ({"num_samples": 0}, "num_samples is 0, expected a whole number >= 1"),
        ({"history": [{"accuracy": 0.5}]}, "kept_fraction is None"),
    ],
)
def test_what_a_report_could_not_read_is_not_written(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        write_run(tmp_path / "runs.jsonl", **{**MINE, **changes})
    assert list(tmp_path.iterdir()) == []


def test_the_fields_that_the_docs_call_needed_are_all_that_is_needed() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    found = re.search(r'`(\{"format".*?\})`', docs, re.DOTALL)
    assert found is not None
    line = json.loads(found[1])
    assert run_of(line).value == 0.93
    for name in line:
        with pytest.raises(UnreadableError, match=name):
            run_of({key: value for key, value in line.items() if key != name})


def test_a_run_is_crowded_if_the_machine_had_more_work_than_cores() -> None:
    line = line_of(settings("digits"), machine={"processor": "x", "cores": 4})
    assert not run_of(line).is_crowded  # a line from before the load was written
    assert not run_of({**line, "load": {"start": 1.0, "end": 4.2}}).is_crowded
    assert run_of({**line, "load": {"start": 9.0, "end": 1.0}}).is_crowded
    assert not run_of({**line, "load": {"start": None, "end": None}}).is_crowded


# The runs of the repository -----------------------------------------------------------------------

RESULTS = Path(__file__).parents[2] / "results"
TASKS = ("alpaca", "camvid", "finetune", "mae", "pet-faces", "sst2")
WITH_RUNS = [
    *TASKS,
    *(["swin"] if (RESULTS / "swin").exists() else []),
    *sorted(folder.name for folder in RESULTS.glob("frontier-*")),
]


@pytest.mark.parametrize("folder", WITH_RUNS)
def test_every_line_of_the_results_says_what_was_run(folder: str) -> None:
    lines = (RESULTS / folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines
    for number, line in enumerate(lines, start=1):
        run = json.loads(line)
        missing = [
            name for name in ("data", "rule", "seed", "epochs", "shrink") if run.get(name) is None
        ]
        assert not missing, f"{folder}/runs.jsonl:{number}"


@pytest.mark.parametrize("folder", WITH_RUNS)
def test_the_page_of_results_links_the_lines(folder: str) -> None:
    assert f"]({folder}/runs.jsonl)" in (RESULTS / "RESULTS.md").read_text(encoding="utf-8")


def test_there_are_frontiers() -> None:
    assert [name for name in WITH_RUNS if name.startswith("frontier-")]
