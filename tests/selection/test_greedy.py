"""Greedy methods choose what a slow search over all candidates chooses, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import Tensor

from infobatch.selection import METHODS, Statistics, vectors
from infobatch.selection.influence import influences
from tests.selection.samples import brute_gradients, of_pass, whole_numbers

SEEDS = range(8)


@pytest.fixture(params=["whole matrix", "blocks"])
def _rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as for few samples, once as for many: blocks of one to three rows."""
    if request.param == "blocks":
        monkeypatch.setattr(vectors, "BLOCK", 60)


def greedily(num_samples: int, budget: int, value: Callable[[list[int], int], float]) -> list[int]:
    """The candidate with the largest value, step by step; of equal ones the lowest index."""
    chosen: list[int] = []
    for _ in range(budget):
        candidates = [x for x in range(num_samples) if x not in chosen]
        chosen.append(max(candidates, key=lambda x: (value(chosen, x), -x)))
    return chosen


def assert_greedy(
    found: list[int], num_samples: int, value: Callable[[list[int], int], float]
) -> None:
    """Each choice has the largest value, where two values that round alike are both the largest.

    Mutual neighbours often cover equally well, and rounding decides between them.
    """
    for step, index in enumerate(found):
        chosen = found[:step]
        best = max(value(chosen, x) for x in range(num_samples) if x not in chosen)
        assert value(chosen, index) == pytest.approx(best, rel=1e-12)


def cosines(rows: Tensor) -> Tensor:
    return torch.stack(
        [
            torch.stack([0.5 + 0.5 * torch.cosine_similarity(a, b, dim=0) for b in rows])
            for a in rows
        ]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_herding(seed: int) -> None:
    features = whole_numbers(16, seed=seed)  # 16: their mean is exact, and so are ties
    mean = features.mean(0)

    def nearness(chosen: list[int], x: int) -> float:
        return -float(((len(chosen) + 1) * mean - features[[*chosen, x]].sum(0)).square().sum())

    found = METHODS["herding"](Statistics(features=features), 12).indices
    assert found.tolist() == greedily(16, 12, nearness)


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("seed", SEEDS)
def test_k_center(seed: int) -> None:
    features = whole_numbers(20, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    found = METHODS["k-center"](Statistics(features=features), 20, None, rng).indices.tolist()

    def distance(chosen: list[int], x: int) -> float:
        if not chosen:
            return float(x == found[0])  # a random start
        return min(float((features[x] - features[s]).square().sum()) for s in chosen)

    assert found == greedily(20, 20, distance)


def test_the_start_of_k_center_is_random() -> None:
    statistics = Statistics(features=whole_numbers(20))
    starts = {
        int(METHODS["k-center"](statistics, 1, None, torch.Generator().manual_seed(s)).indices)
        for s in range(200)
    }
    assert starts == set(range(20))


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("seed", SEEDS)
def test_contextual_diversity(seed: int) -> None:
    probabilities = of_pass(20, seed=seed).require("probabilities").clone()
    probabilities[3] = torch.tensor([1.0, 0.0, 0.0])  # its logarithm needs the epsilon
    probabilities[4] = torch.tensor([0.0, 0.0, 1.0])
    logs = (probabilities + 1e-8).log()
    rng = torch.Generator().manual_seed(seed)
    method = METHODS["contextual-diversity"]
    found = method(Statistics(probabilities=probabilities), 15, None, rng).indices.tolist()

    def divergence(p: int, q: int) -> float:
        of_p = (probabilities[p] * (logs[p] - logs[q])).sum()
        of_q = (probabilities[q] * (logs[q] - logs[p])).sum()
        return float(of_p + of_q)

    def distance(chosen: list[int], x: int) -> float:
        return min(divergence(x, s) for s in chosen) if chosen else float(x == found[0])

    assert found == greedily(20, 15, distance)


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("seed", SEEDS)
def test_graph_cut(seed: int) -> None:
    statistics = of_pass(20, seed=seed)
    similar = cosines(brute_gradients(statistics))

    def gain(chosen: list[int], x: int) -> float:
        return float(similar[:, x].sum() - 2 * similar[chosen, x].sum())

    assert METHODS["graph-cut"](statistics, 15).indices.tolist() == greedily(20, 15, gain)


def test_graph_cut_decides_ties_by_the_lowest_index() -> None:
    # Six gradients along two axes, three each: all products are 0 or 1.
    statistics = Statistics(
        labels=torch.zeros(6, dtype=torch.int64),
        probabilities=torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]] * 3),
        features=torch.zeros(6, 1),
    )
    assert METHODS["graph-cut"](statistics, 6).indices.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("seed", SEEDS)
