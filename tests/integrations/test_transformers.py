"""transformers' Trainer: the same samples, steps and weights as in a plain loop."""

from __future__ import annotations

import importlib
import sys
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch.utils.data import IterableDataset

from infobatch import Pruner, StateError
from infobatch.schedule import Schedule
from tests.conftest import same_state
from tests.integrations.language import (
    BATCH_SIZE,
    NUM_EPOCHS,
    SMALL_BERT,
    Recorded,
    arguments,
    bert,
    close,
    collate_classes,
    collate_tokens,
    llama,
    parameters,
    plain_loop,
    same,
    sequences,
)
from tests.integrations.launched import as_launched
from tests.ranks import on_ranks

# isort: split
import trl
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
)
from transformers.trainer_utils import IntervalStrategy


def trainer_of(
    model: Any, folder: Path, *, rule: str = "mean", kind: Any = Recorded, **settings: Any
) -> Any:
    collate = collate_tokens if "Llama" in type(model).__name__ else collate_classes
    trainer = kind(model, arguments(folder, **settings), collate, sequences())
    trainer.rule = rule
    return trainer


class Lighter(Recorded):
    shrink = "batch"


class InPlanOrder(Trainer):
    """transformers' own Trainer, in the order in which the pruner goes through the data."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        pruner = Pruner(50, NUM_EPOCHS, rule="full", seed=7)

        class Order:
            epoch = 0

            def __iter__(self) -> Any:
                pruner.set_epoch(self.epoch)
                self.epoch += 1
                return iter(pruner.plan.indices.tolist())

            def __len__(self) -> int:
                return 50

        return Order()


def losses_logged(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# Lighter batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [llama, bert])
def test_lighter_batches_keep_the_steps_of_full_training(tmp_path: Path, model: Any) -> None:
    """And the mean weight of an epoch is 1: with a loss of 1 for all, so is every step's."""
    trainer = trainer_of(model(), tmp_path, kind=Lighter)
    plain = Trainer(model(), arguments(tmp_path / "plain"), trainer.data_collator, sequences())
    trainer.train()
    plain.train()
    assert trainer.state.global_step == plain.state.global_step == trainer.state.max_steps
    assert [log["learning_rate"] for log in trainer.state.log_history if "loss" in log] == (
        [log["learning_rate"] for log in plain.state.log_history if "loss" in log]
    )
    assert trainer.pruner.savings.fraction > 0.1


def test_too_few_samples_for_lighter_batches_are_a_sentence(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path, kind=Lighter, per_device_train_batch_size=1)
    with pytest.raises(ValueError, match='shrink is "batch", but .* samples are kept for 50'):
        trainer.train()


# A plain loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_language_model_is_trained_as_in_a_plain_loop(tmp_path: Path, accumulate: int) -> None:
    # 50 samples in batches of 4, three to a step: pruned epochs leave one or two batches over.
    expected = llama()
    (steps,), pruner, rates = plain_loop(expected, accumulate=accumulate)
    trainer = trainer_of(llama(), tmp_path, gradient_accumulation_steps=accumulate)
    trainer.train()
    assert [step[:2] for step in trainer.steps] == [step[:2] for step in steps]
    assert [step.weights for step in trainer.steps] == [step.weights for step in steps]
    assert close(parameters(trainer.model), parameters(expected))
    assert trainer.pruner.savings == pruner.savings
    assert trainer.pruner.savings.fraction > 0.1
    assert trainer.pruner.epoch == NUM_EPOCHS
    torch.testing.assert_close(trainer.pruner.scores, pruner.scores, rtol=1e-3, atol=1e-4)
    logged = [log["learning_rate"] for log in trainer.state.log_history if "loss" in log]
    assert logged == pytest.approx(rates)
    assert set(trainer.lr_scheduler.get_last_lr()) == {0.0}
    assert trainer.state.global_step == trainer.state.max_steps == len(rates)


