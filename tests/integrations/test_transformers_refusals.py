"""transformers' Trainer: what cannot be pruned is refused in one sentence."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from tests.integrations.language import Recorded, collate_tokens, llama, sequences, trainer_of

# isort: split
from transformers import MixtralConfig, MixtralForCausalLM, Trainer


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


def test_a_loss_with_other_terms_is_refused(tmp_path: Path) -> None:
    class Regularized(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(model, inputs, *args, **kwargs) + 0.01

    class Both(Recorded, Regularized):
        pass

    with pytest.raises(ValueError, match="so it has other terms.*override token_losses"):
        trainer_of(llama(), tmp_path, kind=Both).train()


def test_an_auxiliary_loss_of_experts_is_refused(tmp_path: Path) -> None:
    model = MixtralForCausalLM(
        MixtralConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, num_local_experts=2, pad_token_id=0,
            output_router_logits=True,
        )
    )  # fmt: skip
    trainer = trainer_of(model, tmp_path)
    trainer.data_collator = collate_tokens
    with pytest.raises(ValueError, match="aux_loss.*set output_router_logits=False"):
        trainer.train()


def test_drop_last_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(
        llama(), tmp_path, dataloader_drop_last=True, per_device_train_batch_size=45
    )
    with pytest.raises(ValueError, match="dataloader_drop_last leaves nothing of epoch 1"):
        trainer.train()
