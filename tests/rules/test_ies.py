"""IES against the whole history of each sample."""

from __future__ import annotations

from math import isfinite, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch import Pruner
from infobatch.plan import draw
from infobatch.rules import IES, Revisit

loss = st.one_of(st.integers(0, 3).map(float), st.none(), st.just(nan))


def is_mastered(history: list[float], threshold: float) -> bool:
    last = history[-5:]
    if len(last) < 5 or not all(isfinite(value) for value in last):
        return False
    differences = [last[i] - 2 * last[i + 1] + last[i + 2] for i in range(3)]
    return sum(abs(value) for value in differences) / 3 < threshold


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(st.lists(loss, min_size=n, max_size=n), min_size=5, max_size=12)
    ),
    st.sampled_from([0.5, 1.1, 2.5]),
)
def test_mastered_is_what_its_last_five_losses_say(
    epochs: list[list[float | None]], threshold: float
) -> None:
    """None: the sample was not trained in that epoch."""
    num_samples = len(epochs[0])
    rule, scores = IES(threshold), torch.full((num_samples,), nan)
    memory = rule.init(num_samples)
    histories: list[list[float]] = [[] for _ in range(num_samples)]
    for epoch, losses in enumerate(epochs):
        trained = [i for i, value in enumerate(losses) if value is not None]
        values = torch.tensor([losses[i] for i in trained], dtype=torch.float32)
        memory = rule.remember(
            scores, memory, epoch, torch.tensor(trained, dtype=torch.int64), values
        )
        scores[trained] = values
        for i in trained:
            histories[i].append(float(losses[i] or 0))
    mastered = [is_mastered(history, threshold) for history in histories]
    plan = draw(rule.groups(scores, memory, len(epochs)), seed=0, epoch=0)
    expected = {i for i in range(num_samples) if not mastered[i]} or set(range(num_samples))
    assert set(plan.indices.tolist()) == expected


def test_what_is_dropped_stays_dropped_unless_it_is_revisited() -> None:
    """Sample 0 is steady until epoch 6, and then forgotten."""

    def epochs_of_sample_0(rule: IES | Revisit) -> list[int]:
        pruner, trained = Pruner(10, 30, delta=1, rule=rule), []
        for epoch in range(30):
            indices = pruner.plan.indices
            if 0 in indices.tolist():
                trained.append(epoch)
            wiggling = torch.full((len(indices),), float(epoch % 3))
            losses = torch.where(indices == 0, 0.0 if epoch < 6 else wiggling, wiggling)
            pruner.update(losses, indices)
        return trained

    assert epochs_of_sample_0(IES()) == [0, 1, 2, 3, 4]
    revisited = epochs_of_sample_0(Revisit(IES(), 3))
    assert revisited[:6] == [0, 1, 2, 3, 4, 8]
    assert revisited[6:] == list(range(9, 30))  # its loss has changed, so it is back


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"threshold is 0, expected a number above 0"):
        IES(0)
