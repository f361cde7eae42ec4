"""The command line offers every setting, because its options are derived from them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from infobatch_lab.cli import app
from infobatch_lab.settings import Settings, declared
from infobatch_lab.tasks.classification import MixingOptions

RENAMED = {"rule": "rules", "seed": "seeds"}
"""A comparison has several."""


def squeezed(text: str) -> str:
    """Without the spaces and line breaks of a narrow terminal."""
    return "".join(text.split())


def help_of(command: str) -> str:
    return squeezed(CliRunner().invoke(app, [command, "--help"]).output)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_every_setting_is_an_option_with_its_help(command: str) -> None:
    shown = help_of(command)
    for kind in (Settings, MixingOptions):
        for name, field in declared(kind).items():
            flag = RENAMED.get(name, name) if command == "compare" else name
            assert f"--{flag.replace('_', '-')}" in shown
            if flag == name:
                assert squeezed(field.metadata["help"]) in shown
                assert all(choice in shown for choice in field.metadata["choices"])


def test_a_default_is_shown_where_there_is_one() -> None:
    shown = help_of("train")
    for text in (
        "Fraction of the epochs that may prune [default: 0.875, or what suits the data set]",
        "--epochs <int> Epochs [default: per data set]",
        "Fraction to skip of what the rule may skip [default: per rule]",
        "--amp Compute in bfloat16 where it is safe --",
        "Label smoothing (classification) [default: 0.0, or what suits the data set]",
        "0 trains all weights (instruction tuning) [default: 8]",
    ):
        assert squeezed(text) in shown
    assert "None" not in shown
