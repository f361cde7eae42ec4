"""Whose losses are these? The trackers against a simulation of loaders and of their users.

In the simulation every batch carries its samples, so that it is known whether losses were given to
the right ones.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from threading import Thread
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from infobatch import InfoBatch, OrderError, tracking
from infobatch.callers import LoaderCall
from infobatch.shard import Batching, Shard, by_size, by_steps
from infobatch.tracking import BatchTracker, LoadedBatch, SampleTracker, Tracker
from tests.conftest import Numbers, loss_of

Batch = TypeVar("Batch")

# Loaders -----------------------------------------------------------------------------------------


def workers(draw: Callable[[], list[int]], read_ahead: int) -> Iterator[list[int]]:
    """A DataLoader: it draws so many batches at first, then one for each that it hands out."""
    fetched: deque[list[int]] = deque()

    def ask() -> None:
        with suppress(StopIteration):
            fetched.append(draw())

    for _ in range(read_ahead):
        ask()
    while fetched or not read_ahead:
        ask()  # also when there is nothing more to draw
        if not fetched:
            return
        yield fetched.popleft()


def looking_ahead(batches: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """Something between the loader and the training loop, that fetches batches before their use."""
    waiting: deque[Batch] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


class Owner:
    """In place of the loader's iterator."""


OWNER = Owner()


