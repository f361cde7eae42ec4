"""transformers' Trainer: the same samples, steps and weights as in a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from infobatch import Pruner
from tests.integrations.language import (
    BATCH_SIZE,
    NUM_EPOCHS,
    InPlanOrder,
    Lighter,
    Recorded,
    arguments,
    bert,
    close,
    collate_classes,
    llama,
    losses_logged,
    parameters,
    plain_loop,
    same,
    sequences,
    trainer_of,
)

# isort: split
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import Trainer
from transformers.trainer_utils import IntervalStrategy

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


# Lighter batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [llama, bert])
def test_lighter_batches_keep_the_steps_of_full_training(tmp_path: Path, model: Any) -> None:
    trainer = trainer_of(model(), tmp_path, kind=Lighter)
    plain = Trainer(model(), arguments(tmp_path / "plain"), trainer.data_collator, sequences())
    trainer.train()
    plain.train()
    assert trainer.state.global_step == plain.state.global_step == trainer.state.max_steps
    assert [log["learning_rate"] for log in trainer.state.log_history if "loss" in log] == (
        [log["learning_rate"] for log in plain.state.log_history if "loss" in log]
    )
    assert trainer.pruner.savings.fraction > 0.1


def test_the_mean_weight_of_lighter_batches_is_1(tmp_path: Path) -> None:
    """Where every sample costs log 2, so does every epoch, pruned or not."""
    model = bert()
    torch.nn.init.zeros_(model.classifier.weight)
    trainer = trainer_of(model, tmp_path, rule="random-rescaled", kind=Lighter, learning_rate=0.0)
    trainer.train()
    losses, sizes = torch.tensor(losses_logged(trainer)), [len(s.indices) for s in trainer.steps]
    of_epoch = (losses * torch.tensor(sizes)).view(NUM_EPOCHS, -1).sum(1)
    num_kept = torch.tensor(sizes).view(NUM_EPOCHS, -1).sum(1)
    assert num_kept.min() < 50
    torch.testing.assert_close(of_epoch / num_kept, torch.tensor(2.0).log().expand(NUM_EPOCHS))


def test_too_few_samples_for_lighter_batches_are_a_sentence(tmp_path: Path) -> None:
    trainer = trainer_of(llama(), tmp_path, kind=Lighter, per_device_train_batch_size=1)
    with pytest.raises(ValueError, match='shrink is "batch", but .* samples are kept for 50'):
        trainer.train()


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


# Numbers -----------------------------------------------------------------------------------------


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
