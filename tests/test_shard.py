"""An epoch divided among ranks and cut into batches, against the obvious way to do it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infobatch.shard import Shard, by_size, by_steps, steps_of

ENTRIES = st.integers(1, 60)
RANKS = st.integers(1, 7)


@given(ENTRIES, st.integers(0, 59), RANKS)
def test_a_step_of_all_ranks_is_a_run_of_the_plan(end: int, start: int, world_size: int) -> None:
    assume(start < end)
    shards = [Shard(start, end, rank, world_size) for rank in range(world_size)]
    (length,) = {len(shard) for shard in shards}  # equally many on all ranks
    entries = list(range(1000))
    dealt = [
        entries[shard.entries(slice(row, row + 1))][0] for row in range(length) for shard in shards
    ]
    assert dealt == list(range(start, start + length * world_size))
    assert length * world_size - (end - start) < world_size
    own = [entry for shard in shards for entry in entries[shard.entries(slice(0, shard.num_own))]]
    assert sorted(own) == list(range(start, end))  # what comes after one's own is a repeat
    assert all(len(shard) - shard.num_own in (0, 1) for shard in shards)


def plain_batches(num_positions: int, batch_size: int, drop_last: bool) -> list[list[int]]:
    positions = list(range(num_positions))
    batches = [positions[i : i + batch_size] for i in range(0, num_positions, batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]


def cut(bounds: list[int]) -> list[list[int]]:
    return [list(range(a, b)) for a, b in pairwise(bounds)]


@given(ENTRIES, st.integers(1, 20), st.booleans())
def test_batches_of_one_size_are_those_of_a_plain_loader(
    n: int, size: int, drop_last: bool
) -> None:
    batching = by_size(n, size, drop_last=drop_last)
    expected = plain_batches(n, size, drop_last)
    assert cut(batching.bounds) == expected
    assert batching.num_batches == steps_of(n, size, drop_last=drop_last) == len(expected)
    assert batching.num_positions == sum(map(len, expected))


@given(ENTRIES, st.integers(1, 60))
def test_a_given_number_of_steps_has_batches_that_differ_by_one(n: int, num_steps: int) -> None:
    assume(num_steps <= n)
    batches = cut(by_steps(n, num_steps).bounds)
    assert [position for batch in batches for position in batch] == list(range(n))
    assert len(batches) == num_steps
    assert {len(batch) for batch in batches} <= {n // num_steps, -(-n // num_steps)}


@given(ENTRIES, st.integers(1, 60), st.integers(0, 60))
def test_a_resumed_epoch_goes_on_with_the_batches_of_the_whole_one(
    n: int, num_steps: int, num_done: int
) -> None:
    assume(num_steps <= n)
    whole = cut(by_steps(n, num_steps).bounds)
    assume(num_done < len(whole))
    done = sum(len(batch) for batch in whole[:num_done])
    left = cut(by_steps(n, num_steps, done=done).bounds)
    assert [[done + position for position in batch] for batch in left] == whole[num_done:]


@given(ENTRIES, st.integers(1, 60), st.integers(0, 59))
def test_resumed_within_a_batch_the_rest_of_it_comes_first(
    n: int, num_steps: int, done: int
) -> None:
    """As after another batch size or number of ranks."""
    assume(num_steps <= n)
    assume(done < n)
    left = cut(by_steps(n, num_steps, done=done).bounds)
    assert [position for batch in left for position in batch] == list(range(n - done))
    assert all(left)
    assert max(len(batch) for batch in left) <= -(-n // num_steps)
    assert len(left) == pytest.approx(num_steps * (n - done) / n, abs=1)
