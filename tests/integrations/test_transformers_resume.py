"""transformers' Trainer: checkpoints, and several processes."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest

from infobatch import StateError
from tests.conftest import same_state
from tests.integrations.heads import gpt2
from tests.integrations.language import (
    NUM_EPOCHS,
    InPlanOrder,
    Lighter,
    bert,
    close,
    llama,
    losses_logged,
    parameters,
    plain_loop,
    same,
    trainer_of,
)
from tests.integrations.launched import as_launched
from tests.ranks import on_ranks

# Resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "drop_last"), [(bert, False), (llama, True)])
def test_a_resumed_run_ends_as_if_nothing_had_happened(
    tmp_path: Path, model: Any, drop_last: bool
) -> None:
    settings: dict[str, Any] = {
        "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1,
        "dataloader_drop_last": drop_last,
    }  # fmt: skip
    whole = trainer_of(model(dropout=0.2), tmp_path / "whole", **settings)
    whole.train()
    assert whole.pruner.savings.fraction > 0.1
    ends = [log["step"] for log in whole.state.log_history if log["epoch"] in range(NUM_EPOCHS)]
    for step in [ends[0], ends[1], ends[1] + 1, whole.state.global_step - 1]:
        resumed = trainer_of(model(dropout=0.2), tmp_path / f"from-{step}", **settings)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert resumed.steps == [s for s in whole.steps if s.global_step >= step]
        assert same(parameters(resumed.model), parameters(whole.model))
        assert resumed.lr_scheduler.get_last_lr() == whole.lr_scheduler.get_last_lr()
        assert [log["epoch"] for log in resumed.state.log_history] == [
            log["epoch"] for log in whole.state.log_history
        ]


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 2}
    trainer_of(llama(), tmp_path / "a", **settings).train()
    checkpoint = tmp_path / "a" / "checkpoint-3"
    other = trainer_of(llama(), tmp_path / "b", per_device_train_batch_size=5, num_train_epochs=2)
    with pytest.raises(StateError, match="after 12 samples.*resume with the same batch size"):
        other.train(resume_from_checkpoint=str(checkpoint))
    with pytest.raises(StateError, match="num_epochs 2, this run 1"):
        trainer_of(llama(), tmp_path / "b", num_train_epochs=1).train(
            resume_from_checkpoint=str(checkpoint)
        )
    (checkpoint / "infobatch.pt").unlink()
    with pytest.raises(StateError, match="has no infobatch.pt"):
        trainer_of(llama(), tmp_path / "b").train(resume_from_checkpoint=str(checkpoint))


# Several processes -------------------------------------------------------------------------------


def in_two_processes(folder: Path) -> dict[str, Any]:
    """All that is asked of two processes, in one pair: starting them takes the time."""
    as_launched()
    settings: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    pruned = trainer_of(llama(), folder / "whole", **settings)
    pruned.train()
    results: dict[str, Any] = {
        "steps": pruned.steps,
        "parameters": parameters(pruned.model),
        "scores": pruned.pruner.scores,
        "savings": pruned.pruner.savings,
        "rate": pruned.lr_scheduler.get_last_lr()[0],
        "num_steps": (pruned.state.global_step, pruned.state.max_steps),
    }
    light = trainer_of(llama(), folder / "light", kind=Lighter, **settings)
    light.train()
    results["lighter"] = {
        "steps": light.steps,
        "num_steps": (light.state.global_step, light.state.max_steps),
        "savings": light.pruner.savings,
    }
    halfway = light.state.global_step // 2 + 1
    again = trainer_of(llama(), folder / "again", kind=Lighter, **settings)
    again.train(resume_from_checkpoint=str(folder / "light" / f"checkpoint-{halfway}"))
    results["lighter"]["resumed"] = (
        same(parameters(again.model), parameters(light.model)),
        same_state(again.pruner.state_dict(), light.pruner.state_dict()),
    )
    ends = [log["step"] for log in pruned.state.log_history if log["epoch"] in range(NUM_EPOCHS)]
    for step in (ends[1], ends[1] + 1):
        resumed = trainer_of(llama(), folder / f"from-{step}", **settings)
        resumed.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{step}"))
        results[f"resumed at {step - ends[1]}"] = (
            resumed.steps == [s for s in pruned.steps if s.global_step >= step],
            same(parameters(resumed.model), results["parameters"]),
            same_state(resumed.pruner.state_dict(), pruned.pruner.state_dict()),
        )
    for model in (bert, llama, gpt2):
        full = trainer_of(model(dropout=0.2), folder, rule="full", gradient_accumulation_steps=2)
        full.train()
        alone = trainer_of(
            model(dropout=0.2), folder, kind=InPlanOrder, gradient_accumulation_steps=2
        )
        alone.train()
        results[f"full {model.__name__}"] = (
            losses_logged(full) == losses_logged(alone),
            same(parameters(full.model), parameters(alone.model)),
        )
    return results


def test_two_processes_train_as_a_plain_loop_does(tmp_path: Path) -> None:
    expected = llama()
    steps, pruner, rates = plain_loop(expected, accumulate=2, num_ranks=2)
    for rank, found in enumerate(on_ranks(2, in_two_processes, tmp_path, tmp_path)):
        assert found["steps"] == steps[rank]
        assert close(found["parameters"], parameters(expected))
        assert found["savings"] == pruner.savings
        assert found["savings"].fraction > 0.1
        assert found["rate"] == 0
        assert found["num_steps"] == (len(rates), len(rates))
        assert found["resumed at 0"] == found["resumed at 1"] == (True, True, True)
        lighter = found["lighter"]
        num_steps = NUM_EPOCHS * ceil(ceil(50 / (2 * 4)) / 2)  # two batches to a step, on each rank
        assert lighter["num_steps"] == (num_steps, num_steps)
        assert lighter["savings"].fraction > 0.1
        assert lighter["resumed"] == (True, True)
        for model in ("bert", "llama", "gpt2"):
            assert found[f"full {model}"] == (True, True)
