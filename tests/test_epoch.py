"""An epoch from plan to result: its states, the moves between them, and the moves it refuses."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infobatch import OrderError
from infobatch.buffer import HOST
from infobatch.distributed import has_loss, no_losses
from infobatch.epoch import Epoch, EpochLosses, done_first
from infobatch.plan import Plan, draw
from infobatch.rules import Mean
from infobatch.shard import Shard, by_size
from infobatch.state import pack, unpack
from infobatch.tracking import BatchTracker, LoadedBatch
from tests.conftest import loss_of


def plan_of(num_samples: int = 60) -> Plan:
    scores = loss_of(torch.arange(num_samples))
    return draw(Mean().groups(scores, {}, 1), seed=num_samples, epoch=1)


@pytest.fixture
def plan() -> Plan:
    plan = plan_of()
    assert 0 < plan.num_pruned < 60
    return plan


class Reading:
    """One loader without workers over an epoch; by default one rank's, in batches of 7."""

    def __init__(
        self, epoch: Epoch, batch_size: int = 7, rank: int = 0, world_size: int = 1
    ) -> None:
        self.epoch = epoch
        self.shard = Shard(epoch.start, len(epoch.plan), rank, world_size)
        batching = by_size(len(self.shard), batch_size)
        self.num_batches = batching.num_batches
        self.tracker = BatchTracker(self.shard, epoch.indices(self.shard).numpy(), batching)

    def begin(self, scale: float = 1.0) -> Reading:
        self.epoch.begin(self.tracker, self, scale)
        return self

    def fetch(self) -> Tensor:
        return torch.tensor(self.tracker.draw())


def resumed(plan: Plan, done: Tensor) -> EpochLosses:
    """What a checkpoint tells, if these entries were done before."""
    return EpochLosses(torch.where(done, loss_of(plan.indices), no_losses(len(plan))))


def same(one: EpochLosses | None, other: EpochLosses | None) -> bool:
    if one is None or other is None:
        return one is other
    bits, other_bits = one.losses.view(torch.int32), other.losses.view(torch.int32)
    return torch.equal(bits, other_bits) and torch.equal(one.done, other.done)


def weights_of(plan: Plan, samples: Tensor) -> Tensor:
    weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    return torch.tensor([weight_of[sample] for sample in samples.tolist()])


def is_complete(epoch: Epoch) -> bool:
    return epoch.is_complete(None)


# Planned -----------------------------------------------------------------------------------------


def test_a_planned_epoch_has_reported_nothing_and_asking_does_not_change_that(plan: Plan) -> None:
    epoch = Epoch(plan)
    for _ in range(2):
        assert not epoch.is_open
        assert not epoch.is_by_index
        assert epoch.num_reported == 0
        assert epoch.reported() is None
        assert epoch.merged(HOST).num_done == 0
        assert epoch.shard(sharded=False) == epoch.shard(sharded=True) == Shard(0, len(plan))
        assert epoch.weights_by_index(plan.indices[:3], HOST).tolist() == plan.weights[:3].tolist()
    assert torch.equal(epoch.indices(epoch.shard(sharded=True)), plan.indices)


def test_before_a_loader_reads_it_losses_without_indices_belong_to_nobody(plan: Plan) -> None:
    epoch = Epoch(plan)
    with pytest.raises(OrderError, match="no batch is waiting for its losses"):
        epoch.record_in_order(torch.ones(3))
    assert not epoch.is_open
    assert epoch.reported() is None


def test_peeking_does_not_open_an_epoch(plan: Plan) -> None:
    epoch = Epoch(plan)
    for _ in range(3):
        assert torch.equal(Reading(epoch).begin().fetch(), plan.indices[:7])
    assert not epoch.is_open
    assert epoch.reported() is None


# Open --------------------------------------------------------------------------------------------


def test_in_order_losses_stand_in_the_order_of_the_plan(plan: Plan) -> None:
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    for number in range(reading.num_batches):
        samples = reading.fetch()
        in_hand = reading.tracker.new_batch
        assert in_hand is not None
        before = epoch.weights_in_order(in_hand, HOST)
        weights = epoch.record_in_order(loss_of(samples))
        assert weights is not None
        assert torch.equal(weights, weights_of(plan, samples))
        assert torch.equal(before, weights)
        assert epoch.is_open
        assert not epoch.is_by_index
        done = min(7 * (number + 1), len(plan))
        assert epoch.num_reported == done
        expected = resumed(plan, torch.arange(len(plan)) < done)
        assert same(epoch.reported(), expected)
        assert same(epoch.merged(HOST), expected)
        assert is_complete(epoch) == (done == len(plan))


