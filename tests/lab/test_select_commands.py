"""`infobatch select`, and runs on subsets in settings, comparisons, tables and the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from infobatch.selection import METHODS
from infobatch_lab.cli import app
from infobatch_lab.comparison import Row, compare
from infobatch_lab.display import show
from infobatch_lab.errors import UserError
from infobatch_lab.frontier import find_frontiers
from infobatch_lab.images import read_digits, with_first
from infobatch_lab.lines import Run, run_of
from infobatch_lab.report.page import Section, page
from infobatch_lab.report.subsets_figure import draw_subsets
from infobatch_lab.runs import read_file
from infobatch_lab.settings import Settings, settings, settings_of
from infobatch_lab.shares import lines_by_share, shares_of
from infobatch_lab.subsets import Choice, from_file, load, on_subset, save
from infobatch_lab.sweep import grid, match_of
from infobatch_lab.tasks import RECIPES
from infobatch_lab.tasks.classification import Classification
from tests.lab.lines import line_of
from tests.lab.lines import save as save_lines


def run_with(chosen: Settings, **numbers: Any) -> Run:
    return run_of(line_of(chosen, **numbers))


def a_file(folder: Path, indices: list[int], **facts: Any) -> Path:
    path = folder / "mine.npy"
    save(path, Choice(torch.tensor(indices), **facts), {})
    return path


# Settings -----------------------------------------------------------------------------------------


def test_a_subset_is_trained_fully_unless_a_rule_is_given() -> None:
    assert settings("digits", select="dq", keep=0.5).rule == "full"
    assert settings("digits", select="dq", keep=0.5, rule="mean").rule == "mean"
    assert settings("digits").rule == "mean"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"select": "herding"}, "select is 'herding' and keep is None, expected both or none"),
        ({"keep": 0.5}, "select is None and keep is 0.5, expected both or none"),
        ({"select": "herding", "keep": 0.0}, "keep is 0.0, expected 0 < keep <= 1"),
        ({"select": "herd", "keep": 0.5}, "select is 'herd', expected one of ccs, "),
        ({"select": "dq", "keep": 0.5, "subset": "x@01234567"}, "leave one of them out"),
        ({"subset": "nowhere.npy"}, "nowhere.npy cannot be read: No such file"),
    ],
)
def test_settings_that_name_no_subset(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        settings("digits", **given)


@pytest.mark.parametrize("data", ["camvid", "mae", "pet-faces", "sst2", "alpaca"])
def test_tasks_without_images_in_classes_take_files_alone(data: str) -> None:
    with pytest.raises(UserError, match=f"but {data} .* has no classes to choose by"):
        settings(data, select="herding", keep=0.5)
    assert settings(data, subset="mine.npy@01234567").rule == "full"


@pytest.mark.parametrize("data", ["digits", "cifar10", "folder:x", "swin", "finetune"])
def test_image_classification_chooses(data: str) -> None:
    assert data in RECIPES or data == "folder:x"
    assert settings(data, select="herding", keep=0.5).has_subset


def test_a_line_says_how_its_samples_were_chosen() -> None:
    chosen = settings("digits", select="margin", keep=0.3, rule="tiers", seed=2)
    assert settings_of(json.loads(json.dumps(line_of(chosen)))) == chosen
    line = line_of(settings("digits"))
    before = {name: line[name] for name in line if name not in ("select", "keep", "subset")}
    assert settings_of(before) == settings("digits")
    assert (run_of(before).select, run_of(before).keep, run_of(before).subset) == (None,) * 3


# Files --------------------------------------------------------------------------------------------


def test_a_file_keeps_order_weights_and_times(tmp_path: Path) -> None:
    weights = torch.tensor([1.5, 0.1, 2.0])
    path = a_file(tmp_path, [7, 3, 5], weights=weights, num_samples=9, collecting_seconds=2.0,
                  selecting_seconds=0.5, data="digits")  # fmt: skip
    assert np.load(path).tolist() == [7, 3, 5]
    found = load(path)
    assert found.indices.tolist() == [7, 3, 5]
    assert found.weights is not None
    assert torch.equal(found.weights, weights)
    assert (found.collecting_seconds, found.selecting_seconds, found.num_samples) == (2.0, 0.5, 9)
    np.save(tmp_path / "plain.npy", np.array([2, 0], dtype=np.uint8))
    assert load(tmp_path / "plain.npy").indices.tolist() == [2, 0]
    assert load(tmp_path / "plain.npy").collecting_seconds is None


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.0, 1.0]),
        np.array([], dtype=int),
        np.array([[0, 1]]),
        np.array([1, 1]),
        np.array([-1, 1]),
        np.array([True, False]),
    ],
)
def test_a_file_of_something_else(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=r"x\.npy, expected a list of different indices"):
        load(tmp_path / "x.npy")


def test_a_file_that_is_no_npy(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("1 2 3")
    with pytest.raises(UserError, match=r"x\.npy cannot be read as \.npy"):
        load(tmp_path / "x.npy")


def test_facts_of_other_indices_are_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path, [1, 2], data="digits")
    np.save(path, np.array([1, 3]))
    with pytest.raises(UserError, match=r"mine\.json does not belong to mine\.npy: delete it"):
        load(path)


def test_a_file_whose_samples_change_is_another_run(tmp_path: Path) -> None:
    path = a_file(tmp_path, [1, 2])
    before = settings("digits", subset=str(path))
    assert settings("digits", subset=str(path)) == before
    a_file(tmp_path, [2, 1])
    after = settings("digits", subset=str(path))
    assert after != before
    assert after.name != before.name
    assert from_file(after).indices.tolist() == [2, 1]
    with pytest.raises(UserError, match="has other indices than when the run was asked for"):
        from_file(before)


def test_a_file_of_another_data_set_is_refused(tmp_path: Path) -> None:
    cell = settings("digits", subset=str(a_file(tmp_path, [1, 2], data="mnist")))
    with pytest.raises(UserError, match="whose indices are of mnist, not digits"):
        from_file(cell)
    digits = Classification(with_first(read_digits(Path(), lambda *_: None), 20))
    for choice in (Choice(torch.tensor([20])), Choice(torch.tensor([1]), num_samples=30)):
        with pytest.raises(UserError, match="but the data set has 20: choose from this data set"):
            on_subset(digits, choice)


# Comparisons --------------------------------------------------------------------------------------


def test_a_grid_of_subsets_has_full_training_to_compare_with() -> None:
    cells = grid("digits", seeds=range(2), select=["random", "dq"], keep=[0.5, 0.3], rule=["full"])
    assert [(cell.select, cell.keep) for cell in cells[:5]] == [
        (None, None), ("random", 0.5), ("random", 0.3), ("dq", 0.5), ("dq", 0.3),
    ]  # fmt: skip
    assert [cell.seed for cell in cells] == [0] * 5 + [1] * 5
    assert {cell.rule for cell in cells} == {"full"}
    shorter = grid("digits", seeds=[0], select=["dq"], keep=[0.5], rule=["full"], budget=[0.6])
    assert [(cell.select, cell.budget) for cell in shorter] == [(None, None), ("dq", 0.6)]
    both = grid("digits", seeds=[0], select=["dq"], keep=[0.5], rule=["full", "mean"])
    assert [cell.label for cell in both] == ["full", "dq 50 %", "dq 50 %, mean"]


def test_full_training_matched_to_a_run_has_all_samples() -> None:
    run = run_with(settings("digits", select="dq", keep=0.5, rule="mean", epochs=10),
                   num_trained=300)  # fmt: skip
    match = match_of(run)
    assert match is not None
    assert (match.select, match.keep, match.epochs) == (None, None, 3)


FULL = settings("digits", rule="full", epochs=10)
HERDING = replace(FULL, select="herding", keep=0.3)
COST = {"collecting_seconds": 4.0, "selecting_seconds": 0.5, "train_seconds": 3.0}


def rows() -> dict[str, Row]:
    runs = [
        run_with(FULL, train_seconds=10.0),
        run_with(replace(HERDING, rule="mean"), num_trained=200, pruning_seconds=0.5, **COST),
        run_with(HERDING, num_trained=300, accuracy=0.8, **COST),
        run_with(settings("digits", rule="mean", epochs=10), num_trained=660),
        run_with(replace(FULL, subset="a/mine.npy@01234567"), num_trained=500),
    ]
    (comparison,), notes = compare(runs)
    assert notes == []
    return {row.method.name: row for row in comparison.rows()}


def test_a_subset_is_a_method_of_its_own() -> None:
    found = rows()
    assert list(found) == [
        "full", "mean", "herding 30 %", "herding 30 %, mean, r = 0.5, δ = 0.875", "mine.npy",
    ]  # fmt: skip
    assert found["full"].is_reference
    assert [row.method.is_main for row in found.values()] == [True, True, False, False, False]
    herding = found["herding 30 %"]
    assert herding.samples_saved == pytest.approx(0.7)
    assert herding.difference is not None
    assert herding.difference.mean == pytest.approx(-0.1)


def test_the_time_of_choosing_is_counted() -> None:
    """As the paper's Table 2 counts it, as overhead and in the total."""
    found = rows()
    herding, both = found["herding 30 %"], found["herding 30 %, mean, r = 0.5, δ = 0.875"]
    assert herding.time_saved == pytest.approx(1 - (3 + 4.5) / 10)
    assert herding.method.overhead == pytest.approx(4.5 / 3)
    assert both.method.overhead == pytest.approx(5 / 3)
    facts = herding.as_dict()
    assert (facts["select"], facts["keep"], facts["rule"]) == ("herding", 0.3, "full")
    assert (facts["collecting_seconds"], facts["selecting_seconds"]) == (4.0, 0.5)
    # A file that does not say what choosing took: nothing is claimed of the time.
    assert (found["mine.npy"].time_saved, found["mine.npy"].method.overhead) == (None, None)


