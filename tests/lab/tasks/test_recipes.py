"""Every value of `--data`: it can be asked for, its defaults hold, and the docs name its files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from infobatch_lab.settings import declared, settings
from infobatch_lab.tasks import RECIPES

DOCS = Path(__file__).parents[3] / "docs"
NAMES = sorted(RECIPES)  # as they are, before another test adds one


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_settings_that_a_run_can_have(name: str) -> None:
    recipe = RECIPES[name]
    chosen = settings(name + "path" * name.endswith(":"))
    values = {**asdict(chosen), **asdict(chosen.options)}
    assert {key: values[key] for key in recipe.defaults} == dict(recipe.defaults)
    assert chosen.match_forwards is None


@pytest.mark.parametrize("name", NAMES)
def test_the_docs_say_where_its_files_are_and_what_suits_it(name: str) -> None:
    text = "".join(page.read_text() for page in sorted(DOCS.glob("*.md")))
    shown = name + "PATH" * name.endswith(":")
    rows = [line for line in text.splitlines() if line.startswith(f"| `{shown}` |")]
    epochs = f"{RECIPES[name].defaults['epochs']} epochs"
    assert any(RECIPES[name].files in row and epochs in row for row in rows)


def test_a_task_has_a_metric_and_says_what_its_options_are() -> None:
    for recipe in RECIPES.values():
        task = recipe.task
        assert task.metric.margin > 0
        assert task.models
        for field in declared(task.Options).values():
            assert field.metadata["help"]
