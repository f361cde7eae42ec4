"""Tiny language models, data, and training on a plan in a plain loop: what a Trainer must do."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import tests.vision  # noqa: F401  # transformers imports torchvision where it finds it
from infobatch import Pruner
from infobatch.integrations.transformers import INDEX, InfoBatchTrainer

# isort: split
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

NUM_EPOCHS = 6
BATCH_SIZE = 4


class Step(NamedTuple):
    """One batch of one process."""

    global_step: int
    indices: list[int]
    weights: list[float]


def sequences(num_samples: int = 50) -> list[dict[str, Any]]:
    """Token sequences of all lengths, some easy (one token all along); a class each."""
    rng = torch.Generator().manual_seed(1)
    items = []
    for sample in range(num_samples):
        length = int(torch.randint(3, 12, (), generator=rng))
        tokens = torch.randint(3, 32, (length,), generator=rng).tolist()
        if sample % 2:
            tokens = [3 + sample % 4] * length
        items.append({"input_ids": tokens, "label": sample % 2, "note": "not for the model"})
    return items


def collate(items: list[dict[str, Any]], *, language_model: bool) -> dict[str, Tensor]:
    length = max(len(item["input_ids"]) for item in items)
    ids = torch.tensor(
        [item["input_ids"] + [0] * (length - len(item["input_ids"])) for item in items]
    )
    labels = ids.clone().masked_fill(ids == 0, -100)
    labels[:, 0] = -100  # a prompt
    if not language_model:
        labels = torch.tensor([item["label"] for item in items])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def collate_classes(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    return collate(items, language_model=False)


def collate_tokens(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    return collate(items, language_model=True)


SMALL_BERT: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 16, "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def bert(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(**{**SMALL_BERT, "hidden_dropout_prob": dropout})
    )


def llama(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16,
            pad_token_id=0, attention_dropout=dropout, initializer_range=0.3,
        )
    )  # fmt: skip


def arguments(folder: Path, kind: Any = TrainingArguments, **settings: Any) -> Any:
    defaults = {
        "num_train_epochs": NUM_EPOCHS, "per_device_train_batch_size": BATCH_SIZE,
        "learning_rate": 0.3, "optim": "sgd", "max_grad_norm": 0.0, "use_cpu": True,
        "report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True,
        "dataloader_pin_memory": False, "seed": 7,
    }  # fmt: skip
    return kind(str(folder), **{**defaults, **settings})


class Recorded(InfoBatchTrainer):
    """Writes down which samples it trains in which step with which weights."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "steps"):
            self.steps: list[Step] = []
        indices = inputs.get(INDEX)
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if indices is not None:
            weights = self.pruner.batch_weights.tolist()
            self.steps.append(Step(self.state.global_step, indices.tolist(), weights))
        return loss


class Lighter(Recorded):
    shrink = "batch"


class InPlanOrder(Trainer):
    """transformers' own Trainer, in the order in which the pruner goes through the data."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        num_samples = len(self.train_dataset)
        pruner = Pruner(num_samples, NUM_EPOCHS, rule="full", seed=7)

        class Order:
            epoch = 0

            def __iter__(self) -> Any:
                pruner.set_epoch(self.epoch)
                self.epoch += 1
                return iter(pruner.plan.indices.tolist())

            def __len__(self) -> int:
                return num_samples

        return Order()


def trainer_of(
    model: Any, folder: Path, *, rule: str = "mean", kind: Any = Recorded, **settings: Any
) -> Any:
    collate = collate_classes if "Bert" in type(model).__name__ else collate_tokens
    trainer = kind(model, arguments(folder, **settings), collate, sequences())
    trainer.rule = rule
    return trainer


def losses_logged(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def shares(indices: Tensor, num_ranks: int) -> list[list[Tensor]]:
    """The batches of each rank, as accelerate deals them: repeats from the start even the last."""
    num_even = -(-len(indices) // (BATCH_SIZE * num_ranks)) * BATCH_SIZE * num_ranks
    if num_ranks > 1:
        indices = torch.cat([indices] * (num_even // len(indices) + 1))[:num_even]
    batches = indices.split(BATCH_SIZE)
    return [list(batches[rank::num_ranks]) for rank in range(num_ranks)]


def plain_loop(
    model: Any, *, accumulate: int = 1, num_ranks: int = 1
) -> tuple[list[list[Step]], Pruner, list[float]]:
    """Train a language model on the plan, all ranks in one process; steps per rank, and rates."""
    data, pruner = sequences(), Pruner(50, NUM_EPOCHS, seed=7)
    steps: list[list[Step]] = [[] for _ in range(num_ranks)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    full_steps = ceil(ceil(50 / (BATCH_SIZE * num_ranks)) / accumulate)
    rates: list[float] = []
    model.train()
    for epoch in range(NUM_EPOCHS):
        plan = pruner.plan
        weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
        of_rank = shares(plan.indices, num_ranks)
        loss_of: list[dict[int, Tensor]] = [{} for _ in range(num_ranks)]
        num_batches = len(of_rank[0])
        num_steps = -(-num_batches // accumulate)
        for number in range(num_steps):
            group = range(number * accumulate, min((number + 1) * accumulate, num_batches))
            step = [(rank, of_rank[rank][batch]) for batch in group for rank in range(num_ranks)]
            num_targets = sum(len(data[i]["input_ids"]) - 1 for _, batch in step for i in batch)
            done = epoch * full_steps + full_steps * number // num_steps
            rates.append(0.3 * (1 - done / (NUM_EPOCHS * full_steps)))
            optimizer.param_groups[0]["lr"] = rates[-1]
            optimizer.zero_grad()
            for rank, batch in step:
                samples = batch.tolist()
                inputs = collate_tokens([data[i] for i in samples])
                labels = inputs.pop("labels")
                logits = model(**inputs).logits
                for row, sample in enumerate(samples):
                    end = len(data[sample]["input_ids"])
                    losses = cross_entropy(
                        logits[row, : end - 1], labels[row, 1:end], reduction="none"
                    )
                    loss = weight_of[sample] * losses.sum() / num_targets
                    loss.backward(retain_graph=True)
                    loss_of[rank][sample] = losses.mean().detach()
                weights = [weight_of[sample] for sample in samples]
                steps[rank].append(Step(len(rates) - 1, samples, weights))
            optimizer.step()
        # What was repeated on another rank counts with its larger loss.
        last = {i: max(of[i] for of in loss_of if i in of) for i in plan.indices.tolist()}
        pruner.update(torch.stack(list(last.values())), list(last))
    return steps, pruner, rates


def parameters(model: Any) -> dict[str, Tensor]:
    state = model.state_dict()
    return {name.removeprefix("module."): value.clone() for name, value in state.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """To the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Up to the order of sums."""
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], rtol=1e-4, atol=1e-5) for name in one
    )