def test_tables_and_page_show_the_time_of_choosing(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = rows()["full"].comparison
    show([comparison], "digits")
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("herding 30 %  ")]
    assert line.split()[3:5] == ["4.5", "s"]
    html = page([Section(comparison, ())], [])
    assert "<summary>Chosen once, before training (3)</summary>" in html
    assert "chosen in 4 s + 0.5 s" in html
    assert "150.00" in html


def test_subsets_are_no_part_of_a_frontier() -> None:
    shorter = [
        run_with(replace(FULL, epochs=epochs), num_trained=100 * epochs) for epochs in (10, 5)
    ]
    (frontier,) = find_frontiers([*shorter, run_with(HERDING, num_trained=300, **COST)])
    assert len(frontier.points) == 2


# Commands -----------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hundred digits, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    digits = RECIPES["digits"]
    small = replace(
        digits,
        read=lambda folder, progress: Classification(
            with_first(read_digits(folder, progress), 100)
        ),
    )
    monkeypatch.setitem(RECIPES, "digits", small)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stdout


@pytest.mark.usefixtures("few")
def test_select_writes_indices_that_train_takes() -> None:
    arguments = ("select", "margin", "--keep", "0.3", "--epochs", "2", "--out", "some/margin.npy")
    facts = json.loads(invoke(*arguments, "--json"))
    assert (facts["num_chosen"], facts["num_samples"], facts["method"]) == (30, 100, "margin")
    assert facts["collecting_seconds"] > 0
    indices = np.load("some/margin.npy")
    assert len(np.unique(indices)) == 30
    assert "30 of 100 samples in some/margin.npy; statistics took" in invoke(*arguments)
    assert np.load("some/margin.npy").tolist() == indices.tolist()
    run = json.loads(invoke("train", "--epochs", "2", "--subset", "some/margin.npy", "--json"))
    assert (run["num_chosen"], run["num_trained"], run["rule"]) == (30, 60, "full")
    assert run["collecting_seconds"] == facts["collecting_seconds"]
    same = ("train", "--epochs", "2", "--select", "margin", "--keep", "0.3", "--json")
    chosen_here = json.loads(invoke(*same))
    assert chosen_here["history"] == run["history"]