@given(st.data())
def test_by_index_any_order_and_any_portions_give_the_same(data: st.DataObject) -> None:
    plan = plan_of(data.draw(st.integers(2, 40)))
    epoch, entries = Epoch(plan), data.draw(st.permutations(range(len(plan))))
    done = torch.zeros(len(plan), dtype=torch.bool)
    while entries:
        portion = entries[: data.draw(st.integers(1, len(entries)))]
        entries = entries[len(portion) :]
        samples = plan.indices[portion]
        weights = epoch.record_by_index(loss_of(samples), samples)
        if plan.num_pruned:
            assert weights is not None
            assert torch.equal(weights, weights_of(plan, samples))
        done[portion] = True
        assert epoch.is_by_index
        assert epoch.num_reported == int(done.sum())
        assert same(epoch.reported(), resumed(plan, done))
        assert is_complete(epoch) == bool(done.all())


def test_a_full_epoch_has_no_weights_to_multiply_with() -> None:
    plan = draw(Mean().groups(torch.full((20,), torch.nan), {}, 0), seed=0, epoch=0)
    in_order, by_index = Epoch(plan), Epoch(plan)
    samples = Reading(in_order).begin().fetch()
    assert in_order.record_in_order(loss_of(samples)) is None
    assert by_index.record_by_index(loss_of(samples), samples) is None
    assert same(in_order.reported(), by_index.reported())


def test_lighter_batches_multiply_the_weights(plan: Plan) -> None:
    in_order, by_index = Epoch(plan), Epoch(plan)
    samples = Reading(in_order).begin(scale=0.5).fetch()
    Reading(by_index).begin(scale=0.5)
    for weights in (
        in_order.record_in_order(loss_of(samples)),
        by_index.record_by_index(loss_of(samples), samples),
    ):
        assert weights is not None
        assert torch.equal(weights, plan.weights[:7] * 0.5)


def test_a_loss_of_minus_zero_is_a_loss(plan: Plan) -> None:
    in_order, by_index = Epoch(plan), Epoch(plan)
    samples = Reading(in_order).begin().fetch()
    in_order.record_in_order(torch.full((7,), -0.0))
    by_index.record_by_index(torch.full((7,), -0.0), samples)
    for epoch in (in_order, by_index):
        found = epoch.reported()
        assert found is not None
        assert found.num_done == int(found.known.sum()) == epoch.num_reported == 7


def test_by_index_a_sample_counts_once_and_the_last_loss_is_kept(plan: Plan) -> None:
    epoch = Epoch(plan)
    for factor in (1, 2):
        epoch.record_by_index(loss_of(plan.indices[:9]) * factor, plan.indices[:9])
    assert epoch.num_reported == 9
    found = epoch.reported()
    assert found is not None
    assert torch.equal(found.losses[:9], loss_of(plan.indices[:9]) * 2)


# Moves that are refused --------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["in order", "by index"])
def test_an_epoch_is_reported_in_one_way(plan: Plan, first: str) -> None:
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    samples = reading.fetch()
    if first == "in order":
        epoch.record_in_order(loss_of(samples))
    else:
        epoch.record_by_index(loss_of(samples), samples)
    before, samples = epoch.reported(), reading.fetch()
    word = "without" if first == "in order" else "with"
    with pytest.raises(OrderError, match=f"epoch 1 was begun {word} indices"):
        if first == "in order":
            epoch.record_by_index(loss_of(samples), samples)
        else:
            epoch.record_in_order(loss_of(samples))
    assert same(epoch.reported(), before)
    assert epoch.num_reported == 7
    # The way in which it was begun stays open.
    if first == "in order":
        epoch.record_in_order(loss_of(samples))
    else:
        epoch.record_by_index(loss_of(samples), samples)
    assert epoch.num_reported == 14


def test_losses_that_are_refused_do_not_decide_the_way(plan: Plan) -> None:
    epoch = Epoch(plan)
    samples = Reading(epoch).begin().fetch()
    with pytest.raises(ValueError, match="positions in a data set of 60"):
        epoch.record_by_index(torch.ones(1), torch.tensor([60]))
    skipped = next(i for i in range(60) if i not in plan.indices.tolist())
    with pytest.raises(OrderError, match=f"sample {skipped} is not in the plan"):
        epoch.record_by_index(torch.ones(1), torch.tensor([skipped]))
    with pytest.raises(OrderError, match="more than are left"):
        epoch.record_in_order(torch.ones(8))
    assert not epoch.is_open
    assert epoch.reported() is None
    epoch.record_in_order(loss_of(samples))
    assert same(epoch.reported(), resumed(plan, torch.arange(len(plan)) < 7))


