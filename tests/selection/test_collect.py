"""Statistics of a real model: equal to those computed one by one, and safe from interruptions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import StackDataset, TensorDataset

from infobatch import StateError
from infobatch.selection import METHODS, Statistics, Visits, collect, collect_runs, select
from tests.selection.samples import Network, pairs
from tests.selection.test_statistics import assert_same

ALL = ["craig", "el2n", "grand", "deepfool"]


def test_one_pass_gives_what_each_sample_gives_alone() -> None:
    network, data = Network(), pairs(50)
    found = collect(network, data, ["herding", "craig", "el2n"], batch_size=16, progress=None)
    network.eval()
    for index, (x, label) in enumerate(zip(*data.tensors, strict=True)):
        with torch.no_grad():
            features = network.body(x[None])[0]
            probabilities = network.head(features).softmax(0)
        one_hot = torch.eye(3)[label]
        torch.testing.assert_close(found.require("features")[index], features)
        torch.testing.assert_close(found.require("probabilities")[index], probabilities)
        torch.testing.assert_close(found.require("el2n")[index], (probabilities - one_hot).norm())
    assert found.require("labels").tolist() == [i % 3 for i in range(50)]
    assert found.grand is found.perturbation is None  # nobody asked


def test_the_model_is_left_as_it_was() -> None:
    network = Network()
    network.train()
    network.body[1].eval()  # a layer that its owner has frozen
    before = {name: value.clone() for name, value in network.state_dict().items()}
    collect(network, pairs(20), ALL, progress=None)
    assert [module.training for module in network.modules()] == [
        module is not network.body[1] for module in network.modules()
    ]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())
    assert not network.head._forward_pre_hooks


def test_another_layer_may_give_the_features() -> None:
    network = Network()
    found = collect(network, pairs(8), "herding", last_layer=network.body[0], progress=None)
    torch.testing.assert_close(found.require("features"), pairs(8).tensors[0])


def test_convolutional_features_are_flattened() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2))
    data = TensorDataset(torch.randn(6, 1, 4, 4), torch.arange(6) % 2)
    found = collect(model, data, "herding", last_layer=model[1], progress=None)
    assert found.require("features").shape == (6, 8)


def test_glister_gets_a_validation_set() -> None:
    network, data = Network(), pairs(30)
    found = collect(network, data, "glister", validation=pairs(9), progress=None)
    assert found.validation is not None
    alone = collect(network, pairs(9), "craig", progress=None)
    assert_same(found.validation, alone)
    assert len(METHODS["glister"](found, 5).indices) == 5
    with pytest.raises(ValueError, match="validation is None, expected a data set"):
        collect(network, data, "glister", progress=None)


def test_what_the_pass_cannot_tell_is_refused() -> None:
    with pytest.raises(ValueError, match="methods need correct, which one pass cannot tell"):
        collect(Network(), pairs(5), "forgetting")
    with pytest.raises(ValueError, match="method is 'herd', expected one of ccs, "):
        collect(Network(), pairs(5), "herd")
    with pytest.raises(
        TypeError, match=r"the data set gives a Tensor, expected pairs \(x, label\)"
    ):
        collect(Network(), torch.randn(5, 5), "herding")  # type: ignore[arg-type]
    soft = TensorDataset(torch.randn(5, 5), torch.rand(5, 3))
    with pytest.raises(TypeError, match=r"labels of torch.float32 and shape \(3,\), expected the"):
        collect(Network(), soft, "herding")
    with pytest.raises(ValueError, match="dataset is empty"):
        collect(Network(), pairs(0), "herding")
    with pytest.raises(ValueError, match="the model has no nn.Linear"):
        collect(nn.Flatten(), pairs(5), "herding", progress=None)


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int]] = []
    collect(Network(), pairs(10), "el2n", batch_size=4, progress=lambda *done: told.append(done))
    assert told == [(4, 10), (8, 10), (10, 10)]
    collect(Network(), pairs(10), "el2n", batch_size=4)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("\rcollected 10 of 10\n")


# Interrupted and resumed --------------------------------------------------------------------------


class Interrupts:
    """Stops after some samples, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.told: list[int] = []

    def __call__(self, done: int, total: int) -> None:
        self.told.append(done)
        if done >= self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("after", [4, 16, 20])
