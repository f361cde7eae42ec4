from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import infobatch
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.cli import app
from infobatch_lab.images import Images, read_digits
from infobatch_lab.processes import stop_on_signal
from infobatch_lab.settings import OPTIMIZERS, SCHEDULES, Settings, settings
from infobatch_lab.tasks.classification import Classification
from infobatch_lab.training import Progress, Stopped, Training, train
from tests.lab.files import TORCHRUN, started, until
from tests.lab.files import infobatch as infobatch_command
from tests.ranks import on_ranks


def part_of_the_digits(*, crop: int = 1, flip: bool = True) -> Classification:
    """Shifted and mirrored, so that augmentation takes part."""
    digits = read_digits(Path("unused"), lambda *_: None)
    train_split = Images(digits.train.images[:300], digits.train.labels[:300])
    test_split = Images(digits.test.images[:100], digits.test.labels[:100])
    return Classification(replace(digits, train=train_split, test=test_split, crop=crop, flip=flip))


@pytest.fixture(scope="module")
def task() -> Classification:
    return part_of_the_digits()


@pytest.fixture(scope="module")
def plain() -> Classification:
    return part_of_the_digits(crop=0, flip=False)


def small(rule: str = "mean", **changes: Any) -> Settings:
    return settings("digits", rule=rule, **{"epochs": 4, **changes})


def finished(
    chosen: Settings, task: Classification, folder: Path, **options: Any
) -> dict[str, Any]:
    done = train(chosen, task, Checkpoint(folder / "checkpoint.pt"), **options)
    assert isinstance(done, dict)
    return done


# What a run says ----------------------------------------------------------------------------------