def test_a_disturbed_epoch_takes_losses_by_index_alone(plan: Plan) -> None:
    epoch = Epoch(plan)
    samples = Reading(epoch).begin().fetch()
    epoch.check_undisturbed()
    epoch.disturb()
    with pytest.raises(OrderError, match="a second iteration over the training data began"):
        epoch.record_in_order(loss_of(samples))
    assert not epoch.is_open
    epoch.record_by_index(loss_of(samples), samples)
    assert epoch.num_reported == 7


def test_a_new_iteration_takes_over_from_the_one_before(plan: Plan) -> None:
    epoch = Epoch(plan)
    first, second = Reading(epoch).begin(), Reading(epoch)
    first.fetch()
    second.begin()
    with pytest.raises(OrderError, match="another iteration began"):
        first.fetch()
    epoch.record_in_order(loss_of(second.fetch()))
    assert epoch.num_reported == 7


def test_a_closed_epoch_hands_out_nothing(plan: Plan) -> None:
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    epoch.record_in_order(loss_of(reading.fetch()))
    epoch.close()
    with pytest.raises(OrderError, match="the epoch was closed"):
        reading.fetch()


def test_begun_with_the_whole_plan_it_does_not_go_on_with_a_part(plan: Plan) -> None:
    epoch = Epoch(plan)
    epoch.record_by_index(loss_of(plan.indices[:5]), plan.indices[:5])
    epoch.check_same_part(Shard(0, len(plan)))
    with pytest.raises(OrderError, match="was begun with indices of the whole plan"):
        epoch.check_same_part(Shard(0, len(plan), 0, 2))


def test_dropped_batches_are_an_error_at_the_end_and_what_was_reported_is_forgotten(
    plan: Plan,
) -> None:
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    reading.fetch()  # dropped
    for _ in range(reading.num_batches - 1):
        epoch.record_in_order(loss_of(reading.fetch()))
    with pytest.raises(StopIteration):
        reading.fetch()
    assert not is_complete(epoch)
    with pytest.raises(OrderError, match="the loader ran to its end"):
        epoch.check_complete(by_new_loop=False)
    epoch.discard()
    assert not epoch.is_open
    assert epoch.reported() is None
    assert epoch.merged(HOST).num_done == 0
    # It can be trained from its start.
    reading = Reading(epoch).begin()
    for _ in range(reading.num_batches):
        epoch.record_in_order(loss_of(reading.fetch()))
    assert is_complete(epoch)
    assert same(epoch.merged(HOST), resumed(plan, torch.ones(len(plan), dtype=torch.bool)))


def test_losses_that_may_be_of_other_samples_are_forgotten(plan: Plan) -> None:
    """A batch was dropped before the first report, and the loop broken off: nobody can tell."""
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    reading.fetch()
    epoch.record_in_order(loss_of(reading.fetch()))
    with pytest.warns(RuntimeWarning, match="batches were dropped before the first update"):
        epoch.check_complete(by_new_loop=True)
    assert epoch.reported() is None


def test_a_broken_loop_keeps_what_it_reported(plan: Plan) -> None:
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    epoch.record_in_order(loss_of(reading.fetch()))
    reading.fetch()
    epoch.check_complete(by_new_loop=True)
    assert epoch.num_reported == 7


# Which iterations are alive ----------------------------------------------------------------------


def test_an_epoch_is_being_read_as_long_as_its_iteration_lives(plan: Plan) -> None:
    epoch = Epoch(plan)
    assert not epoch.is_being_read(None)
    reading = Reading(epoch).begin()
    epoch.record_in_order(loss_of(reading.fetch()))
    assert epoch.is_being_read(None)
    del reading
    assert not epoch.is_being_read(None)


def test_an_iteration_that_only_a_cycle_keeps_alive_is_over(plan: Plan) -> None:
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    epoch.record_in_order(loss_of(reading.fetch()))
    gc.disable()
    try:
        reading.itself = reading  # type: ignore[attr-defined]
        del reading
        assert not epoch.is_being_read(None)
    finally:
        gc.enable()


