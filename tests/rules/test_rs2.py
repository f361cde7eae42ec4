"""RS2 against what a walked permutation does."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch import Pruner
from infobatch.rules import RS2


def chunks(num_samples: int, prune_ratio: float, num_epochs: int, seed: int) -> list[list[int]]:
    """The samples of each epoch after the first, which is a full one."""
    pruner = Pruner(num_samples, num_epochs + 1, delta=1, rule=RS2(prune_ratio), seed=seed)
    walked = []
    for _ in range(num_epochs + 1):
        indices = pruner.plan.indices
        walked.append(indices.tolist())
        pruner.update(torch.ones(len(indices)), indices)
    assert sorted(walked[0]) == list(range(num_samples))
    return walked[1:]


@pytest.mark.slow
@given(st.integers(1, 40), st.floats(0, 0.99), st.integers(0, 1000))
def test_none_is_trained_twice_before_all_were_trained(
    num_samples: int, prune_ratio: float, seed: int
) -> None:
    times = dict.fromkeys(range(num_samples), 0)
    for chunk in chunks(num_samples, prune_ratio, 12, seed):
        assert len(chunk) == len(set(chunk)) == max(1, round(num_samples * (1 - prune_ratio)))
        for sample in chunk:
            times[sample] += 1
        assert max(times.values()) - min(times.values()) <= 1


@pytest.mark.slow
def test_each_chunk_is_a_random_part_of_what_is_left() -> None:
    """Four samples in chunks of two: any first half, all equally often, and then the other half."""
    first: Counter[tuple[int, ...]] = Counter()
    for seed in range(1200):
        one, two, three = chunks(4, 0.5, 3, seed)
        assert sorted(one + two) == [0, 1, 2, 3]
        first[tuple(sorted(one))] += 1
        first[tuple(sorted(three))] += 1  # a new round
    assert len(first) == 6
    assert all(count == pytest.approx(400, abs=5 * 400**0.5) for count in first.values())


def test_an_epoch_cut_short_goes_on_with_what_it_left() -> None:
    rule, scores = RS2(0.5), torch.ones(10)
    memory = rule.remember(scores, rule.init(10), 1, torch.arange(3), torch.ones(3))
    groups = rule.groups(scores, memory, 2)
    assert groups.of.tolist() == [2] * 3 + [1] * 7
    assert groups.keep == pytest.approx((1.0, 5 / 7, 0.0))
