"""The three-line interface."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import infobatch
from infobatch import InfoBatch
from infobatch.indexed import Wrapper, wrapped_by
from infobatch.official import INSTEAD
from infobatch.rules import Groups, Mean, Memory
from tests.conftest import Numbers, loss_of, train_epoch


def test_the_lines_of_the_readme_train_a_model() -> None:
    x = torch.randn(300, 6)
    y = (x @ torch.randn(6) > 0).long()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    num_epochs, prune_ratio, delta = 8, 0.5, 0.875

    train_data = infobatch.InfoBatch(TensorDataset(x, y), num_epochs, prune_ratio, delta)
    loader = DataLoader(train_data, batch_size=32, num_workers=2, sampler=train_data.sampler)
    criterion = nn.CrossEntropyLoss(reduction="none")
    for _ in range(num_epochs):
        for inputs, targets in loader:
            assert isinstance(inputs, Tensor)
            assert isinstance(targets, Tensor)
            loss = train_data.update(criterion(model(inputs), targets))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    accuracy = (model(x).argmax(1) == y).float().mean()
    assert accuracy > 0.95
    assert 0.2 < train_data.savings.fraction < 0.45


def test_a_pruned_step_is_the_weighted_gradient() -> None:
    """Against the definition: mean over the batch of weight x loss, sample by sample."""
    data = InfoBatch(Numbers(40), 10)
    theta = torch.tensor(1.5, requires_grad=True)
    for _ in range(2):
        plan = data.plan
        weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
        for samples in DataLoader(data, batch_size=8, sampler=data.sampler):
            theta.grad = None
            data.update(theta**2 * loss_of(samples)).backward()
            by_hand = sum(
                weight_of[i] * 3.0 * float(loss_of(torch.tensor(i))) for i in samples.tolist()
            )
            assert theta.grad is not None
            assert float(theta.grad) == pytest.approx(by_hand / len(samples), rel=1e-5)


def test_items_and_length_are_those_of_the_data_set() -> None:
    data = InfoBatch(Numbers(9), 3)
    assert len(data) == 9
    assert [data[i] for i in range(9)] == list(range(9))
    assert data.dataset[4] == 4


class Tenfold(InfoBatch[int]):
    """A user's own, which changes the items."""

    def __getitem__(self, index: int) -> int:
        return 10 * super().__getitem__(index)


@pytest.mark.parametrize("loader", [DataLoader, infobatch.DataLoader])
def test_a_subclass_may_change_the_items(loader: Any) -> None:
    data = Tenfold(Numbers(9), 3)
    options = {"batch_sampler": data.batches(4)} if loader is DataLoader else {"batch_size": 4}
    assert sorted(int(item) for batch in loader(data, **options) for item in batch) == [
        *range(0, 90, 10)
    ]


@pytest.mark.parametrize("kind", [InfoBatch, Tenfold])
def test_a_loader_of_ours_shows_the_data_set_whose_items_it_reads(kind: Any) -> None:
    """Workers set it up by its attributes, and frameworks call its methods."""
    data = kind(Numbers(9), 3)
    own = infobatch.DataLoader(data, 4).dataset
    assert isinstance(own, Wrapper)
    assert wrapped_by(own) is (data if kind is Tenfold else data.dataset)


def test_what_people_read_of_a_data_set_is_reachable() -> None:
    data = InfoBatch(Numbers(9), 3)
    assert data.classes == ["a", "b", "c"]
    assert data.targets[4] == 1
    with pytest.raises(AttributeError, match="nonsense"):
        data.nonsense  # noqa: B018
    private = InfoBatch(Fetching(9), 3)
    assert hasattr(private.dataset, "_private_of_the_wrapped")
    assert not hasattr(private, "_private_of_the_wrapped")
    with pytest.raises(AttributeError, match="targets"):
        InfoBatch.__new__(InfoBatch).targets  # noqa: B018


def test_the_error_inside_a_property_is_the_one_shown() -> None:
    class Broken(Mean):
        def groups(self, scores: Tensor, memory: Memory, epoch: int) -> Groups:
            raise AttributeError("a mistake in my rule")

    with pytest.raises(AttributeError, match="a mistake in my rule"):
        InfoBatch(Numbers(9), 3, rule=Broken()).plan  # noqa: B018