def test_a_classifier_is_trained_as_in_a_plain_loop(tmp_path: Path) -> None:
    data, model = sequences(), bert()
    pruner = Pruner(50, NUM_EPOCHS, seed=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    batches = []
    model.train()
    for _ in range(NUM_EPOCHS):
        for indices in pruner.plan.indices.split(BATCH_SIZE):
            inputs = collate_classes([data[i] for i in indices])
            labels = inputs.pop("labels")
            losses = cross_entropy(model(**inputs).logits, labels, reduction="none")
            loss = pruner.update(losses, indices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches.append(indices.tolist())
    trainer = trainer_of(bert(), tmp_path, lr_scheduler_type="constant")
    trainer.train()
    assert [step.indices for step in trainer.steps] == batches
    assert trainer.pruner.savings == pruner.savings
    assert trainer.pruner.savings.fraction > 0.1
    assert close(parameters(trainer.model), parameters(model))


def test_the_score_is_the_mean_over_the_targets_of_a_sequence(tmp_path: Path) -> None:
    model, data = llama(), sequences()
    trainer = trainer_of(model, tmp_path, num_train_epochs=1, learning_rate=0.0)
    trainer.train()
    for sample, item in enumerate(data):  # one by one, so without padding
        tokens = torch.tensor(item["input_ids"])
        logits = model(input_ids=tokens[None]).logits[0]
        expected = cross_entropy(logits[:-1], tokens[1:])
        torch.testing.assert_close(trainer.pruner.scores[sample], expected, rtol=1e-4, atol=1e-5)


# The rule `full` ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [bert, llama])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 3, "max_grad_norm": 1.0, "optim": "adamw_torch"},
        {"label_smoothing_factor": 0.1, "dataloader_drop_last": True},
        {"max_steps": 30},
    ],
    ids=["plain", "accumulate", "smoothing", "max_steps"],
)
def test_full_is_the_run_of_the_trainer_itself(
    tmp_path: Path, model: Any, settings: dict[str, Any]
) -> None:
    alone = trainer_of(model(dropout=0.2), tmp_path, kind=InPlanOrder, **settings)
    alone.train()
    trainer = trainer_of(model(dropout=0.2), tmp_path, rule="full", **settings)
    trainer.train()
    assert losses_logged(trainer) == losses_logged(alone)
    assert same(parameters(trainer.model), parameters(alone.model))
    assert trainer.lr_scheduler.get_last_lr() == alone.lr_scheduler.get_last_lr()
    assert trainer.state.epoch == alone.state.epoch
    assert trainer.state.global_step == alone.state.global_step


# Schedules and lengths ---------------------------------------------------------------------------


def test_the_learning_rate_ends_each_epoch_where_full_training_does(tmp_path: Path) -> None:
    full = trainer_of(llama(), tmp_path, rule="full", lr_scheduler_type="cosine", warmup_steps=10)
    full.train()
    trainer = trainer_of(llama(), tmp_path, lr_scheduler_type="cosine", warmup_steps=10)
    trainer.train()

    def first_rates(trainer: Any) -> list[float]:
        rates = [log["learning_rate"] for log in trainer.state.log_history if "loss" in log]
        epochs = [log["epoch"] for log in trainer.state.log_history if "loss" in log]
        return [next(r for r, e in zip(rates, epochs, strict=True) if e > n) for n in range(6)]

    assert first_rates(trainer) == pytest.approx(first_rates(full))
    assert trainer.state.global_step < full.state.global_step


