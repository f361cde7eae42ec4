from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import infobatch as library
from infobatch_lab.cli import app
from infobatch_lab.commands import reading
from infobatch_lab.errors import UserError
from infobatch_lab.settings import settings
from tests.lab.files import COMMAND, environment, infobatch, write_mnist
from tests.lab.lines import line_of, save

COMMANDS = ("train", "compare", "frontier", "demo", "queue", "report", "rules", "plan")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_that_parse(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    examples = result.output.split("Examples:\n")[1].strip().splitlines()
    assert examples
    for example in examples:
        words = example.split("#")[0].split()
        assert f"infobatch {name}" in " ".join(words)
        options = [word for word in words if word.startswith("--") and word != "--nproc-per-node"]
        assert all(option in result.output.split("Examples:")[0] for option in options)


def test_without_arguments_there_is_help() -> None:
    result = invoke()
    assert all(f"\n  {name}" in result.output for name in COMMANDS)


def test_the_line_of_a_run_is_written_before_its_processes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torchrun ends all processes if one fails while they part."""
    lines_when_parting = []

    @contextmanager
    def group() -> Iterator[None]:
        yield
        lines_when_parting.append((tmp_path / "runs.jsonl").read_text().count("\n"))

    monkeypatch.setattr("infobatch_lab.cli.process_group", group)
    assert invoke("train", "--epochs", 1, "--out", tmp_path).exit_code == 0
    assert lines_when_parting == [1]


def test_the_version() -> None:
    assert invoke("--version").output == f"infobatch {library.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train --data imagenet", "data is 'imagenet', expected one of digits"),
        ("train --rule median", "rule is 'median', expected one of"),
        ("train --model resnet9", "model is 'resnet9', expected one of"),
        ("train --optimizer adam", "optimizer is 'adam', expected one of sgd"),
        ("train --schedule step", "schedule is 'step', expected one of onecycle"),
        ("train --prune-ratio 1.5", "prune_ratio is 1.5, expected 0 <= prune_ratio < 1"),
        ("train --prune-ratio 0.5 --rule tiers", "'tiers' has its own ratios"),
        ("train --delta 2", "delta is 2.0, expected 0 <= delta <= 1"),
        ("train --epochs 0", "epochs is 0, expected a whole number of at least 1"),
        ("train --batch-size 0", "batch_size is 0, expected"),
        ("train --lr -1", "lr is -1.0, expected a finite number above 0"),
        ("train --lr inf", "lr is inf, expected a finite number above 0"),
        ("train --seed -1", "seed is -1, expected a whole number of at least 0"),
        ("train --label-smoothing 1", "label_smoothing is 1.0, expected"),
        ("train --mixup -1", "mixup is -1.0, expected"),
        ("train --shrink half", "shrink is 'half', expected one of epoch or batch"),
        ("queue run", "nothing is queued in runs: run `infobatch compare`"),
        ("train --data folder:nowhere", "nowhere is no folder"),
        ("compare --rules full,median", "rule is 'median', expected one of"),
        ("compare --prune-ratio a,b", "prune-ratio is 'a,b', expected numbers"),
        ("compare --prune-ratio 0.5,1.5", "prune_ratio is 1.5, expected"),
        ("compare --optimizer adam", "optimizer is 'adam', expected"),
        ("compare --rules ,", "rules is ',', expected one or more, separated by commas"),
        ("compare --delta ,", "delta is ',', expected one or more, separated by commas"),
        ("compare --match-forwards ,", "match-forwards is ',', expected one or more"),
        ("report . --margin 0", "margin is 0, expected a number above 0 in the metric's unit"),
        ("compare --match-forwards ucb", "match-forwards is 'ucb', which is not one of the rules"),
        ("frontier --lengths 0.7,0.5", "lengths is '0.7,0.5', expected parts of 1, with 1"),
        ("frontier --lengths 1,0", "lengths is '1,0', expected parts of 1"),
        ("frontier --rules median", "rule is 'median', expected one of"),
        (
            "frontier --data mnist --tune-lr",
            "data is 'mnist', expected digits, fashion-mnist or cifar10-small",
        ),
        ("report nowhere", "nowhere does not exist"),
        ("report .", "holds no file that ends in .jsonl"),
        ("plan nowhere.npy", "nowhere.npy does not exist"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments: str, sentence: str) -> None:
    result = invoke(*arguments.split())
    assert isinstance(result.exception, UserError)
    assert sentence in str(result.exception)
    assert not any(file.read_text() for file in Path().glob("runs/*.jsonl"))


@pytest.mark.parametrize("arguments", ["nothing", "train --nothing", "train --seed x", "plan"])
def test_wrong_usage_has_exit_code_2(arguments: str) -> None:
    assert invoke(*arguments.split()).exit_code == 2


def test_a_mistake_in_a_real_process() -> None:
    result = infobatch("train", "--rule", "median")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("infobatch: rule is 'median', expected one of")
    assert result.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_found_before_training() -> None:
    Path("taken").write_text("a file")
    Path("runs/runs.jsonl").mkdir(parents=True)
    for command in ("train", "compare", "demo"):
        result = infobatch(command, *(["--out", "taken"] if command != "compare" else []))
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1
        assert "taken" in result.stderr or "runs.jsonl" in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["runs", "taken"]


def test_a_last_batch_of_one_image_is_trained() -> None:
    """1,437 = 4 x 359 + 1. A deep network makes one pixel of it, too little to normalise."""
    options = ["--epochs", 1, "--model", "resnet8-pooled", "--batch-size", 359]
    result = invoke("train", *options, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["num_steps"] == 5


def test_train_prints_a_table_or_json() -> None:
    result = invoke("train", "--epochs", 2)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "mean" in result.stdout
    as_json = json.loads(invoke("train", "--epochs", 2, "--json").stdout)
    runs = [json.loads(line) for line in Path("runs/runs.jsonl").read_text().splitlines()]
    assert len(runs) == 2
    assert runs[1] == as_json
    assert runs[0]["history"] == runs[1]["history"]


def test_train_reads_files_from_a_folder_and_logs() -> None:
    write_mnist(Path("files/mnist"))
    options = ["--data", "mnist", "--data-dir", "files", "--epochs", 2, "--out", "here"]
    result = invoke("train", *options, "--tensorboard", "--batch-size", 16)
    assert result.exit_code == 0
    assert Path("here/runs.jsonl").exists()
    assert list(Path("here/tensorboard").rglob("events*"))


def test_resume_without_a_checkpoint_starts_anew() -> None:
    result = invoke("train", "--epochs", 1, "--resume")
    assert result.exit_code == 0
    assert "starting anew" in result.stderr


def test_report_prints_the_page_or_what_it_says() -> None:
    rows = json.loads(invoke("compare", "--epochs", 1, "--seeds", 2, "--json").stdout)
    page = Path(invoke("report", "runs").stdout.strip())
    assert page == Path("report/index.html")
    said = json.loads(invoke("report", "runs", "--json", "--margin", 0.2).stdout)
    assert Path(said["page"]) == page
    (comparison,) = said["comparisons"]
    assert comparison["margin"] == 0.002
    methods = {method["rule"]: method for method in comparison["methods"]}
    for row in rows:
        for name in ("accuracy", "samples_saved", "time_saved"):
            assert methods[row["rule"]][name] == pytest.approx(row[name])


def test_report_shows_the_data_sets_that_are_named() -> None:
    for data in ("digits", "mnist", "cifar10"):
        save(Path("runs") / data / "runs.jsonl", line_of(settings(data, rule="full")))

    def data_of(*options: str) -> set[str]:
        said = json.loads(invoke("report", "runs", "--json", *options).stdout)
        return {comparison["settings"]["data"] for comparison in said["comparisons"]}

    assert data_of() == {"digits", "mnist", "cifar10"}
    assert data_of("--data", "mnist, digits") == {"digits", "mnist"}
    assert "cifar10" not in Path("report/index.html").read_text(encoding="utf-8")
    wrong = invoke("report", "runs", "--data", "mnist,svhn").exception
    assert isinstance(wrong, UserError)
    there = "expected one or more of cifar10, digits, mnist."
    assert str(wrong) == f"data is 'svhn', which no run has: {there}"
    assert "data is ',', expected one or more" in str(
        invoke("report", "runs", "--data", ",").exception
    )


def test_compare_varies_what_it_is_given() -> None:
    result = invoke(
        "compare", "--epochs", 1, "--seeds", 1, "--rules", "full,mean", "--json",
        "--prune-ratio", "0.2,0.4", "--optimizer", "sgd,adamw",
    )  # fmt: skip
    rows = json.loads(result.stdout)
    assert [(row["rule"], row["optimizer"], row["prune_ratio"]) for row in rows] == [
        ("full", "sgd", None), ("mean", "sgd", 0.2), ("mean", "sgd", 0.4),
        ("full", "adamw", None), ("mean", "adamw", 0.2), ("mean", "adamw", 0.4),
    ]  # fmt: skip
    table = invoke(
        "compare", "--epochs", 1, "--seeds", 1, "--rules", "full,mean",
        "--prune-ratio", "0.2,0.4", "--optimizer", "sgd,adamw",
    ).stdout  # fmt: skip
    assert "prune ratio" in table
    assert "optimizer" in table
    assert "delta" not in table
    assert max(map(len, table.splitlines())) <= 80


def test_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads(invoke("rules", "--json").stdout)
    assert [row["rule"] for row in rows] == list(library.rules.RULES)
    monkeypatch.setattr(reading, "out", Console(width=100, markup=False, highlight=False))
    lines = invoke("rules").stdout.splitlines()
    assert max(map(len, lines)) <= 100
    for row in rows:
        (line,) = [line for line in lines if line.split()[0] == row["rule"]]
        assert row["skips"] in line
        assert line.split()[1] == ("no" if row["unbiased"] else "yes")


def test_plan() -> None:
    np.save("a.npy", np.arange(10.0))
    facts = json.loads(invoke("plan", "a.npy", "--json").stdout)
    assert (facts["num_kept"], facts["num_pruned"], facts["threshold"]) == (7, 3, 4.5)
    assert facts["weights"] == [[1.0, 5], [2.5, 2]]
    text = invoke("plan", "a.npy", "--rule", "full").stdout
    assert "full keeps 10 and skips 0 (0.0%)" in text
    assert "10 with weight 1" in text


def test_a_closed_pipe_is_no_traceback() -> None:
    np.save("a.npy", np.arange(10.0))
    with subprocess.Popen(
        [*COMMAND, "plan", "a.npy"], env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_the_demo_compares_and_leaves_other_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text("a user's runs")
    result = infobatch("demo", "--seeds", 1, "--out", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    _, header, *rows, last = result.stdout.splitlines()  # a busy machine adds a caution
    assert " ".join(header.split()) == "rule accuracy samples saved time saved overhead runs"
    assert [row.split()[0] for row in rows[:4]] == ["full", "mean", "tiers", "random"]
    runs = [json.loads(line) for line in (tmp_path / "demo.jsonl").read_text().splitlines()]
    assert sorted(run["rule"] for run in runs) == ["full", "mean", "random", "tiers"]
    assert all(run["accuracy"] > 0.97 for run in runs)
    page = Path(last.removeprefix("report in "))
    assert tmp_path in page.parents
    assert "<html" in page.read_text()
    assert (tmp_path / "runs.jsonl").read_text() == "a user's runs"

    # A demonstration that was stopped goes on.
    lines = (tmp_path / "demo.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "demo.jsonl").write_text("".join(lines[:3]))
    assert infobatch("demo", "--seeds", 1, "--out", tmp_path).returncode == 0
    again = (tmp_path / "demo.jsonl").read_text().splitlines(keepends=True)
    assert again[:3] == lines[:3]
    assert [json.loads(line)["history"] for line in again] == [run["history"] for run in runs]


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(name='typer')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-m", "infobatch", "demo"],
        env={**environment(), "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr == "typer is not installed: pip install infobatch[experiments].\n"


def test_a_terminal_gets_bars_and_a_pipe_does_not() -> None:
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    options = [*COMMAND, "train", "--epochs", "2"]
    process = subprocess.Popen(
        options, env={**environment(), "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=child
    )
    os.close(child)
    shown = b""
    while True:
        try:
            block = os.read(parent, 4096)
        except OSError:
            break
        if not block:
            break
        shown += block
    out, _ = process.communicate()
    os.close(parent)
    assert b"epoch 2 of 2" in shown
    assert b"\x1b" not in out
    assert invoke("train", "--epochs", 2).stderr == ""
