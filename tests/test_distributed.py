"""Training in many processes: real ones, that talk over gloo."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import infobatch
from infobatch import InfoBatch, StateError, distributed
from infobatch.plan import Plan
from infobatch.schedule import Schedule
from tests.conftest import Numbers, every_rule, loss_of, same_state
from tests.ranks import Collectives, on_ranks

NUM_EPOCHS = 8


def make(num_samples: int, rule: str = "mean", seed: int = 3) -> InfoBatch[int]:
    return InfoBatch(
        Numbers(num_samples), NUM_EPOCHS, rule=every_rule(num_samples)[rule], seed=seed
    )


def loader_of(data: InfoBatch[int], kind: str, batch_size: int, drop_last: bool) -> Any:
    if kind == "ours":
        return infobatch.DataLoader(data, batch_size=batch_size, drop_last=drop_last)
    if kind == "workers":
        return infobatch.DataLoader(data, batch_size, num_workers=2, in_order=False)
    if kind == "sampler":
        return DataLoader(data, batch_size=batch_size, sampler=data.sampler, drop_last=drop_last)
    return DataLoader(data, batch_sampler=data.batches(batch_size, drop_last=drop_last))


def train(
    num_samples: int, batch_size: int, kind: str = "stock", rule: str = "mean", *, drop_last: bool
) -> dict[str, Any]:
    """Four epochs; what each saw of the plan, and how it ended."""
    data = make(num_samples, rule)
    loader = loader_of(data, kind, batch_size, drop_last)
    plans, seen, num_steps = [], [], []
    for epoch in range(4):
        plans.append(data.plan)
        trained: list[tuple[int, float]] = []
        num_steps.append(len(loader))
        num_own = len(data.plan.indices[distributed.rank() :: distributed.world_size()])
        for samples in loader:
            losses = loss_of(samples, epoch)
            if (
                kind != "workers"
            ):  # in order, what comes after one's own is a repeat: not to be seen
                losses[torch.arange(len(samples)) + len(trained) >= num_own] = 1e9
            data.update(losses)
            trained += zip(samples.tolist(), data.batch_weights.tolist(), strict=True)
            num_steps[-1] -= 1
        seen.append(trained)
        assert data.epoch == epoch + 1
    return {
        "plans": [(plan.indices.tolist(), plan.weights.tolist()) for plan in plans],
        "seen": seen,
        "steps left over": num_steps,
        "steps": [len(trained) for trained in seen],
        "state": data.state_dict(),
        "savings": data.savings,
    }


@pytest.mark.parametrize("kind", ["stock", "sampler", "ours", "workers"])
@pytest.mark.parametrize(
    ("num_ranks", "num_samples", "batch_size"),
    [
        (2, 101, 8),
        (3, 100, 16),
        (4, 101, 5),
        (4, 4, 8),  # shards of one sample
        (4, 2, 1),  # fewer samples than ranks
        (3, 1, 4),
    ],
)
def test_all_ranks_together_train_the_plan_and_know_the_same(
    tmp_path: Path, num_ranks: int, num_samples: int, batch_size: int, kind: str
) -> None:
    if kind == "workers" and num_samples < 100:
        pytest.skip("workers change nothing about shares")
    ranks = on_ranks(
        num_ranks, in_ranks_train, tmp_path, num_samples, batch_size, kind, "mean", False
    )
    alone = train(num_samples, batch_size, kind, drop_last=False)
    for rank in ranks:
        assert rank["plans"] == alone["plans"]
        assert rank["steps"] == ranks[0]["steps"]
        assert rank["steps left over"] == [0] * 4
        # Merged scores are bit-equal for any number of ranks; only the steps taken differ.
        rank["state"]["steps_done"] = rank["state"]["steps_at_start"] = 0
        alone["state"]["steps_done"] = alone["state"]["steps_at_start"] = 0
        assert same_state(rank["state"], alone["state"])
        assert rank["savings"] == alone["savings"]
    for epoch, (indices, weights) in enumerate(alone["plans"]):
        seen = [pair for rank in ranks for pair in rank["seen"][epoch]]
        real = sorted(pair for pair in seen if pair[1] > 0)
        assert real == sorted(zip(indices, weights, strict=True))  # each once
        assert len(seen) - len(real) < num_ranks


def break_in_a_batch() -> dict[str, Any]:
    """On a rank: the third batch is reported in part, then a new loop begins."""
    data = InfoBatch(Numbers(60), 10)
    loader = DataLoader(data, batch_sampler=data.batches(6))
    handed_out = []
    for step, samples in enumerate(loader):
        handed_out.append(samples.tolist())
        if step == 2:
            data.update(loss_of(samples[2:]))
            break
        data.update(loss_of(samples))
    next(iter(loader))
    return {"whole": handed_out[0] + handed_out[1], "epoch": data.epoch, "scores": data.scores}


def test_of_a_batch_that_was_reported_in_part_nothing_is_kept_on_any_rank(tmp_path: Path) -> None:
    ranks = on_ranks(2, break_in_a_batch, tmp_path)
    known = [index for rank in ranks for index in rank["whole"]]
    expected = torch.full((60,), torch.nan)
    expected[known] = loss_of(torch.tensor(known))
    for rank in ranks:
        assert rank["epoch"] == 1
        assert torch.equal(rank["scores"].nan_to_num(-1), expected.nan_to_num(-1))


def in_ranks_train(num_samples: int, batch_size: int, kind: str, rule: str, drop_last: bool) -> Any:
    return train(num_samples, batch_size, kind, rule, drop_last=drop_last)


@pytest.mark.parametrize("rule", ["tiers", "ucb", "epsilon-greedy", "every-mean", "per-class-mean"])
def test_what_rules_remember_is_the_same_on_all_ranks(tmp_path: Path, rule: str) -> None:
    ranks = on_ranks(3, in_ranks_train, tmp_path, 100, 7, "stock", rule, False)
    alone = train(100, 7, "stock", rule, drop_last=False)
    for rank in ranks:
        assert same_state(rank["state"]["memory"], alone["state"]["memory"])
        assert torch.equal(rank["state"]["scores"], alone["state"]["scores"])


@pytest.mark.parametrize("kind", ["stock", "sampler", "ours"])
def test_drop_last_leaves_whole_batches_on_all_ranks(tmp_path: Path, kind: str) -> None:
    ranks = on_ranks(3, in_ranks_train, tmp_path, 100, 8, kind, "mean", True)
    for rank in ranks:
        assert rank["steps"] == ranks[0]["steps"]
        assert all(num_samples % 8 == 0 for num_samples in rank["steps"])
        assert same_state(rank["state"], ranks[0]["state"])
    for epoch, (indices, _) in enumerate(ranks[0]["plans"]):
        seen = [sample for rank in ranks for sample, weight in rank["seen"][epoch] if weight]
        assert len(seen) == len(set(seen))
        assert len(indices) - len(seen) < 3 * 8


# What is said between ranks ----------------------------------------------------------------------


def collectives_of_an_epoch(set_epoch: bool) -> list[list[list[str]]]:
    """The collectives of each update, in three epochs; then those outside of them."""
    data = make(100)
    loader = DataLoader(data, batch_size=8, sampler=data.sampler)
    said: list[list[list[str]]] = []
    outside = Collectives()
    for epoch in range(3):
        said.append([])
        with outside:
            if set_epoch:
                data.sampler.set_epoch(epoch)
            num_batches = len(list(data.batches(8)))
            _ = len(loader), data.plan, data.savings, data.num_reported, data.scores
        for samples in loader:
            with Collectives() as seen:
                data.update(loss_of(samples))
            said[-1].append(seen.names)
            with outside:
                data.state_dict()
                _ = data.num_reported, data.batch_weights
        assert num_batches == len(said[-1])
    return [*said, [outside.names]]


@pytest.mark.parametrize("set_epoch", [False, True])
def test_one_merge_and_one_check_per_epoch_and_nothing_in_a_step(
    tmp_path: Path, set_epoch: bool
) -> None:
    for *epochs, [outside] in on_ranks(2, collectives_of_an_epoch, tmp_path, set_epoch):
        first, *steps, last = epochs[0]
        assert (first, last) == (["allgather_"], ["allreduce_", "allgather_"])
        assert all(step == [] for step in steps)
        for epoch in epochs[1:]:
            assert all(step == [] for step in epoch[:-1])
            assert epoch[-1] == ["allreduce_", "allgather_"]
        assert outside == []


def cut_short() -> dict[str, Any]:
    data = make(100)
    loader = DataLoader(data, batch_size=8, sampler=data.sampler)
    seen: list[int] = []
    for step, samples in enumerate(loader):
        data.update(loss_of(samples))
        seen += samples.tolist()
        if step == 2:
            break
    num_reported, savings = data.num_reported, data.savings
    data.set_epoch(1)
    assert data.savings == savings
    return {"seen": seen, "scores": data.scores, "num_reported": num_reported}


def test_an_epoch_cut_short_on_all_ranks_keeps_what_was_reported(tmp_path: Path) -> None:
    ranks = on_ranks(2, cut_short, tmp_path)
    seen = torch.tensor(sorted(ranks[0]["seen"] + ranks[1]["seen"]))
    for rank in ranks:
        assert rank["num_reported"] == len(seen)
        known = (~rank["scores"].isnan()).nonzero().squeeze(1)
        assert torch.equal(known, seen)
        assert torch.equal(rank["scores"][seen], loss_of(seen))


def follow_a_curve(drop_last: bool) -> list[tuple[int, int]]:
    """Where full training is at the end of each epoch, counted, and where the schedule is."""
    data = make(101)
    full: DistributedSampler[int] = DistributedSampler(data, num_replicas=3, rank=dist.get_rank())
    steps_per_epoch = len(DataLoader(data, batch_size=5, sampler=full, drop_last=drop_last))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    curve = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, NUM_EPOCHS * steps_per_epoch)
    schedule = Schedule(curve, data, batch_size=5, drop_last=drop_last)
    loader = DataLoader(data, batch_size=5, sampler=data.sampler, drop_last=drop_last)
    places = []
    for epoch in range(NUM_EPOCHS):
        for samples in loader:
            data.update(loss_of(samples, epoch))
            optimizer.step()
            schedule.step()
        places.append((steps_per_epoch * (epoch + 1), curve.last_epoch))
    return places


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_schedule_is_at_every_epochs_end_where_full_training_is(
    tmp_path: Path, drop_last: bool
) -> None:
    for places in on_ranks(3, follow_a_curve, tmp_path, drop_last):
        assert [there for there, _ in places] == [here for _, here in places]


def trained_alone(num_epochs: int) -> dict[str, Any]:
    """The state after so many epochs, as a single process has it."""
    data = make(100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "world_size", lambda: 1)
        for epoch in range(num_epochs):
            data.update(loss_of(data.plan.indices, epoch), data.plan.indices)
    return data.state_dict()


def different(what: str) -> str:
    rank = dist.get_rank()
    num_samples = 100 + rank if what == "num_samples" else 100
    data = make(num_samples, "tiers" if rank and what == "rule" else "mean", seed=3)
    if what == "seed" and rank:
        data = make(num_samples, seed=4)
    if what.startswith("checkpoint") and rank == 0:  # which the others did not find
        data.load_state_dict(trained_alone(num_epochs=2))
    loader = DataLoader(data, batch_size=8, sampler=data.sampler)
    try:
        if what == "checkpoint, set_epoch":
            data.sampler.set_epoch(2)
        for samples in loader:
            data.update(loss_of(samples))
    except StateError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("num_samples", "num_samples is 100 on rank 0 and 101 on rank 1: start all ranks with"),
        ("seed", "seed is 3 on rank 0 and 4 on rank 1: start all ranks with the same data set"),
        ("rule", "rule is Mean(prune_ratio=0.5, rescale=True) until 0.875 on rank 0 and Tiers("),
        ("checkpoint", "epoch is 2 on rank 0 and 0 on rank 1"),
        ("checkpoint, set_epoch", "epoch is 2 on rank 0 and 0 on rank 1"),
    ],
)
def test_a_rank_that_differs_is_told_so_on_every_rank(
    tmp_path: Path, what: str, sentence: str
) -> None:
    ranks = on_ranks(3, different, tmp_path, what)
    assert ranks[0].startswith(sentence)
    assert len(set(ranks)) == 1


def different_steps() -> str:
    """A rank that calls `update` more often than the others: for each micro-batch."""
    data = InfoBatch(Numbers(100), num_steps=20)
    loader = DataLoader(data, batch_size=8, sampler=data.sampler)
    try:
        for samples in loader:
            parts = samples.split(8 if dist.get_rank() == 0 else 2)
            for part in parts:
                data.update(loss_of(part))
    except StateError as error:
        return str(error)
    return "no error"


def test_ranks_of_which_one_has_stopped_pruning_are_told_so(tmp_path: Path) -> None:
    ranks = on_ranks(2, different_steps, tmp_path)
    assert ranks[0].startswith("prunes is True on rank 0 and False on rank 1")
    assert len(set(ranks)) == 1


def leave_one_out(kind: str) -> dict[str, Any]:
    """Rank 1 reports less than it was given; all go on to an exchange of their own, as DDP does."""
    data, rank = make(101), dist.get_rank()
    numbered = kind == "ours"
    loader = loader_of(data, kind, 8, drop_last=False)
    epochs: list[int] = []
    left_out: list[int] = []
    for epoch in range(3):
        for step, samples in enumerate(loader):
            losses = loss_of(samples, epoch)
            out = rank == 1 and step == 2
            if numbered and not out:
                data.update(losses)
            elif not numbered:
                data.update(losses[out:], samples[out:])
            left_out += samples[: 8 if numbered else 1].tolist() if out and epoch == 0 else []
            dist.all_reduce(torch.ones(3))
        epochs.append(data.epoch)
    data.set_epoch(3)
    return {"epochs": epochs, "scores": data.scores, "left out": left_out}


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_a_rank_that_leaves_samples_out_ends_its_epochs_with_the_others(
    tmp_path: Path, kind: str
) -> None:
    ranks = on_ranks(2, leave_one_out, tmp_path, kind)
    assert ranks[0]["epochs"] == ranks[1]["epochs"]
    assert torch.equal(ranks[0]["scores"], ranks[1]["scores"])
    assert len(ranks[1]["left out"]) == (8 if kind == "ours" else 1)


def refused(what: str) -> str:
    data = make(100)
    try:
        if what == "in order":
            for samples in DataLoader(data, batch_size=8, sampler=data.sampler.unsharded):
                data.update(loss_of(samples))
        elif what == "in order, batches":
            for samples in DataLoader(data, batch_sampler=data.batches(8, sharded=False)):
                data.update(loss_of(samples))
        else:
            data.update(loss_of(data.plan.indices[:4]), data.plan.indices[:4])
            next(iter(infobatch.DataLoader(data, batch_size=8)))
    except infobatch.OrderError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("in order", "on each of 2 ranks: give update() the indices of the batch"),
        ("in order, batches", "on each of 2 ranks: give update() the indices of the batch"),
        ("half and half", "was begun with indices of the whole plan"),
    ],
)
def test_the_whole_plan_is_not_taken_for_a_share(tmp_path: Path, what: str, sentence: str) -> None:
    assert all(sentence in said for said in on_ranks(2, refused, tmp_path, what))


def shard_by_myself(num_samples: int, batch_size: int) -> dict[str, Any]:
    """As frameworks do that take a sampler of the whole epoch: every other batch, made even."""
    data, rank = make(num_samples), dist.get_rank()
    for epoch in range(3):
        data.set_epoch(epoch)
        batches = list(BatchSampler(data.sampler.unsharded, batch_size, drop_last=False))
        while len(batches) % 2 or len(batches[-1]) < batch_size:  # repeats of the first samples
            batches[-1] = (batches[-1] + batches[0])[:batch_size]
            batches += [batches[0]] * (len(batches) % 2)
        for batch in batches[rank::2]:
            data.update(loss_of(torch.tensor(batch), epoch), batch)
    data.set_epoch(3)
    return data.state_dict()


def test_a_framework_may_shard_the_whole_plan_itself(tmp_path: Path) -> None:
    ranks = on_ranks(2, shard_by_myself, tmp_path, 100, 8)
    alone = train(100, 8, drop_last=False)
    single = make(100)
    for epoch in range(3):
        single.update(loss_of(single.plan.indices, epoch), single.plan.indices)
    assert alone["plans"][2][0] != alone["plans"][1][0]
    for state in ranks:
        assert torch.equal(state["scores"], single.scores)
        assert state["num_trained"] == single.savings.num_trained


# Checkpoints -------------------------------------------------------------------------------------


def train_until(num_steps: int, kind: str, sync: bool) -> dict[str, Any]:
    """Some steps of batch 2; the state, and what a training that goes on sees."""
    data = make(100)
    loader = loader_of(data, kind, 2, drop_last=False)
    step, rest, state = 0, [], {}
    for epoch in range(3):
        for samples in loader:
            data.update(loss_of(samples, epoch))
            if step >= num_steps:
                rest.append((samples.tolist(), data.batch_weights.tolist()))
            step += 1
            if step == num_steps:
                if sync:
                    data.sync()
                state = data.state_dict()
    return {"state": state, "rest": rest, "final": data.state_dict()}


def go_on(state: dict[str, Any], batch_size: int) -> dict[str, Any]:
    data = make(100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data.load_state_dict(state)
    loader = DataLoader(data, batch_size=batch_size, sampler=data.sampler)
    rest = []
    for epoch in range(data.epoch, 3):
        for samples in loader:
            data.update(loss_of(samples, epoch))
            rest.append((samples.tolist(), data.batch_weights.tolist()))
    return {
        "rest": rest,
        "final": data.state_dict(),
        "warnings": [str(warning.message) for warning in caught],
    }


def in_step(ranks: list[dict[str, Any]]) -> list[list[tuple[int, float]]]:
    """What all ranks train in each step together, in the order of the plan, repeats left out."""
    steps = []
    for batches in zip(*(rank["rest"] for rank in ranks), strict=True):
        pairs = [list(zip(*batch, strict=True)) for batch in batches]
        rows = [pair for row in zip(*pairs, strict=True) for pair in row]
        steps.append([pair for pair in rows if pair[1] > 0])
    return steps


@pytest.mark.parametrize("kind", ["stock", "ours"])
@pytest.mark.parametrize("num_steps", [1, 5, 13, 19])  # in the first and in a pruned epoch
def test_four_ranks_resume_on_two_and_on_one(tmp_path: Path, num_steps: int, kind: str) -> None:
    four = on_ranks(4, train_until, tmp_path, num_steps, kind, True)
    assert all(same_state(rank["state"], four[0]["state"]) for rank in four)  # of any rank
    state = four[0]["state"]
    assert (state["epoch"] > 0) == (num_steps >= 13)
    two = on_ranks(2, go_on, tmp_path, state, 4)
    one = [go_on(state, 8)]
    assert in_step(four) == in_step(two) == in_step(one)
    for rank in (*two, *one):
        assert rank["warnings"] == []
        assert torch.equal(rank["final"]["scores"], four[0]["final"]["scores"])
        assert rank["final"]["num_trained"] == four[0]["final"]["num_trained"]


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_without_sync_other_ranks_samples_keep_their_scores_and_loading_says_so(
    tmp_path: Path, kind: str
) -> None:
    four = on_ranks(4, train_until, tmp_path, 16, kind, False)
    state = four[0]["state"]
    assert state["epoch"] == 1
    two = on_ranks(2, go_on, tmp_path, state, 4)
    assert in_step(two) == in_step(four)  # the same samples are left to train
    (warning,) = two[0]["warnings"]
    assert "in the middle of epoch 1 without sync(): 18 samples that other ranks" in warning
    assert torch.equal(two[0]["final"]["scores"], two[1]["final"]["scores"])


def report_on_rank_1() -> dict[str, Any]:
    data = make(40)
    data.sync()
    if dist.get_rank() == 1:
        samples = torch.tensor(list(data.sampler))[:8]
        data.update(loss_of(samples), samples)
    data.sync()
    return data.state_dict()


def test_after_sync_the_state_of_a_rank_that_reported_nothing_is_complete(tmp_path: Path) -> None:
    states = on_ranks(2, report_on_rank_1, tmp_path)
    for state in states:
        alone = make(40)
        alone.load_state_dict(state)
        assert len(list(alone.sampler)) == 32


def drop_the_rest(state: dict[str, Any], batch_size: int) -> list[tuple[int, int]]:
    """With drop_last, the epoch and its steps, of each iteration."""
    data = make(95)
    data.load_state_dict(state)
    loader = DataLoader(data, batch_size=batch_size, sampler=data.sampler, drop_last=True)
    return [
        (epoch, sum(1 for samples in loader if data.update(loss_of(samples)) is not None))
        for epoch in range(data.epoch, 3)
    ]


def two_steps() -> dict[str, Any]:
    data = make(95)
    loader = DataLoader(data, batch_size=8, sampler=data.sampler, drop_last=True)
    for step, samples in enumerate(loader):
        data.update(loss_of(samples))
        if step == 1:
            break
    data.sync()
    return data.state_dict()


def test_what_is_left_of_an_epoch_may_be_less_than_a_batch(tmp_path: Path) -> None:
    state, *_ = on_ranks(4, two_steps, tmp_path)  # 64 of 95 samples: the last 31 fill 4 x 8
    (epoch, steps), *later = drop_the_rest(state, 32)  # and no batch of 32
    assert (epoch, steps) == (0, 0)
    assert [epoch for epoch, _ in later] == [1, 2]
    assert all(steps > 0 for _, steps in later)
    assert all(
        rank == [(0, 1), *rank[1:]] for rank in on_ranks(2, drop_the_rest, tmp_path, state, 14)
    )


def test_rank_0s_state_at_an_epochs_end_is_complete(tmp_path: Path) -> None:
    ranks = on_ranks(3, train_until, tmp_path, 17, "stock", False)  # 100 samples, 3 x 2 at a time
    state = ranks[0]["state"]
    assert state["epoch"] == 1
    assert not state["scores"].isnan().any()
    assert all(same_state(rank["state"], state) for rank in ranks)


def through_dcp(folder: Path, num_steps: int) -> bool:
    data, loaded = make(100), make(100, seed=9)
    assert isinstance(data, Stateful)
    loader = DataLoader(data, batch_size=4, sampler=data.sampler)
    for step, samples in enumerate(loader):
        data.update(loss_of(samples))
        if step == num_steps:
            break
    data.sync()
    dcp.save({"data": data}, checkpoint_id=folder)  # type: ignore[attr-defined]
    dcp.load({"data": loaded}, checkpoint_id=folder)  # type: ignore[attr-defined]
    return same_state(data.state_dict(), loaded.state_dict())


@pytest.mark.parametrize("num_steps", [3, 12])  # in the middle of an epoch, and at its end
def test_torchs_distributed_checkpoint_saves_and_loads_it(tmp_path: Path, num_steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert on_ranks(2, through_dcp, tmp_path, tmp_path / "checkpoint", num_steps) == [True] * 2


# Models ------------------------------------------------------------------------------------------


NUM_KEPT = 65


def gradients(wrap: str, batch_size: int) -> list[Tensor]:
    """The gradients of each step of a pruned epoch."""
    torch.manual_seed(0)
    x, y = torch.randn(90, 6), torch.randint(3, (90,))
    model: nn.Module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    parameters = dict(model.named_parameters())
    if wrap == "ddp":
        model = DistributedDataParallel(model)
    elif wrap == "fsdp":
        fully_shard(model)
        parameters = dict(model.named_parameters())
    data = InfoBatch(TensorDataset(x, y, torch.arange(90)), 8)
    data.update(loss_of(data.plan.indices), data.plan.indices)
    data.set_epoch(1)
    assert len(data.plan) == NUM_KEPT
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(parameters.values())
    loader = DataLoader(data, batch_size=batch_size, sampler=data.sampler)
    found = []
    for inputs, targets, _ in loader:
        optimizer.zero_grad()
        data.update(criterion(model(inputs), targets)).backward()
        flat = []
        for parameter in parameters.values():
            gradient = parameter.grad
            assert gradient is not None
            flat.append(gradient.full_tensor() if isinstance(gradient, DTensor) else gradient)
        found.append(torch.cat([gradient.flatten() for gradient in flat]).clone())
    return found


NO_FSDP = pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.7", reason="fully_shard of torch 2.6 needs a GPU"
)


@pytest.mark.parametrize("wrap", ["ddp", pytest.param("fsdp", marks=NO_FSDP)])
def test_two_ranks_of_batch_16_have_the_gradient_of_one_with_32(tmp_path: Path, wrap: str) -> None:
    alone = gradients("", 32)
    num_last = NUM_KEPT % 32
    assert num_last % 2 == 1
    # In the last step a repeat that weighs 0 is one of the samples that the mean is over.
    alone[-1] *= num_last / (num_last + 1)
    for rank in on_ranks(2, gradients, tmp_path, wrap, 16):
        torch.testing.assert_close(rank, alone, rtol=1e-5, atol=1e-7)


def test_copies_in_a_process_group_are_complete(tmp_path: Path) -> None:
    assert on_ranks(2, copy_in_ranks, tmp_path) == [True, True]


def copy_in_ranks() -> bool:
    data = make(100)
    for step, samples in enumerate(DataLoader(data, batch_size=8, sampler=data.sampler)):
        data.update(loss_of(samples))
        if step == 3:
            break
    twin = copy.deepcopy(data)
    return same_state(twin.state_dict(), data.state_dict()) and isinstance(twin.plan, Plan)


# torchrun ----------------------------------------------------------------------------------------


def torchrun(folder: Path, num_ranks: int, *options: str) -> int:
    folder.mkdir(exist_ok=True)
    launch = ["torch.distributed.run", f"--nproc-per-node={num_ranks}", "--max-restarts=2"]
    meet = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command = [sys.executable, "-m", *launch, *meet, "-m", "tests.training", str(folder), *options]
    process = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        # A new store for each start: in the old one a rank may find where its peer was before.
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    return process.returncode


@pytest.mark.parametrize(("num_ranks", "loader"), [(2, "stock"), (3, "ours"), (4, "stock")])
def test_an_elastic_restart_after_a_killed_rank_ends_as_if_nothing_had_happened(
    tmp_path: Path, num_ranks: int, loader: str
) -> None:
    assert torchrun(tmp_path / "whole", num_ranks, "--loader", loader) == 0
    assert torchrun(tmp_path / "killed", num_ranks, "--loader", loader, "--die-after", "14") == 0
    assert (tmp_path / "killed" / "died").exists()
    whole, killed = (
        torch.load(tmp_path / name / "final.pt", weights_only=True) for name in ("whole", "killed")
    )
    if num_ranks == 2:
        assert same_state(killed, whole)
    else:
        # DDP sorts gradients into other buckets after its first step, and so, once restarted, sums
        # those of three ranks in another order.
        torch.testing.assert_close(killed["model"], whole["model"], rtol=1e-4, atol=1e-6)
        for name in ("scores", "metrics"):
            pair = killed["data"].pop(name), whole["data"].pop(name)
            torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-6)
        assert same_state(killed["data"], whole["data"])
