"""epsilon-greedy and UCB against sample-by-sample references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from infobatch.plan import draw
from infobatch.rules import UCB, EpsilonGreedy, Memory
from infobatch.rules.bandits import highest


@example(values=[0] * 5 + [1] * 23, prune_ratio=0.09375, epsilon=0.1)  # halves in both groups
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=50),
    st.floats(0, 0.95),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_the_highest_are_kept_and_the_count_is_right(
    values: list[int], prune_ratio: float, epsilon: float
) -> None:
    scores = torch.tensor(values).float()
    plan = draw(highest(scores, prune_ratio, epsilon), seed=1, epoch=1)
    num_kept = max(1, round(len(values) * (1 - prune_ratio)))
    num_greedy = round(num_kept * (1 - epsilon))
    kept = set(plan.indices.tolist())
    assert len(kept) == num_kept
    if num_greedy:
        cut = sorted(values)[-num_greedy]
        assert {i for i, v in enumerate(values) if v > cut} <= kept
        assert sum(values[i] >= cut for i in kept) >= num_greedy


def test_ties_are_broken_by_the_draw_not_by_position() -> None:
    scores = torch.zeros(100)
    kept = [set(draw(highest(scores, 0.5), seed, 1).indices.tolist()) for seed in range(20)]
    assert all(len(k) == 50 for k in kept)
    assert set.union(*kept) == set(range(100))


def visit(rule: EpsilonGreedy | UCB, losses: list[list[float | None]]) -> Memory:
    memory = rule.init(len(losses[0]))
    scores = torch.full((len(losses[0]),), torch.nan)
    for epoch, row in enumerate(losses):
        indices = torch.tensor([i for i, v in enumerate(row) if v is not None])
        values = torch.tensor([v for v in row if v is not None])
        memory = rule.remember(scores, memory, epoch, indices, values)
        scores[indices] = values
    return memory


HISTORY: list[list[float | None]] = [[1.0, 4.0, 2.0], [3.0, None, 2.5], [0.5, 1.0, None]]


def test_moving_average_and_variance_follow_their_definition() -> None:
    a = 0.8
    expected_u, expected_var = [], []
    for sample in range(3):
        u = var = None
        for row in HISTORY:
            loss = row[sample]
            if loss is None:
                continue
            if u is None or var is None:
                u, var = loss, 0.0
            else:
                var = (1 - a) * var + a * (loss - u) ** 2
                u = (1 - a) * u + a * loss
        expected_u.append(u)
        expected_var.append(var)
    memory = visit(UCB(alpha=a), HISTORY)
    assert memory["u"].tolist() == pytest.approx(expected_u)
    assert memory["var"].tolist() == pytest.approx(expected_var)
    assert visit(EpsilonGreedy(alpha=a), HISTORY)["u"].tolist() == pytest.approx(expected_u)


def test_ucb_prefers_an_uncertain_sample_to_a_steady_one() -> None:
    memory = visit(UCB(), [[1.0, 0.0, 0.5], [1.0, 2.0, 0.5]])
    groups = UCB(prune_ratio=0.66).groups(torch.tensor([1.0, 2.0, 0.5]), memory, 2)
    assert draw(groups, 0, 2).indices.tolist() == [1]
    ignoring_variance = UCB(prune_ratio=0.4, c=0.0).groups(torch.tensor([1.0, 2.0, 0.5]), memory, 2)
    assert set(draw(ignoring_variance, 0, 2).indices.tolist()) == {0, 1}
