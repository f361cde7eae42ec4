"""Samples that are chosen before a run: by a method, with its cost, or from a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from infobatch import selection
from infobatch.selection import METHODS
from infobatch_lab import proxies
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.choosing import Gathering, StopError, choose, locked, prepared
from infobatch_lab.errors import UserError
from infobatch_lab.images import read_digits, with_first
from infobatch_lab.proxies import ProxyTraining, early_runs_of, proxy_of, trained
from infobatch_lab.settings import Settings, settings
from infobatch_lab.subsets import on_subset
from infobatch_lab.tasks.classification import Classification
from infobatch_lab.training import Progress, Training, train

NUM_SAMPLES = 120


@pytest.fixture(scope="module")
def digits() -> Classification:
    return Classification(with_first(read_digits(Path(), lambda *_: None), NUM_SAMPLES))


@pytest.fixture(autouse=True)
def _two_early_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "EARLY_RUNS", 2)
    monkeypatch.setattr("infobatch_lab.choosing.EARLY_RUNS", 2)


def cell_of(select: str, keep: float = 0.5, **given: Any) -> Settings:
    return settings("digits", select=select, keep=keep, epochs=4, **given)


def files_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


# What is chosen -----------------------------------------------------------------------------------


def test_every_method_keeps_its_part_of_each_class(digits: Classification, tmp_path: Path) -> None:
    labels = digits.data.train.labels
    for method in METHODS:
        choice = choose(cell_of(method), digits, tmp_path)
        assert len(choice.indices.unique()) == len(choice.indices) == NUM_SAMPLES // 2
        kept = labels[choice.indices].bincount(minlength=10)
        assert ((kept - labels.bincount(minlength=10) / 2).abs() < 1).all(), method
        assert (choice.weights is None) == (method != "craig")
        assert choice.num_samples == NUM_SAMPLES
        assert choice.collecting_seconds is not None
        assert (choice.collecting_seconds > 0) == (method != "random")


def test_a_choice_is_the_librarys_own(digits: Classification, tmp_path: Path) -> None:
    """By the outputs of a network that was trained on all samples, in evaluation mode."""
    cell = cell_of("herding", seed=3)
    choice = choose(cell, digits, tmp_path)
    proxy = trained(proxy_of(cell), digits, digits.data.train.labels, tmp_path, lambda _: False)
    assert proxy is not None  # from its file: not a step more is allowed
    data = digits.labelled()
    statistics = selection.collect(proxy.model, data, "herding", progress=None)
    expected = selection.select(data, "herding", 0.5, statistics=statistics, seed=3)
    assert choice.indices.tolist() == expected.indices
    inputs, label = data[7]
    pixels = digits.data.train.images[7].float()
    assert torch.allclose(inputs[0], (pixels[..., 0] - pixels_mean(digits)) / pixels_std(digits))
    assert label == digits.data.train.labels[7]


def pixels_mean(digits: Classification) -> Tensor:
    return digits.data.train.images.double().mean().float()


def pixels_std(digits: Classification) -> Tensor:
    return digits.data.train.images.double().std(correction=0).float()


def test_the_proxy_is_shorter_full_training_without_mixing() -> None:
    cell = settings("digits", select="dq", keep=0.5, rule="mean", mixup=0.3, lr=0.2, epochs=40)
    proxy, early = proxy_of(cell), early_runs_of(cell)
    assert (proxy.rule, proxy.epochs, proxy.lr, proxy.options.mixup) == ("full", 10, 0.2, 0.0)
    assert not proxy.has_subset
    assert [run.epochs for run in early] == [4, 4]
    assert len({run.seed for run in early} | {proxy.seed}) == 3
    # Methods and budgets share them; seeds, networks and learning rates do not.
    other = settings("digits", select="el2n", keep=0.3, lr=0.2, epochs=40, budget=0.5)
    assert (proxy_of(other), early_runs_of(other)) == (proxy, early)
    assert proxy_of(settings("digits", select="dq", keep=0.5, lr=0.1, epochs=40)) != proxy


def test_visits_belong_to_the_samples_of_their_batch(
    digits: Classification, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    original = digits.batch_losses

    def spy(forward: Callable[..., Tensor], batch: Any, *rest: Any) -> Any:
        def heard(inputs: Tensor) -> Tensor:
            logits = forward(inputs)
            seen.append((batch[0], logits.argmax(1) == batch[1]))
            return logits

        return original(heard, batch, *rest)

    monkeypatch.setattr(digits, "batch_losses", spy)
    training = ProxyTraining(cell_of("forgetting"), digits, digits.data.train.labels)
    assert training.run(lambda _: True) is None
    images = digits.data.train.images.flatten(1)
    correct = training.visits.statistics().correct
    assert correct is not None
    expected: list[list[int]] = [[] for _ in range(NUM_SAMPLES)]
    for pixels, right in seen:
        for image, is_right in zip(pixels.flatten(1), right.tolist(), strict=True):
            (index,) = (images == image).all(1).nonzero()[:, 0].tolist()
            expected[index].append(int(is_right))
    assert correct.tolist() == expected


# What it costs ------------------------------------------------------------------------------------


def test_a_method_is_charged_with_the_statistics_that_it_looks_at(
    digits: Classification, tmp_path: Path
) -> None:
    cost = {}
    for method in ("random", "forgetting", "herding", "deepfool", "el2n", "grand", "d2", "margin"):
        cost[method] = choose(cell_of(method), digits, tmp_path).collecting_seconds
    name = proxy_of(cell_of("random")).name
    collecting = {
        what: json.loads((tmp_path / f"{name}-{what}.json").read_text())["seconds"]
        for what in ("outputs", "perturbation", "el2n", "grand")
    }
    proxy = torch.load(tmp_path / f"{name}.pt", weights_only=True)
    training, recording = proxy["train_seconds"], proxy["recording_seconds"]
    early = sum(
        torch.load(tmp_path / f"{run.name}.pt", weights_only=True)["train_seconds"]
        for run in early_runs_of(cell_of("random"))
    )
    assert cost == pytest.approx(
        {
            "random": 0.0,
            "forgetting": training + recording,
            "herding": training + collecting["outputs"],
            "deepfool": training + collecting["perturbation"],
            "el2n": early + collecting["el2n"],
            "grand": early + collecting["grand"],
            "d2": training + collecting["outputs"] + early + collecting["el2n"],
            "margin": training + collecting["outputs"],
        }
    )
    assert min(training, recording, early, *collecting.values()) > 0


def test_statistics_are_collected_once(digits: Classification, tmp_path: Path) -> None:
    first = choose(cell_of("d2"), digits, tmp_path)
    files = files_in(tmp_path)
    again = choose(cell_of("d2"), digits, tmp_path)
    assert again.digest == first.digest
    assert again.collecting_seconds == first.collecting_seconds
    other = choose(cell_of("ccs", keep=0.3), digits, tmp_path)
    assert 0 < other.collecting_seconds < first.collecting_seconds  # type: ignore[operator]
    unlocked = {name: time for name, time in files_in(tmp_path).items() if name[-5:] != ".lock"}
    assert unlocked == {name: time for name, time in files.items() if name[-5:] != ".lock"}


def test_the_time_of_reports_and_pauses_is_not_charged(
    digits: Classification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only moves while somebody is told of progress."""
    now = [0.0]
    for module in ("choosing", "proxies", "training"):
        monkeypatch.setattr(f"infobatch_lab.{module}.perf_counter", lambda: now[0])

    def report(progress: Progress) -> None:
        now[0] += 1.0

    choice = choose(cell_of("d2"), digits, tmp_path, report=report)
    assert now[0] > 0
    assert choice.collecting_seconds == choice.selecting_seconds == 0


