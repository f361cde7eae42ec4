"""Rules made of rules: until an epoch, every T epochs, per class."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from infobatch.errors import check_whole
from infobatch.groups import Groups
from infobatch.rules.base import Memory, Rule, everything


def _contains(rule: Rule, kinds: tuple[type[Rule], ...]) -> bool:
    """Whether a rule is, or is made of, one of these."""
    inner = getattr(rule, "rule", None)
    return isinstance(rule, kinds) or (isinstance(inner, Rule) and _contains(inner, kinds))


@dataclass(frozen=True)
class Until(Rule):
    """The rule while `epoch < until`, then every sample. With delta * C this is Eq. 10's annealing.

    >>> from infobatch.rules import Mean
    >>> Until(Mean(), 78.75).unbiased
    True
    """

    rule: Rule
    until: float

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        return self.rule.groups(scores, memory, epoch) if epoch < self.until else everything(scores)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        return self.rule.remember(scores, memory, epoch, indices, losses)


@dataclass(frozen=True)
class Every(Rule):
    """Decides every `period` epochs and holds the selection in between, shuffled anew each epoch.

    A decision that prunes nothing is not held: there is no selection yet. Each epoch's expected
    weights are those of the rule; the draws of one period are the same, not independent.

    >>> from infobatch.rules import Mean
    >>> Every(Mean(), 10).unbiased
    True
    """

    rule: Rule
    period: int

    def __post_init__(self) -> None:
        check_whole("period", self.period, at_least=1)
        if _contains(self.rule, (Every, Until)):
            raise TypeError(
                f"Every({self.rule!r}) would hold what is decided inside longer than it lasts: put "
                "Every inside, as in Until(Every(rule, period), epoch), and once."
            )

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        if "held.of" in memory:
            decided = int(memory["held.epoch"])
            if decided <= epoch < decided + self.period:
                return Groups(
                    of=memory["held.of"],
                    keep=tuple(memory["held.keep"].tolist()),
                    rescale=bool(memory["held.rescale"]),
                    drawn_in=decided,
                )
        return replace(self.rule.groups(scores, _without_held(memory), epoch), drawn_in=epoch)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        groups = self.groups(scores, memory, epoch)
        inner = _without_held(memory)
        remembered = dict(self.rule.remember(scores, inner, epoch, indices, losses))
        if any(fraction < 1 for fraction in groups.keep):
            remembered["held.of"] = groups.of
            remembered["held.keep"] = torch.tensor(groups.keep, dtype=torch.float64)
            remembered["held.rescale"] = torch.tensor(groups.rescale)
            remembered["held.epoch"] = torch.tensor(groups.drawn_in)
        return remembered


def _without_held(memory: Memory) -> Memory:
    """What the rule inside remembers, which is per sample; what is held is not."""
    return {name: values for name, values in memory.items() if not name.startswith("held.")}


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PerClass(Rule):
    """The rule inside each class by itself: thresholds and counts are those of the class.

    >>> from infobatch.rules import Mean
    >>> PerClass(Mean(), labels=[0, 0, 1, 1, 1]).unbiased
    True
    """

    rule: Rule
    members: tuple[Tensor, ...]
    """The samples of each class."""
    checksum: int

    def __init__(self, rule: Rule, labels: Tensor | Sequence[int]) -> None:
        if _contains(rule, (Every,)):
            raise TypeError(
                "PerClass(Every(rule)) cannot be held per class; write Every(PerClass(rule))."
            )
        classes = np.asarray(labels)
        if classes.ndim != 1 or classes.dtype.kind not in "iu" or len(classes) == 0:
            raise ValueError(
                "labels must be one whole number per sample: pass the data set's targets."
            )
        by_class = np.argsort(classes, kind="stable")
        starts = np.flatnonzero(np.diff(classes[by_class])) + 1
        members = tuple(torch.from_numpy(part) for part in np.split(by_class, starts))
        object.__setattr__(self, "rule", rule)
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "checksum", zlib.crc32(classes.astype(np.int64).tobytes()))

    def __repr__(self) -> str:
        return f"PerClass({self.rule!r}, {len(self.members)} classes, checksum {self.checksum:08x})"

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
        num_labels = sum(len(members) for members in self.members)
        if num_labels != len(scores):
            raise ValueError(
                f"labels has {num_labels} entries for {len(scores)} samples, expected one each."
            )
        of = torch.empty(len(scores), dtype=torch.int32)
        keep: list[float] = []
        rescale = True
        for members in self.members:
            part = {name: values[members] for name, values in memory.items()}
            groups = self.rule.groups(scores[members], part, epoch)
            of[members] = groups.of.int() + len(keep)
            keep.extend(groups.keep)
            rescale = rescale and groups.rescale
        small = torch.uint8 if len(keep) <= 256 else torch.int32
        return Groups(of=of.to(small), keep=tuple(keep), rescale=rescale)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        # What rules remember is per sample, so the classes need not be told apart here.
        return self.rule.remember(scores, memory, epoch, indices, losses)
