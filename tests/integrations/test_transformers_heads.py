"""Every head of transformers: what it trains in full, and what a pruned step trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infobatch.integrations.transformers import INDEX, InfoBatchTrainer
from infobatch.integrations.transformers.losses import spans
from tests.integrations.heads import (
    HEADS,
    NUM_SAMPLES,
    Head,
    Items,
    berts,
    gpt2,
    next_targets,
    random_ints,
    sequences_to_continue,
    speech,
    texts,
    tokens_to_name,
    wav2vec2,
)
from tests.integrations.language import InPlanOrder, arguments, losses_logged, parameters, same

# isort: split
from transformers import Trainer, default_data_collator
from transformers.loss.loss_utils import ForQuestionAnsweringLoss

heads = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)


def run(kind: Any, head: Head, folder: Path, **settings: Any) -> Any:
    args = arguments(folder, gradient_accumulation_steps=2, **settings)
    trainer = kind(head.model(), args, default_data_collator, head.items())
    trainer.head = head
    trainer.train()
    return trainer


class Checked(InfoBatchTrainer):
    """Holds each pruned step against the losses that the Trainer has for its samples one by one."""

    head: Head
    num_checked = 0

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        model.eval()  # a batch norm would make a sample's loss depend on the others
        indices, given = inputs[INDEX], {k: v for k, v in inputs.items() if k != INDEX}
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        weights = self.pruner.batch_weights
        if (weights != 1).any():
            self.num_checked += 1
            batch = Trainer.compute_loss(self, model, given, **kwargs)
            expected = self.expected_loss(batch, indices.tolist(), weights)
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                gradient(loss, model), gradient(expected, model), rtol=1e-3, atol=1e-4
            )
        return loss

    def expected_loss(self, batch: Tensor, indices: list[int], weights: Tensor) -> Tensor:
        """The Trainer's loss of the batch, shared out by what each sample costs alone."""
        sizes = [self.head.num_targets(self.train_dataset[i]) for i in indices]
        costs = torch.stack([self.loss_alone(i) for i in indices]) * torch.tensor(sizes)
        return (costs * weights).sum() * batch.detach() / costs.detach().sum()

    def loss_alone(self, index: int) -> Tensor:
        inputs = default_data_collator([self.train_dataset[index]])
        return torch.as_tensor(Trainer.compute_loss(self, self.model, inputs))


def gradient(loss: Tensor, model: Any) -> list[Tensor | None]:
    of = list(model.parameters())
    return list(torch.autograd.grad(loss, of, retain_graph=True, allow_unused=True))


def check_full(head: Head, folder: Path, kind: Any = InfoBatchTrainer, **settings: Any) -> None:
    """To the last bit, with the Trainer's own count of targets in two batches to a step."""
    full = type("Full", (kind,), {"rule": "full"})
    plain, trainer = (
        run(each, head, folder, num_train_epochs=1, learning_rate=0.03, **settings)
        for each in (InPlanOrder, full)
    )
    assert losses_logged(trainer) == losses_logged(plain)
    assert same(parameters(trainer.model), parameters(plain.model))


def check_pruned(head: Head, folder: Path, kind: Any = Checked, **settings: Any) -> None:
    trainer = run(kind, head, folder, num_train_epochs=2, learning_rate=0.0, **settings)
    assert trainer.num_checked > 0
    assert trainer.pruner.savings.num_trained < 2 * NUM_SAMPLES
    with torch.no_grad():
        expected = torch.stack([trainer.loss_alone(i) for i in range(NUM_SAMPLES)])
    torch.testing.assert_close(trainer.pruner.scores, expected, rtol=1e-4, atol=1e-5)


# Heads that work as they are ---------------------------------------------------------------------


@heads
def test_full_is_the_run_of_the_trainer_itself(tmp_path: Path, head: Head) -> None:
    check_full(head, tmp_path)


@heads
def test_a_pruned_step_weighs_what_each_sample_costs_alone(tmp_path: Path, head: Head) -> None:
    """And that cost is its score."""
    check_pruned(head, tmp_path)


@pytest.mark.parametrize("name", ["GPT-2", "BART", "classes"])
def test_label_smoothing(tmp_path: Path, name: str) -> None:
    check_full(HEADS[name], tmp_path, label_smoothing_factor=0.1)
    check_pruned(HEADS[name], tmp_path, label_smoothing_factor=0.1)


def test_answers_outside_of_the_text_do_not_count() -> None:
    """Starts and ends are means of their own: here over three starts and one end."""
    start, end = torch.randn(2, 4, 5)
    starts, ends = torch.tensor([0, 2, 9, 4]), torch.tensor([7, 3, 9, 5])
    losses, targets = spans(start, end, starts, ends)
    assert targets.sum(0).tolist() == [3, 1]
    expected = ForQuestionAnsweringLoss(start, end, starts, ends)
    torch.testing.assert_close(losses[targets].mean(), expected)


def test_a_model_that_starts_with_equal_logits_is_not_taken_for_another(tmp_path: Path) -> None:
    """In its first batch each label costs log 32, shifted or not; the next batches tell."""

    def model() -> Any:
        made = gpt2(tie_word_embeddings=False)
        torch.nn.init.zeros_(made.lm_head.weight)
        return made

    head = Head(model, sequences_to_continue, next_targets)
    assert run(Checked, head, tmp_path, num_train_epochs=3, learning_rate=0.3).num_checked > 0


# Heads that need an override ---------------------------------------------------------------------


def documented(name: str) -> Any:
    """A class of the page on transformers."""
    page = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text()
    (code,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if name in text)
    namespace = {"torch": torch, "InfoBatchTrainer": InfoBatchTrainer}
    exec(code, namespace)
    return namespace[name]


def test_a_sum_of_two_losses(tmp_path: Path) -> None:
    def items() -> Items:
        labels = torch.stack([item["labels"] for item in tokens_to_name(32)])
        return texts(labels=labels, next_sentence_label=random_ints(0, 2, NUM_SAMPLES))

    check_full(Head(berts("PreTraining"), items), tmp_path, documented("PreTrainer"))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_speech(tmp_path: Path, reduction: str) -> None:
    head = Head(wav2vec2(reduction), speech)
    trainer = documented("SpeechTrainer")
    check_full(head, tmp_path, trainer)
    check_pruned(head, tmp_path, type("CheckedSpeech", (Checked, trainer), {}))


def test_an_unknown_head_says_what_to_override(tmp_path: Path) -> None:
    message = "takes input_values, attention_mask, labels and returns .* Override token_losses"
    with pytest.raises(ValueError, match=message):
        run(InfoBatchTrainer, Head(wav2vec2("mean"), speech), tmp_path)


def test_an_override_whose_losses_are_not_the_loss_is_refused(tmp_path: Path) -> None:
    class Doubled(InfoBatchTrainer):
        def token_losses(self, outputs: Any, inputs: Any) -> Any:
            losses, targets = super().token_losses(outputs, inputs)
            return losses**2, targets

    with pytest.raises(ValueError, match="so that the mean of what it returns is the loss"):
        run(Doubled, HEADS["regression"], tmp_path)


def test_an_override_with_labels_is_told_to_take_the_inputs(tmp_path: Path) -> None:
    class Old(InfoBatchTrainer):
        def token_losses(self, outputs: Any, labels: Any) -> Any:
            raise AssertionError

    with pytest.raises(TypeError, match=r'write inputs in place of labels, and inputs\["labels"\]'):
        run(Old, HEADS["classes"], tmp_path)
