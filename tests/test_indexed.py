"""Data sets and collate functions that carry indices: items stay as they are, fetched as before."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from infobatch.indexed import (
    CollateIndexed,
    CollateIndexedItems,
    IndexedBatches,
    IndexedItems,
    WithIndices,
    Wrapper,
    fetch,
)
from tests.conftest import Numbers

WRAPPERS = [WithIndices, IndexedBatches, lambda data: IndexedItems(data, "index")]


class OneByOne(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"x": 10 * index}


class AtOnce(OneByOne):
    """A data set with a faster way to a whole batch."""

    num_fetches = 0

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("fetched one by one")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.num_fetches += 1
        return [{"x": 10 * index} for index in indices]


class InNameOnly(OneByOne):
    """A data set that switches off what its base class can."""

    __getitems__ = None


KINDS = pytest.mark.parametrize("kind", [OneByOne, AtOnce, InNameOnly])


@KINDS
def test_a_batch_is_fetched_as_the_data_set_can(kind: type[Numbers]) -> None:
    assert fetch(kind(9), [7, 2, 2]) == [{"x": 70}, {"x": 20}, {"x": 20}]


def test_in_one_call_where_it_can() -> None:
    data = AtOnce(9)
    WithIndices(data).__getitems__([3, 4])
    IndexedBatches(data).__getitems__([3, 4])
    IndexedItems(data, "index").__getitems__([3, 4])
    assert data.num_fetches == 3


@KINDS
def test_items_come_with_their_indices(kind: type[Numbers]) -> None:
    data = kind(9)
    assert WithIndices(data).__getitems__([7, 2]) == [(7, {"x": 70}), (2, {"x": 20})]
    assert IndexedBatches(data).__getitems__([7, 2]) == ([7, 2], [{"x": 70}, {"x": 20}])
    items = IndexedItems(data, "index").__getitems__([7, 2])
    assert items == [{"x": 70, "index": 7}, {"x": 20, "index": 2}]


def test_one_item_too() -> None:
    assert WithIndices(OneByOne(9))[7] == (7, {"x": 70})
    assert IndexedItems(OneByOne(9), "index")[7] == {"x": 70, "index": 7}


def test_the_items_of_the_data_set_are_left_alone() -> None:
    items = [{"x": 1}, {"x": 2}]
    wrapped = IndexedItems(items, "index")
    assert wrapped[1] == {"x": 2, "index": 1}
    wrapped.__getitems__([0, 1])
    assert items == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_has_the_length_and_public_attributes_of_the_data(wrap: Any) -> None:
    data = OneByOne(9)
    wrapped = wrap(data)
    assert len(wrapped) == 9
    assert wrapped.classes is data.classes
    for name in ("_private", "__special__", "absent"):
        with pytest.raises(AttributeError, match=name):
            getattr(wrapped, name)
    copied = pickle.loads(pickle.dumps(wrapped))
    assert len(copied) == 9
    assert copied.classes == data.classes


def test_an_empty_wrapper_has_no_attributes_to_ask_for_ever() -> None:
    with pytest.raises(AttributeError):
        Wrapper.__new__(Wrapper).targets  # noqa: B018


def test_indices_stand_beside_the_batch() -> None:
    collate = CollateIndexed(lambda items: [item * 2 for item in items])
    indices, batch = collate(([7, 2], [70, 20]))
    assert torch.equal(indices, torch.tensor([7, 2]))
    assert batch == [140, 40]


def test_or_in_it_and_the_collate_function_does_not_see_them() -> None:
    seen: list[dict[str, int]] = []

    def collate(items: list[dict[str, int]]) -> dict[str, Any]:
        seen.extend(dict(item) for item in items)
        return {"x": torch.tensor([item["x"] for item in items])}

    items = IndexedItems(OneByOne(9), "index").__getitems__([7, 2])
    batch = CollateIndexedItems(collate, "index")(items)
    assert seen == [{"x": 70}, {"x": 20}]
    assert batch["index"].tolist() == [7, 2]
    assert batch["x"].tolist() == [70, 20]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_through_a_loader(num_workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(
        IndexedItems(OneByOne(9), "index"),
        batch_size=4,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=CollateIndexedItems(default_collate, "index"),
    )
    seen = []
    for batch in loader:
        assert torch.equal(batch["x"], 10 * batch["index"])
        seen += batch["index"].tolist()
    assert sorted(seen) == list(range(9))
