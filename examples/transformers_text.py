"""Text classification with transformers' Trainer, pruned and in full.

`python examples/transformers_text.py` trains on a few hundred sentences of its own, in a minute.
With SST-2 (its parquet files, or any with the columns `sentence` and `label`):
`python examples/transformers_text.py --train train.parquet --test validation.parquet`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

from infobatch.integrations.transformers import InfoBatchTrainer

SUBJECTS = [
    "plot",
    "acting",
    "script",
    "ending",
    "music",
    "cast",
    "story",
    "camera work",
    "humour",
    "pace",
]
PRAISE = ["moving", "sharp", "a delight", "full of life", "better than most", "never dull"]
BLAME = ["flat", "a bore", "hard to sit through", "worse than most", "full of holes", "never funny"]
FRAMES = ["the {} is {}", "its {} is {} from start to end", "I found the {} {}, as a whole"]


def own_sentences() -> tuple[Dataset, Dataset]:
    """360 short verdicts on films; the last frame is for the test."""
    rows = [
        {"sentence": frame.format(subject, words), "label": int(words in PRAISE)}
        for frame, subject, words in product(FRAMES, SUBJECTS, PRAISE + BLAME)
    ]
    num_train = len(rows) * 2 // 3
    return Dataset.from_list(rows[:num_train]), Dataset.from_list(rows[num_train:])


def tokenizer_for(sentences: Sequence[str], num_words: int = 8000) -> PreTrainedTokenizerFast:
    """A tokenizer of the words seen in training, so that nothing is downloaded."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]"]
    tokenizer.train_from_iterator(
        sentences, trainers.WordLevelTrainer(vocab_size=num_words, special_tokens=special)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", help="a parquet file with the columns sentence and label")
    parser.add_argument("--test", help="the same, to test with")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    train_data, test_data = own_sentences()
    if options.train:
        train_data, test_data = map(Dataset.from_parquet, (options.train, options.test))
    tokenizer = tokenizer_for(train_data["sentence"])
    train_data, test_data = (
        data.map(lambda rows: tokenizer(rows["sentence"], truncation=True), batched=True)
        for data in (train_data, test_data)
    )

    accuracies = {}
    for rule in ("full", "mean"):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128,
            num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            trainer = InfoBatchTrainer(
                BertForSequenceClassification(config),
                TrainingArguments(
                    folder,
                    num_train_epochs=options.epochs,
                    per_device_train_batch_size=16,
                    learning_rate=1e-3,
                    save_strategy="no",
                    logging_strategy="epoch",
                    report_to=[],
                    dataloader_pin_memory=torch.accelerator.is_available(),
                ),
                DataCollatorWithPadding(tokenizer),
                train_data,
                test_data,
                compute_metrics=accuracy,
            )
            trainer.rule = rule
            trainer.train()
            accuracies[rule] = trainer.evaluate()["eval_accuracy"]
        saved = trainer.pruner.savings.fraction
        print(f"{rule}: accuracy {accuracies[rule]:.1%}, {saved:.1%} of the samples saved")
    return accuracies


if __name__ == "__main__":
    main()
