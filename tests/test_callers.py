"""What is known of the loader that calls: a canary for names that are torch's own affair."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from infobatch.callers import LoaderCall, is_starting_workers, loader_call
from tests.conftest import Numbers

LOADERS = pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


class Asking(Sampler[int]):
    """A sampler that asks who draws from it, each time."""

    def __init__(self, num_samples: int = 12) -> None:
        self.num_samples = num_samples
        self.calls: list[LoaderCall | None] = []
        self.starting_workers: list[bool] = []

    def __iter__(self) -> Iterator[int]:
        for index in range(self.num_samples):
            self.calls.append(loader_call())
            self.starting_workers.append(is_starting_workers())
            yield index

    def __len__(self) -> int:
        return self.num_samples

    def all_calls(self) -> list[LoaderCall]:
        assert None not in self.calls
        return [call for call in self.calls if call is not None]


class OwnBatchSampler(BatchSampler):
    """May do as it likes."""


@LOADERS
@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_is_seen_as_it_is(kind: Any, num_workers: int, drop_last: bool) -> None:
    data, sampler = Numbers(12), Asking()
    options = {"prefetch_factor": 3} if num_workers else {}
    loader = kind(data, 5, sampler=sampler, num_workers=num_workers, drop_last=drop_last, **options)
    batches = iter(loader)
    next(batches)
    next(batches)
    seen = sampler.all_calls()
    for call in seen:
        assert call.iterator() is batches
        assert call.read_ahead == 3 * num_workers
        assert call.batch_size == 5
        assert call.drop_last is drop_last
        assert call.dataset is data
        assert call.in_order
    # Workers get their first batches when they start; without them nothing is drawn before its use.
    assert [call.is_starting for call in seen] == [num_workers > 0] * len(seen)


@LOADERS
def test_asking_for_more_is_not_starting(kind: Any) -> None:
    sampler = Asking(40)
    batches = iter(kind(Numbers(40), 5, sampler=sampler, num_workers=2, prefetch_factor=1))
    num_drawn_at_start = len(sampler.calls)
    assert num_drawn_at_start == 10
    next(batches)
    starting = [call.is_starting for call in sampler.all_calls()]
    assert starting == [True] * 10 + [False] * 5
    assert sampler.starting_workers == starting


@LOADERS
def test_persistent_workers_start_again_with_the_same_iterator(kind: Any) -> None:
    sampler = Asking()
    loader = kind(Numbers(12), 5, sampler=sampler, num_workers=2, persistent_workers=True)
    list(loader)
    first = sampler.all_calls()
    sampler.calls = []
    list(loader)
    second = sampler.all_calls()
    assert second[0].is_starting
    assert second[0].starts_again(first[0])
    assert not second[0].goes_on_from(first[0])
    assert not second[0].starts_again(LoaderCall(weakref.ref(sampler), 4, 5, False, 0, True, True))


def test_an_iteration_that_draws_on_goes_on() -> None:
    sampler = Asking()
    batches = iter(DataLoader(Numbers(12), 5, sampler=sampler))
    next(batches)
    next(batches)
    first, *_, last = sampler.all_calls()
    assert last.goes_on_from(first)
    assert not last.starts_again(first)
    assert not last.goes_on_from(None)
    other = Asking()
    next(iter(DataLoader(Numbers(12), 5, sampler=other)))
    assert not other.all_calls()[0].goes_on_from(first)


@LOADERS
@WORKERS
def test_of_another_batch_sampler_the_size_is_not_known(kind: Any, num_workers: int) -> None:
    sampler = Asking()
    own = OwnBatchSampler(sampler, 5, drop_last=True)
    next(iter(kind(Numbers(12), batch_sampler=own, num_workers=num_workers)))
    for call in sampler.all_calls():
        assert call.batch_size is None
        assert not call.drop_last
        assert call.read_ahead == 2 * num_workers
    sampler.calls = []
    torchs = BatchSampler(sampler, 5, drop_last=True)
    next(iter(kind(Numbers(12), batch_sampler=torchs, num_workers=num_workers)))
    assert {(call.batch_size, call.drop_last) for call in sampler.all_calls()} == {(5, True)}


def test_without_batches_the_size_is_not_known() -> None:
    sampler = Asking()
    assert next(iter(DataLoader(Numbers(12), batch_size=None, sampler=sampler))) == 0
    assert sampler.all_calls()[0].batch_size is None


@WORKERS
def test_without_workers_the_order_is_kept_whatever_was_asked_for(num_workers: int) -> None:
    sampler = Asking()
    next(iter(DataLoader(Numbers(12), 5, sampler=sampler, num_workers=num_workers, in_order=False)))
    assert {call.in_order for call in sampler.all_calls()} == {num_workers == 0}


def test_outside_of_a_loader_there_is_none() -> None:
    assert loader_call() is None
    assert not is_starting_workers()
    sampler = Asking()
    list(BatchSampler(sampler, 5, drop_last=False))
    assert set(sampler.calls) == {None}


def test_a_data_set_that_is_read_in_the_same_process_is_called_too() -> None:
    class Data(Numbers):
        def __getitem__(self, index: int) -> int:
            call = loader_call()
            assert call is not None
            assert call.dataset is self
            assert not is_starting_workers()
            return index

    list(DataLoader(Data(12), 5))


def test_a_loader_that_is_gone_is_not_kept_alive() -> None:
    sampler = Asking()
    batches = iter(DataLoader(Numbers(12), 5, sampler=sampler))
    next(batches)
    del batches
    gc.collect()
    assert {call.iterator() for call in sampler.all_calls()} == {None}


class Witness:
    """Something in a variable of the user's."""


def test_the_variables_of_the_users_functions_are_not_kept_alive() -> None:
    """Reading a frame's variables stores them in the frame, as CPython does up to 3.12."""

    def loop() -> weakref.ref[Witness]:
        witness = Witness()
        dies = weakref.ref(witness)
        batches = iter(DataLoader(Numbers(12), 5, sampler=Asking()))
        next(batches)
        assert dies() is witness
        del witness
        assert dies() is None  # at once, within the function that was on the stack
        return dies

    assert loop()() is None


# Starting workers --------------------------------------------------------------------------------


class Sent(Numbers):
    """Notes, when it is sent to a process, whether that is a loader's worker."""

    sent_to_workers: list[bool] = []  # noqa: RUF012

    def __getstate__(self) -> dict[str, Any]:
        self.sent_to_workers.append(is_starting_workers())
        return self.__dict__


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "kind"), [("spawn", DataLoader), ("forkserver", StatefulDataLoader)]
)
def test_a_data_set_that_is_sent_to_workers_is_told_so(context: str, kind: Any) -> None:
    data = Sent(12)
    data.sent_to_workers.clear()
    loader = kind(data, 5, num_workers=1, multiprocessing_context=context)
    pickle.dumps(data)  # as any copy
    assert data.sent_to_workers == [False]
    assert [len(batch) for batch in loader] == [5, 5, 2]
    assert data.sent_to_workers == [False, True]
    pickle.dumps(data)
    assert data.sent_to_workers == [False, True, False]


def test_forked_workers_are_sent_nothing() -> None:
    data = Sent(12)
    data.sent_to_workers.clear()
    assert len(list(DataLoader(data, 5, num_workers=1, multiprocessing_context="fork"))) == 3
    assert data.sent_to_workers == []