def test_facility_location(seed: int) -> None:
    features = of_pass(20, seed=seed).require("features")
    similar = cosines(features)

    def value(chosen: list[int], x: int) -> float:
        return float(similar[:, [*chosen, x]].amax(1).sum())

    found = METHODS["facility-location"](Statistics(features=features), 8).indices
    assert_greedy(found.tolist(), 20, value)


@pytest.mark.parametrize("seed", SEEDS)
def test_facility_location_decides_ties_by_the_lowest_index(seed: int) -> None:
    axes = torch.eye(4)[torch.randint(4, (12,), generator=torch.Generator().manual_seed(seed))]
    similar = 0.5 + 0.5 * axes @ axes.T

    def gain(chosen: list[int], x: int) -> float:
        before = similar[:, chosen].amax(1) if chosen else torch.zeros(12)
        return float(torch.maximum(similar[:, x], before).sum() - before.sum())

    found = METHODS["facility-location"](Statistics(features=axes), 12).indices
    assert found.tolist() == greedily(12, 12, gain)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_facility_location_is_near_the_best_subset(seed: int, budget: int) -> None:
    features = of_pass(11, seed=seed).require("features")
    similar = cosines(features)

    def value(chosen: tuple[int, ...]) -> float:
        return float(similar[:, list(chosen)].amax(1).sum())

    best = max(value(subset) for subset in combinations(range(11), budget))
    found = METHODS["facility-location"](Statistics(features=features), budget).indices
    assert value(tuple(found.tolist())) >= (1 - 1 / torch.e) * best - 1e-9


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("seed", SEEDS)
def test_craig(seed: int) -> None:
    statistics = of_pass(20, seed=seed)
    gradients = brute_gradients(statistics)
    distances = torch.cdist(gradients, gradients, compute_mode="donot_use_mm_for_euclid_dist")

    def value(chosen: list[int], x: int) -> float:
        return -float(distances[:, [*chosen, x]].amin(1).sum())

    indices, weights = METHODS["craig"](statistics, 6)
    assert_greedy(indices.tolist(), 20, value)
    nearest = distances[:, indices].argmin(1)
    assert weights is not None
    assert weights.tolist() == [int((nearest == place).sum()) for place in range(6)]


def test_of_two_equal_choices_the_first_stands_for_all() -> None:
    one = of_pass(1)
    twins = Statistics(
        labels=one.require("labels").repeat(5),
        probabilities=one.require("probabilities").repeat(5, 1),
        features=one.require("features").repeat(5, 1),
    )
    indices, weights = METHODS["craig"](twins, 2)
    assert indices.tolist() == [0, 1]
    assert weights is not None
    assert weights.tolist() == [5, 0]


@pytest.mark.parametrize("per_class", [False, True])
def test_the_weights_of_craig_sum_to_the_data_set(per_class: bool) -> None:
    statistics = of_pass(50)
    labels = statistics.labels if per_class else None
    weights = METHODS["craig"](statistics, 10, labels).weights
    assert weights is not None
    assert float(weights.sum()) == 50


@pytest.mark.parametrize("seed", SEEDS)
def test_glister(seed: int) -> None:
    """Against a last layer that is really moved, and the gradient that autograd finds there."""
    statistics, validation = of_pass(15, seed=seed), of_pass(9, seed=seed + 100)
    budget, eta = 6, 0.1
    gradients = brute_gradients(statistics)
    inputs = torch.cat([torch.ones(9, 1), validation.require("features")], 1)
    before = validation.require("probabilities").log()
    layer = torch.zeros(3, 5, dtype=torch.float64)

    chosen: list[int] = []
    for _ in range(budget):
        moved = layer.clone().requires_grad_()
        logits = before + inputs @ moved.T
        loss = torch.nn.functional.cross_entropy(
            logits, validation.require("labels"), reduction="sum"
        )
        (of_validation,) = torch.autograd.grad(loss, moved)
        gains = gradients @ of_validation.flatten()
        chosen.append(max(set(range(15)) - set(chosen), key=lambda x: float(gains[x])))
        layer -= eta / budget * gradients[chosen[-1]].view(3, 5)
    found = METHODS["glister"](replace(statistics, validation=validation), budget).indices
    assert found.tolist() == chosen


