"""Instruction tuning of a small Llama with transformers' Trainer, pruned and in full.

`python examples/transformers_lm.py` trains on a few hundred sums and echoes of its own. With data
in Alpaca's format (a JSON list of instruction, input, output):
`python examples/transformers_lm.py --data alpaca_data.json --epochs 3`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from infobatch.integrations.transformers import InfoBatchTrainer

PAD, END, NUM_TOKENS, MAX_LENGTH = 256, 257, 258, 512
"""Tokens are bytes, so that no tokenizer is downloaded."""


def own_instructions() -> list[dict[str, str]]:
    sums = [("Add the numbers.", f"{a} and {b}", str(a + b)) for a in range(15) for b in range(15)]
    words = ["tree", "river", "stone", "cloud", "ember", "lantern", "harbour", "meadow"]
    echoes = [("Repeat the word.", f"{word} {n} times", " ".join([word] * n))
              for word in words for n in range(1, 6)]  # fmt: skip
    return [
        {"instruction": instruction, "input": context, "output": output}
        for instruction, context, output in sums + echoes
    ]


def tokens_of(record: dict[str, str]) -> dict[str, list[int]]:
    """The prompt is no target."""
    context = f"\n{record['input']}" if record["input"] else ""
    prompt = list(f"### Instruction:\n{record['instruction']}{context}\n### Response:\n".encode())
    answer = [*record["output"].encode(), END]
    tokens, labels = prompt + answer, [-100] * len(prompt) + answer
    return {"input_ids": tokens[:MAX_LENGTH], "labels": labels[:MAX_LENGTH]}


def collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    ids, labels = ([torch.tensor(item[name]) for item in items] for name in ("input_ids", "labels"))
    input_ids = pad_sequence(ids, batch_first=True, padding_value=PAD)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a JSON list of instruction, input, output")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--hidden-size", type=int, default=128)
    options = parser.parse_args(arguments)
    records = json.loads(options.data.read_text()) if options.data else own_instructions()
    data = [tokens_of(record) for record in records]
    train_data = [item for number, item in enumerate(data) if number % 10]
    test_data = data[::10]

    losses = {}
    for rule in ("full", "mean"):
        torch.manual_seed(0)
        size = options.hidden_size
        config = LlamaConfig(
            vocab_size=NUM_TOKENS, hidden_size=size, intermediate_size=2 * size,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
            max_position_embeddings=MAX_LENGTH, pad_token_id=PAD, eos_token_id=END,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            trainer = InfoBatchTrainer(
                LlamaForCausalLM(config),
                TrainingArguments(
                    folder,
                    num_train_epochs=options.epochs,
                    per_device_train_batch_size=8,
                    gradient_accumulation_steps=2,
                    learning_rate=1e-3,
                    lr_scheduler_type="cosine",
                    warmup_steps=20,
                    save_strategy="no",
                    logging_strategy="epoch",
                    report_to=[],
                    dataloader_pin_memory=torch.accelerator.is_available(),
                ),
                collate,
                train_data,
                test_data,
            )
            trainer.rule = rule
            trainer.train()
            losses[rule] = trainer.evaluate()["eval_loss"]
        saved = trainer.pruner.savings.fraction
        print(f"{rule}: test loss {losses[rule]:.3f}, {saved:.1%} of the samples saved")
    return losses


if __name__ == "__main__":
    main()
