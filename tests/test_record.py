from __future__ import annotations

import pytest
import torch

from infobatch import OrderError
from infobatch.plan import Plan, draw
from infobatch.record import IndexedRecord, OrderedRecord, Record, has_loss, no_losses
from infobatch.rules import Mean
from infobatch.share import Share
from tests.conftest import loss_of


@pytest.fixture
def plan() -> Plan:
    plan = draw(Mean().groups(loss_of(torch.arange(60)), {}, 1), seed=0, epoch=1)
    assert 0 < plan.num_pruned < 60
    return plan


@pytest.mark.parametrize("kind", [OrderedRecord, IndexedRecord])
def test_both_kinds_give_back_what_was_written(plan: Plan, kind: type[Record]) -> None:
    record = kind(Share(plan))
    record.to(torch.device("cpu"))
    for start in range(0, len(plan), 7):
        places = slice(start, min(start + 7, len(plan)))
        indices = plan.indices[places]
        where = places if kind is OrderedRecord else indices
        assert not record.has(len(plan))
        assert torch.equal(record.weights(where), plan.weights[places])
        record.write(where, loss_of(indices).double())
        assert record.is_reported().tolist() == [i < places.stop for i in range(len(plan))]
        in_plan = no_losses(len(plan))
        record.write_into(in_plan)
        assert torch.equal(has_loss(in_plan), record.is_reported())
        assert torch.equal(in_plan[: places.stop], loss_of(plan.indices[: places.stop]))
    assert record.has(len(plan))


@pytest.mark.parametrize("kind", [OrderedRecord, IndexedRecord])
def test_any_loss_can_be_told_from_none(plan: Plan, kind: type[Record]) -> None:
    losses = torch.tensor([0.0, -0.0, -1.0, torch.nan, -torch.nan, torch.inf, -torch.inf, 1e-45])
    record = kind(Share(plan))
    record.to(torch.device("cpu"))
    record.write(slice(0, 8) if kind is OrderedRecord else plan.indices[:8], losses)
    in_plan = no_losses(len(plan))
    record.write_into(in_plan)
    assert has_loss(in_plan).tolist() == [i < 8 for i in range(len(plan))]
    assert torch.equal(in_plan[:8].nan_to_num(7), losses.nan_to_num(7))


class OfSomeLibrary(torch.Tensor):
    """As fastai's losses are."""


def test_by_index_twice_is_counted_once_whatever_the_losses_are(plan: Plan) -> None:
    record = IndexedRecord(Share(plan))
    record.to(torch.device("cpu"))
    for _ in range(2):
        record.write(plan.indices[:10], loss_of(plan.indices[:10]).as_subclass(OfSomeLibrary))
    assert record.num_reported == 10


def test_by_index_twice_is_once(plan: Plan) -> None:
    record = IndexedRecord(Share(plan))
    record.to(torch.device("cpu"))
    first = plan.indices[:10]
    for _ in range(20):
        record.write(first, loss_of(first))
        assert not record.has(len(plan))
    record.write(first, loss_of(first) + 1)
    record.write(plan.indices[10:], loss_of(plan.indices[10:]))
    assert record.has(len(plan))
    in_plan = no_losses(len(plan))
    record.write_into(in_plan)
    assert torch.equal(in_plan[:10], loss_of(first) + 1)


def test_samples_outside_the_plan_are_refused(plan: Plan) -> None:
    record = IndexedRecord(Share(plan))
    record.to(torch.device("cpu"))
    skipped = next(i for i in range(60) if i not in plan.indices.tolist())
    with pytest.raises(OrderError, match=f"sample {skipped} is not in the plan of epoch 1"):
        record.weights(torch.tensor([int(plan.indices[0]), skipped]))
    for wrong in (-1, 60, 2**40):
        with pytest.raises(ValueError, match="expected positions in a data set of 60 samples"):
            record.weights(torch.tensor([0, wrong]))
