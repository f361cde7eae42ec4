"""Instruction tuning of a pretrained language model; the loss per token on instructions held out.

As in the paper's A.6: samples of Alpaca (Taori et al., 2023) that DQ (Zhou et al., 2023) has chosen
once are pruned further while training, in the loop of transformers' Trainer. `alpaca` is that on
short samples, `alpaca-all` all of Alpaca, and `instructions:PATH` a user's own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from infobatch_lab.download import Fetching, Source, fetch, part_of
from infobatch_lab.errors import UserError, optional
from infobatch_lab.images import default_folder
from infobatch_lab.language import attention_mask, by_length, from_gguf, padded, transformers
from infobatch_lab.metrics import Metric
from infobatch_lab.options import setting
from infobatch_lab.processes import rank, total, world_size
from infobatch_lab.tables import Row, read_rows, read_splits, text_of
from infobatch_lab.tasks.base import BatchLosses, Forward, Recipe, Task
from infobatch_lab.weights import MINILM, SMOLLM2, path_of

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings
    from infobatch_lab.training import Training

IGNORED = -100
"""The label of a token that is no target, all over transformers."""

MAX_TOKENS = 512
"""Longer samples are cut."""

SHORT = 64
"""Tokens of the longest sample in `alpaca`, prompt and answer together."""

NUM_TEST, NUM_POOL, KEPT_BY_DQ = 200, 3000, 0.2

EVAL_BATCH = 16

Sample = dict[str, Tensor]


class Instructions(Dataset[Sample]):
    """Samples of tokens and labels, of which those of the prompt are ignored."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> Sample:
        return dict(self.samples[index])

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class LoraOptions:
    """Which weights are trained."""

    lora: int = setting(
        "Rank of LoRA's matrices; 0 trains all weights",
        default=8,
        valid=lambda value: value >= 0,
        expected="a whole number of at least 0",
    )