def test_max_steps_is_a_budget_that_is_used_up(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path, max_steps=60, gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.state.global_step == 60
    assert set(trainer.lr_scheduler.get_last_lr()) == {0.0}
    assert trainer.pruner.savings.fraction > 0.1
    assert trainer.state.epoch > 60 * 2 / 13


def test_with_a_budget_of_steps_the_last_part_trains_on_everything(tmp_path: Path) -> None:
    """Steps are counted, not batches: here an epoch's last step has fewer."""
    num_pruned: dict[int, int] = {}

    class Watched(Recorded):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            num_pruned[self.state.global_step] = self.pruner.plan.num_pruned
            return super().compute_loss(*args, **kwargs)

    trainer = trainer_of(
        bert(), tmp_path, kind=Watched, max_steps=40, gradient_accumulation_steps=8
    )
    trainer.train()
    assert max(num_pruned) == 39
    assert num_pruned[30] > 0
    assert num_pruned[39] == 0  # 0.875 x 40 = 35, and an epoch has 2 steps


def test_the_last_step_is_saved_and_evaluated(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path, save_strategy="steps", save_steps=1000)
    trainer.eval_dataset, trainer.args.eval_strategy = sequences(10), IntervalStrategy.STEPS
    trainer.args.eval_steps = 1000
    trainer.train()
    last = trainer.state.global_step
    assert (tmp_path / f"checkpoint-{last}" / "infobatch.pt").exists()
    assert [log["step"] for log in trainer.state.log_history if "eval_loss" in log] == [last]


def test_what_is_saved_is_logged(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path)
    trainer.train()
    saved = [log["infobatch/saved"] for log in trainer.state.log_history if "loss" in log]
    assert saved[0] == 0
    assert saved[-1] == pytest.approx(trainer.pruner.savings.fraction)


def test_the_loss_over_all_samples_is_logged_from_the_first_epochs_end_on(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path)
    trainer.train()
    logged = [log for log in trainer.state.log_history if "loss" in log]
    assert ["infobatch/loss" in log for log in logged] == [log["epoch"] >= 1 for log in logged]
    assert logged[-1]["infobatch/loss"] == trainer.pruner.metrics["infobatch/loss"]
    # While epochs are pruned, the Trainer's own loss is that of harder samples with larger weights.
    last = [log["infobatch/loss"] for log in logged if log["epoch"] == 2]
    assert last[0] < logged[0]["loss"]


def test_workers_and_a_peek_change_nothing(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path)
    trainer.train()
    other = trainer_of(
        llama(), tmp_path, dataloader_num_workers=2, dataloader_persistent_workers=True
    )
    next(iter(other.get_train_dataloader()))
    other.train()
    assert other.steps == trainer.steps
    assert same(parameters(other.model), parameters(trainer.model))


def test_each_run_starts_anew(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path, num_train_epochs=3)
    trainer.train()
    first, trainer.steps = trainer.steps, []
    trainer.train()
    assert trainer.steps[:13] == first[:13]
    assert trainer.pruner.epoch == 3


def test_a_data_set_of_datasets_with_columns_that_the_model_does_not_know(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path)
    trainer.train()
    other = trainer_of(llama(), tmp_path)
    other.train_dataset = Dataset.from_list(sequences())
    other.train()
    assert other.steps == trainer.steps


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


# Refusals ----------------------------------------------------------------------------------------


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "infobatch.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install infobatch\[transformers\]"):
        importlib.import_module("infobatch.integrations.transformers")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_train_epochs": 2.5}, "num_train_epochs is 2.5, expected a whole number"),
        ({"train_sampling_strategy": "group_by_length"}, "'group_by_length', expected 'random'"),
    ],
)
def test_settings_that_cannot_be_pruned(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trainer_of(llama(), tmp_path, **settings).train()


def test_an_iterable_data_set_is_refused(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(sequences())

    trainer = trainer_of(llama(), tmp_path, max_steps=10)
    trainer.train_dataset = Stream()
    with pytest.raises(TypeError, match="train_dataset is a Stream, which cannot skip samples"):
        trainer.train()


def test_a_collator_that_packs_is_refused(tmp_path: Path) -> None:
    from transformers import DataCollatorWithFlattening

    trainer = trainer_of(llama(), tmp_path)
    trainer.data_collator = DataCollatorWithFlattening()
    with pytest.raises(ValueError, match="the batch has 1 rows for 4 samples"):
        trainer.train()


@pytest.mark.parametrize("model", [bert, llama])
def test_mixed_precision(tmp_path: Path, model: Any) -> None:
    trainer = trainer_of(model(), tmp_path, bf16=True)
    trainer.train()
    assert trainer.pruner.savings.fraction > 0.1
    assert trainer.pruner.scores.isfinite().all()


def test_a_batch_that_is_learned_to_the_last_bit_does_no_harm(tmp_path: Path) -> None:
    """Its losses sum to exactly 0, by which its share of the Trainer's loss cannot be told."""

    class Certain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any, labels: Any) -> Any:
            logits = torch.stack([torch.zeros_like(x), x * self.weight], 1)
            return {"loss": cross_entropy(logits, labels), "logits": logits}

    samples = [{"x": 0.5 if i % 2 else 30.0, "labels": 1} for i in range(50)]
    trainer = Recorded(Certain(), arguments(tmp_path, per_device_train_batch_size=1), None, samples)
    trainer.train()
    assert trainer.pruner.savings.fraction > 0.1
    assert (trainer.pruner.scores == 0).any()
    assert trainer.pruner.num_nonfinite == 0
    assert trainer.model.weight > 1


def test_another_loss_is_trained_by_its_own_losses(tmp_path: Path) -> None:
    class Regression(Recorded):
        def token_losses(self, outputs: Any, labels: Any) -> Any:
            losses = (outputs["logits"].squeeze(-1) - labels) ** 2
            return losses, torch.ones_like(losses, dtype=torch.bool)

    def model() -> Any:
        torch.manual_seed(0)
        return BertForSequenceClassification(BertConfig(**SMALL_BERT, num_labels=1))

    def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
        inputs = collate_classes(items)
        return {**inputs, "labels": torch.tensor([len(i["input_ids"]) / 12 for i in items])}

    with pytest.raises(ValueError, match="for any other loss override token_losses"):
        Recorded(model(), arguments(tmp_path), collate, sequences()).train()
    trainer = Regression(model(), arguments(tmp_path, learning_rate=0.03), collate, sequences())
    trainer.train()
    expected, pruner = model(), Pruner(50, NUM_EPOCHS, seed=7)
    expected.train()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.03)
    curve = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=13 * NUM_EPOCHS)
    schedule = Schedule(curve, pruner, batch_size=BATCH_SIZE)
    for _ in range(NUM_EPOCHS):
        for indices in pruner.plan.indices.split(BATCH_SIZE):
            inputs = collate([sequences()[i] for i in indices])
            labels = inputs.pop("labels")
            loss = pruner.update((expected(**inputs).logits[:, 0] - labels) ** 2, indices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    assert close(parameters(trainer.model), parameters(expected))
    assert trainer.pruner.savings == pruner.savings


def test_a_loss_with_other_terms_is_refused(tmp_path: Path) -> None:
    class Regularized(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(model, inputs, *args, **kwargs) + 0.01

    class Both(Recorded, Regularized):
        pass

    with pytest.raises(ValueError, match="so it has other terms.*override token_losses"):
        trainer_of(llama(), tmp_path, kind=Both).train()


def test_drop_last_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(
        llama(), tmp_path, dataloader_drop_last=True, per_device_train_batch_size=45
    )
    with pytest.raises(ValueError, match="dataloader_drop_last leaves nothing of epoch 1"):
        trainer.train()


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
    for model in (bert, llama):
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
        assert found["full bert"] == found["full llama"] == (True, True)


# trl ---------------------------------------------------------------------------------------------


def sft(model: Any, folder: Path, kind: Any, **settings: Any) -> Any:
    """trl's SFTTrainer on samples that are tokens already, with a prompt of one token."""
    data = [
        {"input_ids": item["input_ids"], "labels": [-100, *item["input_ids"][1:]]}
        for item in sequences()
    ]
    args = arguments(
        folder, trl.SFTConfig, dataset_kwargs={"skip_prepare_dataset": True}, bf16=False, **settings
    )
    return kind(model, args, train_dataset=Dataset.from_list(data), processing_class=tokenizer())


def tokenizer() -> Any:
    """Of the 32 tokens that the models know; 0 is padding."""
    vocabulary = {f"t{number}": number for number in range(32)}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(
            tokenizers.models.WordLevel(vocabulary, unk_token="t1")
        ),
        pad_token="t0",
        eos_token="t2",
    )


class PrunedSFT(Recorded, trl.SFTTrainer):
    pass


class SFTInPlanOrder(InPlanOrder, trl.SFTTrainer):
    pass


def test_sft_is_trained_as_in_a_plain_loop(tmp_path: Path) -> None:
    expected = llama()
    (steps,), pruner, _ = plain_loop(expected, accumulate=3)
    trainer = sft(llama(), tmp_path, PrunedSFT, gradient_accumulation_steps=3)
    trainer.train()
    assert trainer.steps == steps
    assert close(parameters(trainer.model), parameters(expected))
    assert trainer.pruner.savings == pruner.savings
    assert set(trainer.lr_scheduler.get_last_lr()) == {0.0}


def test_full_is_the_run_of_sft_itself(tmp_path: Path) -> None:
    alone = sft(llama(dropout=0.2), tmp_path, SFTInPlanOrder, gradient_accumulation_steps=3)
    alone.train()
    trainer = sft(llama(dropout=0.2), tmp_path, PrunedSFT, gradient_accumulation_steps=3)
    trainer.rule = "full"
    trainer.train()
    assert losses_logged(trainer) == losses_logged(alone)
    assert same(parameters(trainer.model), parameters(alone.model))


@pytest.mark.filterwarnings("ignore:`label_smoothing_factor` is deprecated in `SFTTrainer`")
def test_sft_with_label_smoothing(tmp_path: Path) -> None:
    alone = sft(llama(), tmp_path, SFTInPlanOrder, label_smoothing_factor=0.1)
    alone.train()
    full, pruned = (sft(llama(), tmp_path, PrunedSFT, label_smoothing_factor=0.1) for _ in range(2))
    full.rule = "full"
    full.train()
    assert losses_logged(full) == losses_logged(alone)
    pruned.train()
    assert pruned.pruner.savings.fraction > 0.1
    assert losses_logged(pruned)[-1] < losses_logged(pruned)[0]


@pytest.mark.parametrize("setting", ["packing", "padding_free"])
def test_packing_is_refused(tmp_path: Path, setting: str) -> None:
    trainer = sft(llama(), tmp_path, PrunedSFT)
    setattr(trainer.args, setting, True)
    with pytest.raises(ValueError, match="packing .or padding_free. merges samples"):
        trainer.train()


def test_dft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="so it has other terms.*dft"):
        sft(llama(), tmp_path, PrunedSFT, loss_type="dft").train()
