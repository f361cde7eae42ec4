"""Scores against autograd, or against loops over samples and classes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from infobatch.selection import METHODS, Statistics, collect
from infobatch.selection.collecting import gradient_norms
from infobatch.selection.deepfool import perturb
from infobatch.selection.influence import DAMPING, influences
from infobatch.selection.tdds import WINDOW
from infobatch.selection.vectors import Vectors, gradients
from tests.selection.samples import Network, brute_gradients, of_pass, pairs

CERTAIN, TORN, SPREAD = [0.9, 0.1, 0.0], [0.5, 0.49, 0.01], [0.4, 0.3, 0.3]


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("least-confidence", [2, 1, 0]),  # the least confident first
        ("margin", [1, 2, 0]),
        ("entropy", [2, 1, 0]),
    ],
)
def test_uncertainty(name: str, order: list[int]) -> None:
    statistics = Statistics(probabilities=torch.tensor([CERTAIN, TORN, SPREAD]))
    assert METHODS[name](statistics, 3).indices.tolist() == order


@pytest.mark.parametrize("name", ["least-confidence", "margin", "entropy"])
def test_uncertainty_against_loops(name: str) -> None:
    rows = of_pass(50, 4).require("probabilities")
    values = {
        "least-confidence": [max(row) for row in rows.tolist()],
        "margin": [sorted(row)[-1] - sorted(row)[-2] for row in rows.tolist()],
        "entropy": [sum(p * math.log(p) for p in row) for row in rows.tolist()],
    }[name]
    expected = sorted(range(50), key=lambda index: values[index])
    assert METHODS[name](Statistics(probabilities=rows), 50).indices.tolist() == expected


@pytest.mark.parametrize("name", ["grand", "el2n"])
def test_collected_scores_keep_the_highest_and_of_equal_ones_the_first(name: str) -> None:
    statistics = Statistics(**{name: torch.tensor([0.1, 3.0, 0.2, 3.0, 5.0])})  # type: ignore[arg-type]
    assert METHODS[name](statistics, 3).indices.tolist() == [4, 1, 3]


def test_many_equal_scores_are_taken_from_the_front() -> None:
    found = METHODS["el2n"](Statistics(el2n=torch.ones(5000)), 2000).indices
    assert torch.equal(found, torch.arange(2000))


def test_forgetting() -> None:
    histories = ["111111", "010101", "000000", "011011", "001111", "1-----", "10----"]
    numbers = [[-1 if c == "-" else int(c) for c in history] for history in histories]
    statistics = Statistics(correct=torch.tensor(numbers))
    # never learned, twice forgotten, once, once, never three times
    assert METHODS["forgetting"](statistics, 7).indices.tolist() == [2, 1, 3, 6, 0, 4, 5]


def test_tdds() -> None:
    changes = torch.rand(20, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = []
    for row in changes.tolist():
        of_windows = []
        for start in range(15 - (WINDOW - 1) + 1):
            window = row[start : start + WINDOW - 1]
            mean = sum(window) / len(window)
            of_windows.append(math.sqrt(sum((value - mean) ** 2 for value in window)))
        newest_first = reversed(of_windows)
        scores.append(sum(0.9 * 0.1**age * value for age, value in enumerate(newest_first)))
    expected = sorted(range(20), key=lambda index: -scores[index])
    assert METHODS["tdds"](Statistics(changes=changes), 20).indices.tolist() == expected


def test_tdds_leaves_out_visits_that_some_samples_did_not_have() -> None:
    changes = torch.rand(20, 12)
    cut = changes.clone()
    cut[3, 10:] = torch.nan
    with_gaps = METHODS["tdds"](Statistics(changes=cut), 20).indices
    assert torch.equal(with_gaps, METHODS["tdds"](Statistics(changes=changes[:, :10]), 20).indices)
    with pytest.raises(ValueError, match="changes has 1 columns known of all samples"):
        METHODS["tdds"](Statistics(changes=changes[:, :1]), 5)


def test_products_of_gradients_need_no_gradients() -> None:
    statistics = of_pass(12)
    brute, factors = brute_gradients(statistics), gradients(statistics)
    everyone = torch.arange(12)
    torch.testing.assert_close(factors.products(everyone), brute @ brute.T)
    torch.testing.assert_close(factors.squared_norms(), brute.square().sum(1))
    torch.testing.assert_close(factors.products_with_sum(), brute @ brute.sum(0))
    unit = nn.functional.normalize(brute)
    torch.testing.assert_close(factors.normalized().products(everyone), unit @ unit.T)
    alone = Vectors((brute,))
    torch.testing.assert_close(alone.products_with_sum(), brute @ brute.sum(0))


def test_influence_against_the_hessian_of_autograd() -> None:
    """A model with these probabilities: its last layer is 0, on top of fixed logits."""
    statistics = of_pass(12)
    logits, labels = statistics.require("probabilities").log(), statistics.require("labels")
    inputs = torch.cat([torch.ones(12, 1), statistics.require("features")], 1)

    def mean_loss(layer: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits + inputs @ layer.view(3, 5).T, labels)

    zeros = torch.zeros(15, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(mean_loss, zeros)
    damped = hessian + DAMPING * torch.eye(15)
    expected = torch.linalg.solve(damped, brute_gradients(statistics).T).T
    torch.testing.assert_close(influences(statistics), expected)
    order = expected.norm(dim=1).sort(descending=True).indices
    assert torch.equal(METHODS["influence"](statistics, 12).indices, order)


def test_influence_refuses_a_hessian_that_would_not_fit() -> None:
    statistics = Statistics(
        labels=torch.zeros(3, dtype=torch.int64),
        probabilities=torch.full((3, 100), 0.01),
        features=torch.zeros(3, 512),
    )
    for name in ("influence", "dp"):
        with pytest.raises(ValueError, match="512 dimensions for 100 classes, expected at most 80"):
            METHODS[name](statistics, 1)


@pytest.fixture
def network() -> Network:
    network = Network()
    with torch.no_grad():  # statistics that differ from a fresh layer's
        for x in torch.randn(5, 32, 5):
            network(x)
    return network


def test_gradient_norms_against_autograd(network: Network) -> None:
    network.body[0].bias.requires_grad_(False)
    data = pairs(40)
    found = collect(network, data, "grand", progress=None).require("grand")
    network.eval()
    for index, (x, label) in enumerate(zip(*data.tensors, strict=True)):
        loss = nn.functional.cross_entropy(network(x[None]), label[None])
        trained = [p for p in network.parameters() if p.requires_grad]
        parts = torch.autograd.grad(loss, trained)
        norm = math.sqrt(sum(float(part.square().sum()) for part in parts))
        assert float(found[index]) == pytest.approx(norm, rel=1e-5)


def test_gradient_norms_of_a_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).eval()
    x, labels = torch.randn(20, 1, 4, 4), torch.arange(20) % 2
    found = gradient_norms(model, x, labels)
    loss = nn.functional.cross_entropy(model(x[7:8]), labels[7:8])
    parts = torch.autograd.grad(loss, list(model.parameters()))
    assert float(found[7]) == pytest.approx(math.sqrt(sum(float(p.square().sum()) for p in parts)))


def test_deepfool_of_a_linear_model_is_the_distance_to_the_nearest_boundary() -> None:
    torch.manual_seed(1)
    model, x = nn.Linear(6, 4).double(), torch.randn(30, 6, dtype=torch.float64)
    found = perturb(model, x).norm(dim=1)
    for index in range(30):
        logits, weight = model(x[index]).detach(), model.weight.detach()
        top = int(logits.argmax())
        distances = [
            float((logits[top] - logits[k]) / (weight[top] - weight[k]).norm())
            for k in range(4)
            if k != top
        ]
        assert float(found[index]) == pytest.approx(min(distances))


def test_deepfool_flips_the_predictions_of_a_network(network: Network) -> None:
    network.eval()
    x = torch.randn(50, 5)
    perturbation = perturb(network, x)
    before, after = network(x).argmax(1), network(x + 1.02 * perturbation).argmax(1)
    flipped = before != after
    assert float(flipped.float().mean()) > 0.9
    # Half of it does not flip most of them: it is not just a large change.
    halfway = network(x + 0.5 * perturbation).argmax(1)
    assert float((before == halfway)[flipped].float().mean()) > 0.9
    nearest = METHODS["deepfool"](Statistics(perturbation=perturbation.norm(dim=1)), 1).indices
    assert int(nearest) == int(perturbation.norm(dim=1).argmin())


def test_deepfool_needs_classes() -> None:
    with pytest.raises(ValueError, match="one output, expected at least 2 classes"):
        perturb(nn.Linear(3, 1), torch.randn(2, 3))