@dataclass(frozen=True)
class Scene:
    """A loader over a part of an epoch."""

    shard: Shard
    kind: str
    """batches, lighter batches, sampler (of a BatchSampler that is known), or unknown."""
    batch_size: int
    drop_last: bool
    read_ahead: int
    depth: int

    def open(self) -> tuple[Tracker, Iterator[list[int]]]:
        indices = np.random.default_rng(0).permutation(self.shard.end) + 1000
        is_known = self.kind != "unknown"
        size = self.batch_size if is_known else None
        call = LoaderCall(
            weakref.ref(OWNER), self.read_ahead, size, is_known and self.drop_last, None, True, True
        )
        if "batches" in self.kind:
            batches = BatchTracker(self.shard, indices, self.batching(), call)
            return batches, looking_ahead(workers(batches.draw, self.read_ahead), self.depth)
        samples = SampleTracker(self.shard, indices, call)
        stream = chain.from_iterable(samples.chunks())
        drawn = iter(BatchSampler(stream, self.batch_size, self.drop_last))
        loader = workers(lambda: next(drawn), self.read_ahead)
        return samples, looking_ahead(loader, self.depth)

    def batching(self) -> Batching:
        length = len(self.shard)
        if self.kind == "batches":
            return by_size(length, self.batch_size, drop_last=self.drop_last)
        return by_steps(length, -(-length // self.batch_size))


SIZES = st.integers(1, 30)


@st.composite
def scenes(
    draw: st.DrawFn,
    kinds: tuple[str, ...],
    depth: int = 3,
    sizes: st.SearchStrategy[int] = SIZES,
) -> Scene:
    world_size = draw(st.integers(1, 3))
    start, size = draw(st.integers(0, 3)), draw(sizes)
    shard = Shard(start, start + size, draw(st.integers(0, world_size - 1)), world_size)
    batch_size = draw(st.integers(1, 6))
    drop_last = draw(st.booleans()) and len(shard) >= batch_size
    return Scene(
        shard,
        draw(st.sampled_from(kinds)),
        batch_size,
        drop_last,
        read_ahead=draw(st.sampled_from([0, 1, 2, 4])),
        depth=draw(st.integers(0, depth)),
    )


# Users -------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """How a training loop went."""

    steps: int = 0
    """Batches that the loop has seen."""
    lost_first: bool = False
    """Whether batches were lost before the first report."""
    reports: int = 0
    wrong: int = 0
    """Losses that were given to other samples."""
    refused_at: int | None = None
    """The step in which an update raised."""

    @property
    def refused(self) -> bool:
        return self.refused_at is not None


def train(
    tracker: Tracker,
    loader: Iterator[list[int]],
    deeds: dict[int, str],
    stop_at: int | None = None,
    cuts: list[int] | None = None,
) -> Outcome:
    """Report batch after batch, except for what `deeds` say about some steps."""
    outcome = Outcome()
    for step, samples in enumerate(loader):
        if step == stop_at:
            break
        outcome.steps += 1
        deed = deeds.get(step, "report")
        parts = [samples]
        if cuts:
            cut = cuts[step % len(cuts)] % len(samples)
            parts = [part for part in (samples[:cut], samples[cut:]) if part]
        if deed == "drop":
            parts = []
        elif deed == "twice":
            parts = 2 * parts
        elif deed == "cut":
            parts = [samples[:-1]] if len(samples) > 1 else []
        if not parts and outcome.reports == 0:
            outcome.lost_first = True
        for part in parts:
            try:
                positions = tracker.take(len(part))
            except OrderError:
                outcome.refused_at = step
                return outcome
            outcome.reports += 1
            outcome.wrong += tracker.samples(positions.start, positions.stop) != part
            if tracker.reported == tracker.end:
                return outcome  # the epoch closes with it
    return outcome


def close(tracker: Tracker, *, by_new_loop: bool) -> str:
    """What an epoch does with its losses when it ends: keep, forget, or refuse."""
    if tracker.reported == tracker.end:
        return "keep"
    try:
        tracker.check_complete(by_new_loop=by_new_loop)
    except OrderError:
        return "refuse"
    return "keep" if tracker.is_certain else "forget"


ALL = ("batches", "lighter batches", "sampler", "unknown")
CUTS = st.none() | st.lists(st.integers(0, 5), min_size=1, max_size=4)


@pytest.fixture(autouse=True, scope="module")
def _small_chunks() -> Iterator[None]:
    """Let the samples of an epoch come in several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "CHUNK", 7)
        yield


# Legal histories ---------------------------------------------------------------------------------


@given(scenes(ALL), CUTS)
@settings(max_examples=400)
def test_a_whole_epoch_gives_every_loss_to_its_own_sample(
    scene: Scene, cuts: list[int] | None
) -> None:
    tracker, loader = scene.open()
    outcome = train(tracker, loader, {}, cuts=cuts)
    assert not outcome.refused
    assert outcome.wrong == 0
    if scene.kind != "unknown" or not scene.drop_last:
        assert tracker.reported == tracker.end
    for by_new_loop in (False, True):
        assert close(tracker, by_new_loop=by_new_loop) == "keep"


@given(scenes(ALL), CUTS, st.integers(0, 12))
@settings(max_examples=400)
def test_a_loop_that_is_broken_off_is_right_as_far_as_it_came(
    scene: Scene, cuts: list[int] | None, stop_at: int
) -> None:
    tracker, loader = scene.open()
    outcome = train(tracker, loader, {}, stop_at=stop_at, cuts=cuts)
    assert not outcome.refused
    assert outcome.wrong == 0
    if "batches" in scene.kind and scene.depth == 0:
        assert close(tracker, by_new_loop=True) == "keep"


@given(scenes(("batches", "lighter batches", "sampler")), CUTS)
def test_without_reading_ahead_the_batch_in_hand_is_known_before_it_is_reported(
    scene: Scene, cuts: list[int] | None
) -> None:
    assume(scene.depth == 0)
    tracker, loader = scene.open()
    assert not tracker.has_new_batch
    assert tracker.new_batch is None
    for samples in loader:
        assert tracker.has_new_batch or scene.read_ahead
        try:
            in_hand = tracker.new_batch
        except OrderError:
            assert scene.read_ahead
        else:
            if in_hand is not None:
                assert tracker.samples(in_hand.start, in_hand.stop) == samples
        tracker.take(len(samples))
        assert tracker.new_batch is None


@given(scenes(ALL))
def test_batches_may_be_reported_by_index_in_between(scene: Scene) -> None:
    tracker, loader = scene.open()
    for _ in loader:
        tracker.note_report()
        assert not tracker.has_new_batch
    assert tracker.reported == 0


# Illegal histories -------------------------------------------------------------------------------

DEEDS = st.dictionaries(st.integers(0, 8), st.sampled_from(["drop", "twice", "cut"]), max_size=3)


@given(
    scenes(("batches", "lighter batches"), depth=0, sizes=st.integers(15, 30)),
    st.integers(1, 8),
    CUTS,
    st.booleans(),
)
@settings(max_examples=300)
def test_with_batches_a_drop_after_the_first_report_is_refused_at_the_next(
    scene: Scene, at: int, cuts: list[int] | None, whole: bool
) -> None:
    tracker, loader = scene.open()
    assume(at + 1 < scene.batching().num_batches)
    outcome = train(tracker, loader, {at: "drop" if whole else "cut"}, cuts=cuts)
    assert outcome.refused_at == at + 1
    assert outcome.wrong == 0
    assert close(tracker, by_new_loop=True) == "keep"  # all of it is right


@given(scenes(("batches", "lighter batches"), depth=0), st.integers(0, 8), CUTS)
@settings(max_examples=300)
def test_with_batches_a_double_is_refused_at_once(
    scene: Scene, at: int, cuts: list[int] | None
) -> None:
    tracker, loader = scene.open()
    assume(at + 1 < scene.batching().num_batches)  # the last one closes the epoch
    outcome = train(tracker, loader, {at: "twice"}, cuts=cuts)
    assert outcome.refused_at == at
    assert outcome.wrong == 0


def steps_while_drawing(scene: Scene) -> int:
    """In how many steps the loader has not drawn everything yet."""
    tracker, loader = scene.open()
    assert isinstance(tracker, SampleTracker)
    return sum(tracker.drawn < tracker.end for _ in loader)


@given(
    scenes(("sampler", "unknown"), sizes=st.integers(60, 90)),
    st.integers(1, 6),
    st.sampled_from(["drop", "twice", "cut"]),
)
def test_with_a_sampler_too_while_the_loader_still_draws(scene: Scene, at: int, deed: str) -> None:
    assume(at + 1 < steps_while_drawing(scene))
    tracker, loader = scene.open()
    outcome = train(tracker, loader, {at: deed})
    assert outcome.refused_at in ((at, at + 1) if deed == "twice" else (at + 1,))


@given(
    scenes(("batches", "lighter batches"), depth=0),
    DEEDS,
    CUTS,
    st.none() | st.integers(0, 10),
    st.booleans(),
)
@settings(max_examples=1000)
def test_losses_that_may_be_wrong_are_never_kept(
    scene: Scene,
    deeds: dict[int, str],
    cuts: list[int] | None,
    stop_at: int | None,
    by_new_loop: bool,
) -> None:
    tracker, loader = scene.open()
    outcome = train(tracker, loader, deeds, stop_at, cuts)
    # Cannot be told apart from something that reads ahead and holds its batches at the end.
    assume(not (outcome.lost_first and "twice" in deeds.values()))
    if outcome.wrong:
        assert close(tracker, by_new_loop=by_new_loop) != "keep"


@given(scenes(("sampler", "unknown")), DEEDS, CUTS, st.none() | st.integers(0, 10), st.booleans())
@settings(max_examples=1000)
def test_nor_are_they_with_a_sampler(
    scene: Scene,
    deeds: dict[int, str],
    cuts: list[int] | None,
    stop_at: int | None,
    by_new_loop: bool,
) -> None:
    """While the loader draws: among the last batches nothing tells which of them are in hand."""
    # Of a batch sampler that is not known, the batch after shows how large a batch is.
    still_drawing = steps_while_drawing(scene) - (scene.kind == "unknown")
    deeds = {step: deed for step, deed in deeds.items() if step < still_drawing}
    tracker, loader = scene.open()
    outcome = train(tracker, loader, deeds, stop_at, cuts)
    assume(scene.kind == "sampler" or not outcome.lost_first)
    if outcome.wrong:
        assert close(tracker, by_new_loop=by_new_loop) != "keep"


# Small histories, told one by one ----------------------------------------------------------------


def ten_batches(read_ahead: int = 0) -> tuple[Tracker, Iterator[list[int]]]:
    return Scene(Shard(0, 40), "batches", 4, False, read_ahead, 0).open()


def test_with_workers_that_have_read_everything_a_double_is_refused_at_once() -> None:
    """With a real loader: both batches are fetched before the first one is reported."""
    data = InfoBatch(Numbers(16), 10)
    loader = DataLoader(data, batch_sampler=data.batches(8), num_workers=2)
    for step, samples in enumerate(loader):
        data.update(loss_of(samples))
        if step == 0:
            with pytest.raises(OrderError, match="more batches than were fetched"):
                data.update(loss_of(samples))
    assert data.epoch == 1
    assert torch.equal(data.scores, loss_of(torch.arange(16)))


class OwnBatchSampler(BatchSampler):
    """Not torch's own, so that nothing is known about it."""


def test_losses_of_a_doubled_batch_are_forgotten_when_a_new_loop_begins() -> None:
    """With a real loader whose batch size is not known: the double shows at the next batch."""
    data = InfoBatch(Numbers(12), 10)
    loader = DataLoader(data, batch_sampler=OwnBatchSampler(data.sampler, 2, drop_last=False))
    waiting = looking_ahead(iter(loader), 1)
    samples = next(waiting)
    data.update(loss_of(samples))
    data.update(loss_of(samples))
    with pytest.raises(OrderError, match="4 losses were reported for a batch of 2"):
        data.update(loss_of(next(waiting)))
    with pytest.warns(RuntimeWarning, match="not recorded, .* or one was reported twice"):
        data.set_epoch(1)
    assert data.scores.isnan().all()


def test_a_refused_report_may_be_made_right() -> None:
    tracker, loader = ten_batches()
    samples = next(loader)
    for wrong in (5, 8, 40):
        with pytest.raises(OrderError, match=f"losses has {wrong} entries"):
            tracker.take(wrong)
    assert tracker.reported == 0
    assert tracker.take(len(samples)) == slice(0, 4)


@pytest.mark.parametrize("read_ahead", [0, 4])
def test_what_came_before_a_refused_drop_is_kept_at_the_end_too(read_ahead: int) -> None:
    tracker, loader = ten_batches(read_ahead)
    outcome = train(tracker, loader, {3: "drop"})
    assert outcome.refused_at == 4
    deque(loader)  # the loop goes on to the end, and reports nothing more
    assert tracker.is_finished
    assert tracker.reported == 12
    assert close(tracker, by_new_loop=False) == "keep"


@pytest.mark.parametrize("read_ahead", [0, 4])
def test_another_thread_is_refused(read_ahead: int) -> None:
    tracker, loader = ten_batches(read_ahead)
    next(loader)
    refused = []

    def report() -> None:
        try:
            tracker.take(4)
        except OrderError as error:
            refused.append(str(error))

    thread = Thread(target=report)
    thread.start()
    thread.join()
    assert "another thread fetches the batches" in refused[0]
    assert tracker.take(4) == slice(0, 4)


def test_a_loader_without_order_is_refused() -> None:
    call = LoaderCall(weakref.ref(OWNER), 4, None, False, None, False, True)
    tracker = BatchTracker(Shard(0, 8), np.arange(8), by_size(8, 4), call)
    tracker.draw()
    with pytest.raises(OrderError, match="in_order of the DataLoader is False"):
        tracker.take(4)
    assert tracker.reported == 0


@pytest.mark.parametrize("kind", ALL)
def test_an_iteration_that_is_over_draws_no_more(kind: str) -> None:
    tracker, loader = Scene(Shard(0, 40), kind, 4, False, 0, 0).open()
    next(loader)
    tracker.is_over = True
    with pytest.raises(OrderError, match="finish one iteration before you begin the next"):
        deque(loader)


# The batch of a loader that knows its samples ----------------------------------------------------


def loaded(*samples: int, before: LoadedBatch | None = None, epoch: int = 0) -> LoadedBatch:
    return LoadedBatch(torch.tensor(samples), epoch, before)


def test_a_loaded_batch_is_taken_in_parts_and_again() -> None:
    batch = loaded(7, 3, 5)
    for again in (False, True):
        assert batch.was_reported == again
        assert batch.take(2).tolist() == [7, 3]
        assert not batch.is_new
        with pytest.raises(OrderError, match="losses has 2 entries, but 1 samples are left"):
            batch.take(2)
        assert batch.take(1).tolist() == [5]
    assert batch.is_last_of(3)
    assert not batch.is_last_of(4)


def test_a_part_of_a_loaded_batch_left_out_is_noticed_at_the_next() -> None:
    batch = loaded(7, 3, 5)
    batch.take(2)
    with pytest.raises(OrderError, match="1 of the 3 samples of a batch were never reported"):
        loaded(1, 2, before=batch)
    with pytest.raises(OrderError, match="1 of the 3 samples"):
        batch.check_finished(may_be_cut=False)
    batch.check_finished(may_be_cut=True)
    loaded(1, 2, before=batch, epoch=1)  # of another epoch: its own matter


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_traces_of_reading_ahead_are_batches_that_come_under_later_names(times: list[int]) -> None:
    """`times` says how often each batch was reported."""
    batch: LoadedBatch | None = None
    for number, count in enumerate(times):
        batch = loaded(number, before=batch)
        for _ in range(count):
            batch.take(1)
    assert batch is not None
    # So it looks: nothing at first, then one report per batch, and the rest under the last name.
    lag = next((i for i, count in enumerate(times) if count), len(times))
    looks_so = 0 < lag < len(times) and times[lag:-1] == [1] * (len(times) - lag - 1)
    if looks_so and times[-1] == lag + 1:
        with pytest.raises(OrderError, match="something reads ahead between"):
            batch.check_finished(may_be_cut=False)
    else:
        batch.check_finished(may_be_cut=False)


def test_what_is_no_batch_is_refused() -> None:
    for wrong in ([1, 2], torch.tensor(1), torch.zeros(0, dtype=torch.int64)):
        with pytest.raises(ValueError, match="at least one sample"):
            LoadedBatch(wrong, 0)  # type: ignore[arg-type]