class InstructionTuning(Task):
    """Instructions with answers, and a pretrained language model, perhaps with LoRA."""

    name = "instruction tuning"
    metric = Metric("test_loss", "nats", higher_is_better=False, margin=0.01, decimals=3)
    models = ("smollm2-135m",)
    Options = LoraOptions

    train: Instructions

    def __init__(self, train: Sequence[Sample], test: Sequence[Sample], weights: Path) -> None:
        self.train = Instructions(train)
        self.test = test
        self.num_test = len(test)
        self.collate = collate
        self._weights = weights

    def network(self, settings: Settings) -> nn.Module:
        network: nn.Module = transformers().AutoModelForCausalLM.from_pretrained(self._weights)
        if settings.options.lora:
            peft = optional("peft")
            config = peft.LoraConfig(
                r=settings.options.lora,
                lora_alpha=2 * settings.options.lora,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            )
            network = peft.get_peft_model(network, config)
        return network

    def training(self, settings: Settings, *, workers: int = 0) -> Training:
        """The loop is the Trainer's."""
        transformers()
        from infobatch_lab.trainer import TrainerTraining

        return TrainerTraining(settings, self, workers=workers)

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        """The mean over the tokens of each answer: what a rule sees of a sample in the Trainer."""
        losses, targets = token_losses(forward, batch)
        return BatchLosses(losses.sum(1) / targets.sum(1))

    @torch.inference_mode()
    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """Each process tests its part of what is held out."""
        device = next(network.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        lengths = [sample["input_ids"] for sample in self.test]
        for places in by_length(lengths, EVAL_BATCH)[rank() :: world_size()]:
            batch = collate([self.test[place] for place in places])
            batch = {name: part.to(device) for name, part in batch.items()}
            losses, targets = token_losses(network, batch)
            sums += torch.stack([losses.double().sum(), targets.double().sum()])
        loss_sum, num_tokens = total(sums).tolist()
        loss = loss_sum / num_tokens
        return {"test_loss": loss, "perplexity": math.exp(loss)}


def token_losses(forward: Forward, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of each token of each answer, 0 elsewhere; and which places are targets."""
    outputs = forward(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    labels = batch["labels"][:, 1:]  # a token is predicted from those before it
    losses = cross_entropy(
        outputs.logits[:, :-1].float().flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    return losses.view(labels.shape), labels != IGNORED


def collate(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """A batch as the network, and the Trainer, take it."""
    tokens = [sample["input_ids"] for sample in samples]
    return {
        "input_ids": padded(tokens, 0),
        "attention_mask": attention_mask(tokens),
        "labels": padded([sample["labels"] for sample in samples], IGNORED),
    }


# Data ---------------------------------------------------------------------------------------------


def tokenised(rows: Sequence[Row], weights: Path, path: Path) -> Iterator[Sample]:
    """The rows as samples, one by one, in the form in which the model has learned to answer."""
    tokenizer = transformers().AutoTokenizer.from_pretrained(weights)
    for row in rows:
        question = text_of(row, ["instruction"], path)
        if row.get("input"):
            question += f"\n{row['input']}"
        answer = text_of(row, ["output"], path)
        prompt, target = (
            tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in (
                f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
                f"{answer}{tokenizer.eos_token}",
            )
        )
        # Of a prompt that is too long, the end is kept, so that there is always a target.
        prompt, target = prompt[-MAX_TOKENS // 2 :], target[: MAX_TOKENS // 2]
        yield {
            "input_ids": torch.tensor(prompt + target),
            "labels": torch.tensor([IGNORED] * len(prompt) + target),
        }


def read_alpaca(folder: Path, progress: Fetching) -> tuple[list[Row], Path]:
    """All rows, in an order that is the same for every run, and their file.

    Both files have the same rows in the same order. Stanford's is fetched if there is none.
    """
    path = folder / "alpaca_52k.parquet"
    if not path.exists():
        path = folder / "alpaca_data.json"
    if not path.exists():
        fetch(STANFORD, path, progress)
    rows = read_rows(path)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return [rows[place] for place in order.tolist()], path


def alpaca(folder: Path, progress: Fetching) -> InstructionTuning:
    """Short samples: some are held out, and DQ chooses a part of the others."""
    weights = from_gguf(path_of(SMOLLM2, progress))
    rows, path = read_alpaca(folder, progress)
    pairs = zip(rows, tokenised(rows, weights, path), strict=True)
    short = ((row, sample) for row, sample in pairs if len(sample["input_ids"]) <= SHORT)
    chosen = list(islice(short, NUM_TEST + NUM_POOL))
    test, pool = chosen[:NUM_TEST], chosen[NUM_TEST:]
    if not pool:
        raise UserError(f"{path} has {len(test)} short samples, expected more than {NUM_TEST}.")
    texts = [" ".join(str(row.get(c) or "") for c in COLUMNS) for row, _ in pool]
    kept = chosen_by_dq(texts, KEPT_BY_DQ, path_of(MINILM, progress))
    return InstructionTuning(
        [pool[place][1] for place in kept], [sample for _, sample in test], weights
    )


def alpaca_all(folder: Path, progress: Fetching) -> InstructionTuning:
    """All samples but those held out."""
    weights = from_gguf(path_of(SMOLLM2, progress))
    rows, path = read_alpaca(folder, progress)
    samples = list(tokenised(rows, weights, path))
    return InstructionTuning(samples[NUM_TEST:], samples[:NUM_TEST], weights)


def own_instructions(path: Path, progress: Fetching) -> InstructionTuning:
    """A user's own rows."""
    weights = from_gguf(path_of(SMOLLM2, progress))
    train, test = (list(tokenised(rows, weights, path)) for rows in read_splits(path))
    return InstructionTuning(train, test, weights)


# A subset chosen once -----------------------------------------------------------------------------


def chosen_by_dq(texts: list[str], keep: float, encoder: Path) -> list[int]:
    """Places of the texts that DQ keeps by an encoder's features; chosen once, then cached."""
    content = json.dumps([texts, keep, encoder.parent.name])
    digest = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    cached = default_folder() / "selected" / f"dq-{digest}.json"
    if not cached.exists():
        selection = optional("infobatch.selection")
        statistics = selection.Statistics(features=sentence_features(texts, encoder))
        subset = selection.select(texts, "dq", keep, statistics=statistics, per_class=False)
        cached.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(cached)
        part.write_text(json.dumps(sorted(subset.indices)))
        os.replace(part, cached)
    kept: list[int] = json.loads(cached.read_text())
    return kept


@torch.inference_mode()
def sentence_features(texts: list[str], encoder: Path) -> Tensor:
    """One vector per text: the mean of its tokens' last hidden states."""
    library = transformers()
    network = library.AutoModel.from_pretrained(encoder).eval()
    encoded = library.AutoTokenizer.from_pretrained(encoder)(
        texts, truncation=True, max_length=SHORT
    )
    tokens = [torch.tensor(sequence) for sequence in encoded["input_ids"]]
    features = torch.empty(len(texts), network.config.hidden_size)
    for places in by_length(tokens, EVAL_BATCH):
        batch = [tokens[place] for place in places]
        mask = attention_mask(batch)
        hidden = network(input_ids=padded(batch, 0), attention_mask=mask).last_hidden_state
        features[places] = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return features


COLUMNS = ("instruction", "input", "output")
ALPACA = "alpaca_52k.parquet`, or `alpaca_data.json"
STANFORD = Source(
    ("https://raw.githubusercontent.com/tatsu-lab/stanford_alpaca/main/alpaca_data.json",),
    "dfb72bdd9dc3608d6a7f674532987f6b",
)
DEFAULTS = {
    "model": "smollm2-135m",
    "epochs": 3,
    "batch_size": 8,
    "optimizer": "adamw",
    "lr": 2e-4,
}

RECIPES: dict[str, Recipe] = {
    "alpaca": Recipe(InstructionTuning, alpaca, ALPACA, DEFAULTS),
    "alpaca-all": Recipe(InstructionTuning, alpaca_all, ALPACA, DEFAULTS),
    "instructions:": Recipe(InstructionTuning, own_instructions, "", DEFAULTS),
}