def test_what_a_data_set_has_is_set_there() -> None:
    """timm's create_loader sets `transform` on the data set that it is given."""
    data = InfoBatch(Numbers(9), 3)
    data.targets = [2] * 9
    assert data.dataset.targets == data.targets == [2] * 9
    assert "targets" not in vars(data)


def test_names_of_its_own_and_private_ones_stay_on_the_wrapper() -> None:
    data = InfoBatch(Fetching(9), 3)
    data.note = "fine"
    data._private_of_the_wrapped = False
    assert (data.note, data.dataset._private_of_the_wrapped) == ("fine", True)
    assert not hasattr(data.dataset, "note")
    other = Numbers(9)
    data.dataset = other
    assert data.dataset is other
    with pytest.raises(AttributeError, match="epoch"):
        data.epoch = 3  # type: ignore[misc]
    assert not hasattr(other, "epoch")


def test_what_lies_inside_a_subset_is_not_set_by_accident() -> None:
    """Both parts of a split share one data set: the other one would change, too."""
    raw = Numbers(9)
    data = InfoBatch(Subset(raw, [1, 2, 3]), 3)
    with pytest.raises(AttributeError, match=r"set train_data\.dataset\.dataset\.targets"):
        data.targets = [0] * 9
    data.indices = [4, 5, 6]  # the Subset's own
    assert [data[i] for i in range(3)] == [4, 5, 6]
    assert raw.targets == Numbers(9).targets


@pytest.mark.slow
def test_workers_see_what_was_set_before_they_started() -> None:
    class Scaled(Numbers):
        scale = 1

        def __getitem__(self, index: int) -> int:
            return index * self.scale

    data = InfoBatch(Scaled(6), 3)
    data.scale = 10
    loader = DataLoader(data, batch_sampler=data.batches(6), num_workers=1)
    assert sorted(next(iter(loader)).tolist()) == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_a_name_of_the_authors_package_says_what_to_write_here(name: str) -> None:
    data = InfoBatch(Numbers(9), 3)
    with pytest.raises(AttributeError, match=f"^{name} is a name of the authors' package: .*[.]$"):
        getattr(data, name)
    assert not hasattr(data, name)


def test_a_data_sets_own_attribute_of_such_a_name_is_read() -> None:
    raw = Numbers(9)
    raw.weights = [1.0] * 9  # type: ignore[attr-defined]
    assert InfoBatch(raw, 3).weights == [1.0] * 9


def test_repr_tells_size_epoch_rule_and_saving() -> None:
    data = InfoBatch(Numbers(100), 10)
    settings = "num_samples=100, num_epochs=10"
    rule = "rule=Mean(prune_ratio=0.5, rescale=True)"
    assert repr(data) == f"InfoBatch(Numbers, {settings}, epoch=0, {rule}, saved=0.0%)"
    train_epoch(data)
    train_epoch(data)
    saved = f"{data.savings.fraction:.1%}"
    assert repr(data) == f"InfoBatch(Numbers, {settings}, epoch=2, {rule}, saved={saved})"
    assert saved != "0.0%"
    assert "num_steps=50" in repr(InfoBatch(Numbers(100), num_steps=50))


class Fetching(Numbers):
    """A data set that fetches whole batches, as Subset and Hugging Face data sets do."""

    _private_of_the_wrapped = True
    calls = 0

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls += 1
        return list(indices)


def test_getitems_of_the_data_set_is_used_and_gives_data_not_indices() -> None:
    raw = Fetching(24)
    data = InfoBatch(Subset(raw, list(range(23, -1, -1))), 3)
    batches = list(DataLoader(data, batch_size=8, sampler=data.sampler))
    assert torch.equal(torch.cat(batches), 23 - data.plan.indices)
    assert raw.calls == 3