def test_the_validation_gradient_of_glister_is_updated() -> None:
    """Without updates it would choose the samples that agree most at the start."""
    statistics = replace(of_pass(300), features=of_pass(300).require("features") * 10)
    validation = replace(of_pass(50, seed=1), features=of_pass(50, seed=1).require("features") * 10)
    of_validation = brute_gradients(validation).sum(0)
    at_start = (brute_gradients(statistics) @ of_validation).sort(descending=True).indices[:60]
    found = METHODS["glister"](replace(statistics, validation=validation), 60).indices
    assert found[0] == at_start[0]
    assert set(found.tolist()) != set(at_start.tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_glister_per_class_looks_at_the_validation_samples_of_the_class(seed: int) -> None:
    statistics, validation = of_pass(30, seed=seed), of_pass(60, seed=seed + 100)
    labels = statistics.require("labels")
    expected: list[int] = []
    for label in range(3):
        members = (labels == label).nonzero().flatten()
        own = (validation.require("labels") == label).nonzero().flatten()
        of_class = replace(statistics.take(members), validation=validation.take(own))
        expected += members[METHODS["glister"](of_class, 4).indices].tolist()
    found = METHODS["glister"](replace(statistics, validation=validation), 12, labels).indices
    assert found.tolist() == expected


def test_glister_for_a_class_without_validation_samples_looks_at_all_of_them() -> None:
    statistics, validation = of_pass(30), of_pass(60, seed=100)
    labels = statistics.require("labels")
    others = validation.take((validation.require("labels") != 0).nonzero().flatten())
    members = (labels == 0).nonzero().flatten()
    alone = METHODS["glister"](replace(statistics.take(members), validation=others), 4)
    found = METHODS["glister"](replace(statistics, validation=others), 12, labels).indices
    assert found[:4].tolist() == members[alone.indices].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_dp_drops_what_moves_the_parameters_least(seed: int) -> None:
    statistics = of_pass(15, seed=seed)
    vectors = influences(statistics)

    def smallness(dropped: list[int], x: int) -> float:
        return -float(vectors[[*dropped, x]].sum(0).norm())

    kept = METHODS["dp"](statistics, 6).indices.tolist()
    assert sorted({*range(15)} - {*kept}) == sorted(greedily(15, 9, smallness))


def test_dp_per_class_stands_on_the_hessian_of_all() -> None:
    statistics = of_pass(30)
    vectors = influences(statistics)
    kept = METHODS["dp"](statistics, 15, statistics.labels).indices.tolist()
    for label in range(3):
        members = [i for i in range(30) if i % 3 == label]
        of_class = vectors[members]

        def smallness(dropped: list[int], x: int, rows: Tensor = of_class) -> float:
            return -float(rows[[*dropped, x]].sum(0).norm())

        dropped = {members[place] for place in greedily(10, 5, smallness)}
        assert dropped == {*members} - {*kept}


@pytest.mark.parametrize("seed", SEEDS)
def test_d2(seed: int) -> None:
    statistics = replace(of_pass(20, seed=seed), el2n=of_pass(20, seed=seed).probabilities[:, 0])  # type: ignore[index]
    features, own = statistics.require("features"), statistics.require("el2n").double()
    distances = torch.stack([torch.stack([(a - b).norm() for b in features]) for a in features])
    distances.fill_diagonal_(torch.inf)
    neighbours = [row.argsort()[:5].tolist() for row in distances]
    score = [
        float(own[i] + sum((-distances[i, j]).exp() * own[j] for j in neighbours[i]))
        for i in range(20)
    ]
    chosen: list[int] = []
    while len(chosen) < 12:
        best = max(set(range(20)) - set(chosen), key=lambda x: score[x])
        chosen.append(best)
        for j in neighbours[best]:
            score[j] -= float((-0.1 * distances[best, j]).exp()) * score[best]
    assert METHODS["d2"](statistics, 12).indices.tolist() == chosen


@pytest.mark.usefixtures("_rows")
def test_the_neighbours_of_d2_are_those_of_all_distances() -> None:
    from infobatch.selection.d2 import nearest_neighbours

    features = of_pass(40).require("features")
    distances, indices = nearest_neighbours(vectors.Vectors((features,)), 5)
    full = torch.cdist(features, features).fill_diagonal_(torch.inf)
    assert torch.equal(indices, full.argsort(1)[:, :5])
    torch.testing.assert_close(distances, full.sort(1).values[:, :5])


def test_dq_draws_equally_from_bins_of_graph_cut() -> None:
    features = of_pass(30).require("features")
    similar = cosines(features)
    left, bins = list(range(30)), []
    for _ in range(10):
        part = similar[left][:, left]

        def gain(chosen: list[int], x: int, part: Tensor = part) -> float:
            return float(part[:, x].sum() - 2 * part[chosen, x].sum())

        bins.append({left[place] for place in greedily(len(left), 3, gain)})
        left = [x for x in left if x not in bins[-1]]
    seen = set()
    for seed in range(40):
        rng = torch.Generator().manual_seed(seed)
        found = METHODS["dq"](Statistics(features=features), 20, None, rng).indices.tolist()
        assert [len(part & {*found}) for part in bins] == [2] * 10
        seen |= {*found}
    assert seen == set(range(30))  # a uniform draw reaches all


# Not step by step -------------------------------------------------------------------------------


def test_the_mean_of_herding_is_nearer_than_that_of_random_subsets() -> None:
    features = of_pass(400).require("features").exp()
    statistics = Statistics(features=features)

    def distance(name: str, seed: int) -> float:
        rng = torch.Generator().manual_seed(seed)
        chosen = METHODS[name](statistics, 40, None, rng).indices
        return float((features[chosen].mean(0) - features.mean(0)).norm())

    assert distance("herding", 0) < 0.2 * min(distance("random", seed) for seed in range(20))


def test_k_center_covers_at_least_half_as_well_as_the_best() -> None:
    features = of_pass(12).require("features")
    distances = torch.cdist(features, features)

    def radius(chosen: tuple[int, ...]) -> float:
        return float(distances[:, list(chosen)].amin(1).max())

    best = min(radius(subset) for subset in combinations(range(12), 3))
    found = METHODS["k-center"](Statistics(features=features), 3).indices
    assert radius(tuple(found.tolist())) <= 2 * best


@pytest.mark.parametrize("name", ["k-center", "contextual-diversity", "graph-cut"])
def test_blocks_and_the_whole_matrix_choose_alike(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = of_pass(200)
    whole = METHODS[name](statistics, 60)
    monkeypatch.setattr(vectors, "BLOCK", 2000)
    assert torch.equal(METHODS[name](statistics, 60).indices, whole.indices)


@pytest.mark.parametrize("seed", SEEDS)
def test_ccs(seed: int) -> None:
    """Two strata of very different size: the small one is taken whole, the rest from the other."""
    rng = torch.Generator().manual_seed(seed)
    easy, hard = torch.rand(70, generator=rng) * 0.001, 1 - torch.rand(20, generator=rng) * 0.001
    mislabelled = torch.full((10,), 9.0)
    statistics = Statistics(el2n=torch.cat([easy, hard, mislabelled]))
    for budget, expected in ((30, [15, 15, 0]), (60, [40, 20, 0]), (95, [70, 20, 5])):
        chosen = METHODS["ccs"](statistics, budget, None, rng).indices
        counts = [int((chosen < 70).sum()), int(((chosen >= 70) & (chosen < 90)).sum())]
        assert [*counts, int((chosen >= 90).sum())] == expected


def test_ccs_spreads_over_strata_of_equal_width() -> None:
    statistics = Statistics(el2n=torch.linspace(0, 1, 1111) ** 3)
    chosen = METHODS["ccs"](statistics, 50).indices
    left = statistics.require("el2n").sort().values[:1000]  # a tenth is dropped
    strata = (statistics.require("el2n")[chosen] / left[-1] * 50).long().clamp(max=49)
    assert strata.bincount(minlength=50).tolist() == [1] * 50


def test_random_is_uniform() -> None:
    counts = torch.zeros(10)
    for seed in range(2000):
        rng = torch.Generator().manual_seed(seed)
        counts[METHODS["random"](Statistics(10), 3, None, rng).indices] += 1
    assert float((counts - 600).abs().max()) < 5 * (2000 * 0.3 * 0.7) ** 0.5


@pytest.mark.parametrize(
    "name",
    ["k-center", "contextual-diversity", "graph-cut", "facility-location", "craig", "dq", "d2"],
)
def test_no_block_is_larger_than_its_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be a matrix of all pairs is computed a few rows at a time."""
    sizes: list[int] = []
    multiply = Tensor.__matmul__

    def note(left: Tensor, right: Tensor) -> Tensor:
        product = multiply(left, right)
        sizes.append(product.numel())
        return product

    statistics = replace(of_pass(300), el2n=torch.rand(300))
    monkeypatch.setattr(vectors, "BLOCK", 3000)
    monkeypatch.setattr(Tensor, "__matmul__", note)
    METHODS[name](statistics, 100)
    assert 300 <= max(sizes) <= 3000
