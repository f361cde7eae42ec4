from __future__ import annotations

import pytest
import torch

from infobatch import OrderError
from infobatch.plan import Plan, draw
from infobatch.record import IndexedRecord, OrderedRecord, Record
from infobatch.rules import Mean
from tests.conftest import loss_of


@pytest.fixture
def plan() -> Plan:
    plan = draw(Mean().groups(loss_of(torch.arange(60)), {}, 1), seed=0, epoch=1)
    assert 0 < plan.num_pruned < 60
    return plan


@pytest.mark.parametrize("kind", [OrderedRecord, IndexedRecord])
def test_both_kinds_give_back_what_was_written(plan: Plan, kind: type[Record]) -> None:
    record = kind(plan)
    record.to(torch.device("cpu"))
    for start in range(0, len(plan), 7):
        places = slice(start, min(start + 7, len(plan)))
        indices = plan.indices[places]
        where = places if kind is OrderedRecord else indices
        assert not record.has(len(plan))
        assert torch.equal(record.weights(where), plan.weights[places])
        record.write(where, loss_of(indices).double())
        assert torch.equal(record.reported()[0], plan.indices[: places.stop])
        assert torch.equal(record.remaining()[0], plan.indices[places.stop :])
    indices, losses = record.reported()
    assert record.has(len(plan))
    assert torch.equal(losses, loss_of(indices))


def test_by_index_twice_is_once(plan: Plan) -> None:
    record = IndexedRecord(plan)
    record.to(torch.device("cpu"))
    first = plan.indices[:10]
    for _ in range(20):
        record.write(first, loss_of(first))
        assert not record.has(len(plan))
    record.write(first, loss_of(first) + 1)
    record.write(plan.indices[10:], loss_of(plan.indices[10:]))
    assert record.has(len(plan))
    assert torch.equal(record.reported()[1][:10], loss_of(first) + 1)


def test_samples_outside_the_plan_are_refused(plan: Plan) -> None:
    record = IndexedRecord(plan)
    record.to(torch.device("cpu"))
    skipped = next(i for i in range(60) if i not in plan.indices.tolist())
    with pytest.raises(OrderError, match=f"sample {skipped} is not in the plan of epoch 1"):
        record.weights(torch.tensor([int(plan.indices[0]), skipped]))
    for wrong in (-1, 60, 2**40):
        with pytest.raises(ValueError, match="expected positions in a data set of 60 samples"):
            record.weights(torch.tensor([0, wrong]))
