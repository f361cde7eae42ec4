"""A plan divided among ranks, against the obvious way to do it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch.plan import Plan
from infobatch.share import Share


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, list[int]]:
    """A plan, and the places of it that are not done."""
    num_places = draw(st.integers(1, 40))
    indices = torch.randperm(60, generator=torch.Generator().manual_seed(num_places))[:num_places]
    weights = 1 + (torch.arange(num_places) % 3).float()
    to_do = sorted(draw(st.sets(st.integers(0, num_places - 1), min_size=1)))
    return Plan(3, indices, weights, num_samples=60), to_do


def shares(plan: Plan, to_do: list[int], num_ranks: int) -> list[Share]:
    done = torch.ones(len(plan), dtype=torch.bool)
    done[to_do] = False
    given = done if done.any() else None
    return [Share(plan, given, rank, num_ranks) for rank in range(num_ranks)]


@given(plans(), st.integers(1, 7))
def test_a_step_of_all_ranks_is_a_run_of_the_plan(
    plan_and_places: tuple[Plan, list[int]], num_ranks: int
) -> None:
    plan, to_do = plan_and_places
    of_rank = shares(plan, to_do, num_ranks)
    dealt = [
        (int(share.indices[row]), float(share.weights[row]))
        for row in range(len(of_rank[0]))
        for share in of_rank
    ]
    real, repeats = dealt[: len(to_do)], dealt[len(to_do) :]
    assert real == [(int(plan.indices[p]), float(plan.weights[p])) for p in to_do]
    assert len(repeats) < num_ranks
    assert all(weight == 0 for _, weight in repeats)
    # Whatever was done before a resume: layers such as batch norm see the repeat.
    assert {sample for sample, _ in repeats} <= {int(plan.indices[0])}


@given(plans(), st.integers(1, 7))
def test_ranks_have_equally_many_and_know_what_is_their_own(
    plan_and_places: tuple[Plan, list[int]], num_ranks: int
) -> None:
    plan, to_do = plan_and_places
    of_rank = shares(plan, to_do, num_ranks)
    assert {len(share) for share in of_rank} == {len(share.indices) for share in of_rank}
    assert len({len(share) for share in of_rank}) == 1
    assert sum(share.num_own for share in of_rank) == len(to_do)
    for share in of_rank:
        own = share.indices[: share.num_own]
        assert torch.equal(plan.indices[share.places], own)
        # A repeat can be told from one's own samples by its index alone.
        assert not set(share.indices[share.num_own :].tolist()) & set(own.tolist())


@given(plans(), st.integers(1, 7), st.data())
def test_what_all_ranks_have_done_is_known_from_one(
    plan_and_places: tuple[Plan, list[int]], num_ranks: int, data: st.DataObject
) -> None:
    plan, to_do = plan_and_places
    of_rank = shares(plan, to_do, num_ranks)
    rows = data.draw(st.sets(st.integers(0, len(of_rank[0]) - 1)))
    reported = torch.tensor([row in rows for row in range(len(of_rank[0]))])
    trained = {
        int(share.indices[row]) for share in of_rank for row in rows if row < share.num_own
    } | {int(plan.indices[p]) for p in set(range(len(plan))) - set(to_do)}
    for share in of_rank:
        assert set(plan.indices[share.done_on_all_ranks(reported)].tolist()) == trained
