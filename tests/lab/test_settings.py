from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from infobatch_lab.errors import UserError
from infobatch_lab.settings import OPTIMIZERS, settings, settings_of
from infobatch_lab.tasks import RECIPES
from tests.lab.lines import line_of

RESULTS = Path(__file__).parents[2] / "results"


def test_what_is_not_given_suits_the_data_set() -> None:
    chosen = settings("cifar10")
    assert (chosen.model, chosen.epochs, chosen.batch_size) == ("resnet8-pooled", 16, 128)
    assert settings("cifar10", epochs=None, model="resnet18").model == "resnet18"
    assert settings("folder:some/where").model == "resnet18"


def test_a_run_has_one_name_however_it_is_asked_for() -> None:
    mean, full = settings("digits", rule="mean"), settings("digits", rule="full")
    assert settings("digits", rule="mean", prune_ratio=0.5) == mean
    assert settings("digits", rule="full", delta=1, shrink="batch") == full
    assert settings("digits", rule="mean", delta=1) != mean
    assert settings("digits", rule="mean", shrink="batch") != mean
    assert settings("digits", mixup=0.2).name != mean.name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_brings_its_learning_rate(optimizer: str) -> None:
    assert settings("digits", optimizer=optimizer).lr == OPTIMIZERS[optimizer]
    assert settings("digits", optimizer=optimizer, lr=0.25).lr == 0.25


def test_a_data_sets_learning_rate_is_for_its_own_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned = {**RECIPES["digits"].defaults, "optimizer": "adamw", "lr": 0.002, "mixup": 0.8}
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], defaults=tuned))
    chosen = settings("digits")
    assert (chosen.optimizer, chosen.lr, chosen.options.mixup) == ("adamw", 0.002, 0.8)
    assert settings("digits", optimizer="sgd").lr == OPTIMIZERS["sgd"]
    assert settings("digits", mixup=0.0).options.mixup == 0


def test_a_setting_of_another_task_is_refused() -> None:
    with pytest.raises(UserError, match="noise is no setting of digits, whose task is classif"):
        settings("digits", noise=0.5)


def test_settings_are_read_as_they_were_written() -> None:
    chosen = settings("digits", rule="tiers", seed=4, mixup=0.2, shrink="batch")
    assert settings_of(json.loads(json.dumps(line_of(chosen)))) == chosen
    assert settings_of({**line_of(chosen), "data": "data of another version"}) is None
    assert settings_of({**line_of(chosen), "data": None, "options": 3}) is None


def test_a_setting_that_is_younger_than_a_line_has_its_default() -> None:
    chosen = settings("digits", seed=4, label_smoothing=0.1)
    line = line_of(chosen)
    del line["compile"], line["options"]["cutmix"]
    assert settings_of(line) == chosen
    for needed in ("data", "model", "epochs", "lr"):
        assert settings_of({n: v for n, v in line.items() if n != needed}) is None


def test_every_published_run_is_known_by_its_settings() -> None:
    """So that none of them is run again. They are of format 1, without shrink and options."""
    lines = [json.loads(line) for file in sorted(RESULTS.glob("*/runs.jsonl"))
             for line in file.read_text().splitlines()]  # fmt: skip
    old = [line for line in lines if line["format"] == 1]
    assert len(old) == 414
    for line in old:
        chosen = settings_of(line)
        assert chosen is not None
        assert chosen.shrink == "epoch"
        for name, value in asdict(chosen.options).items():
            assert line[name] == value