@pytest.mark.usefixtures("few")
def test_compare_makes_a_grid_of_subsets() -> None:
    arguments = ("compare", "--select", "random,forgetting", "--keep", "0.5,0.3", "--epochs", "2",
                 "--seeds", "1", "--json")  # fmt: skip
    found = json.loads(invoke(*arguments))
    assert [(row["select"], row["keep"], row["samples_saved"]) for row in found] == [
        (None, None, 0), ("forgetting", 0.5, 0.5), ("forgetting", 0.3, 0.7), ("random", 0.5, 0.5),
        ("random", 0.3, 0.7),
    ]  # fmt: skip
    assert json.loads(invoke(*arguments)) == found
    assert len(read_file(Path("runs/runs.jsonl"))) == 5
    assert not list(Path("runs/checkpoints").glob("*.pt"))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("select", "herd", "--keep", "0.3"), "select is 'herd', expected one of ccs"),
        (("select", "dq", "--keep", "2"), "keep is 2.0, expected 0 < keep <= 1."),
        (("select", "dq", "--keep", "0.3", "--out", "x.txt"), "expected a name that ends in .npy"),
        (("select", "dq", "--keep", "0.3", "--data", "sst2"), "has no classes to choose by"),
        (("compare", "--select", "dq"), "select is 'dq' and keep is None, expected both"),
        (("train", "--subset", "no.npy"), "no.npy cannot be read: No such file"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UserError)
    assert sentence in str(result.exception)
    assert not list(Path().iterdir())  # nothing was begun


