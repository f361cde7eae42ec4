"""What a report says of runs whose statistics are known, and what it survives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from infobatch_lab.comparison import compare
from infobatch_lab.errors import UserError
from infobatch_lab.report import frontier_results, results, write
from infobatch_lab.report.canvas import DARK, LIGHT
from infobatch_lab.report.figures import KINDS
from infobatch_lab.report.labels import spread_out
from infobatch_lab.report.page import NONE, Section, page
from infobatch_lab.runs import read
from infobatch_lab.styles import OTHERS, STYLES
from tests.lab.lines import save


def run(rule: str = "mean", seed: int = 0, accuracy: float = 0.9, **other: Any) -> dict[str, Any]:
    """A line of a run file: two epochs of 100 samples."""
    return {
        "format": 1,
        "data": "digits",
        "rule": rule,
        "seed": seed,
        "model": "resnet8",
        "optimizer": "sgd",
        "schedule": "onecycle",
        "prune_ratio": None,
        "delta": 0.875,
        "epochs": 2,
        "batch_size": 32,
        "lr": 0.1,
        "label_smoothing": 0.0,
        "mixup": 0.0,
        "cutmix": 0.0,
        "amp": False,
        "compile": False,
        "match_forwards": None,
        "command": f"infobatch compare --rule {rule}",
        "commit": "abc123",
        "versions": {"infobatch": "0.1.0", "torch": "2.13.0"},
        "machine": {"processor": "x86_64", "cores": 2},
        "num_samples": 100,
        "num_test": 1000,
        "accuracy": accuracy,
        "num_trained": 200 if rule == "full" else 150,
        "train_seconds": 4.0 if rule == "full" else 3.0,
        "pruning_seconds": 0.0 if rule == "full" else 0.03,
        "history": [
            {"epoch": 0, "kept_fraction": 1.0, "accuracy": 0.5},
            {"epoch": 1, "kept_fraction": 1.0 if rule == "full" else 0.5, "accuracy": accuracy},
        ],
        "loss_distribution": None,
        **other,
    }


def losses() -> dict[str, Any]:
    return {"epoch": 1, "edges": [0, 1, 2], "before": [60, 40], "after": [30, 40],
            "rescaled": [60.0, 40.0]}  # fmt: skip


class Tables(HTMLParser):
    """The rows of all tables of a page: the text of each cell by its column's heading."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.heads: list[str] = []
        self.rows: list[dict[str, str]] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("table", "thead", "tbody"):
            self.open.append(tag)
        if tag == "table":
            self.heads = []
        if tag == "tr":
            self.cells = []
        if tag in ("th", "td") and self.open:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self.open[-1] == "thead":
            self.heads = [" ".join(cell.split()) for cell in self.cells]
        if tag == "tr" and self.open[-1] == "tbody":
            texts = (" ".join(cell.replace("\N{MINUS SIGN}", "-").split()) for cell in self.cells)
            self.rows.append(dict(zip(self.heads, texts, strict=True)))
        if tag in ("table", "thead", "tbody"):
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "table" and self.cells:
            self.cells[-1] += data


def page_of(folder: Path, *lines: dict[str, Any] | str, margin: float | None = None) -> str:
    """The page of these lines, without its figures: drawing takes time."""
    runs, notes = read([save(folder / "runs.jsonl", *lines)])
    comparisons, doubles = compare(runs)
    sections = [Section(comparison, (), margin) for comparison in comparisons]
    return page(sections, [*notes, *doubles])


def table_of(
    folder: Path, *lines: dict[str, Any] | str, margin: float | None = None
) -> dict[str, Any]:
    """The rows of the page of these lines, by method."""
    rows = Tables(page_of(folder, *lines, margin=margin)).rows
    return {row.pop("Method"): row for row in rows}