def test_an_interrupted_collection_goes_on_where_it_stopped(
    tmp_path: Path, suffix: str, after: int
) -> None:
    network, data, path = Network(), pairs(20), tmp_path / f"train{suffix}"
    expected = collect(network, data, ALL, batch_size=4, progress=None)
    with pytest.raises(KeyboardInterrupt):
        collect(network, data, ALL, batch_size=4, path=path, progress=Interrupts(after))
    told: list[int] = []
    found = collect(
        network, data, ALL, batch_size=4, path=path, progress=lambda done, _: told.append(done)
    )
    assert told == list(range(after + 4, 21, 4))  # nothing is computed twice
    assert_same(found, expected)
    assert_same(Statistics.load(path), expected)


def test_a_collection_for_a_long_time_is_saved_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed has no chance to save."""
    monkeypatch.setattr("infobatch.selection.collecting.SECONDS_BETWEEN_SAVES", -1.0)
    sizes: list[int] = []

    def look(done: int, total: int) -> None:
        if (tmp_path / "train.npz").exists():
            sizes.append(len(Statistics.load(tmp_path / "train.npz")))

    collect(Network(), pairs(12), "el2n", batch_size=4, path=tmp_path / "train.npz", progress=look)
    assert sizes == [4, 8]


def test_a_file_of_another_model_or_data_set_is_refused(tmp_path: Path) -> None:
    path, network = tmp_path / "train.npz", Network()
    found = collect(network, pairs(12), "el2n", path=path, progress=None)
    with pytest.raises(StateError, match="is of 12 samples, expected 13"):
        collect(network, pairs(13), "el2n", path=path)
    with pytest.raises(StateError, match=r"holds el2n,labels of .*, expected features,labels of"):
        collect(network, pairs(12), "herding", path=path)
    with torch.no_grad():
        network.head.bias[0] += 1e-6
    with pytest.raises(StateError, match="checksum .* give another path, or remove the file"):
        collect(network, pairs(12), "el2n", path=path)
    assert_same(Statistics.load(path), found)
    features = tmp_path / "features.npz"
    collect(network, pairs(12), "herding", path=features, progress=None)
    with pytest.raises(StateError, match=r"features from layer head, expected .* layer body\.0"):
        collect(network, pairs(12), "herding", last_layer=network.body[0], path=features)
    Statistics(el2n=torch.ones(12)).save(path)
    with pytest.raises(StateError, match="holds something else"):
        collect(network, pairs(12), "el2n", path=path)


def test_a_path_that_cannot_be_saved_to_is_refused_before_the_pass(tmp_path: Path) -> None:
    def never(done: int, total: int) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="expected a name that ends in .npz or .parquet"):
        collect(Network(), pairs(5), "el2n", path=tmp_path / "train.pt", progress=never)
    with pytest.raises(ValueError, match="expected .npz with a validation set"):
        collect(
            Network(), pairs(5), "glister",
            validation=pairs(3), path=tmp_path / "train.parquet", progress=never,
        )  # fmt: skip


# Several runs -------------------------------------------------------------------------------------


def train(run: int) -> Network:
    torch.manual_seed(run)
    return Network()


def test_runs_are_averaged() -> None:
    data = pairs(20)
    found = collect_runs(train, data, ["el2n", "grand"], num_runs=4, progress=None)
    each = [collect(train(run), data, ["el2n", "grand"], progress=None) for run in range(4)]
    for name in ("el2n", "grand"):
        mean = torch.stack([one.require(name) for one in each]).mean(0)
        torch.testing.assert_close(found.require(name), mean)
    assert found.require("labels").tolist() == each[0].require("labels").tolist()


def test_interrupted_runs_go_on_with_the_next(tmp_path: Path) -> None:
    data, path = pairs(20), tmp_path / "runs.npz"
    expected = collect_runs(train, data, num_runs=5, progress=None)
    with pytest.raises(KeyboardInterrupt):
        collect_runs(train, data, num_runs=5, path=path, progress=Interrupts(2))
    trained: list[int] = []

    def note(run: int) -> Network:
        trained.append(run)
        return train(run)

    assert_same(collect_runs(note, data, num_runs=5, path=path, progress=None), expected)
    assert trained == [2, 3, 4]
    assert_same(collect_runs(note, data, num_runs=5, path=path, progress=None), expected)
    assert trained == [2, 3, 4]
    with pytest.raises(StateError, match="expected average of grand over runs"):
        collect_runs(train, data, "grand", path=path)
    with pytest.raises(StateError, match="has 20 samples, expected 21"):
        collect_runs(train, pairs(21), path=path)


def test_runs_average_only_what_has_an_average() -> None:
    with pytest.raises(ValueError, match="methods need features, expected what can be averaged"):
        collect_runs(train, pairs(5), "herding")


# Visits -------------------------------------------------------------------------------------------


def visit(visits: Visits, epochs: range, num_samples: int = 12) -> None:
    """Epochs of a training in which sample 0 is skipped every other time."""
    for epoch in epochs:
        rng = torch.Generator().manual_seed(epoch)
        order = torch.randperm(num_samples, generator=rng)
        if epoch % 2:
            order = order[order != 0]
        for indices in order.split(5):
            visits.record(
                indices, logits_at(epoch)[indices], torch.arange(num_samples)[indices] % 3
            )


def logits_at(epoch: int) -> Tensor:
    return torch.randn(12, 3, generator=torch.Generator().manual_seed(100 + epoch))


def test_visits_are_those_of_the_loop() -> None:
    visits = Visits(12, ["forgetting", "tdds"])
    visit(visits, range(6))
    found = visits.statistics()
    correct, changes = found.require("correct"), found.require("changes")
    assert correct.shape == (12, 6)
    for sample in range(12):
        epochs = [epoch for epoch in range(6) if sample or epoch % 2 == 0]
        right = [int(logits_at(epoch)[sample].argmax() == sample % 3) for epoch in epochs]
        assert correct[sample].tolist() == right + [-1] * (6 - len(epochs))
        for number, (epoch, later) in enumerate(pairwise(epochs)):
            p, q = (logits_at(e)[sample].softmax(0).tolist() for e in (epoch, later))
            moved = sum(
                abs(b * torch.log(torch.tensor(b / a)).item()) for a, b in zip(p, q, strict=True)
            )
            assert float(changes[sample, number]) == pytest.approx(moved, rel=1e-4)
        assert changes[sample, len(epochs) - 1 :].isnan().all()
    assert len(METHODS["forgetting"](found, 5).indices) == 5
    assert len(METHODS["tdds"](found, 5).indices) == 5


@pytest.mark.parametrize("methods", ["forgetting", "tdds", ["forgetting", "tdds"]])
@pytest.mark.parametrize("epochs_before", [0, 1, 3])
def test_visits_go_on_from_a_checkpoint(
    tmp_path: Path, methods: list[str], epochs_before: int
) -> None:
    whole = Visits(12, methods)
    visit(whole, range(5))
    first, second = Visits(12, methods), Visits(12, methods)
    visit(first, range(epochs_before))
    torch.save(first.state_dict(), tmp_path / "visits.pt")
    second.load_state_dict(torch.load(tmp_path / "visits.pt", weights_only=True))
    visit(second, range(epochs_before, 5))
    assert_same(second.statistics(), whole.statistics())
    with pytest.raises(StateError, match="visits of 12 samples, expected 13"):
        Visits(13, methods).load_state_dict(first.state_dict())


def test_visits_of_another_data_set_are_refused() -> None:
    visits = Visits(4)
    with pytest.raises(ValueError, match="indices go from 1 to 4, expected 0 to 3"):
        visits.record([1, 4], torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"logits has shape \(2, 3\) for 1 indices"):
        visits.record([1], torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="methods need el2n, expected methods that look at visits"):
        Visits(4, "el2n")


def test_a_training_loop_carries_visits_and_the_subset_is_trained_on() -> None:
    data = pairs(60)
    network, visits = Network(), Visits(60, ["forgetting", "tdds"])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    indexed = StackDataset(data, range(60))  # type: ignore[arg-type]
    for _ in range(4):
        for (x, y), indices in torch.utils.data.DataLoader(indexed, 16, shuffle=True):
            logits = network(x)
            visits.record(indices, logits, y)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, y).backward()
            optimizer.step()
    statistics = collect(network, data, "craig", progress=None) | visits.statistics()
    for name in ("forgetting", "tdds", "craig"):
        assert len(select(data, name, 0.5, statistics=statistics)) == 30