def test_a_subset_of_it_holds_its_items() -> None:
    assert [Subset(InfoBatch(Fetching(10), 3), [7, 2])[i] for i in (0, 1)] == [7, 2]
    assert Subset(InfoBatch(Numbers(10), 3), [7, 2]).__getitems__([0, 1]) == [7, 2]


def test_any_collate_function() -> None:
    def collate(items: list[int]) -> dict[str, Any]:
        return {"names": [str(i) for i in items], "samples": torch.tensor(items)}

    data = InfoBatch(Numbers(20), 5)
    for batch in DataLoader(data, batch_size=6, sampler=data.sampler, collate_fn=collate):
        assert batch["names"] == [str(i) for i in batch["samples"].tolist()]
        data.update(loss_of(batch["samples"]))
    assert data.epoch == 1


@pytest.mark.parametrize(
    "copier", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))]
)
def test_copies_work(copier: Any) -> None:
    data = InfoBatch(Numbers(20), 5)
    for samples in DataLoader(data, batch_size=5, sampler=data.sampler):
        data.update(loss_of(samples))
    twin = copier(data)
    assert twin.plan.fingerprint == data.plan.fingerprint
    assert twin.classes == data.classes
    for samples in DataLoader(twin, batch_size=5, sampler=twin.sampler):
        twin.update(loss_of(samples))
    assert (data.epoch, twin.epoch) == (1, 2)
    assert data.savings.fraction == 0 < twin.savings.fraction


def test_a_shallow_copy_shares_the_data() -> None:
    data = InfoBatch(Numbers(20), 5)
    assert copy.copy(data).dataset is data.dataset
    assert copy.deepcopy(data).dataset is not data.dataset


def test_a_pickled_loader_and_its_data_stay_together() -> None:
    data = InfoBatch(Numbers(20), 5)
    loader = DataLoader(data, batch_size=5, sampler=data.sampler)
    twin: DataLoader[Any] = pickle.loads(pickle.dumps(loader))
    copied = twin.dataset
    assert isinstance(copied, InfoBatch)
    for samples in twin:
        copied.update(loss_of(samples))
    assert (data.epoch, copied.epoch) == (0, 1)


def test_a_copy_from_the_middle_of_an_epoch_goes_on_there() -> None:
    data = InfoBatch(Numbers(20), 5)
    batches = iter(DataLoader(data, batch_size=5, sampler=data.sampler))
    data.update(loss_of(next(batches)))
    twin = pickle.loads(pickle.dumps(data))
    assert torch.equal(torch.tensor(list(twin.sampler)), data.plan.indices[5:])
    for original in (data, twin):
        rest = batches if original is data else DataLoader(twin, batch_size=5, sampler=twin.sampler)
        for samples in rest:
            original.update(loss_of(samples))
    assert data.epoch == twin.epoch == 1
    assert torch.equal(data.scores, twin.scores)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield 1


class Lengthless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "error", "sentence"),
    [
        (Stream(), TypeError, "dataset is an IterableDataset, which cannot skip samples"),
        (Lengthless(), TypeError, "dataset is a Lengthless.*infobatch.Pruner"),
        (iter([1]), TypeError, "dataset is a list_iterator"),
        ([], ValueError, "dataset is empty"),
    ],
)
def test_data_sets_that_cannot_be_pruned_are_refused(
    dataset: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        InfoBatch(dataset, 3)


def test_full_trains_exactly_as_without_the_library() -> None:
    x, y = torch.randn(50, 4), torch.randn(50)

    def fit(data: InfoBatch[Any] | None) -> Tensor:
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        orders = InfoBatch(TensorDataset(x, y), 4, rule="full")
        for _ in range(4):
            indices = orders.plan.indices
            orders.update(torch.ones(50), indices)
            batches = (
                DataLoader(data, batch_size=8, sampler=data.sampler)
                if data is not None
                else [(x[i], y[i]) for i in indices.split(8)]
            )
            for inputs, targets in batches:
                losses = (model(inputs).squeeze(1) - targets) ** 2
                loss = losses.mean() if data is None else data.update(losses)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model.weight.detach()

    assert torch.equal(fit(InfoBatch(TensorDataset(x, y), 4, rule="full")), fit(None))