# What may be compared -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ("data", "mnist"),
        ("model", "resnet18"),
        ("optimizer", "adamw"),
        ("schedule", "cosine"),
        ("epochs", 3),
        ("batch_size", 64),
        ("lr", 0.2),
        ("label_smoothing", 0.1),
        ("mixup", 0.2),
        ("cutmix", 1.0),
        ("amp", True),
        ("compile", True),
        ("num_samples", 99),
        ("num_test", 999),
    ],
)
def test_other_settings_are_never_mixed(tmp_path: Path, setting: str, other: Any) -> None:
    lines = [run("full"), run("mean"), run("full", **{setting: other})]
    runs, _ = read([save(tmp_path / "runs.jsonl", *lines)])
    comparisons, _ = compare(runs)
    names = [[method.name for method in comparison.methods] for comparison in comparisons]
    assert sorted(names) == [["full"], ["full", "mean"]]
    assert comparisons[0].title != comparisons[1].title


def methods_of(folder: Path, *lines: dict[str, Any]) -> list[tuple[str, int]]:
    (comparison,), _ = compare(read([save(folder / "runs.jsonl", *lines)])[0])
    return [(method.name, len(method.runs)) for method in comparison.methods]


def test_methods_differ_in_rule_r_and_delta(tmp_path: Path) -> None:
    assert methods_of(
        tmp_path,
        run("random", delta=1.0),
        run("mean", prune_ratio=0.3),
        run("mean", delta=1.0),
        run("mean"),
        run("mean", seed=1, prune_ratio=0.5),  # the rule's own
        run("full"),
        run("full", seed=1, delta=1.0),  # means nothing to it
        run("tiers"),
        run("mystery"),
    ) == [
        ("full", 2),
        ("mean", 2),
        ("tiers", 1),
        ("random", 1),
        ("mystery", 1),
        ("mean, r = 0.3, δ = 0.875", 1),
        ("mean, r = 0.5, δ = 1", 1),
    ]


def matched(num_trained: int, seed: int = 0) -> dict[str, Any]:
    return run("full", seed, epochs=num_trained // 100, num_trained=num_trained,
               match_forwards="mean")  # fmt: skip


def long(rule: str, num_trained: int = 2000, seed: int = 0, **other: Any) -> dict[str, Any]:
    return run(rule, seed, epochs=20, num_trained=num_trained, **other)


def test_matched_runs_stand_beside_what_they_match(tmp_path: Path) -> None:
    rows = table_of(
        tmp_path,
        matched(1300),
        matched(1400, seed=1),  # the seeds of a rule need not train equally much
        matched(1600),
        long("full"),
        long("mean", 1340),
        long("mean", 1360, seed=1),
        long("mean", 1600, prune_ratio=0.3),
        long("mean", 1620, delta=0.5),
    )
    of_matched = {name: row["Samples saved"] for name, row in rows.items() if "matched" in name}
    assert of_matched == {
        "full, matched to mean †": "32.5 %",
        "full, matched to mean, r = 0.3, δ = 0.875 †": "20.0 %",
        "full, matched to mean, r = 0.5, δ = 0.5 †": "20.0 %",
    }
    assert rows["full, matched to mean †"]["Seeds"] == "2"
    assert rows["full"]["Seeds"] == "1"


