"""Tables on a terminal: cautions beside times, and names as they are."""

from __future__ import annotations

from typing import Any

import pytest

from infobatch_lab.comparison import compare
from infobatch_lab.display import show, tell
from infobatch_lab.lines import run_of
from infobatch_lab.settings import settings
from tests.lab.lines import line_of


def shown(capsys: pytest.CaptureFixture[str], *lines: dict[str, Any]) -> str:
    comparisons, _ = compare([run_of(line) for line in lines])
    show(comparisons, "a title")
    return capsys.readouterr().out


def line(rule: str, **other: Any) -> dict[str, Any]:
    seconds = 4.0 if rule == "full" else 3.0
    machine = {"processor": "x", "cores": 2}
    return {**line_of(settings("digits")), "rule": rule, "train_seconds": seconds,
            "machine": machine, **other}  # fmt: skip


def test_times_of_a_crowded_machine_carry_a_caution(capsys: pytest.CaptureFixture[str]) -> None:
    load = {"start": 1.0, "end": 5.0}
    assert "\u2021" not in shown(capsys, line("full"), line("mean"))
    table = shown(capsys, line("full", load=load), line("mean"))
    assert "25.0% \u2021" in table
    assert "\u2021 The machine had more work than cores" in table


def test_times_of_several_machines_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, line("full"), line("mean", machine={"processor": "y", "cores": 2}))
    assert "25.0%" not in table
    assert "several machines" in table


def test_a_table_says_that_all_rules_had_smaller_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "shrink" not in shown(capsys, line("full"), line("mean"))
    table = shown(capsys, line("full"), line("mean", shrink="batch"))
    assert "shrink" in table
    assert " batch " in table


def test_a_table_without_full_training_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sentence = "Full training is not among these runs, so there is no verdict"
    assert sentence not in shown(capsys, line("full"), line("mean"))
    assert sentence not in shown(capsys, line("mean"))  # one run compares nothing
    assert sentence in shown(capsys, line("tiers"), line("mean"))
    assert sentence in shown(capsys, line("full", budget=0.6), line("mean", budget=0.6))


def test_long_names_are_not_cut_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "76")
    names = ("tried:proportional-40-weights-2", "tried:proportional-40-weights-3")
    table = shown(capsys, line("full"), *(line(name, shrink="batch") for name in names))
    assert "\u2026" not in table


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, line("[/red]"), line("[bold]:smile:"), line("\x1b[31m"))
    for name in ("[/red] ", "[bold]:smile: ", "\\x1b[31m "):
        assert f"\n{name}" in table


def test_a_sentence_is_one_line_without_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    tell("a\nb\x1b[2J" + "c" * 5000 + " end.")
    told = capsys.readouterr().err
    assert told.startswith("infobatch: a\\nb\\x1b[2Jccc")
    assert told.endswith(" end.\n")
    assert len(told) < 1100
