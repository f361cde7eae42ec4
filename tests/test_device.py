"""A step reads nothing back to the host: shown on devices that have nothing to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import infobatch
from infobatch import InfoBatch
from tests.conftest import Numbers, loss_of, train_epoch

HOST_READS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "equal",
    "is_nonzero",
    "unique2",
}


class NoHostReads(TorchDispatchMode):
    """Fails on every operation that needs a value on the host, and on copies to it."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in HOST_READS:
            raise AssertionError(f"{name} reads from the device")
        result = func(*args, **(kwargs or {}))
        sources = [a.device.type for a in args if isinstance(a, Tensor)]
        if name in ("_to_copy", "copy_") and isinstance(result, Tensor):
            source = args[1].device.type if name == "copy_" else sources[0]
            assert not (result.device.type == "cpu" and source != "cpu"), (
                f"{name} copies to the host"
            )
        return result


def pruned(kind: str) -> tuple[InfoBatch[int], Iterator[Tensor]]:
    """In the second epoch, with weights other than 1."""
    data = InfoBatch(Numbers(100), 10)
    train_epoch(data)
    assert data.plan.num_pruned > 0
    loader = (
        infobatch.DataLoader(data, batch_size=8)
        if kind == "ours"
        else DataLoader(data, batch_size=8, sampler=data.sampler)
    )
    return data, iter(loader)


def test_the_mode_notices_host_reads() -> None:
    with NoHostReads():  # type: ignore[no-untyped-call]
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            torch.ones(3).sum().item()
        with pytest.raises(AssertionError, match="nonzero"):
            torch.ones(3).nonzero()


@pytest.mark.parametrize("kind", ["stock", "ours", "indices"])
def test_a_step_on_the_meta_device(kind: str) -> None:
    data, batches = pruned(kind)
    for _ in range(4):
        samples = next(batches)
        with NoHostReads():  # type: ignore[no-untyped-call]
            losses = torch.rand(8, device="meta", requires_grad=True)
            loss = data.update(losses, samples if kind == "indices" else None)
            loss.backward()
        assert loss.device.type == "meta"
        assert data.batch_weights.device.type == "meta"


def test_indices_that_live_on_the_device_are_not_read_either() -> None:
    data, _ = pruned("indices")
    with NoHostReads():  # type: ignore[no-untyped-call]
        data.update(torch.rand(8, device="meta"), torch.zeros(8, device="meta", dtype=torch.int64))
    assert data.num_reported == 8


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_a_step_with_tokens_a_mask_and_scores(kind: str) -> None:
    data, batches = pruned(kind)
    for _ in range(3):
        next(batches)
        losses, mask = torch.rand(8, 5, device="meta"), torch.ones(8, 5, device="meta")
        with NoHostReads():  # type: ignore[no-untyped-call]
            data.update(losses, mask=mask, scores=torch.rand(8, device="meta"))
    assert data.num_reported == 24


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_a_step_with_denominators(kind: str) -> None:
    data, batches = pruned(kind)
    for _ in range(3):
        next(batches)
        losses = torch.rand(8, 5, device="meta", requires_grad=True)
        with NoHostReads():  # type: ignore[no-untyped-call]
            data.update(losses, denominators=torch.ones(8, 5, device="meta")).backward()
    assert data.num_reported == 24


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_a_step_with_a_loss_that_is_one_number(kind: str) -> None:
    data, _ = pruned("stock")
    loader: Any = infobatch.DataLoader(data, 8, uniform=True)
    if kind == "stock":
        loader = DataLoader(data, batch_sampler=data.batches(8, uniform=True))
    batches = iter(loader)
    for _ in range(4):
        next(batches)
        loss = torch.rand((), device="meta", requires_grad=True)
        with NoHostReads():  # type: ignore[no-untyped-call]
            data.update(loss).backward()
    assert data.num_reported > 20


def test_a_step_on_the_host_reads_nothing_either() -> None:
    data, batches = pruned("stock")
    for _ in range(4):
        samples = next(batches)
        losses = loss_of(samples).requires_grad_()
        with NoHostReads():  # type: ignore[no-untyped-call]
            data.update(losses).backward()
    assert data.num_reported == 32
