"""Notes from a training loop: which samples were right, and how their predictions moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from infobatch.errors import StateError, check_whole
from infobatch.selection.statistics import Statistics
from infobatch.selection.table import METHODS, find

EPSILON = 1e-8
"""Inside the logarithm, so that a probability of 0 has one."""


class Visits:
    """Records the predictions of a training loop, for the methods `forgetting` and `tdds`.

    A visit is one training of a sample, so a sample that an epoch skips has one visit fewer. `tdds`
    needs the last probabilities of each sample; name it only if you use it, to save this memory.

    >>> visits = Visits(2)
    >>> visits.record([1, 0], torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
    >>> visits.statistics().correct
    tensor([[0],
            [1]], dtype=torch.int8)
    """

    def __init__(self, num_samples: int, methods: Iterable[str] | str = "forgetting") -> None:
        self.num_samples = check_whole("num_samples", num_samples, at_least=1)
        """The size of the data set."""
        self._needs = {need for method in names(methods) for need in METHODS[method].needs}
        if missing := self._needs - {"correct", "changes"}:
            raise ValueError(
                f"methods need {', '.join(sorted(missing))}, expected methods that look at visits "
                "(forgetting, tdds): use selection.collect for the others."
            )
        self._num_visits = torch.zeros(num_samples, dtype=torch.int64)
        self._correct: list[Tensor] = []
        self._changes: list[Tensor] = []
        self._last: Tensor | None = None

    def record(self, indices: Tensor | Sequence[int], logits: Tensor, labels: Tensor) -> None:
        """Record one batch: the indices of its samples, the model's logits, and the labels."""
        indices, labels = torch.as_tensor(indices).cpu(), torch.as_tensor(labels).cpu()
        logits = logits.detach().cpu().float()
        if logits.dim() != 2 or not len(indices) == len(labels) == len(logits):
            raise ValueError(
                f"logits has shape {tuple(logits.shape)} for {len(indices)} indices and "
                f"{len(labels)} labels, expected (batch, classes) and one of each per sample."
            )
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.num_samples:
            raise ValueError(
                f"indices go from {int(indices.min())} to {int(indices.max())}, expected 0 to "
                f"{self.num_samples - 1}: positions in the data set."
            )
        visit = self._num_visits[indices]
        correct = (logits.argmax(1) == labels).to(torch.int8)
        _put(self._correct, visit, indices, correct, torch.full((self.num_samples,), -1).char())
        if "changes" in self._needs:
            self._record_change(visit, indices, logits.softmax(1))
        self._num_visits[indices] = visit + 1

    def _record_change(self, visit: Tensor, indices: Tensor, new: Tensor) -> None:
        if self._last is None:
            self._last = torch.zeros(self.num_samples, new.shape[1])
        ratio = ((new + EPSILON) / (self._last[indices] + EPSILON)).log()
        change = (new * ratio).abs().sum(1)
        again = visit > 0  # a first visit has nothing to be compared with
        nothing = torch.full((self.num_samples,), torch.nan)
        _put(self._changes, visit[again] - 1, indices[again], change[again], nothing)
        self._last[indices] = new

    def statistics(self) -> Statistics:
        """The statistics of all visits so far."""
        found: dict[str, Any] = {}
        if "correct" in self._needs:
            found["correct"] = _stack(self._correct, self.num_samples, torch.int8)
        if "changes" in self._needs:
            found["changes"] = _stack(self._changes, self.num_samples, torch.float32)
        return Statistics(self.num_samples, **found)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to continue, as plain tensors."""
        return {
            "num_visits": self._num_visits.clone(),
            "correct": _stack(self._correct, self.num_samples, torch.int8),
            "changes": _stack(self._changes, self.num_samples, torch.float32),
            "last": torch.empty(0) if self._last is None else self._last.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict()` was taken."""
        if len(state["num_visits"]) != self.num_samples:
            raise StateError(
                f"state has visits of {len(state['num_visits'])} samples, expected "
                f"{self.num_samples}: it belongs to another data set.",
                "other-statistics",
            )
        self._num_visits = state["num_visits"].clone()
        self._correct = [row.clone() for row in state["correct"].unbind(1)]
        self._changes = [row.clone() for row in state["changes"].unbind(1)]
        self._last = state["last"].clone() if state["last"].numel() else None


def names(methods: Iterable[str] | str) -> list[str]:
    """The names of methods, each of which exists: `names("herding") == ["herding"]`."""
    found = [methods] if isinstance(methods, str) else list(methods)
    return [find(name).name for name in found]


def _put(rows: list[Tensor], visit: Tensor, indices: Tensor, values: Tensor, empty: Tensor) -> None:
    """Write each value into the row of its visit, adding rows as they are needed."""
    for number in visit.unique().tolist():
        if number == len(rows):
            rows.append(empty.clone())
        at = visit == number
        rows[number][indices[at]] = values[at]


def _stack(rows: list[Tensor], num_samples: int, dtype: torch.dtype) -> Tensor:
    return torch.stack(rows, 1) if rows else torch.empty(num_samples, 0, dtype=dtype)