# Interruptions ------------------------------------------------------------------------------------


def unbroken(method: str, digits: Classification, folder: Path) -> dict[str, Any]:
    choose(cell_of(method), digits, folder)
    return contents(folder)


def contents(folder: Path) -> dict[str, Any]:
    """Networks and statistics, without their times."""
    found: dict[str, Any] = {}
    for path in folder.glob("*.npz"):
        with np.load(path) as arrays:
            found[path.name] = {name: arrays[name].tolist() for name in arrays.files}
    for path in folder.glob("*.pt"):
        saved = torch.load(path, weights_only=True)
        found[path.name] = {n: v.tolist() for n, v in saved["model"].items()} | {
            "correct": saved["correct"].tolist()
        }
    return found


def test_choosing_that_is_stopped_at_any_moment_goes_on(
    digits: Classification, tmp_path: Path
) -> None:
    expected = unbroken("d2", digits, tmp_path / "unbroken")
    folder, num_stops, patience = tmp_path / "stopped", 0, 3
    while True:
        calls: list[int] = []

        def stop(calls: list[int] = calls) -> bool:
            calls.append(1)
            return len(calls) >= patience

        try:
            choose(cell_of("d2"), digits, folder, stop=stop)
            break
        except StopError:
            num_stops += 1
    assert num_stops > 5  # in a training, between trainings and in passes over the data
    assert contents(folder) == expected