def test_an_iteration_at_its_end_is_over(plan: Plan) -> None:
    epoch = Epoch(plan)
    reading = Reading(epoch).begin()
    with pytest.raises(StopIteration):
        while True:
            reading.fetch()
    assert not epoch.is_being_read(None)


# Resumed -----------------------------------------------------------------------------------------

MASKS = st.lists(st.booleans(), min_size=1, max_size=50)


@given(MASKS)
def test_what_is_done_comes_first_and_all_else_stays_in_order(mask: list[bool]) -> None:
    order = done_first(torch.tensor(mask))
    expected = sorted(range(len(mask)), key=lambda entry: not mask[entry])  # sorting is stable
    if order is None:
        assert expected == list(range(len(mask)))
    else:
        assert order.tolist() == expected != list(range(len(mask)))


def test_losses_say_what_is_known_and_what_is_done() -> None:
    losses = no_losses(4)
    losses[1] = 0.0
    losses[2] = torch.nan
    assert EpochLosses(losses).known.tolist() == [False, True, True, False]
    assert EpochLosses(losses).done.tolist() == [False, True, True, False]
    trained = EpochLosses(losses, torch.tensor([True, True, False, False]))
    assert trained.known.tolist() == [False, True, True, False]
    assert trained.done.tolist() == [True, True, True, False]
    assert trained.num_done == 3


@st.composite
def scattered(draw: st.DrawFn) -> tuple[Plan, Tensor]:
    """A plan, and which of its entries were done before: not all of them."""
    plan = plan_of(draw(st.integers(3, 40)))
    done = draw(st.lists(st.booleans(), min_size=len(plan), max_size=len(plan)))
    done[draw(st.integers(0, len(plan) - 1))] = False
    return plan, torch.tensor(done)


@given(
    scattered(),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(["in order", "by index", "backwards"]),
)
def test_all_ranks_together_train_what_a_resume_has_left(
    resume: tuple[Plan, Tensor], world_size: int, batch_size: int, way: str
) -> None:
    plan, done = resume
    left = plan.indices[~done].tolist()
    losses, trained, weight_of = no_losses(len(plan)), [], {}
    for rank in range(world_size):
        epoch = Epoch(plan, resumed(plan, done))
        assert epoch.start == int(done.sum())
        reading = Reading(epoch, batch_size, rank, world_size).begin()
        batches = [reading.fetch() for _ in range(reading.num_batches)] if way != "in order" else []
        for number in range(reading.num_batches):
            if way == "in order":
                samples = reading.fetch()
                weights = epoch.record_in_order(loss_of(samples, 1))
            else:
                samples = batches[number if way == "by index" else -1 - number]
                weights = epoch.record_by_index(loss_of(samples, 1), samples)
            if weights is None:
                weights = torch.ones(len(samples))
            for sample, weight in zip(samples.tolist(), weights.tolist(), strict=True):
                if weight:
                    trained.append(sample)
                    weight_of[sample] = weight
                else:
                    assert (
                        sample == epoch.indices(reading.shard)[0]
                    )  # the repeat that evens out the ranks
        own = epoch.merged(HOST).losses
        losses = torch.where(has_loss(own), own, losses)  # what the ranks' merge does
    assert sorted(trained) == sorted(left)
    if world_size == 1 and way == "in order":
        assert trained == left
    expected = torch.where(done, loss_of(plan.indices), loss_of(plan.indices, 1))
    assert torch.equal(losses, expected)
    weights = torch.tensor([weight_of[sample] for sample in left])
    assert torch.equal(weights, plan.weights[~done])


