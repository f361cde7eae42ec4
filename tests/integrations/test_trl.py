"""trl's SFTTrainer, with `InfoBatchTrainer` as a mixin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.integrations.language import (
    InPlanOrder,
    Recorded,
    arguments,
    close,
    llama,
    losses_logged,
    parameters,
    plain_loop,
    same,
    sequences,
)

# isort: split
import trl
from datasets import Dataset
from transformers import PreTrainedTokenizerFast


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