@pytest.mark.parametrize(
    "other",
    [
        long("mean", 1500),  # matched to something else
        long("tiers", 1300),
        long("mean", 1300, seed=1),
        long("mean", 1300, optimizer="adamw"),
    ],
)
def test_a_run_matched_to_something_else_stands_alone(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    runs, _ = read([save(tmp_path / "runs.jsonl", matched(1300), other)])
    assert len(compare(runs)[0]) == 2


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    lines = [run(accuracy=0.5), run(seed=1), run(accuracy=0.9)]
    row = table_of(tmp_path, *lines)["mean r = 0.5, δ = 0.875"]
    assert row["Seeds"] == "2"
    assert row["Accuracy, %"] == "90.00 ± 0.00"
    assert "runs.jsonl:1 is left out" in page_of(tmp_path, *lines)


# Reading ------------------------------------------------------------------------------------------


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in run().items() if key != name}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps(run())[:-40], "no complete JSON"),
        ("[1, 2]", "no JSON object"),
        (json.dumps(run(format=3)), "format is 3, expected 1 or 2"),
        (json.dumps(without("format")), "format is None"),
        (json.dumps(without("accuracy")), "accuracy is None"),
        (json.dumps(run(accuracy=float("nan"))), "accuracy is nan"),
        (json.dumps(run(accuracy=93.5)), "expected a fraction of 1"),
        (json.dumps({**run(), "seed": "zero"}), "seed is 'zero'"),
        (json.dumps({**run(), "seed": 0.5}), "seed is 0.5, expected a whole number"),
        (json.dumps(run(lr=[0.1])), "lr is [0.1]"),
        (json.dumps(run(num_test=0)), "num_test is 0"),
        (json.dumps(run(loss_distribution={**losses(), "after": [1]})), "one edge more than bins"),
    ],
)
def test_a_line_that_is_no_run_is_left_out_with_a_note(
    tmp_path: Path, line: str, reason: str
) -> None:
    file = save(tmp_path / "runs.jsonl", run(seed=3), "", line)
    (left,), (note,) = read([file])
    assert left.seed == 3
    assert note.startswith(f"{file}:3 is left out: ")
    assert reason in note


def test_what_was_left_out_is_said_on_stderr_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "runs.jsonl", run(history=[]), run(history=[]), '{"format": 1, "da')
    text = write([file], tmp_path / "out").read_text("utf-8")
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" is left out: ")[0] for line in said] == [f"{file}:3", f"{file}:1"]
    assert "2 lines" in text
    assert all(note in text for note in said)


def test_an_older_run_with_less_in_it_is_read(tmp_path: Path) -> None:
    needed = ("format", "data", "rule", "seed", "epochs", "num_samples", "num_test", "accuracy",
              "num_trained")  # fmt: skip
    old = {name: run()[name] for name in needed}
    rows = table_of(tmp_path, old, {**old, "seed": 1, "something": {"new": [1]}})
    assert rows["mean r = 0.5"]["Accuracy, %"] == "90.00 ± 0.00"
    assert rows["mean r = 0.5"]["Time saved"] == NONE
    assert rows["mean r = 0.5"]["Overhead"] == NONE


def test_folders_are_searched_and_a_file_is_read_once(tmp_path: Path) -> None:
    file = save(tmp_path / "a" / "b" / "runs.jsonl", run())
    save(tmp_path / "a" / "notes.txt", "no run")
    runs, notes = read([tmp_path, file, tmp_path / "a"])
    assert len(runs) == 1
    assert notes == []