@given(
    scattered(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.booleans(), st.data()
)
def test_a_checkpoint_of_one_rank_knows_what_all_have_done_and_any_number_goes_on(
    resume: tuple[Plan, Tensor],
    world_size: int,
    ranks_after: int,
    batch_size: int,
    by_index: bool,
    data: st.DataObject,
) -> None:
    plan, done = resume
    epochs = [Epoch(plan, resumed(plan, done)) for _ in range(world_size)]
    readings = [
        Reading(epoch, batch_size, rank, world_size).begin() for rank, epoch in enumerate(epochs)
    ]
    trained = set(plan.indices[done].tolist())
    known = [set(trained) for _ in range(world_size)]
    for _ in range(data.draw(st.integers(1, readings[0].num_batches))):
        for rank, (epoch, reading) in enumerate(zip(epochs, readings, strict=True)):
            samples = reading.fetch()
            if by_index:
                epoch.record_by_index(loss_of(samples), samples)
            else:
                epoch.record_in_order(loss_of(samples))
            trained.update(samples.tolist())
            known[rank].update(samples.tolist())
    # The repeat that evens out the ranks is the first entry, and may stand for itself alone.
    repeat = {int(epochs[0].indices(readings[0].shard)[0])} if not bool(done.any()) else set()
    for rank, epoch in enumerate(epochs):
        found = epoch.reported()
        assert found is not None
        assert set(plan.indices[found.done].tolist()) == trained
        own = set(plan.indices[found.known].tolist())
        assert known[rank] - repeat <= own <= known[rank]
        assert torch.equal(found.losses[found.known], loss_of(plan.indices)[found.known])
    found = epochs[0].reported()
    assert found is not None
    found = unpack(**pack(found), num_entries=len(plan))
    if found.num_done == len(plan):
        return
    rest: list[int] = []
    for rank in range(ranks_after):
        reading = Reading(Epoch(plan, found), batch_size, rank, ranks_after)
        own_samples = [reading.fetch() for _ in range(reading.num_batches)]
        rest += torch.cat(own_samples)[: reading.shard.num_own].tolist()
    assert sorted(rest) == sorted(set(plan.indices.tolist()) - trained)


def test_a_resumed_epoch_that_is_discarded_stands_where_it_was_resumed(plan: Plan) -> None:
    done = torch.arange(len(plan)) % 3 == 1
    epoch = Epoch(plan, resumed(plan, done))
    assert epoch.num_reported == int(done.sum())
    assert same(epoch.reported(), resumed(plan, done))
    epoch.record_in_order(loss_of(Reading(epoch).begin().fetch()))
    assert epoch.num_reported == int(done.sum()) + 7
    epoch.discard()
    assert epoch.num_reported == int(done.sum())
    assert same(epoch.reported(), resumed(plan, done))
    assert Reading(epoch).begin().fetch().tolist() == plan.indices[~done][:7].tolist()


def test_what_other_ranks_had_trained_stays_done_in_the_next_checkpoint(plan: Plan) -> None:
    """Also where their losses are not known."""
    losses, trained = no_losses(len(plan)), torch.arange(len(plan)) < 10
    losses[:10:2] = 1.0  # of this rank
    epoch = Epoch(plan, EpochLosses(losses, trained))
    samples = Reading(epoch).begin().fetch()
    assert samples.tolist() == plan.indices[10:17].tolist()
    epoch.record_in_order(loss_of(samples))
    for found in (epoch.reported(), epoch.merged(HOST)):
        assert found is not None
        assert found.done.nonzero().flatten().tolist() == list(range(17))
        assert found.known.nonzero().flatten().tolist() == [*range(0, 10, 2), *range(10, 17)]


def test_what_was_synced_holds_until_the_next_update(plan: Plan) -> None:
    epoch = Epoch(plan)
    epoch.record_by_index(loss_of(plan.indices[10:20]), plan.indices[10:20])
    epoch.sync(HOST)
    found = epoch.reported()
    assert found is not None
    assert found.done.nonzero().flatten().tolist() == list(range(10, 20))
    epoch.record_by_index(loss_of(plan.indices[:5]), plan.indices[:5])
    found = epoch.reported()
    assert found is not None
    assert found.done.nonzero().flatten().tolist() == [*range(5), *range(10, 20)]


def test_what_was_synced_is_forgotten_with_the_rest(plan: Plan) -> None:
    epoch = Epoch(plan)
    epoch.record_in_order(loss_of(Reading(epoch).begin().fetch()))
    epoch.sync(HOST)
    epoch.discard()
    assert epoch.reported() is None
    epoch.record_by_index(loss_of(plan.indices[20:25]), plan.indices[20:25])
    found = epoch.reported()
    assert found is not None
    assert found.done.nonzero().flatten().tolist() == list(range(20, 25))


# With a loader that knows its samples ------------------------------------------------------------


def test_a_part_of_several_ends_with_the_last_batch_handed_out(plan: Plan) -> None:
    """A rank may leave samples out of its reports, so that counting them would not do."""
    epoch = Epoch(plan)
    reading, loaded = Reading(epoch, 7, rank=1, world_size=2).begin(), None
    for number in range(reading.num_batches):
        loaded = LoadedBatch(reading.fetch(), 1, before=loaded)
        samples = loaded.take(len(loaded.indices))
        assert not epoch.is_complete(None)
        epoch.record_by_index(loss_of(samples), samples)
        assert epoch.is_complete(loaded) == (number == reading.num_batches - 1)
