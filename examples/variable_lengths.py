"""Sequences of varying length, sorted by length in the `collate_fn`, for packed sequences in a GRU.

`python examples/variable_lengths.py FILE`: each line of FILE is a label, a tab and a text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, random_split

import infobatch


class Texts(Dataset[tuple[Tensor, int]]):
    """Item: the bytes of a text, and the number of its label."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = [line.split("\t", maxsplit=1) for line in lines]
        self.classes = sorted({label for label, _ in pairs})
        self.items = [
            (torch.tensor(list(text.encode() or b" ")), self.classes.index(label))
            for label, text in pairs
        ]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)


def longest_first(pairs: list[tuple[int, tuple[Tensor, int]]]) -> Any:
    """Of pairs (index, item), a batch in order of length. The indices go along in that order."""
    pairs = sorted(pairs, key=lambda pair: len(pair[1][0]), reverse=True)
    texts = [text for _, (text, _) in pairs]
    indices = torch.tensor([index for index, _ in pairs])
    labels = torch.tensor([label for _, (_, label) in pairs])
    return (
        indices,
        pad_sequence(texts, batch_first=True),
        torch.tensor(list(map(len, texts))),
        labels,
    )


class Classifier(nn.Module):
    def __init__(self, num_classes: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, num_classes)

    def forward(self, texts: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(texts), lengths, batch_first=True)
        _, last = self.gru(packed)
        logits: Tensor = self.head(last[-1])
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()

    torch.manual_seed(0)
    texts = Texts(options.file)
    to_train, to_test = random_split(texts, [0.8, 0.2])
    train_data = infobatch.InfoBatch(to_train, options.epochs)
    loader = DataLoader(
        train_data.with_indices(),
        batch_sampler=train_data.batches(options.batch_size),
        collate_fn=longest_first,
    )
    model = Classifier(len(texts.classes))
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        for indices, x, lengths, y in loader:
            loss = train_data.update(criterion(model(x, lengths), y), indices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, train_data.metrics)

    with torch.no_grad():
        _, x, lengths, y = longest_first(list(enumerate(to_test)))  # type: ignore[arg-type]
        accuracy = (model(x, lengths).argmax(1) == y).float().mean()
    print(f"accuracy {accuracy:.1%}, {train_data.savings.fraction:.0%} of the samples saved")


if __name__ == "__main__":
    main()
