"""SeTa: 1-D k-means by its definition, and the window as the paper slides it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infobatch.plan import draw
from infobatch.rules import SeTa
from infobatch.rules.seta import cluster_borders


@given(
    st.lists(st.floats(0, 100, width=32) | st.integers(0, 9), min_size=1, max_size=80).map(sorted),
    st.integers(1, 8),
)
def test_each_value_is_nearest_to_the_mean_of_its_own_cluster(
    numbers: list[float], num_clusters: int
) -> None:
    values = np.array(numbers, dtype=np.float32)
    borders = cluster_borders(values, num_clusters)
    clusters = np.split(values.astype(np.float64), np.searchsorted(values, borders))
    assert 1 <= len(clusters) <= num_clusters
    assert all(len(cluster) for cluster in clusters)
    means = [cluster.mean() for cluster in clusters]
    of = SeTa(num_groups=num_clusters).groups(torch.from_numpy(values), {}, 0).of
    assert torch.bincount(of).tolist() == [len(cluster) for cluster in clusters]
    for cluster, own in zip(clusters, means, strict=True):
        for value in cluster:
            assert abs(value - own) <= min(abs(value - mean) for mean in means) + 1e-4


def test_heaps_far_apart_are_found() -> None:
    rng = np.random.default_rng(0)
    heaps = [rng.normal(centre, 0.1, size) for centre, size in ((0, 50), (5, 20), (20, 30))]
    values = np.sort(np.concatenate(heaps)).astype(np.float32)
    ends = np.searchsorted(values, cluster_borders(values, 3))
    assert ends.tolist() == [50, 70]


def kept_groups(rule: SeTa, epoch: int) -> list[int]:
    """Which of five heaps an epoch trains."""
    scores = torch.arange(5.0).repeat_interleave(100) * 10 + torch.rand(500)
    plan = draw(rule.groups(scores, {}, epoch), seed=0, epoch=epoch)
    heaps = plan.indices // 100
    kept = torch.bincount(heaps, minlength=5).tolist()
    assert {count for count in kept if count} == {round(100 * (1 - rule.prune_ratio))}
    return [heap for heap, count in enumerate(kept) if count]


def test_the_window_slides_from_easy_to_hard_and_starts_again() -> None:
    four_of_five = SeTa()
    assert [kept_groups(four_of_five, epoch) for epoch in range(4)] == [
        [0, 1, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3], [1, 2, 3, 4],
    ]  # fmt: skip
    two_of_five = SeTa(0.3, window=0.4)
    assert [kept_groups(two_of_five, epoch) for epoch in range(1, 6)] == [
        [1, 2], [2, 3], [3, 4], [0, 1], [1, 2],
    ]  # fmt: skip


def test_partial_annealing_skips_at_random_alone() -> None:
    rule = SeTa(0.2, random_from=2.5)
    assert [len(kept_groups(rule, epoch)) for epoch in range(5)] == [5, 4, 4, 5, 5]


def test_equal_scores_are_one_group() -> None:
    for epoch in range(1, 4):
        plan = draw(SeTa().groups(torch.ones(100), {}, epoch), seed=0, epoch=epoch)
        assert plan.num_pruned == 10


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="num_groups is 0"):
        SeTa(num_groups=0)
    with pytest.raises(ValueError, match="num_groups is 300, expected at most 255"):
        SeTa(num_groups=300)
    with pytest.raises(ValueError, match=r"window is 1\.5"):
        SeTa(window=1.5)
