"""Rules made of rules: until an epoch, every T epochs, again after T epochs, per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infobatch.errors import check_whole
from infobatch.groups import Groups, Probabilities, Selection
from infobatch.rules.base import Memory, Rule, everything, settle
from infobatch.rules.classes import Classes

NEVER = -1
"""In place of an epoch."""


def _contains(rule: Rule, kinds: tuple[type[Rule], ...]) -> bool:
    """Whether a rule is, or is made of, one of these."""
    inner = getattr(rule, "rule", None)
    return isinstance(rule, kinds) or (isinstance(inner, Rule) and _contains(inner, kinds))


@dataclass(frozen=True)
class Until(Rule):
    """Prunes by a rule while `epoch < until`, then trains every sample (Eq. 10: delta * C).

    >>> from infobatch.rules import Mean
    >>> Until(Mean(), 78.75).unbiased
    True
    """

    rule: Rule
    """The rule that decides before `until`."""
    until: float
    """The first epoch that is trained in full."""

    def __post_init__(self) -> None:
        settle(self, until=float(self.until))

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    @property
    def max_groups(self) -> int | None:
        return self.rule.max_groups

    def init(self, num_samples: int) -> Memory:
        return self.rule.init(num_samples)

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        return self.rule.groups(scores, memory, epoch) if epoch < self.until else everything(scores)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        return self.rule.remember(scores, memory, epoch, indices, losses)


@dataclass(frozen=True)
class Every(Rule):
    """Keeps the same selection of samples for `period` epochs, in a new order in each.

    A selection that prunes nothing is not kept. Each epoch's expected weights are those of the
    rule, but the epochs of one period share a draw and are not independent.

    >>> from infobatch.rules import Mean
    >>> Every(Mean(), 10).unbiased
    True
    """

    rule: Rule
    """The rule that makes the selection."""
    period: int

    def __post_init__(self) -> None:
        settle(self, period=check_whole("period", self.period, at_least=1))
        if _contains(self.rule, (Revisit,)):
            raise TypeError(f"Every({self.rule!r}) holds what Revisit changes: use one of them.")
        if _contains(self.rule, (Every, Until)):
            raise TypeError(
                f"Every({self.rule!r}) would hold what is decided inside longer than it lasts: put "
                "Every inside, as in Until(Every(rule, period), epoch), and once."
            )

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    @property
    def max_groups(self) -> int | None:
        return self.rule.max_groups

    def init(self, num_samples: int) -> Memory:
        held = {"held.epoch": torch.tensor(NEVER), "held.rescale": torch.tensor(False)}
        if self.max_groups is None:
            held["held.p"] = torch.ones(num_samples, dtype=torch.float32)
        else:
            held["held.of"] = torch.zeros(num_samples, dtype=group_dtype(self.max_groups))
            held["held.keep"] = torch.full((self.max_groups,), torch.nan, dtype=torch.float64)
        return {**self.rule.init(num_samples), **held}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        decided = int(memory["held.epoch"])
        if decided != NEVER and decided <= epoch < decided + self.period:
            return _held(memory)
        return replace(self.rule.groups(scores, _without(memory, "held."), epoch), drawn_in=epoch)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        selection = self.groups(scores, memory, epoch)
        inner = self.rule.remember(scores, _without(memory, "held."), epoch, indices, losses)
        return {**memory, **inner, **(self._hold(selection) if selection.prunes else {})}

    def _hold(self, selection: Selection) -> Memory:
        """The part of memory that `_held` makes the selection of again."""
        held = {
            "held.epoch": torch.tensor(selection.drawn_in),
            "held.rescale": torch.tensor(selection.rescale),
        }
        if isinstance(selection, Probabilities):
            if self.max_groups is None:
                return {**held, "held.p": selection.p}
        elif self.max_groups is not None and len(selection.keep) <= self.max_groups:
            padding = (torch.nan,) * (self.max_groups - len(selection.keep))
            of = selection.of.to(group_dtype(self.max_groups))
            keep = torch.tensor((*selection.keep, *padding), dtype=torch.float64)
            return {**held, "held.of": of, "held.keep": keep}
        raise ValueError(
            f"{self.rule!r} has max_groups {self.max_groups} and made {_kind(selection)}: let "
            "max_groups be the most groups it makes, or None for a probability per sample."
        )


def group_dtype(num_groups: int) -> torch.dtype:
    """The dtype of group numbers: `group_dtype(256)` is `torch.uint8`."""
    return torch.uint8 if num_groups <= 256 else torch.int32


def _held(memory: Memory) -> Selection:
    decided, rescale = int(memory["held.epoch"]), bool(memory["held.rescale"])
    if "held.p" in memory:
        return Probabilities(memory["held.p"], rescale=rescale, drawn_in=decided)
    keep = tuple(fraction for fraction in memory["held.keep"].tolist() if fraction == fraction)
    return Groups(memory["held.of"], keep, rescale=rescale, drawn_in=decided)


def _kind(selection: Selection) -> str:
    if isinstance(selection, Probabilities):
        return "a probability per sample"
    return f"{len(selection.keep)} groups"


def _without(memory: Memory, own: str) -> Memory:
    """The memory of the rule inside: all but what the combinator keeps under names of its own."""
    return {name: values for name, values in memory.items() if not name.startswith(own)}


@dataclass(frozen=True)
class Revisit(Rule):
    """Prunes by a rule, but skips no sample for more than `period` epochs in a row.

    Use it for rules that would skip a sample for ever, because the score of a skipped sample does
    not change.

    >>> from infobatch.rules import Kakurenbo
    >>> Revisit(Kakurenbo(), 5).unbiased
    False
    """

    rule: Rule
    """The rule that decides, until a sample was skipped for `period` epochs."""
    period: int

    def __post_init__(self) -> None:
        settle(self, period=check_whole("period", self.period, at_least=1))
        if _contains(self.rule, (Every, Revisit)):
            raise TypeError(
                f"Revisit({self.rule!r}) changes what is held or revisited inside: use one of them."
            )

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    @property
    def max_groups(self) -> int | None:
        most = self.rule.max_groups
        return None if most is None else most + 1

    def init(self, num_samples: int) -> Memory:
        trained_in = torch.full((num_samples,), NEVER, dtype=torch.int32)
        return {**self.rule.init(num_samples), "trained_in": trained_in}

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        selection = self.rule.groups(scores, _without(memory, "trained_in"), epoch)
        due = epoch - memory["trained_in"] > self.period
        if isinstance(selection, Probabilities):
            return replace(selection, p=selection.p.masked_fill(due, 1.0))
        keep = (*selection.keep, 1.0)
        of = selection.of.to(group_dtype(len(keep))).masked_fill(due, len(keep) - 1)
        return replace(selection, of=of, keep=keep)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        inner = _without(memory, "trained_in")
        trained_in = memory["trained_in"].clone()
        trained_in[indices] = epoch
        return {
            **self.rule.remember(scores, inner, epoch, indices, losses),
            "trained_in": trained_in,
        }


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PerClass(Rule):
    """Applies a rule inside each class, with thresholds and counts of the class.

    If the rule gives a probability per sample, the number kept is within one of their sum for the
    data set as a whole, not for each class.

    >>> from infobatch.rules import Mean
    >>> PerClass(Mean(), labels=[0, 0, 1, 1, 1]).unbiased
    True
    """

    rule: Rule
    """The rule that sees one class at a time."""
    classes: Classes
    """The labels, divided into classes."""

    def __init__(self, rule: Rule, labels: Tensor | Sequence[int]) -> None:
        if _contains(rule, (Every,)):
            raise TypeError(
                "PerClass(Every(rule)) cannot be held per class; write Every(PerClass(rule))."
            )
        for name, values in rule.init(2).items():
            if values.shape[:1] != (2,):
                raise TypeError(
                    f"{rule!r} remembers {name!r}, which is not per sample and cannot be divided "
                    "into classes: give it a row for each sample."
                )
        object.__setattr__(self, "rule", rule)
        object.__setattr__(self, "classes", Classes.of(labels))

    def __repr__(self) -> str:
        return f"PerClass({self.rule!r}, {self.classes!r})"

    @property
    def unbiased(self) -> bool:
        return self.rule.unbiased

    @property
    def max_groups(self) -> int | None:
        most = self.rule.max_groups
        return None if most is None else most * self.classes.num_classes

    def init(self, num_samples: int) -> Memory:
        return self.rule.init(num_samples)

    def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Selection:
        self.classes.check(len(scores))
        selections: list[Selection] = []
        for members in self.classes.members:
            remembered = {name: values[members] for name, values in memory.items()}
            selections.append(self.rule.groups(scores[members], remembered, epoch))
        rescale = all(selection.rescale for selection in selections)
        if any(isinstance(selection, Probabilities) for selection in selections):
            p = torch.empty(len(scores), dtype=torch.float32)
            for members, selection in zip(self.classes.members, selections, strict=True):
                p[members] = _per_sample(selection)
            return Probabilities(p, rescale=rescale)
        groups = [selection for selection in selections if isinstance(selection, Groups)]
        keep = tuple(fraction for part in groups for fraction in part.keep)
        of = torch.empty(len(scores), dtype=group_dtype(len(keep)))
        first = 0
        for members, part in zip(self.classes.members, groups, strict=True):
            of[members] = (part.of.int() + first).to(of.dtype)
            first += len(part.keep)
        return Groups(of=of, keep=keep, rescale=rescale)

    def remember(
        self, scores: Tensor, memory: Memory, epoch: int, indices: Tensor, losses: Tensor
    ) -> Memory:
        # What rules remember is per sample, so the classes need not be told apart here.
        return self.rule.remember(scores, memory, epoch, indices, losses)


def _per_sample(selection: Selection) -> Tensor:
    """The probability of each sample, where a class may also have groups (none seen, say)."""
    if isinstance(selection, Probabilities):
        return selection.p
    return torch.tensor(selection.keep, dtype=torch.float32)[selection.of.long()]
