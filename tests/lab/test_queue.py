"""The queue on disk: it survives a kill, says what is left, and can be held."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import build_opener, install_opener

import pytest
from typer import Exit
from typer.testing import CliRunner

from infobatch_lab.choosing import locked
from infobatch_lab.cli import app
from infobatch_lab.commands import sweeps
from infobatch_lab.errors import UserError
from infobatch_lab.lines import Run, run_of
from infobatch_lab.queue import Kind, QueueFile, QueueState, seconds_left, status_of
from infobatch_lab.runs import append, read_file
from infobatch_lab.settings import Settings
from infobatch_lab.sweep import frontier_grid, grid
from tests.lab.files import infobatch, started, until, write_mnist
from tests.lab.lines import line_of

CELLS = tuple(grid("digits", seeds=range(2), rule=["full", "mean"], epochs=10))


def run_with(cell: Settings, **numbers: Any) -> Run:
    return run_of(line_of(cell, **numbers))


@pytest.fixture
def file(tmp_path: Path) -> QueueFile:
    return QueueFile(tmp_path / "runs.jsonl")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueFile:
    """The queue of the folder `runs`, empty."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    return QueueFile(Path("runs/runs.jsonl"))


def test_a_queue_is_read_as_it_was_written(file: QueueFile) -> None:
    at_work = {CELLS[0].name: 0.25}
    states = [
        QueueState(CELLS, ("mean",), 2, 7, os.getpid(), at_work, Path("/data")),
        QueueState(CELLS[:2], kind=Kind.frontier),
    ]
    file.write(states)
    assert file.read() == states
    file.write([])
    assert file.read() == []
    assert not file.path.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cells": 3}', '{"cells": [{"data": 1}]}'])
def test_a_damaged_queue_is_an_empty_one(file: QueueFile, content: str) -> None:
    file.path.write_text(content)
    assert file.read() == []


def test_a_damaged_state_leaves_those_of_other_commands(file: QueueFile) -> None:
    file.write([QueueState(CELLS), QueueState(CELLS[:1])])
    first, second = json.loads(file.path.read_text())
    file.path.write_text(json.dumps([{**first, "jobs": "x"}, 3, second]))
    assert file.read() == [QueueState(CELLS[:1])]


def test_the_file_of_an_older_version_held_one_state(tmp_path: Path) -> None:
    two_data_sets = (*CELLS, *grid("fashion-mnist", seeds=[0], rule="full"))
    for name, kind in (("runs", Kind.comparison), ("trials", Kind.trials)):
        file = QueueFile(tmp_path / f"{name}.jsonl")
        file.write([QueueState(two_data_sets, ("mean",), 2, 7, data_folder=Path("/data"))])
        (record,) = json.loads(file.path.read_text())
        del record["kind"]
        file.path.write_text(json.dumps(record))
        of_one = partial(
            QueueState, matching=("mean",), jobs=2, checkpoint_every=7, data_folder=Path("/data"),
            kind=kind,
        )  # fmt: skip
        assert file.read() == [of_one(CELLS), of_one(two_data_sets[len(CELLS) :])]


def test_what_a_dead_process_was_at_is_not_at_work(file: QueueFile) -> None:
    with started("rules") as process:
        process.wait()
    file.write([QueueState(CELLS, process=process.pid, at_work={CELLS[0].name: 0.5})])
    assert file.read() == [QueueState(CELLS)]
    assert not status_of(file)["alive"]