def test_the_times_of_all_attempts_are_added(
    digits: Classification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that is stopped halfway costs what it cost before, and the rest."""
    cell = cell_of("herding")
    data = digits.labelled()
    now, left = [0.0], [1]
    monkeypatch.setattr("infobatch_lab.choosing.perf_counter", lambda: now[0])
    gathering = Gathering(cell, digits, data, tmp_path, lambda: not left[0], lambda _: None)

    def collect(path: Path, progress: Callable[[int, int], None]) -> selection.Statistics:
        found = selection.Statistics(labels=digits.data.train.labels)
        found.save(path)
        for done in range(left[0], 4):
            now[0] += 1.0
            left[0] = 0 if done == 2 else done
            progress(done, 3)
        return found

    with pytest.raises(StopError):
        gathering.collected("part", collect)
    assert now[0] == 2
    left[0] = 3
    assert gathering.collected("part", collect)[1] == 3
    assert gathering.collected("part", collect)[1] == 3  # from the file


def test_a_stopped_choice_stops_its_run(digits: Classification, tmp_path: Path) -> None:
    cell = cell_of("margin")
    assert prepared(cell, digits, tmp_path, stop=lambda: True) is None
    part = prepared(cell, digits, tmp_path)
    assert part is not None
    assert prepared(settings("digits"), digits, tmp_path) is digits


# Training on it -----------------------------------------------------------------------------------


def test_a_subset_is_trained_for_as_many_epochs_as_all_samples(
    digits: Classification, tmp_path: Path
) -> None:
    cell = cell_of("k-center", keep=0.3)
    part = prepared(cell, digits, tmp_path)
    assert part is not None
    run = train(cell, part, Checkpoint(tmp_path / "checkpoint.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_chosen"], run["num_full"]) == (120, 36, 480)
    assert run["num_trained"] == 4 * 36
    assert run["samples_saved"] == pytest.approx(0.7)
    assert [epoch["kept_fraction"] for epoch in run["history"]] == pytest.approx([0.3] * 4)
    for name in ("data", "rule", "seed", "epochs", "shrink"):
        assert run[name] == getattr(cell, name)
    assert (run["select"], run["keep"], run["subset"]) == ("k-center", 0.3, None)
    assert run["collecting_seconds"] > run["selecting_seconds"] > 0


def test_a_rule_prunes_the_subset(digits: Classification, tmp_path: Path) -> None:
    cell = cell_of("dq", rule="mean")
    part = prepared(cell, digits, tmp_path)
    assert part is not None
    training = Training(cell, part)
    assert training.run(lambda _: True) is None
    run = training.result()
    assert training.train_data.num_samples == 60
    assert run["num_trained"] < 4 * 60
    assert run["samples_saved"] == 1 - run["num_trained"] / 480


def test_weights_belong_to_the_loss_and_not_to_the_scores(
    digits: Classification, tmp_path: Path
) -> None:
    cell = cell_of("craig", rule="mean")
    choice = choose(cell, digits, tmp_path)
    assert choice.weights is not None
    assert float(choice.weights.sum()) == pytest.approx(NUM_SAMPLES)
    part = on_subset(digits, choice)
    training = Training(cell, part)
    (pixels, labels), weights = batch = next(iter(training.loader))
    order = training.train_data.plan.indices[: len(labels)]
    assert torch.equal(pixels, digits.data.train.images[choice.indices[order]])
    assert torch.allclose(weights, choice.weights[order] / choice.weights.mean())
    plain = digits.batch_losses(
        training.model, (pixels, labels), cell, torch.Generator().manual_seed(1)
    )
    weighted = part.batch_losses(training.model, batch, cell, torch.Generator().manual_seed(1))
    assert torch.allclose(weighted.losses, plain.losses * weights)
    assert weighted.scores is not None
    assert torch.allclose(weighted.scores, plain.losses)
    assert isinstance(train(cell, part, Checkpoint(tmp_path / "checkpoint.pt")), dict)


def test_a_run_resumes_on_its_own_samples_only(digits: Classification, tmp_path: Path) -> None:
    cell = cell_of("random")
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", resume=True, every=1)
    part = on_subset(digits, choose(cell, digits, tmp_path))
    steps: list[int] = []

    def after_six() -> bool:
        steps.append(1)
        return len(steps) > 6

    train(cell, part, checkpoint, stop=after_six)
    assert checkpoint.path.exists()
    other = on_subset(digits, choose(cell_of("random", seed=1), digits, tmp_path))
    with pytest.raises(UserError, match="that of a run on other samples: delete it"):
        train(cell, other, checkpoint)
    resumed = train(cell, part, checkpoint)
    whole = train(cell, part, Checkpoint(tmp_path / "another.pt"))
    assert isinstance(resumed, dict)
    assert isinstance(whole, dict)
    assert resumed["history"] == whole["history"]


def test_a_run_never_takes_all_samples_for_its_subset(
    digits: Classification, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="task has all samples, expected those of 'dq 50 %'"):
        train(cell_of("dq"), digits, Checkpoint(tmp_path / "checkpoint.pt"))


def test_several_processes_are_sent_to_the_command(
    digits: Classification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="expected one process: run `infobatch select` first"):
        choose(cell_of("dq"), digits, tmp_path)


def test_statistics_of_another_network_are_refused(digits: Classification, tmp_path: Path) -> None:
    choose(cell_of("margin"), digits, tmp_path)
    name = proxy_of(cell_of("margin")).name
    outputs = tmp_path / f"{name}-outputs.npz"
    (tmp_path / f"{name}-outputs.json").unlink()
    file = tmp_path / f"{name}.pt"
    saved = torch.load(file, weights_only=True)
    saved["model"] = {key: value + 1 for key, value in saved["model"].items()}
    torch.save(saved, file)
    with pytest.raises(UserError, match="remove the file to begin anew"):
        choose(cell_of("margin"), digits, tmp_path)
    outputs.unlink()
    choose(cell_of("margin"), digits, tmp_path)
    file.write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read .*: delete it"):
        choose(cell_of("margin"), digits, tmp_path)


def test_one_run_at_a_time_collects(digits: Classification, tmp_path: Path) -> None:
    """Another one waits for it, and may be stopped while it waits."""
    cell = cell_of("margin")
    with locked(tmp_path / f"{proxy_of(cell).name}.lock", lambda _: True):
        with pytest.raises(StopError):
            choose(cell, digits, tmp_path, stop=lambda: True)
        assert not list(tmp_path.glob("*.pt"))
    choose(cell, digits, tmp_path)
