"""Resume at the start, in the middle and at the end of an epoch, bit for bit."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import infobatch
from infobatch import InfoBatch, Pruner, StateError
from infobatch.rules import Mean
from tests.conftest import RULE_NAMES, Numbers, every_rule, loss_of, same_state

NUM_SAMPLES, BATCH = 60, 7


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


def make(name: str) -> InfoBatch[int]:
    return InfoBatch(Numbers(NUM_SAMPLES), 12, rule=every_rule(NUM_SAMPLES)[name], seed=3)


def loader_of(data: InfoBatch[int], kind: str, num_workers: int = 0) -> Any:
    if kind == "ours":
        return infobatch.DataLoader(data, batch_size=BATCH, num_workers=num_workers)
    if kind == "uniform":
        return DataLoader(data, batch_sampler=data.batches(BATCH, uniform=True))
    return DataLoader(data, batch_size=BATCH, sampler=data.sampler, num_workers=num_workers)


def steps(
    data: InfoBatch[int], kind: str, num_epochs: int
) -> list[tuple[list[int], list[float], dict[str, Any]]]:
    """Train on, noting each batch, its weights and the state after it."""
    history = []
    loader = loader_of(data, kind)
    for _ in range(data.epoch, num_epochs):
        for samples in loader:
            losses = loss_of(samples + 17 * data.epoch)
            data.update(losses.mean() if kind == "uniform" else losses)
            history.append((samples.tolist(), data.batch_weights.tolist(), data.state_dict()))
    return history


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in RULE_NAMES for kind in ("stock", "ours")]
    + [(name, "uniform") for name in ("mean", "tiers", "ucb", "every-mean")],
)
def test_from_every_step_of_a_run_the_rest_is_the_same(name: str, kind: str) -> None:
    whole = steps(make(name), kind, 5)
    for position, (_, _, state) in list(enumerate(whole))[:: 1 if name == "mean" else 3]:
        resumed = make(name)
        resumed.load_state_dict(through_a_file(state))
        assert same_state(resumed.state_dict(), state)
        rest = steps(resumed, kind, 5)
        assert [step[:2] for step in rest] == [step[:2] for step in whole[position + 1 :]]
        if rest:
            assert same_state(rest[-1][2], whole[-1][2])


def test_the_length_of_a_resumed_epoch_is_what_is_left_of_it() -> None:
    data = make("mean")
    batches = iter(loader_of(data, "stock"))
    for _ in range(3):
        data.update(loss_of(next(batches)))
    resumed = make("mean")
    resumed.load_state_dict(data.state_dict())
    loader = loader_of(resumed, "stock")
    assert len(resumed.sampler) == NUM_SAMPLES - 3 * BATCH
    assert len(loader) == sum(1 for s in loader if resumed.update(loss_of(s)) is not None)
    assert len(resumed.plan) == len(resumed.sampler)
    assert resumed.plan.indices.shape[0] < NUM_SAMPLES


def test_a_checkpoint_brings_its_seed() -> None:
    pruner = Pruner(60, 12, seed=5)
    pruner.update(loss_of(pruner.plan.indices), pruner.plan.indices)
    resumed = Pruner(60, 12, seed=6)
    resumed.load_state_dict(pruner.state_dict())
    assert resumed.plan.fingerprint == pruner.plan.fingerprint


def test_a_checkpoint_stands_still() -> None:
    data = make("ucb")
    steps(data, "stock", 2)
    state = data.state_dict()
    saved = through_a_file(state)
    steps(data, "stock", 5)
    assert same_state(state, saved)
    resumed = make("ucb")
    resumed.load_state_dict(state)
    steps(resumed, "stock", 5)
    assert same_state(state, saved)


def test_at_an_epochs_end_the_state_is_the_scores_and_a_few_numbers() -> None:
    pruner = Pruner(100_000, 10)
    pruner.update(torch.rand(100_000), pruner.plan.indices)
    buffer = io.BytesIO()
    torch.save(pruner.state_dict(), buffer)
    assert buffer.tell() < 1.02 * 4 * 100_000


def kinds_of(state: Any) -> set[type]:
    if isinstance(state, dict):
        return set().union(*(kinds_of(value) for value in state.values()), {type(k) for k in state})
    return {type(state)}


@pytest.mark.parametrize("name", RULE_NAMES)
def test_state_is_plain(name: str) -> None:
    data = make(name)
    for _, _, state in steps(data, "ours", 3):
        assert kinds_of(state) <= {Tensor, int, float, str, bytes, type(None)}


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Pruner(61, 12), "the checkpoint has num_samples 60, this run 61"),
        (Pruner(60, 11), "the checkpoint has num_epochs 12, this run 11"),
        (Pruner(60, 12, delta=0.5), "the checkpoint has delta 0.875, this run 0.5"),
        (Pruner(60, 12, rule="tiers"), r"the checkpoint has rule Mean\(prune_ratio=0.5"),
        (Pruner(60, 12, 0.3), r"this run Mean\(prune_ratio=0.3"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused_and_changes_nothing(
    other: Pruner, sentence: str
) -> None:
    pruner = Pruner(60, 12, rule=Mean())
    pruner.update(loss_of(pruner.plan.indices), pruner.plan.indices)
    before = other.state_dict()
    with pytest.raises(StateError, match=sentence):
        other.load_state_dict(pruner.state_dict())
    assert same_state(other.state_dict(), before)


def test_a_torch_that_draws_differently_is_noticed() -> None:
    pruner = Pruner(60, 12)
    pruner.update(loss_of(pruner.plan.indices[:10]), pruner.plan.indices[:10])
    state = pruner.state_dict()
    state["plan"] = "0:60:deadbeef"
    with pytest.raises(StateError, match="draws another plan for epoch 0"):
        Pruner(60, 12).load_state_dict(state)


# Real processes ----------------------------------------------------------------------------------


def run(folder: Path, *options: str) -> int:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.training", str(folder), *options]
    return subprocess.run(command, cwd=Path(__file__).parents[1], check=False).returncode


def final(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "final.pt", weights_only=True)
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "loader", "workers"),
    [
        ("mean", "stock", 0),
        ("mean", "stock", 2),
        ("every-mean", "stock", 2),
        ("mean", "ours", 2),
        ("mean", "uniform", 2),
        ("mean", "stateful", 0),
        ("mean", "stateful", 2),
    ],
)
def test_a_killed_run_ends_with_the_same_model(
    tmp_path: Path, rule: str, loader: str, workers: int
) -> None:
    options = ("--rule", rule, "--loader", loader, "--workers", str(workers))
    assert run(tmp_path / "whole", *options) == 0
    killed = tmp_path / "killed"
    for step in (5, 22, 31):
        assert run(killed, *options, "--die-after", str(step)) == -signal.SIGKILL
    assert run(killed, *options) == 0
    assert same_state(final(killed), final(tmp_path / "whole"))
