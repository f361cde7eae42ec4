"""A subset that trains like any data set, with weights where a method has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, StackDataset
from torch.utils.data import Subset as TorchSubset

import infobatch
from infobatch.selection import METHODS, Statistics, Subset, collect, select
from tests.conftest import Numbers
from tests.selection.samples import Network, everything, pairs


@pytest.mark.parametrize("name", METHODS)
def test_a_subset_by_every_method(name: str) -> None:
    statistics = everything(30)
    subset = select(Numbers(30), name, 0.3, statistics=statistics, seed=4)
    assert isinstance(subset, TorchSubset)
    rng = torch.Generator().manual_seed(4)
    chosen = METHODS[name](statistics, 9, statistics.labels, rng)
    assert [subset[place] for place in range(len(subset))] == chosen.indices.tolist()
    assert (subset.weights is None) == (name != "craig")
    train_data = infobatch.InfoBatch(subset, num_epochs=2)
    items = [x for batch in DataLoader(train_data, 4, sampler=train_data.sampler) for x in batch]
    assert sorted(int(x) for x in items) == sorted(chosen.indices.tolist())


def test_the_classes_come_from_the_statistics_or_else_from_the_data_set() -> None:
    counts = torch.tensor(select(Numbers(30), "random", 0.5).indices).remainder(3).bincount()
    assert counts.tolist() == [5, 5, 5]  # Numbers.targets
    halves = Statistics(labels=[0] * 15 + [1] * 15)  # type: ignore[arg-type]
    chosen = select(Numbers(30), "random", 0.4, statistics=halves).indices
    assert sum(index < 15 for index in chosen) == 6
    with pytest.raises(ValueError, match=r"per_class is True, but neither statistics\.labels nor"):
        select(range(10), "random", 0.5)
    assert len(select(range(10), "random", 0.5, per_class=False)) == 5


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"keep": 0}, ValueError, "keep is 0, expected 0 < keep <= 1"),
        ({"keep": 1.5}, ValueError, r"keep is 1\.5, expected 0 <= keep <= 1"),
        ({"keep": "a"}, TypeError, "keep is 'a'"),
        ({"method": "herd"}, ValueError, "method is 'herd', expected one of ccs, contextual-"),
        ({"method": 3}, TypeError, "method is 3, expected one of ccs"),
        ({"dataset": []}, ValueError, "dataset is empty"),
        ({"statistics": Statistics(9)}, ValueError, "statistics has 9 samples, but the data set"),
        ({"method": "herding"}, ValueError, "statistics.features is None, expected it: let sel"),
    ],
)
def test_what_cannot_be_selected_is_refused(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {"dataset": Numbers(30), "method": "random", "keep": 0.5} | given
    with pytest.raises(error, match=message):
        select(**arguments)


@pytest.mark.parametrize(("keep", "kept"), [(1, 30), (0.001, 1), (0.5, 15), (1 / 3, 10)])
def test_how_many_are_kept(keep: float, kept: int) -> None:
    assert len(set(select(Numbers(30), "random", keep).indices)) == kept


def test_seeds() -> None:
    first, again, other = (select(Numbers(30), "random", 0.5, seed=s).indices for s in (0, 0, 1))
    assert first == again != other


def test_pruning_a_chosen_subset_with_its_weights() -> None:
    """The weights of CRAIG scale the loss; the scores that InfoBatch prunes by are without them."""
    data = pairs(120)
    network = Network()
    statistics = collect(network, data, "craig", progress=None)
    subset = select(data, "craig", 0.5, statistics=statistics)
    assert isinstance(subset, Subset)
    assert subset.weights is not None
    train_data = infobatch.InfoBatch(StackDataset(subset, subset.weights), num_epochs=4)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(4):
        for (x, y), w in DataLoader(train_data, 16, sampler=train_data.sampler):
            losses = nn.functional.cross_entropy(network(x), y, reduction="none")
            loss = train_data.update(losses * w, scores=losses)
            expected = (losses * w * train_data.batch_weights).mean()
            assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert train_data.savings.fraction > 0