def test_what_a_user_can_do_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere, which does not exist"):
        write([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(ValueError, match="hold no run, expected JSON lines"):
        write([tmp_path], tmp_path / "out")
    with pytest.raises(ValueError, match="half-written"):
        write([save(tmp_path / "runs.jsonl", '{"format": 1')], tmp_path / "out")
    with pytest.raises(ValueError, match="margin is 0, expected a number above 0"):
        write([save(tmp_path / "runs.jsonl", run())], tmp_path / "out", margin=0)
    assert not (tmp_path / "out").exists()


def test_only_the_runs_of_some_data_sets_are_shown(tmp_path: Path) -> None:
    for data in ("digits", "mnist", "npz:a/b.npz"):
        folder = tmp_path / data.replace(":", "-").replace("/", "-")
        save(folder / "runs.jsonl", *(run(rule, data=data) for rule in ("full", "mean")))
    assert len(results([tmp_path])) == 3
    for names in (["mnist"], ["npz:a/b.npz", "digits"]):
        shown = results([tmp_path], data=names)
        assert sorted(found["settings"]["data"] for found in shown) == sorted(names)
        assert [len(found["methods"]) for found in shown] == [2] * len(names)
    text = write([tmp_path], tmp_path / "out", data=["mnist"]).read_text(encoding="utf-8")
    assert "mnist · resnet8" in text
    assert "digits · resnet8" not in text


def test_only_the_frontiers_of_some_data_sets_are_shown(tmp_path: Path) -> None:
    for data in ("digits", "mnist"):
        lines = [run("full", data=data, epochs=e, num_trained=100 * e) for e in (2, 4)]
        save(tmp_path / data / "runs.jsonl", *lines)
    (found,) = frontier_results([tmp_path], data=["mnist"])
    assert found["settings"]["data"] == "mnist"
    assert len(frontier_results([tmp_path])) == 2


def test_a_data_set_that_no_run_has_is_one_sentence(tmp_path: Path) -> None:
    file = save(tmp_path / "runs.jsonl", run(data="mnist"), run(data="digits"), run(data="mnist"))
    sentence = "data is 'digit', which no run has: expected one or more of digits, mnist\\.$"
    for report in (results, frontier_results):
        with pytest.raises(ValueError, match=sentence):
            report([file], data=["mnist", "digit"])
    with pytest.raises(ValueError, match=sentence):
        write([file], tmp_path / "out", data=["digit"])
    assert not (tmp_path / "out").exists()


# The page -----------------------------------------------------------------------------------------


def test_the_table(tmp_path: Path) -> None:
    accuracies = [0.90, 0.91, 0.92, 0.93]
    rows = table_of(
        tmp_path,
        *(run("full", seed, accuracy) for seed, accuracy in enumerate(accuracies)),
        *(run("mean", seed, accuracy + 0.001) for seed, accuracy in enumerate(accuracies)),
        *(run("tiers", seed, accuracy - 0.02) for seed, accuracy in enumerate(accuracies)),
        *(run("random", seed, accuracies[seed ^ 1]) for seed in range(4)),
        run("ucb", 0, 0.9),
    )
    # The standard deviation of the differences is that of rounding to 1 of 1,000 test samples,
    # 0.0289 points; t(3) is 3.182 in tables, so the interval is 0.046 points to either side.
    assert rows["mean r = 0.5, δ = 0.875"] == {
        "Seeds": "4",
        "Accuracy, %": "91.60 ± 1.29",
        "Samples saved": "25.0 %",
        "Time saved": "25.0 %",
        "Overhead": "1.00 %",
        "Difference to full, points": "+0.10 [+0.05, +0.15]",
        "Verdict": "✓ lossless",
    }
    assert rows["tiers δ = 0.875"]["Verdict"] == "✕ worse"
    # Differences of 1, -1, 1 and -1 points: standard deviation 1.155, times 3.182 / 2.
    random = rows["random r = 0.5, δ = 0.875"]
    assert random["Difference to full, points"] == "+0.00 [-1.84, +1.84]"
    # 1.155 t(n - 1) / sqrt(n) falls below 0.5 where n is about (2.07 * 1.155 / 0.5)^2.
    (needed,) = re.findall(r"needs (\d+) seeds", random["Verdict"])
    assert 22 <= int(needed) <= 24
    assert rows["ucb r = 0.5, δ = 0.875"]["Verdict"] == "? undecided needs at least 2 seeds of both"
    assert rows["full"]["Verdict"] == "reference"


def test_overhead_is_shown_where_something_is_pruned(tmp_path: Path) -> None:
    rows = table_of(
        tmp_path,
        long("full", pruning_seconds=0.2),
        long("mean", 1340),
        {**matched(1300), "pruning_seconds": 0.2},
    )
    assert [row["Overhead"] for row in rows.values()] == [NONE, NONE, "1.00 %"]
    assert list(rows)[:2] == ["full", "full, matched to mean †"]


def test_a_script_gets_what_the_page_says(tmp_path: Path) -> None:
    accuracies = {"full": (0.90, 0.91, 0.92), "mean": (0.90, 0.92, 0.92), "ucb": (0.9,)}
    lines = [run(rule, seed, accuracy) for rule, values in accuracies.items()
             for seed, accuracy in enumerate(values)]  # fmt: skip
    file = save(tmp_path / "runs.jsonl", *lines)
    (found,) = json.loads(json.dumps(results([file], margin=3)))
    full, mean, ucb = found["methods"]
    assert (full["accuracy"], full["verdict"], full["time_saved"]) == (0.91, None, 0)
    low, high = stats.t.interval(0.95, 2, 0.01 / 3, stats.sem([0, 0.01, 0]))
    assert mean["interval"] == pytest.approx([low, high])
    assert (mean["seeds"], mean["verdict"]) == ([0, 1, 2], "lossless")
    assert (mean["samples_saved"], mean["time_saved"]) == (0.25, 0.25)
    assert (ucb["verdict"], ucb["interval"], ucb["spread"]) == ("undecided", None, None)
    row = table_of(tmp_path, *lines, margin=3)["mean r = 0.5, δ = 0.875"]
    assert row["Difference to full, points"] == f"+0.33 [{100 * low:+.2f}, {100 * high:+.2f}]"


def test_lines_left_out_for_one_reason_are_one_note(tmp_path: Path) -> None:
    other = run(format="gradients-1")
    file = save(tmp_path / "runs.jsonl", other, run(), other)
    _, notes = read([file])
    assert notes == [f"{file}:1 and 1 more are left out: format is 'gradients-1', expected 1 or 2."]


def test_the_margin_is_the_users(tmp_path: Path) -> None:
    lines = [run(rule, seed, 0.9 - 0.01 * (rule == "mean")) for rule in ("full", "mean")
             for seed in range(5)]  # fmt: skip
    assert table_of(tmp_path, *lines)["mean r = 0.5, δ = 0.875"]["Verdict"] == "✕ worse"
    rows = table_of(tmp_path, *lines, margin=2)
    assert rows["mean r = 0.5, δ = 0.875"]["Verdict"] == "✓ lossless"
    assert "less than 2 points of accuracy" in page_of(tmp_path, *lines, margin=2)
    assert "less than 1 point of accuracy" in page_of(tmp_path, *lines, margin=1)


def test_without_full_training_nothing_is_judged(tmp_path: Path) -> None:
    rows = table_of(tmp_path, *(run("mean", seed) for seed in range(5)))
    row = rows["mean r = 0.5, δ = 0.875"]
    assert row["Verdict"] == "? undecided needs runs of full training"
    assert (row["Difference to full, points"], row["Time saved"]) == (NONE, NONE)
    assert row["Samples saved"] == "25.0 %"


def test_times_of_several_machines_are_not_compared(tmp_path: Path) -> None:
    lines = [run("full"), run("mean", machine={"processor": "other"})]
    assert table_of(tmp_path, *lines)["mean r = 0.5, δ = 0.875"]["Time saved"] == NONE
    assert "several machines" in page_of(tmp_path, *lines)
    both = [*lines, run("full", 1), run("mean", 1, train_seconds=1.0)]
    assert table_of(tmp_path, *both)["mean r = 0.5, δ = 0.875"]["Time saved"] == "75.0 %"


def test_times_of_a_crowded_machine_carry_a_caution(tmp_path: Path) -> None:
    alone, crowded = ({"start": 1.0, "end": end} for end in (2.0, 5.0))  # of two cores
    lines = [run("full", load=alone), run("mean", load=alone), run("tiers", load=crowded)]
    shown = {row["Method"].split()[0]: row for row in Tables(page_of(tmp_path, *lines)).rows}
    assert shown["mean"]["Time saved"] == "25.0 %"
    assert shown["tiers"]["Time saved"] == "25.0 % ‡"
    assert "‡ The machine had more work than cores" in page_of(tmp_path, *lines)
    assert "more work than cores" not in page_of(tmp_path, *lines[:2])
    (found,) = results([tmp_path])
    assert [method["is_crowded"] for method in found["methods"]] == [False, False]


def test_a_single_run_is_not_called_a_comparison(tmp_path: Path) -> None:
    alone = page_of(tmp_path, run("mean"))
    assert "<h1>One training run</h1>" in alone
    assert "<title>One training run</title>" in alone
    assert "compared" not in alone.split("<main>")[0]
    assert "<h1>Training runs</h1>" in page_of(tmp_path, run("mean"), run("tiers"))
    both = page_of(tmp_path, run("mean"), run("full"))
    assert "<h1>Pruned and full training compared</h1>" in both


def test_nothing_is_written_through_a_link_beside_the_page(tmp_path: Path) -> None:
    save(tmp_path / "runs.jsonl", run("full"), run("mean"))
    (tmp_path / "page").mkdir()
    image = tmp_path / "page" / "1-digits-resnet8-sgd-2-epochs-progress.png"
    image.symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match=f"{image.name} is a symbolic link"):
        write([tmp_path / "runs.jsonl"], tmp_path / "page")
    assert [path.name for path in (tmp_path / "page").iterdir()] == [image.name]
    assert not (tmp_path / "outside").exists()


def test_nothing_of_a_file_becomes_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\" onload='y' &amp;"
    line = run(rule=evil, data=evil, model=evil, optimizer=evil, schedule=evil, command=evil,
               commit=evil, versions={evil: evil}, machine={evil: evil})  # fmt: skip
    matched = {**line, "match_forwards": evil}
    full = {**line, "rule": "full"}
    lines = (line, {**line, "seed": 1}, matched, full, "<i>", run(format=evil))
    file = save(tmp_path / "<b>.jsonl", *lines)
    text = write([file], tmp_path / "out").read_text("utf-8")
    tags: set[str] = set()
    attributes: set[str] = set()

    class Seen(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            attributes.update(name for name, _ in attrs)

    Seen().feed(text)
    assert not tags & {"script", "i>", "b>"}
    assert not {name for name in attributes if name.startswith("on")}
    assert text.count("&lt;script&gt;") >= 9


ALL = (
    run("full"),
    run("mean", loss_distribution=losses()),
    run("mean", prune_ratio=0.3),
    run("mean", delta=1.0),
)
"""Runs that make every figure."""
TITLES = [kind.title for kind in KINDS]
NAMES = [kind.name.replace("{metric}", "accuracy") for kind in KINDS]


def test_the_page_needs_nothing_else_and_says_what_its_images_show(tmp_path: Path) -> None:
    target = tmp_path / "new" / "page.html"
    assert write([save(tmp_path / "runs.jsonl", *ALL)], target) == target
    text = target.read_text("utf-8")
    links = re.findall(r"""(?:\bsrc|srcset|href)=["']?([^"'>]*)""", text)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links)
    assert "<script" not in text
    files = {file.name: file.read_bytes() for file in target.parent.glob("*.png")}
    assert sorted(files) == sorted(f"1-digits-resnet8-sgd-2-epochs-{name}.png" for name in NAMES)
    assert all(content.startswith(b"\x89PNG") for content in files.values())
    alts = re.findall(r'<img [^>]*alt="([^"]*)"', text)
    assert len(alts) == text.count("<img") == text.count("<source") == len(NAMES)
    assert all("digits" in alt and re.search(r"\d", alt) for alt in alts)
    for origin in ("infobatch compare --rule full", "abc123", "2.13.0", "x86_64"):
        assert origin in text


@pytest.mark.parametrize(
    ("missing", "lines"),
    [
        (set(), ALL),
        ({"losses"}, [{**line, "loss_distribution": None} for line in ALL]),
        (
            {"losses"},  # of a run that pruned nothing it would show nothing
            [{**ALL[0], "loss_distribution": {**losses(), "after": [60, 40]}}, run(), *ALL[2:]],
        ),
        ({"prune-ratio"}, [ALL[0], ALL[1], ALL[3]]),
        ({"delta"}, ALL[:3]),
        ({"overhead"}, ALL[1:]),
        ({"overhead"}, [{**line, "pruning_seconds": None} for line in ALL]),
        ({"overhead"}, [{**ALL[0], "machine": {}}, *ALL[1:]]),
        ({"progress", "kept-by-epoch"}, [{**line, "history": []} for line in ALL]),
        ({"accuracy-by-samples", "losses", "prune-ratio", "delta", "overhead"}, [run("mean")]),
        (set(NAMES) - {"progress"}, [run("full"), run("full", seed=1)]),
    ],
)
def test_a_figure_needs_its_runs(
    tmp_path: Path, missing: set[str], lines: list[dict[str, Any]]
) -> None:
    (comparison,), _ = compare(read([save(tmp_path / "runs.jsonl", *lines)])[0])
    drawn = {
        name
        for name, kind in zip(NAMES, KINDS, strict=True)
        if kind.sketch(comparison, LIGHT, 0.005) is not None
    }
    assert drawn == set(NAMES) - missing


def test_a_figure_left_out_says_what_would_make_it(tmp_path: Path) -> None:
    file = save(tmp_path / "runs.jsonl", run("full", history=[]))
    text = write([file], tmp_path).read_text("utf-8")
    assert "<img" not in text
    assert not list(tmp_path.glob("*.png"))
    titles = [t.replace("{Metric}", "Accuracy").replace("{metric}", "accuracy") for t in TITLES]
    assert re.findall(r"<li><b>([^<]+)\.</b> It needs", text) == titles


def test_equal_runs_give_equal_pages(tmp_path: Path) -> None:
    file = save(tmp_path / "runs.jsonl", *(run(rule) for rule in ("full", "mean")))
    pages = [write([file], tmp_path / name).read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1]


@given(st.lists(st.floats(-0.5, 1.5), max_size=12))
def test_labels_keep_their_order_and_distance(places: list[float]) -> None:
    spread = spread_out(places, gap=0.08)
    in_order = [spread[i] for i in sorted(range(len(places)), key=lambda i: places[i])]
    assert all(b - a >= 0.08 - 1e-9 for a, b in pairwise(in_order))
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in spread)
    if all(abs(a - b) > 0.1 for i, a in enumerate(places) for b in places[:i]):
        inside = [min(max(place, 0.0), 1.0) for place in places]
        if all(abs(a - b) > 0.1 for i, a in enumerate(inside) for b in inside[:i]):
            assert spread == pytest.approx(inside)


