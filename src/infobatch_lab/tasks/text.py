"""Text classification: a pretrained encoder, fine-tuned for a few epochs; accuracy on a test split.

`sst2` is SST-2 (Socher et al., 2013), sentences and phrases from film reviews, of which 6,000 are
trained on; `sst2-all` has all of them; `text:PATH` is a table of a user's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from infobatch_lab.download import Fetching, Source, fetch
from infobatch_lab.errors import UserError
from infobatch_lab.language import attention_mask, by_length, padded, transformers
from infobatch_lab.metrics import ACCURACY
from infobatch_lab.processes import rank, total, world_size
from infobatch_lab.tables import Row, incomplete, is_missing, read_splits, text_of
from infobatch_lab.tasks.base import BatchLosses, Forward, Recipe, Task
from infobatch_lab.weights import MINILM, path_of

if TYPE_CHECKING:
    from infobatch_lab.settings import Settings

MAX_TOKENS = 128
"""Longer texts are cut. Those of SST-2 have 66 at most."""

EVAL_BATCH = 64

CHUNK = 8
"""So many texts of similar length go through the network together."""

NUM_SST2 = 6000

COLUMNS = ("text", "sentence")


@dataclass(frozen=True, eq=False)
class TextData:
    """Texts to train and to test on, and the number of the class of each."""

    train: tuple[list[str], Tensor]
    test: tuple[list[str], Tensor]
    num_classes: int


class Tokenised(Dataset[tuple[Tensor, Tensor]]):
    """Texts as tokens, and their labels: `Tokenised(tokens, labels)[0]`."""

    def __init__(self, tokens: Sequence[Tensor], labels: Tensor) -> None:
        self.tokens = tokens
        self.labels = labels

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tokens[index], self.labels[index]

    def __len__(self) -> int:
        return len(self.labels)


class ByLength(nn.Module):
    """A text classifier that spends little time on padding; its logits are the same.

    Most texts of a batch are much shorter than its longest one. So the batch goes through the
    encoder in chunks of similar length, each padded to its own longest text. The word embeddings
    are looked up once for all chunks: their gradient is as large as the vocabulary.
    """

    network: Any

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        words = self.network.get_input_embeddings()(input_ids)
        lengths = attention_mask.sum(1)
        order = lengths.argsort(descending=True, stable=True)
        longest_of = lengths[order[::CHUNK]].tolist()  # the only values read back from the device
        logits = []
        for rows, longest in zip(order.split(CHUNK), longest_of, strict=True):
            inputs = {
                "inputs_embeds": words[rows, :longest],
                "attention_mask": attention_mask[rows, :longest],
            }
            logits.append(self.network(**inputs).logits)
        return torch.cat(logits)[order.argsort()]


class TextClassification(Task):
    """Texts with labels, and a pretrained encoder with a new head."""

    name = "text classification"
    metric = ACCURACY
    models = ("minilm-l6",)

    train: Tokenised

    def __init__(self, data: TextData, weights: Path) -> None:
        self._weights = weights
        self._num_classes = data.num_classes
        tokenizer = transformers().AutoTokenizer.from_pretrained(weights)

        def tokenised(texts: list[str], labels: Tensor) -> Tokenised:
            tokens = tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]
            return Tokenised([torch.tensor(sequence) for sequence in tokens], labels)

        self.train = tokenised(*data.train)
        self.test = tokenised(*data.test)
        self.num_test = len(self.test)
        self.collate = partial(collate, pad_token=tokenizer.pad_token_id)

    def network(self, settings: Settings) -> nn.Module:
        network: nn.Module = transformers().AutoModelForSequenceClassification.from_pretrained(
            self._weights, num_labels=self._num_classes
        )
        return ByLength(network)

    def batch_losses(
        self, forward: Forward, batch: Any, settings: Settings, rng: torch.Generator
    ) -> BatchLosses:
        inputs, labels = batch
        # Dropout draws from torch's global generator, whose state is in the frame's checkpoints.
        return BatchLosses(cross_entropy(forward(**inputs).float(), labels, reduction="none"))

    @torch.inference_mode()
    def evaluate(self, network: nn.Module, settings: Settings, *, final: bool) -> dict[str, float]:
        """Each process tests its part of the test split."""
        device = next(network.parameters()).device
        num_right = torch.zeros((), dtype=torch.float64, device=device)
        for places in by_length(self.test.tokens, EVAL_BATCH)[rank() :: world_size()]:
            inputs, labels = self.collate([self.test[place] for place in places])
            inputs = {name: part.to(device) for name, part in inputs.items()}
            num_right += (network(**inputs).argmax(1) == labels.to(device)).sum()
        return {"accuracy": float(total(num_right)) / self.num_test}


def collate(
    items: list[tuple[Tensor, Tensor]], *, pad_token: int
) -> tuple[dict[str, Tensor], Tensor]:
    """A batch as the network takes it, and its labels."""
    tokens, labels = zip(*items, strict=True)
    inputs = {"input_ids": padded(tokens, pad_token), "attention_mask": attention_mask(tokens)}
    return inputs, torch.stack(labels)


# Data ---------------------------------------------------------------------------------------------


def read_sst2(folder: Path, progress: Fetching, num_train: int | None = None) -> TextData:
    """A table, or GLUE's own files, which are fetched if there is neither.

    `num_train` of the sentences, by their places in the files: the same for every run.
    """
    path = folder / "sst2.parquet"
    if not path.exists():
        path = folder / "SST-2"
        if missing := [name for name in ("train.tsv", "dev.tsv") if not (path / name).exists()]:
            fetch(GLUE, path, progress, missing=missing)
    data = read_texts(path)
    texts, labels = data.train
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:num_train]
    train = [texts[place] for place in order.tolist()], labels[order]
    return TextData(train, data.test, data.num_classes)


def read_texts(path: Path) -> TextData:
    """A table, or a folder of two, with the columns `text` (or `sentence`) and `label`."""
    train, test = read_splits(path)
    if not any("label" in row for row in train):
        raise UserError(f"{path} has no column label, expected one beside the text.")
    labels = {label_of(row, path) for row in train}
    if len(labels) < 2:
        raise UserError(
            f"{path} has the labels {sorted(labels)} to train on, expected at least two different "
            "ones."
        )
    classes = {label: number for number, label in enumerate(sorted(labels))}

    def split(rows: list[Row]) -> tuple[list[str], Tensor]:
        found = [label_of(row, path) for row in rows]
        if unknown := sorted(set(found) - set(classes)):
            raise UserError(
                f"{path} has the label {unknown[0]!r} in a row to test on, which is in none to "
                "train on."
            )
        texts = [text_of(row, COLUMNS, path) for row in rows]
        return texts, torch.tensor([classes[label] for label in found])

    return TextData(split(train), split(test), len(classes))


def label_of(row: Row, path: Path) -> str:
    """The label of a row as a text; words and numbers are both fine."""
    if is_missing(row.get("label")):
        raise incomplete(row, "a label", path)
    return str(row["label"])


def sst2(folder: Path, progress: Fetching, *, num_train: int | None) -> TextClassification:
    """SST-2 and the encoder's weights."""
    return TextClassification(read_sst2(folder, progress, num_train), path_of(MINILM, progress))


def own_texts(path: Path, progress: Fetching) -> TextClassification:
    """A user's own table and the encoder's weights."""
    return TextClassification(read_texts(path), path_of(MINILM, progress))


GLUE = Source(
    ("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",), "9f81648d4199384278b86e315dac217c"
)
SST2 = "sst2.parquet`, or `SST-2/{train,dev}.tsv"
DEFAULTS = {
    "model": "minilm-l6",
    "epochs": 5,
    "batch_size": 32,
    "optimizer": "adamw",
    "lr": 1e-4,
}

RECIPES: dict[str, Recipe] = {
    "sst2": Recipe(TextClassification, partial(sst2, num_train=NUM_SST2), SST2, DEFAULTS),
    "sst2-all": Recipe(TextClassification, partial(sst2, num_train=None), SST2, DEFAULTS),
    "text:": Recipe(TextClassification, own_texts, "", DEFAULTS),
}