def test_every_method_is_offered() -> None:
    shown = invoke("select", "--help")
    assert all(method in shown.replace("\n", "") for method in METHODS)


# The shape of Table 1 -----------------------------------------------------------------------------


def at_shares() -> list[Run]:
    """Two methods and a rule at two shares, and a rule that saves something else; two seeds."""
    runs = []
    for seed in range(2):
        full = replace(FULL, seed=seed)
        runs.append(run_with(full, accuracy=0.99, train_seconds=10.0))
        for name, loss in (("random", 0.04), ("dq", 0.02)):
            for keep in (0.7, 0.5):
                cell = replace(full, select=name, keep=keep)
                given = {"accuracy": 0.99 - loss * (1 - keep) - 1e-3 * seed, "train_seconds": 5.0}
                times = {"collecting_seconds": 2.0, "selecting_seconds": 1.0}
                runs.append(run_with(cell, num_trained=round(1000 * keep), **given, **times))
        for ratio, saved in ((0.4, 0.28), (0.45, 0.31), (0.7, 0.5), (0.9, 0.6)):
            cell = settings("digits", rule="mean", prune_ratio=ratio, epochs=10, seed=seed)
            runs.append(run_with(cell, num_trained=round(1000 * (1 - saved))))
        tiers = settings("digits", rule="tiers", epochs=10, seed=seed)
        runs.append(run_with(tiers, num_trained=600))
    return runs


def test_methods_stand_in_the_column_of_what_they_prune() -> None:
    (comparison,), _ = compare(at_shares())
    assert shares_of(comparison) == [0.3, 0.5]
    lines = lines_by_share(comparison)
    assert [(line.name, line.is_static) for line in lines] == [
        ("dq", True), ("random", True), ("mean", False),
    ]  # fmt: skip
    ratios = {share: row.method.key.prune_ratio for share, row in lines[2].row_of.items()}
    assert ratios == {0.3: 0.45, 0.5: 0.7}  # of two that fit the nearer one; 0.6 fits none


@pytest.mark.slow
def test_tables_and_figure_of_subsets(tmp_path: Path) -> None:
    (comparison,), _ = compare(at_shares())
    (drawing,) = draw_subsets(comparison, comparison.margin(None))
    assert drawing.light.startswith(b"\x89PNG")
    assert "dq at 50%: -1.05; " in drawing.alt
    assert draw_subsets(rows()["full"].comparison, 0.005) == []  # one method is no comparison
    file = save_lines(tmp_path / "runs.jsonl", *(line_of_run(run) for run in at_shares()))
    tables = Path(__file__).parents[2] / "results" / "tables.py"
    command = [sys.executable, str(tables), "--subsets", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| method | chooses | 30% pruned | 50% pruned | seeds |" in shown
    cells = r"98\.35 \(-0\.65 ± \S+\) \| 97\.95 \(-1\.05 ± \S+\)"
    assert re.search(rf"^\| `dq` \| once \| {cells} \| 2 \|$", shown, re.MULTILINE)
    assert "| `dq` | once | 20.0% | 10.0% | 50.0% | 80% | 2 |" in shown


def line_of_run(run: Run) -> dict[str, Any]:
    assert run.settings is not None
    names = ("num_trained", "train_seconds", "collecting_seconds", "selecting_seconds")
    return line_of(run.settings, accuracy=run.value, **{name: getattr(run, name) for name in names})