def test_without_locks_the_process_that_the_queue_names_is_asked(
    file: QueueFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")  # as Lustre answers

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with file.held():
        pass
    file.write([QueueState(CELLS[:1]), QueueState(CELLS, process=os.getpid())])
    with pytest.raises(UserError, match="another process trains runs"), file.held():
        pass
    with locked(file.lock_file, lambda _: False):  # statistics are collected all the same
        pass


def test_the_file_of_runs_says_what_is_done(file: QueueFile) -> None:
    at_work = {CELLS[2].name: 0.5}
    file.write([QueueState(CELLS, ("mean",), process=os.getpid(), at_work=at_work)])
    append(file.runs_file, line_of(CELLS[0], train_seconds=10.0))
    append(file.runs_file, line_of(CELLS[1], train_seconds=6.0, num_trained=600))
    status = status_of(file)
    assert [(row["rule"], row["seed"], row["state"]) for row in status["runs"]] == [
        ("full", 0, "done"), ("mean", 0, "done"), ("full † (mean)", 0, "waiting"),
        ("full", 1, "at work"), ("mean", 1, "waiting"),
    ]  # fmt: skip
    assert (status["num_done"], status["num_left"], status["alive"]) == (2, 3, True)
    # Matched full training of 6 epochs takes 6 s; half of full training is left, and the mean rule.
    assert status["seconds_left"] == pytest.approx(6 + 5 + 6)


def test_a_queue_shows_the_settings_in_which_its_runs_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    file = QueueFile(Path("runs/runs.jsonl"))
    longer = replace(CELLS[0], epochs=20)
    file.write([QueueState((CELLS[0], longer, replace(longer, lr=0.05)))])
    lines = [line.split() for line in CliRunner().invoke(app, ["queue"]).stdout.splitlines()]
    lr = str(CELLS[0].lr)
    assert lines[:4] == [
        ["run", "seed", "epochs", "lr", "state"],
        ["full", "0", "10", lr, "waiting"],
        ["full", "0", "20", lr, "waiting"],
        ["full", "0", "20", "0.05", "waiting"],
    ]


OTHERS: dict[str, Any] = {
    "data": "mnist", "model": "convnet", "optimizer": "adamw", "schedule": "cosine",
    "prune_ratio": 0.3, "delta": 0.5, "epochs": 20, "batch_size": 8, "lr": 0.2, "shrink": "batch",
    "budget": 0.5, "subset": "mine.npy", "amp": True, "compile": True, "match_forwards": "tiers",
    "options": replace(CELLS[1].options, mixup=0.2),
}  # fmt: skip
CHOSEN = {"select": {"select": "herding", "keep": 0.3}, "keep": {"select": "random", "keep": 0.5}}


def test_every_setting_tells_the_runs_of_a_queue_apart(queue: QueueFile) -> None:
    changes = {**{name: {name: value} for name, value in OTHERS.items()}, **CHOSEN}
    assert changes.keys() | {"rule", "seed"} == {field.name for field in fields(Settings)}
    for name, change in changes.items():
        cells = CELLS[1], replace(CELLS[1], **change)
        queue.write([QueueState(cells)])
        assert sum((state.cells for state in queue.read()), ()) == cells  # both are possible
        head = CliRunner().invoke(app, ["queue"]).stdout.splitlines()[0]
        column = "mixup" if name == "options" else name.replace("_", " ")
        assert column in head.removeprefix("run").removesuffix("state")
    row = json.loads(CliRunner().invoke(app, ["queue", "--json"]).stdout)["runs"][0]
    assert row.keys() == {"name", "state", "fraction"} | {f.name for f in fields(Settings)}
    assert row["options"] == {"label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0}


def test_between_data_sets_only_their_names_are_shown(queue: QueueFile) -> None:
    others = [grid(data, seeds=[0], rule="full") for data in ("mnist", "camvid")]
    queue.write([QueueState(tuple(cells)) for cells in ([*others[0], CELLS[1]], others[1])])
    lines = CliRunner().invoke(app, ["queue"]).stdout.splitlines()
    assert lines[0].split() == ["run", "seed", "data", "state"]


def test_how_long_it_will_take_is_learned_from_runs_alike() -> None:
    full, mean, *_ = CELLS
    assert seconds_left([mean], [], at_work={}) is None
    assert seconds_left([], [], at_work={}) == 0
    finished = [run_with(full, train_seconds=20.0, eval_seconds=10.0)]
    assert seconds_left([mean], finished, at_work={}) == pytest.approx(30)  # of another rule
    finished.append(run_with(mean, train_seconds=12.0))
    assert seconds_left([mean], finished, at_work={}) == pytest.approx(12)
    longer = replace(mean, epochs=20)
    assert seconds_left([longer, longer], finished, at_work={}, jobs=2) == pytest.approx(24)
    assert seconds_left([replace(mean, model="resnet8")], finished, at_work={}) is None


FULL, MEAN = CELLS[0], CELLS[1]
WHOLE = run_with(FULL, train_seconds=100.0)
"""Of 1,000 samples."""
PRUNED = run_with(MEAN, train_seconds=60.0, num_trained=600)


@pytest.mark.parametrize(
    ("cell", "finished", "seconds"),
    [
        (replace(FULL, budget=0.5), [WHOLE], 50),
        # Fewer batches per epoch fill a budget with more epochs, smaller batches do not.
        (replace(MEAN, budget=0.5), [WHOLE, PRUNED], 50),
        (replace(MEAN, budget=0.5, shrink="batch"), [WHOLE, PRUNED], 30),
        (MEAN, [run_with(replace(MEAN, budget=0.5), train_seconds=50.0, num_trained=500)], 100),
        (replace(FULL, select="herding", keep=0.3), [WHOLE], 30),
        # A rule skips as much in another mode, and for another number of epochs.
        (replace(MEAN, shrink="batch"), [WHOLE, PRUNED], 60),
        (replace(MEAN, epochs=5), [WHOLE, PRUNED], 30),
        (FULL, [PRUNED], 100),
        (replace(MEAN, prune_ratio=0.9), [WHOLE, PRUNED], 100),  # not known, so nothing
    ],
)
def test_without_a_run_alike_the_time_left_goes_by_the_samples(
    cell: Settings, finished: list[Run], seconds: float
) -> None:
    assert seconds_left([cell], finished, at_work={}) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "other", [{"budget": 0.5}, {"shrink": "batch"}, {"batch_size": 8}, {"lr": 0.3}]
)
def test_runs_that_differ_in_their_seed_alone_tell_the_time_left(other: dict[str, Any]) -> None:
    cell = replace(MEAN, **other)
    finished = [WHOLE, PRUNED, run_with(replace(cell, seed=7), train_seconds=7.0)]
    assert seconds_left([cell], finished, at_work={}) == pytest.approx(7)
    assert seconds_left([cell], finished, at_work={cell.name: 0.75}) == pytest.approx(7 / 4)


def test_a_sample_takes_as_long_as_in_batches_of_the_same_size() -> None:
    small = replace(FULL, batch_size=4)
    finished = [WHOLE, PRUNED, run_with(small, train_seconds=400.0)]
    assert seconds_left([replace(small, epochs=5)], finished, at_work={}) == pytest.approx(200)
    assert seconds_left([replace(FULL, epochs=5)], finished, at_work={}) == pytest.approx(50)
    pruned = replace(MEAN, batch_size=4)
    assert seconds_left([pruned], finished, at_work={}) == pytest.approx(240)


# The folder of the data ---------------------------------------------------------------------------

FASHION = ("--data", "fashion-mnist", "--epochs", "2", "--rules", "full", "--seeds", "2",
           "--batch-size", "16")  # fmt: skip


@pytest.fixture
def _nothing_is_fetched(tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOBATCH_DATA", str(tmp_path / "default"))
        for name in ("http_proxy", "https_proxy"):
            patch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
        install_opener(build_opener())
        yield
    # urllib keeps the proxies that it has read first, for all tests of this process.
    install_opener(build_opener())


def queued_fashion(data_folder: Path) -> QueueFile:
    """A queue whose process was killed, below the current folder."""
    file = QueueFile(Path("runs/runs.jsonl"))
    file.path.parent.mkdir(parents=True)
    cells = grid("fashion-mnist", seeds=[0], rule="full", epochs=1, batch_size=16)
    file.write([QueueState(tuple(cells), data_folder=data_folder)])
    return file


@pytest.mark.usefixtures("_nothing_is_fetched")
def test_the_option_wins_over_the_folder_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "moved" / "fashion-mnist")
    file = queued_fashion(tmp_path / "gone")
    result = CliRunner().invoke(app, ["queue", "run"])
    assert isinstance(result.exception, UserError)
    assert str(tmp_path / "gone" / "fashion-mnist") in str(result.exception)
    assert CliRunner().invoke(app, ["queue", "run", "--data-dir", "moved"]).exit_code == 0
    assert len(read_file(file.runs_file)) == 1


@pytest.mark.usefixtures("_nothing_is_fetched")
def test_a_queue_of_an_older_version_takes_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "default" / "fashion-mnist")
    file = queued_fashion(tmp_path / "gone")
    (older,) = json.loads(file.path.read_text())
    del older["data_folder"]
    file.path.write_text(json.dumps(older))
    assert CliRunner().invoke(app, ["queue", "run"]).exit_code == 0
    assert len(read_file(file.runs_file)) == 1


