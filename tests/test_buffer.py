"""The loss buffer: what is written is what is read, and nothing else looks written."""

from __future__ import annotations

import pytest
import torch

from infobatch import OrderError
from infobatch.buffer import HOST, EntryOf, LossBuffer
from infobatch.distributed import has_loss
from infobatch.plan import Plan, draw
from infobatch.rules import Mean
from infobatch.shard import Shard
from tests.conftest import loss_of

ODD = torch.tensor([0.0, -0.0, -1.0, torch.nan, -torch.nan, torch.inf, -torch.inf, 1e-45])


@pytest.fixture
def plan() -> Plan:
    plan = draw(Mean().groups(loss_of(torch.arange(60)), {}, 1), seed=0, epoch=1)
    assert 0 < plan.num_pruned < 60
    return plan


def buffer_of(plan: Plan, shard: Shard | None = None) -> LossBuffer:
    buffer = LossBuffer(plan.weights, shard or Shard(0, len(plan)))
    buffer.to(HOST)
    return buffer


@pytest.mark.parametrize("is_blank", [False, True])
def test_in_order_gives_back_what_was_written(plan: Plan, is_blank: bool) -> None:
    buffer = LossBuffer(plan.weights, Shard(0, len(plan)), in_order=is_blank)
    buffer.to(HOST)
    for start in range(0, len(plan), 7):
        entries = slice(start, min(start + 7, len(plan)))
        assert torch.equal(buffer.weights(entries), plan.weights[entries])
        buffer.write_in_order(entries, loss_of(plan.indices[entries]).double())
        losses = buffer.losses(entries.stop)
        assert has_loss(losses).tolist() == [i < entries.stop for i in range(len(plan))]
        assert torch.equal(losses[: entries.stop], loss_of(plan.indices[: entries.stop]))


def test_by_index_gives_back_what_was_written_on_the_host_and_as_on_a_device(plan: Plan) -> None:
    host, device = buffer_of(plan), buffer_of(plan)
    assert host.arrays is not None
    entry_of = EntryOf(plan.indices, Shard(0, len(plan)), 60, epoch=1)
    for samples in plan.indices.flip(0).split(7):
        losses = loss_of(samples).double()
        entries = entry_of.on_host(samples.numpy())
        assert torch.equal(plan.indices[torch.from_numpy(entries).long()], samples)
        assert host.arrays.write_by_index(entries, losses) == len(samples)
        assert host.arrays.write_by_index(entries, losses) == 0  # not new any more
        device.write_by_index(entry_of.on_device(samples, HOST), losses)
        assert torch.equal(has_loss(host.losses()), host.is_reported())
        assert torch.equal(host.losses(), device.losses())
    assert torch.equal(host.losses(), loss_of(plan.indices))


@pytest.mark.parametrize("how", ["in order", "by index", "on a device"])
def test_any_loss_can_be_told_from_none(plan: Plan, how: str) -> None:
    buffer = buffer_of(plan)
    assert buffer.arrays is not None
    entries = torch.arange(8)
    if how == "in order":
        buffer.write_in_order(slice(0, 8), ODD)
    elif how == "by index":
        buffer.arrays.write_by_index(entries.numpy(), ODD)
    else:
        buffer.write_by_index(entries, ODD)
    losses = buffer.losses(8 if how == "in order" else None)
    assert has_loss(losses).tolist() == [i < 8 for i in range(len(plan))]
    assert torch.equal(losses[:8].nan_to_num(7), ODD.nan_to_num(7))


@pytest.mark.parametrize("how", ["in order", "by index", "on a device"])
def test_a_loss_too_small_for_float32_is_a_loss(plan: Plan, how: str) -> None:
    """As float32 a tiny negative one is -0.0, which reads as none."""
    buffer, tiny = buffer_of(plan), torch.tensor([-1e-60, 1e-60], dtype=torch.float64)
    assert buffer.arrays is not None
    if how == "in order":
        buffer.write_in_order(slice(0, 2), tiny)
    elif how == "by index":
        buffer.arrays.write_by_index(torch.arange(2).numpy(), tiny)
    else:
        buffer.write_by_index(torch.arange(2), tiny)
    losses = buffer.losses(2 if how == "in order" else None)
    assert has_loss(losses)[:2].tolist() == [True, True]
    assert losses[:2].tolist() == [0.0, 0.0]


class OfSomeLibrary(torch.Tensor):
    """As fastai's losses are."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_floating_dtype_and_subclass(plan: Plan, dtype: torch.dtype) -> None:
    losses = torch.arange(4).to(dtype).requires_grad_()
    for written in (losses, losses.detach().as_subclass(OfSomeLibrary)):
        buffer = buffer_of(plan)
        assert buffer.arrays is not None
        buffer.write_in_order(slice(0, 4), written)
        buffer.arrays.write_by_index(torch.arange(4, 8).numpy(), written)
        assert buffer.losses(4)[:8].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_samples_outside_the_plan_are_refused_on_the_host_and_weigh_nothing_on_a_device(
    plan: Plan,
) -> None:
    entry_of = EntryOf(plan.indices, Shard(0, len(plan)), 60, epoch=1)
    skipped = next(i for i in range(60) if i not in plan.indices.tolist())
    samples = torch.tensor([int(plan.indices[0]), skipped])
    with pytest.raises(OrderError, match=f"sample {skipped} is not in the plan of epoch 1"):
        entry_of.on_host(samples.numpy())
    for wrong in (-1, 60, 2**40):
        with pytest.raises(ValueError, match="expected positions in a data set of 60 samples"):
            entry_of.on_host(torch.tensor([0, wrong]).numpy())
    meta = LossBuffer(plan.weights, Shard(0, len(plan)))
    meta.to(torch.device("meta"))
    assert len(meta.weights(slice(0, None))) == len(plan) + 1  # one more, that weighs 0
    assert entry_of.on_device(samples, HOST).tolist() == [0, len(plan)]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_knows_its_own_entries_and_the_repeat(plan: Plan, rank: int) -> None:
    shard = Shard(0, len(plan), rank, 3)
    buffer, entry_of = buffer_of(plan, shard), EntryOf(plan.indices, shard, 60, epoch=1)
    own = plan.indices[rank::3]
    assert entry_of.on_host(own.numpy()).tolist() == list(range(rank, len(plan), 3))
    other = plan.indices[(rank + 1) % 3 + 3]
    with pytest.raises(OrderError, match=f"not in rank {rank}'s part of the plan"):
        entry_of.on_host(other[None].numpy())
    if shard.num_own < len(shard):
        repeat = entry_of.on_host(plan.indices[:1].numpy())
        assert buffer.weights(torch.from_numpy(repeat).long()).tolist() == [0.0]
        in_order = shard.entries(slice(shard.num_own, len(shard)))
        assert buffer.weights(in_order).tolist() == [0.0]