def luminance(colour: str) -> float:
    """Of the sRGB standard, as in the web's accessibility guidelines."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_seen() -> None:
    for style in (*STYLES.values(), *OTHERS):
        assert contrast(style.light, LIGHT.paper) >= 3
        assert contrast(style.dark, DARK.paper) >= 3
    for theme in (LIGHT, DARK):
        assert contrast(theme.ink, theme.paper) >= 7


def test_text_can_be_read() -> None:
    import infobatch_lab.report

    style = (Path(infobatch_lab.report.__file__).parent / "page.css").read_text()
    for block in style.split("prefers-color-scheme: dark"):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for text in ("ink", "soft", "link"):
            assert contrast(colours[text], colours["paper"]) >= 4.5
            assert contrast(colours[text], colours["card"]) >= 4.5
        for badge in ("good", "bad", "open"):
            assert contrast(colours[badge], colours[f"{badge}-back"]) >= 4.5


@pytest.mark.parametrize("package", ["jinja2", "matplotlib", "scipy"])
def test_a_missing_package_is_one_sentence(tmp_path: Path, package: str) -> None:
    file = save(tmp_path / "runs.jsonl", run())
    code = f"""
import sys
sys.modules[{package!r}] = None
from pathlib import Path
from infobatch_lab.report import write
write([Path({str(file)!r})], Path({str(tmp_path / "out")!r}))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = result.stderr.strip().splitlines()[-1]
    assert last.endswith("pip install infobatch[experiments].")
    assert package in last