@pytest.mark.parametrize("folder", [3, [], {}])
def test_a_queue_with_a_folder_that_is_none_is_an_empty_one(file: QueueFile, folder: Any) -> None:
    file.write([QueueState(CELLS)])
    (record,) = json.loads(file.path.read_text())
    file.path.write_text(json.dumps({**record, "data_folder": folder}))
    assert file.read() == []


# Real processes -----------------------------------------------------------------------------------

LONG = ("compare", "--epochs", "6", "--seeds", "2", "--rules", "full,mean",
        "--checkpoint-every", "1")  # fmt: skip


def test_a_queue_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with started(*LONG, "--match-forwards", "mean") as process:
        until(lambda: list(tmp_path.glob("runs/checkpoints/*.pt")), process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    shown = infobatch("queue")
    assert "of 4 runs finished" in shown.stdout or "of 5 runs finished" in shown.stdout
    assert "No process is training them: `infobatch queue run` continues." in shown.stdout
    finished = infobatch("queue", "run", "--json")
    assert finished.returncode == 0, finished.stderr
    rows = json.loads(finished.stdout)
    assert [(row["rule"], row["match_forwards"], row["num_runs"]) for row in rows] == [
        ("full", None, 2), ("full", "mean", 2), ("mean", None, 2),
    ]  # fmt: skip
    assert "nothing is queued in runs." in infobatch("queue").stdout
    again = CliRunner().invoke(app, [*LONG, "--match-forwards", "mean", "--json"])
    assert json.loads(again.stdout) == rows


@pytest.mark.usefixtures("_nothing_is_fetched")
def test_after_a_kill_the_data_are_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "files" / "fashion-mnist")
    file = QueueFile(tmp_path / "runs" / "runs.jsonl")
    file.pause()
    with started("compare", *FASHION, "--data-dir", "files") as process:
        until(lambda: any(state.at_work for state in file.read()), process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert [state.data_folder for state in file.read()] == [tmp_path / "files"]
    file.resume()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    finished = infobatch("queue", "run", "--out", "../runs")
    assert finished.returncode == 0, finished.stderr
    assert len(read_file(file.runs_file)) == 2
    assert not (tmp_path / "default").exists()


def test_two_processes_do_not_train_the_same_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = QueueFile(tmp_path / "runs" / "runs.jsonl")
    file.pause()
    with started(*LONG) as process:
        until(lambda: status_of(file)["alive"], process)
        before = file.path.read_text()
        for command in (("queue", "run"), LONG):
            second = infobatch(*command)
            assert second.returncode == 1
            assert "another process trains runs for runs/runs.jsonl: wait" in second.stderr
        process_of = [json.loads(text)[0]["process"] for text in (before, file.path.read_text())]
        assert process_of == [process.pid] * 2
        file.resume()
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert len(read_file(file.runs_file)) == 4


FRONTIER = ("frontier", "--epochs", 4, "--lengths", "1,0.5", "--rules", "mean", "--seeds", 1)


@pytest.mark.slow
def test_a_frontier_is_shown_and_continued_with_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = (*FRONTIER, "--tune-lr", "--out", "runs")
    with started(*command) as process:
        until((tmp_path / "runs" / "trials.jsonl").exists, process)
    assert "of 15 runs finished" in infobatch("queue").stdout
    tried = infobatch("queue", "run")
    assert "repeat `infobatch frontier` to train the runs" in tried.stderr
    with started(*command) as process:
        until((tmp_path / "runs" / "runs.jsonl").exists, process)
    finished = infobatch("queue", "run")
    assert finished.returncode == 0, finished.stderr
    assert "to the line" in finished.stdout


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_paused_queue_waits_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.chdir(tmp_path)
    file = QueueFile(tmp_path / "runs" / "runs.jsonl")
    assert infobatch("queue", "pause").returncode == 0
    with started(*LONG, "--jobs", jobs) as process:
        until(lambda: [len(state.at_work) for state in file.read()] == [jobs], process)
        before = status_of(file)
        time.sleep(1.0)
        assert status_of(file)["runs"] == before["runs"]
        assert before["paused"]
        assert before["num_done"] == 0
        file.resume()
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    runs = read_file(file.runs_file)
    assert len(runs) == 4
    # The pause is in no run's seconds.
    assert all(run.train_seconds is not None and run.train_seconds < 30 for run in runs)
    assert not file.path.exists()


def test_a_paused_queue_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    QueueFile(tmp_path / "runs" / "runs.jsonl").pause()
    with started(*LONG) as process:
        until(lambda: status_of(QueueFile(tmp_path / "runs" / "runs.jsonl"))["alive"], process)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "stopped with 0 of 4 runs finished; repeat the command to continue." in errors


def test_a_stopped_command_keeps_what_did_not_diverge(
    file: QueueFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "train_pending", lambda *_: [CELLS[1].name])
    with pytest.raises(Exit) as stopped:
        sweeps.run_cells(QueueState(CELLS), file.runs_file)
    assert stopped.value.exit_code == 130
    assert file.read() == [QueueState((CELLS[0], *CELLS[2:]))]
    with pytest.raises(Exit):
        sweeps.run_queue(file, Path("/moved"), as_json=False)
    assert [state.data_folder for state in file.read()] == [Path("/moved")]


# Several commands ---------------------------------------------------------------------------------

SHORT = ("compare", "--epochs", "1", "--batch-size", "256")


def short_runs(seeds: Sequence[int], *rules: str, epochs: int = 1) -> tuple[Settings, ...]:
    """The runs of a command like `SHORT`."""
    return tuple(grid("digits", seeds=seeds, rule=list(rules), epochs=epochs, batch_size=256))


def run_labels(queue: QueueFile) -> list[tuple[str, int]]:
    cells = [run.settings for run in read_file(queue.runs_file)]
    return [(cell.label, cell.seed) for cell in cells if cell is not None]


def test_what_an_earlier_command_has_left_stays_in_the_queue(queue: QueueFile) -> None:
    queue.write([QueueState(short_runs(range(2), "full", "mean"))])
    result = CliRunner().invoke(app, [*SHORT, "--rules", "full,tiers", "--seeds", "1"])
    # Full training with seed 0 is in both.
    assert (
        "3 unfinished runs of an earlier command stay in the queue: `infobatch queue run` trains "
        "them, `infobatch queue clear` forgets them." in result.stderr
    )
    assert run_labels(queue) == [("full", 0), ("tiers", 0)]
    assert "1 of 4 runs finished" in CliRunner().invoke(app, ["queue"]).stdout
    assert CliRunner().invoke(app, ["queue", "run"]).exit_code == 0
    assert run_labels(queue)[2:] == [("mean", 0), ("full", 1), ("mean", 1)]
    assert "nothing is queued" in CliRunner().invoke(app, ["queue"]).stdout


def test_one_run_that_stays_is_said_as_one(queue: QueueFile) -> None:
    queue.write([QueueState(short_runs([1], "full"))])
    result = CliRunner().invoke(app, [*SHORT, "--rules", "full", "--seeds", "1"])
    assert (
        "1 unfinished run of an earlier command stays in the queue: `infobatch queue run` trains "
        "it, `infobatch queue clear` forgets it." in result.stderr
    )


@pytest.mark.parametrize("earlier_matches", [True, False])
def test_a_command_has_no_part_in_the_settings_of_another(
    queue: QueueFile, tmp_path: Path, earlier_matches: bool
) -> None:
    matching = ("tiers",) if earlier_matches else ()
    earlier = QueueState(short_runs([1], "full", "tiers"), matching, 2, 7, data_folder=tmp_path)
    queue.write([earlier])
    others = () if earlier_matches else ("--match-forwards", "tiers")
    command = (*SHORT, "--rules", "full,tiers", "--seeds", "1", *others)
    result = CliRunner().invoke(app, command)
    assert "2 unfinished runs" in result.stderr
    assert queue.read() == [earlier]
    queue.write([replace(earlier, jobs=1)])  # which is faster
    assert CliRunner().invoke(app, ["queue", "run"]).exit_code == 0
    matched = [seed for label, seed in run_labels(queue) if label == "full † (tiers)"]
    assert matched == ([1] if earlier_matches else [0])


def test_a_command_that_is_repeated_goes_on_with_its_own_state(queue: QueueFile) -> None:
    two_seeds = short_runs(range(2), "full", "mean")
    frontier = QueueState(two_seeds, kind=Kind.frontier)
    failed = replace(frontier, process=os.getpid(), at_work={two_seeds[0].name: 0.5})
    queue.write([QueueState(two_seeds[:3]), QueueState(two_seeds, ("mean",)), failed])
    # More jobs and more seeds are the same command; without the matched runs it is another.
    again = QueueState(short_runs(range(3), "full", "mean"), jobs=2)
    assert queue.others(again, []) == [QueueState(two_seeds, ("mean",)), frontier]
    assert queue.others(replace(again, matching=("mean",)), []) == [frontier]
    # What is finished needs no state, whoever trained it.
    finished = [run_with(cell) for cell in two_seeds]
    assert queue.others(QueueState(CELLS), finished) == [QueueState(two_seeds, ("mean",))]


def test_a_repeated_command_leaves_one_state(queue: QueueFile) -> None:
    cells = short_runs(range(2), "full", "mean")
    queue.write([QueueState(cells, jobs=2)])
    append(queue.runs_file, line_of(cells[0]))
    result = CliRunner().invoke(app, [*SHORT, "--rules", "full,mean", "--seeds", "2"])
    assert result.stderr == ""
    assert not queue.path.exists()
    assert len(read_file(queue.runs_file)) == 4


def test_a_run_that_several_commands_want_is_shown_once(queue: QueueFile) -> None:
    at_work = {CELLS[2].name: 0.75}
    first = QueueState(CELLS[:3], process=os.getpid(), at_work=at_work)
    queue.write([first, QueueState(CELLS, jobs=2)])
    append(queue.runs_file, line_of(CELLS[0], train_seconds=8.0))
    append(queue.runs_file, line_of(CELLS[1], train_seconds=4.0))
    status = status_of(queue)
    assert [(row["name"], row["state"]) for row in status["runs"]] == [
        (cell.name, state)
        for cell, state in zip(CELLS, ("done", "done", "at work", "waiting"), strict=True)
    ]
    assert (status["num_done"], status["num_left"]) == (2, 2)
    assert status["seconds_left"] == 8 / 4 + 4 / 2


def test_comparisons_of_two_lengths_are_no_frontier(queue: QueueFile) -> None:
    lengths = [short_runs([0], "full", "mean", epochs=epochs) for epochs in (1, 2)]
    queue.write([QueueState(cells) for cells in lengths])
    shown = CliRunner().invoke(app, ["queue", "run"])
    titles = [line for line in shown.stdout.splitlines() if line.startswith("digits, tiny")]
    assert [title.strip() for title in titles] == [
        "digits, tiny, 1 epoch",
        "digits, tiny, 2 epochs",
    ]
    assert "stay in the queue" not in shown.stderr
    queue.write([QueueState(cells) for cells in lengths])
    rows = json.loads(CliRunner().invoke(app, ["queue", "run", "--json"]).stdout)
    assert [row["rule"] for row in rows] == ["full", "mean"] * 2


def test_each_command_is_shown_by_its_kind(queue: QueueFile) -> None:
    cells = tuple(frontier_grid("digits", [1, 0.5], ["mean"], seeds=range(2), epochs=4))
    for cell in cells:
        append(queue.runs_file, line_of(cell))
    states = [QueueState(cells, kind=Kind.frontier), QueueState(cells[:1])]
    queue.write(states)
    shown = CliRunner().invoke(app, ["queue", "run"]).stdout
    assert shown.count("digits, tiny, 4 epochs ") == 1
    assert shown.count("to the line") == 1
    queue.write(states)
    row, frontier = json.loads(CliRunner().invoke(app, ["queue", "run", "--json"]).stdout)
    assert (row["rule"], len(frontier["methods"])) == ("full", 5)


@pytest.mark.usefixtures("_nothing_is_fetched")
def test_commands_with_several_data_sets_are_trained_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "data" / "fashion-mnist")
    file = queued_fashion(tmp_path / "data")
    file.write([*file.read(), QueueState(short_runs([0], "full"))])
    shown = CliRunner().invoke(app, ["queue", "run"])
    assert shown.exit_code == 0
    assert "fashion-mnist, convnet, 1 epoch " in shown.stdout
    assert "digits, tiny, 1 epoch " in shown.stdout
    assert shown.stderr == ""
    assert not file.path.exists()


