"""Inner products between samples, a few rows of their matrix at a time.

Greedy methods need one row of an n x n matrix per pick. Computing a row alone is bound by memory,
and the whole matrix does not fit. `Rows` computes a block: the row asked for and those of the
samples that are likeliest to be picked next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from infobatch.selection.statistics import Statistics

BLOCK = 1 << 23
"""Numbers in a block of rows at most, 32 MB in single precision: 167 rows for 50,000 samples, the
whole matrix for up to 2,896."""

RowsOf = Callable[[Tensor], Tensor]
"""Gives the rows of an n x n matrix that belong to some samples: (len(indices), n)."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """One vector per sample, as the factors of an outer product.

    The last layer's gradient of a sample is the outer product of its error e and its input
    [1, h], so <g_i, g_j> = <e_i, e_j> (1 + <h_i, h_j>): products need the factors alone.

    >>> vectors = Vectors((torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 3.0], [1.0, 4.0]])))
    >>> vectors.products(torch.tensor([0]))
    tensor([[10., 26.]])
    """

    factors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.factors[0])

    def take(self, indices: Tensor) -> Vectors:
        return Vectors(tuple(factor[indices] for factor in self.factors))

    def products(self, indices: Tensor) -> Tensor:
        """Inner products of some vectors with all, (len(indices), n)."""
        first, *others = (factor[indices] @ factor.T for factor in self.factors)
        for other in others:
            first *= other
        return first

    def squared_norms(self) -> Tensor:
        norms = torch.ones_like(self.factors[0][:, 0])
        for factor in self.factors:
            norms = norms * (factor * factor).sum(1)
        return norms

    def normalized(self) -> Vectors:
        """Of length 1; a vector of length 0 stays as it is."""
        return Vectors(tuple(torch.nn.functional.normalize(f, dim=1) for f in self.factors))

    def products_with_sum(self) -> Tensor:
        """The inner product of each vector with the sum of all, in float64."""
        if len(self.factors) == 1:
            (rows,) = self.factors
            return (rows @ rows.sum(0)).double()
        left, right = self.factors
        return ((left @ (left.T @ right)) * right).sum(1).double()


def features(statistics: Statistics) -> Vectors:
    """The features of each sample."""
    return Vectors((statistics.require("features"),))


def gradients(statistics: Statistics) -> Vectors:
    """The gradient of each sample's cross entropy by the last layer's bias and weights."""
    inputs = statistics.require("features")
    errors = statistics.errors().to(inputs.dtype)
    return Vectors((errors, with_one(inputs)))


def with_one(inputs: Tensor) -> Tensor:
    """The features behind a 1, which stands for the bias."""
    return torch.cat([inputs.new_ones(len(inputs), 1), inputs], dim=1)


def cosine_similarities(vectors: Vectors) -> RowsOf:
    """Rows of 0.5 + 0.5 cos, which is from 0 to 1."""
    normalized = vectors.normalized()

    def rows_of(indices: Tensor) -> Tensor:
        return normalized.products(indices).mul_(0.5).add_(0.5)

    return rows_of


def squared_distances(vectors: Vectors) -> RowsOf:
    """Rows of the squared Euclidean distances."""
    norms = vectors.squared_norms()

    def rows_of(indices: Tensor) -> Tensor:
        rows = vectors.products(indices).mul_(-2).add_(norms).add_(norms[indices].unsqueeze(1))
        rows.clamp_(min=0)
        # Rounding leaves a little here, of which a square root would make more.
        rows[torch.arange(len(indices), device=indices.device), indices] = 0
        return rows

    return rows_of


class Rows:
    """Rows of an n x n matrix, one at a time, computed in blocks.

    A block holds the row asked for and those of the samples with the highest priority. It doubles
    while at least half of the last block was asked for, and is halved otherwise: where the next
    picks cannot be foreseen, single rows are computed.
    """

    def __init__(self, rows_of: RowsOf, num_samples: int) -> None:
        self._rows_of = rows_of
        self._widest = min(num_samples, rows_in_block(num_samples))
        self._width = num_samples if self._widest == num_samples else 1
        self._block: dict[int, Tensor] = {}
        self._asked: set[int] = set()

    def get(self, index: int, priority: Tensor) -> Tensor:
        """The row of a sample, where `priority` says which samples are likely to be next."""
        if index not in self._block:
            self._compute(index, priority)
        self._asked.add(index)
        return self._block[index]

    def _compute(self, index: int, priority: Tensor) -> None:
        if self._block:
            was_useful = 2 * len(self._asked) >= len(self._block)
            width = self._width * 2 if was_useful else self._width // 2
            self._width = max(1, min(width, self._widest))
        likely = priority.topk(self._width).indices
        if not (likely == index).any():
            likely[-1] = index
        self._asked.clear()
        self._block = dict(zip(likely.tolist(), self._rows_of(likely), strict=True))


def kept_if_small(rows_of: RowsOf, num_samples: int, device: torch.device) -> RowsOf:
    """The same rows, from memory where the whole matrix fits a block."""
    if num_samples > rows_in_block(num_samples):
        return rows_of
    matrix = rows_of(torch.arange(num_samples, device=device))
    return matrix.__getitem__


def sums_of_rows(rows_of: RowsOf, num_samples: int, device: torch.device) -> Tensor:
    """The sum of each row, in float64, without holding the matrix."""
    sums = [
        rows_of(block).sum(1, dtype=torch.float64)
        for block in torch.arange(num_samples, device=device).split(rows_in_block(num_samples))
    ]
    return torch.cat(sums)


def rows_in_block(num_columns: int) -> int:
    """How many rows of so many columns a block may have."""
    return max(1, BLOCK // num_columns)