def test_the_line_of_a_run_has_all_of_its_keys(task: Classification, tmp_path: Path) -> None:
    run = json.loads(json.dumps(finished(small(), task, tmp_path)))
    assert list(run)[:22] == [
        "format", "task", "data", "rule", "seed", "model", "optimizer", "schedule", "prune_ratio",
        "delta", "epochs", "batch_size", "lr", "shrink", "budget", "select", "keep", "subset",
        "amp", "compile", "options", "match_forwards",
    ]  # fmt: skip
    assert run["options"] == {"label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0}
    assert (run["task"], run["shrink"], run["metric"]["name"]) == (
        "classification", "epoch", "accuracy",
    )  # fmt: skip
    assert {"command", "commit", "versions", "machine"} <= run.keys()
    assert run["versions"].keys() == {"infobatch", "torch", "numpy", "python"}
    assert run["machine"].keys() == {"processor", "cores", "threads", "processes", "system"}
    assert (run["num_samples"], run["num_test"], run["num_full"]) == (300, 100, 1200)
    history, timing = run["history"], run["timing"]
    assert [line["epoch"] for line in history] == [line["epoch"] for line in timing] == [0, 1, 2, 3]
    assert run["accuracy"] == history[-1]["accuracy"] > 0.5
    assert run["num_trained"] == sum(line["num_trained"] for line in history)
    assert run["samples_saved"] == pytest.approx(1 - run["num_trained"] / 1200)
    assert [line["kept_fraction"] < 1 for line in history] == [False, True, True, True]
    for name in ("train_seconds", "eval_seconds", "pruning_seconds"):
        assert run[name] == sum(line[name] for line in timing) > 0
    assert run["pruning_seconds"] < run["train_seconds"]
    assert not any("seconds" in name for line in history for name in line)


def test_a_history_tells_what_a_user_can_know_about_pruning(
    task: Classification, tmp_path: Path
) -> None:
    full, mean, focus = (finished(small(r), task, tmp_path) for r in ("full", "mean", "focus"))
    for run in (full, mean, focus):
        left = [line["loss_left"] for line in run["history"]]
        assert left[0] == 1
        assert 0 < left[-1] < 0.8
        assert not {"loss_left", "skipped_loss", "gradient_noise"} & run.keys()
    first_loss, last_loss = (full["history"][i]["train_loss"] for i in (0, -1))
    assert full["history"][-1]["loss_left"] == pytest.approx(last_loss / first_loss)
    assert all(line["skipped_loss"] == 0 for line in full["history"])
    for line in mean["history"][1:]:
        assert 0 < line["skipped_loss"] < 1 - line["kept_fraction"]
        assert 1 < line["gradient_noise"] < 2
    assert "gradient_noise" not in focus["history"][1]  # its weights make up for nothing


def test_the_loss_distribution_is_that_of_the_middle_epoch(
    task: Classification, tmp_path: Path
) -> None:
    run = finished(small(), task, tmp_path)
    losses = run["loss_distribution"]
    assert losses["epoch"] == 2
    assert len(losses["edges"]) == len(losses["before"]) + 1
    assert sum(losses["before"]) == 300
    assert sum(losses["after"]) == run["history"][2]["num_trained"]
    assert sum(losses["rescaled"]) == pytest.approx(300)
    assert all(a <= b for a, b in zip(losses["after"], losses["before"], strict=True))


def test_full_training_is_plain_training_in_the_order_of_the_sampler(
    plain: Classification, tmp_path: Path
) -> None:
    """Written out as anyone would, without weights, records and schedules of ours."""
    chosen = small("full")
    run = finished(chosen, plain, tmp_path)

    torch.manual_seed(0)
    from infobatch_lab.augment import mean_and_std, normalise
    from infobatch_lab.models import create

    model = create("tiny", 1, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), chosen.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    curve = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, chosen.lr, total_steps=40, cycle_momentum=False
    )
    order: infobatch.InfoBatch[Any] = infobatch.InfoBatch(plain.train, 4, rule="full")
    mean, std = mean_and_std(plain.data.train.images)
    losses = []
    for epoch in range(4):
        order.set_epoch(epoch)
        total = 0.0
        for indices in order.plan.indices.split(32):
            inputs = normalise(plain.data.train.images[indices], mean, std)
            loss = torch.nn.functional.cross_entropy(
                model(inputs), plain.data.train.labels[indices]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.step()
            total += float(loss.detach() * len(indices))
        losses.append(total / 300)
    assert [line["train_loss"] for line in run["history"]] == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("rule", ["full", "tiers"])
def test_a_budget_counts_steps_and_has_its_own_whole_schedule(
    rule: str, task: Classification, tmp_path: Path
) -> None:
    chosen = small(rule, budget=0.6, schedule="cosine", delta=0.85)
    training = task.training(chosen)
    seen = list(training.steps())
    run = training.result()
    assert run["num_steps"] == 24  # 0.6 of 4 epochs of 10 batches
    assert [progress.fraction for progress in seen] == sorted(p.fraction for p in seen)
    assert seen[-1].fraction == 1
    assert training.schedule.get_last_lr()[0] == pytest.approx(0, abs=1e-9)
    assert run["accuracy"] == run["history"][-1]["accuracy"]
    assert run["num_full"] == 1200
    assert run["num_trained"] == sum(line["num_trained"] for line in run["history"])
    # Pruned epochs are shorter, so the budget holds more of them, and each is trained as planned.
    num_epochs = len(run["history"])
    assert num_epochs == 3 if rule == "full" else num_epochs > 3
    assert run["history"][0]["num_trained"] == 300


# The same again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["full", "mean", "tiers", "ucb", "mean-unscaled"])
def test_the_same_seed_gives_the_same_history(
    task: Classification, tmp_path: Path, rule: str
) -> None:
    first, again = (finished(small(rule), task, tmp_path)["history"] for _ in range(2))
    assert first == again
    other = finished(small(rule, seed=1), task, tmp_path)["history"]
    assert other != first


def test_workers_change_nothing(task: Classification, tmp_path: Path) -> None:
    alone = finished(small(epochs=2), task, tmp_path)["history"]
    assert finished(small(epochs=2), task, tmp_path, workers=1)["history"] == alone


def stopped_after(num_steps: int, chosen: Settings, task: Classification, folder: Path) -> Progress:
    """Stop a run after so many steps, as Ctrl-C does."""
    heard: list[Progress] = []
    checkpoint = Checkpoint(folder / "checkpoint.pt", resume=True, every=0)
    done = train(
        chosen, task, checkpoint, stop=lambda: len(heard) >= num_steps, report=heard.append
    )
    assert isinstance(done, Stopped)
    assert checkpoint.path.exists()
    return heard[-1]


@pytest.mark.parametrize(
    "chosen",
    [small(), small("ucb", schedule="cosine"), small(optimizer="lamb"), small(budget=0.6)],
    ids=["mean", "ucb", "lamb", "budget"],
)
@pytest.mark.parametrize("num_steps", [1, 9, 10, 14, 20])
def test_a_stopped_run_goes_on_bit_by_bit(
    chosen: Settings, num_steps: int, task: Classification, tmp_path: Path
) -> None:
    whole = finished(chosen, task, tmp_path)
    stopped_after(num_steps, chosen, task, tmp_path)
    stopped_after(2, chosen, task, tmp_path)
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", resume=True)
    done = train(chosen, task, checkpoint)
    assert isinstance(done, dict)
    for name in ("history", "loss_distribution", "num_trained", "num_full", "num_steps"):
        assert done[name] == whole[name], name
    assert checkpoint.path.exists()  # until the line is written
    checkpoint.delete()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("budget", [None, 0.6])
def test_a_run_that_was_stopped_after_its_last_step_trains_no_more(
    budget: float | None, task: Classification, tmp_path: Path
) -> None:
    chosen = small(epochs=2, budget=budget)
    training = task.training(chosen)
    assert list(training.steps())[-1].fraction == 1
    resumed = task.training(chosen)
    resumed.load_state_dict(training.state_dict())
    assert not list(resumed.steps())
    assert resumed.result()["history"] == training.result()["history"]


def test_random_numbers_of_the_network_are_resumed_too(
    task: Classification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infobatch_lab import models

    def dropping(channels: int, classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Dropout(0.3), models.tiny(channels, classes))

    monkeypatch.setitem(models.MODELS, "tiny", dropping)
    whole = finished(small(), task, tmp_path)["history"]
    stopped_after(12, small(), task, tmp_path)
    torch.manual_seed(7)  # as another process, or another device, would have it
    done = train(small(), task, Checkpoint(tmp_path / "checkpoint.pt", resume=True))
    assert isinstance(done, dict)
    assert done["history"] == whole


def test_a_checkpoint_of_other_settings_is_refused(task: Classification, tmp_path: Path) -> None:
    from infobatch_lab.errors import UserError

    stopped_after(3, small(), task, tmp_path)
    with pytest.raises(UserError, match="other settings"):
        train(small(seed=1), task, Checkpoint(tmp_path / "checkpoint.pt", resume=True))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a file"])
def test_a_damaged_checkpoint_is_one_sentence(
    task: Classification, tmp_path: Path, content: bytes
) -> None:
    from infobatch_lab.errors import UserError

    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(UserError, match="cannot be resumed .* delete it to start anew"):
        train(small(), task, Checkpoint(tmp_path / "checkpoint.pt", resume=True))


def test_checkpoints_are_kept_on_the_way(task: Classification, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    seen = []

    def look(progress: Progress) -> None:
        seen.append((progress.epoch, progress.finished is not None, path.exists()))

    train(small(), task, Checkpoint(path, every=2), report=look)
    assert not any(there for epoch, _, there in seen if epoch < 2)
    assert all(there for epoch, _, there in seen if epoch >= 2)


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(plain: Classification, tmp_path: Path, optimizer: str) -> None:
    run = finished(small(optimizer=optimizer, epochs=8), plain, tmp_path)
    assert run["accuracy"] > 0.4  # by chance 0.1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_schedules(task: Classification, tmp_path: Path, schedule: str) -> None:
    rates = [line["lr"] for line in finished(small(schedule=schedule), task, tmp_path)["history"]]
    top = {"onecycle": 1, "cosine": 0, "constant": 0}[schedule]
    assert rates.index(max(rates)) == top
    assert (rates == [0.1] * 4) == (schedule == "constant")


@pytest.mark.parametrize("changes", [{"label_smoothing": 0.1}, {"amp": True}, {"model": "convnet"}])
def test_other_settings_learn(
    plain: Classification, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert finished(small(epochs=8, **changes), plain, tmp_path)["accuracy"] > 0.8


@pytest.mark.parametrize(
    "changes", [{"mixup": 0.2}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0}]
)
def test_mixed_images_learn(plain: Classification, tmp_path: Path, changes: dict[str, Any]) -> None:
    run = finished(small(epochs=12, **changes), plain, tmp_path)
    assert run["accuracy"] > 0.7
    assert run["samples_saved"] > 0.1


# Real processes -----------------------------------------------------------------------------------


def the_run(folder: Path) -> dict[str, Any]:
    (line,) = (folder / "runs.jsonl").read_text().splitlines()
    run: dict[str, Any] = json.loads(line)
    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_interrupted_goes_on_bit_by_bit(
    tmp_path: Path, number: signal.Signals
) -> None:
    options = ["train", "--epochs", "6", "--workers", "1", "--checkpoint-every", "1", "--out"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert CliRunner().invoke(app, [*options, str(whole)]).exit_code == 0
    with started(*options, broken) as process:
        until(lambda: list(broken.glob("checkpoints/*.pt")), process)  # an epoch is done
        os.killpg(process.pid, number)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert not (broken / "runs.jsonl").exists()
    assert CliRunner().invoke(app, [*options, str(broken), "--resume"]).exit_code == 0
    assert the_run(broken)["history"] == the_run(whole)["history"]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_second_ctrl_c_ends_at_once_unless_a_launcher_may_have_sent_it(
    monkeypatch: pytest.MonkeyPatch, num_processes: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(num_processes))
    with stop_on_signal() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        try:
            signal.raise_signal(signal.SIGINT)
            ended = False
        except KeyboardInterrupt:
            ended = True
    assert ended == (num_processes == 1)


TOGETHER = ("train", "--epochs", "6", "--checkpoint-every", "1", "--out")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of two processes under torchrun."""
    folder = tmp_path_factory.mktemp("together")
    done = infobatch_command(*TOGETHER, folder, command=TORCHRUN)
    assert done.returncode == 0, done.stderr
    return the_run(folder)


def test_two_processes_under_torchrun_train_together(
    tmp_path: Path, together: dict[str, Any]
) -> None:
    assert CliRunner().invoke(app, [*TOGETHER, str(tmp_path)]).exit_code == 0
    alone = the_run(tmp_path)
    assert together["accuracy"] > 0.8
    assert together["history"][0]["num_trained"] == alone["history"][0]["num_trained"] == 1437
    # The batch size is that of both, so together they take the steps that one takes.
    assert abs(together["num_steps"] - alone["num_steps"]) <= 6


def test_ctrl_c_under_torchrun_leaves_a_checkpoint_to_go_on_with(
    tmp_path: Path, together: dict[str, Any]
) -> None:
    with started(*TOGETHER, tmp_path, command=TORCHRUN) as process:
        until(lambda: list(tmp_path.glob("checkpoints/*.pt")), process)  # an epoch is done
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode != 0
    assert errors.count("add --resume to the command to continue") == 1
    assert str(Path(infobatch.__file__).parent) not in errors  # a traceback, but torchrun's own
    assert not (tmp_path / "runs.jsonl").exists()
    resumed = infobatch_command(*TOGETHER, tmp_path, "--resume", command=TORCHRUN)
    assert resumed.returncode == 0, resumed.stderr
    assert "starting anew" not in resumed.stderr
    assert the_run(tmp_path)["history"] == together["history"]
    assert list(tmp_path.glob("checkpoints/*")) == []


def whole_and_stopped(stops: Sequence[int], task: Classification, folder: Path) -> list[Any]:
    """On a rank: the history of a run, and of those that were stopped after so many steps."""
    os.environ.update(RANK=str(dist.get_rank()), WORLD_SIZE=str(dist.get_world_size()))
    histories = [finished(small(), task, folder)["history"]]
    for num_steps in stops:
        of_stop = folder / str(num_steps)
        stopped_after(num_steps, small(), task, of_stop)
        done = train(small(), task, Checkpoint(of_stop / "checkpoint.pt", resume=True))
        assert isinstance(done, dict)
        histories.append(done["history"])
    return histories


def test_processes_that_are_stopped_at_any_step_go_on_bit_by_bit(
    task: Classification, tmp_path: Path
) -> None:
    # In the first epoch, between two, and in one that leaves an odd number of samples to share.
    stops = (1, 10, 14, 20)
    for whole, *stopped in on_ranks(2, whole_and_stopped, tmp_path, stops, task, tmp_path):
        assert any(line["num_trained"] % 2 for line in whole)
        assert stopped == [whole] * len(stops)


def test_tensorboard_gets_every_epoch(task: Classification, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    checkpoint = Checkpoint(tmp_path / "checkpoint.pt")
    run = train(small(), task, checkpoint, tensorboard=tmp_path / "log")
    assert isinstance(run, dict)
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    logged = [event.value for event in events.Scalars("accuracy")]
    assert logged == pytest.approx([line["accuracy"] for line in run["history"]])


def test_the_loader_gives_batches_as_the_plan_has_them(task: Classification) -> None:
    training = Training(small(), task)
    assert isinstance(training.loader, DataLoader)
    labels = torch.cat([labels for _, labels in training.loader])
    assert labels.equal(task.data.train.labels[training.train_data.plan.indices])