@pytest.mark.usefixtures("_nothing_is_fetched")
def test_a_command_that_fails_does_not_stop_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = queued_fashion(tmp_path / "gone")
    (fashion,) = file.read()
    file.write([fashion, QueueState(short_runs([0], "full"))])
    result = CliRunner().invoke(app, ["queue", "run"])
    assert isinstance(result.exception, UserError)
    assert str(tmp_path / "gone" / "fashion-mnist") in str(result.exception)
    assert "digits, tiny, 1 epoch " in result.stdout
    assert file.read() == [fashion]


# Clearing -----------------------------------------------------------------------------------------


def test_clearing_forgets_both_queues_of_a_folder(queue: QueueFile) -> None:
    trials = QueueFile(Path("runs/trials.jsonl"))
    queue.write([QueueState(CELLS[:3])])
    append(queue.runs_file, line_of(CELLS[0]))
    trials.write([QueueState(CELLS[3:], kind=Kind.trials)])
    result = CliRunner().invoke(app, ["queue", "clear"])
    assert result.stderr == "infobatch: forgot 3 runs.\n"
    assert "nothing is queued" in CliRunner().invoke(app, ["queue"]).stdout
    assert not list(Path("runs").glob("*-queue.json"))
    assert "nothing is queued in runs." in CliRunner().invoke(app, ["queue", "clear"]).stderr


def test_clearing_says_that_checkpoints_stay(queue: QueueFile) -> None:
    queue.write([QueueState(CELLS[:1])])
    checkpoint = Path("runs/checkpoints", f"{CELLS[0].name}.pt")
    checkpoint.parent.mkdir()
    checkpoint.touch()
    told = CliRunner().invoke(app, ["queue", "clear"]).stderr
    assert told == "infobatch: forgot 1 run; its checkpoint stays in runs/checkpoints.\n"
    queue.write([QueueState(CELLS[:2])])
    told = CliRunner().invoke(app, ["queue", "clear"]).stderr
    assert told == "infobatch: forgot 2 runs; their checkpoints stay in runs/checkpoints.\n"
    assert checkpoint.exists()


def test_clearing_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["queue", "clear", "--out", "nothere"])
    assert (result.exit_code, result.stderr) == (0, "infobatch: nothing is queued in nothere.\n")
    assert not Path("nothere").exists()


def test_no_queue_is_cleared_while_one_of_them_is_at_work(queue: QueueFile) -> None:
    trials = QueueFile(Path("runs/trials.jsonl"))
    for file in (queue, trials):
        file.write([QueueState(CELLS)])
    with trials.held():
        result = CliRunner().invoke(app, ["queue", "clear"])
    assert "another process trains runs" in str(result.exception)
    assert queue.read() == trials.read() == [QueueState(CELLS)]
