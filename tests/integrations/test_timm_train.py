"""timm's train.py with the changes of docs/timm.md: its loaders, mixing, schedule and saver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import Mixup, create_dataset, create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.models import resume_checkpoint
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import CheckpointSaver
from torch import Tensor, nn
from torch.utils.data import DataLoader

from infobatch import InfoBatch, OrderError, mixing
from tests.integrations.test_examples import save_digits

NUM_IMAGES, NUM_EPOCHS, BATCH, SIZE = 48, 6, 8, 32

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    save_digits(folder, NUM_IMAGES, size=SIZE)
    return folder


class MixupWithLabels(Mixup):
    """As the page has it: the target is how the batch was mixed."""

    def __call__(self, x: Tensor, labels: Tensor) -> tuple[Tensor, mixing.Mixed]:
        x, soft_targets = super().__call__(x, labels)
        return x, mixing.from_timm(self, soft_targets, labels)


@dataclass
class Options:
    """Of those of train.py, the ones that matter here."""

    images: Path
    output: Path
    prefetcher: bool = True
    mixing: bool = False
    workers: int = 0
    resume: str = ""
    rule: str | None = None
    stop_after: int = NUM_EPOCHS


def loader_of(args: Options, dataset: Any, collate_fn: Any = None) -> Any:
    """As train.py makes it."""
    return create_loader(
        dataset, input_size=(3, SIZE, SIZE), batch_size=BATCH, is_training=True, no_aug=True,
        use_prefetcher=args.prefetcher, num_workers=args.workers, collate_fn=collate_fn,
        device=torch.device("cpu"),
    )  # fmt: skip


def pruned(loader_train: Any, batches: Any, train_data: InfoBatch[Any]) -> Any:
    """The loader of train.py, with our batches in place of its own."""
    stock = getattr(loader_train, "loader", loader_train)
    ours: Any = DataLoader(
        train_data,
        batch_sampler=batches,
        num_workers=stock.num_workers,
        collate_fn=stock.collate_fn,
        pin_memory=stock.pin_memory,
        worker_init_fn=stock.worker_init_fn,
        persistent_workers=stock.persistent_workers,
    )
    if stock is loader_train:
        return ours
    loader_train.loader = ours
    return loader_train


@dataclass
class Outcome:
    model: nn.Module
    train_data: InfoBatch[Any]
    updates: list[int]
    """Where the schedule stood after each update."""

    @property
    def weights(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]


def train(args: Options) -> Outcome:
    """The main function of train.py, without what has nothing to do with the data."""
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=SIZE, num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    resume_epoch = resume_checkpoint(model, args.resume, optimizer) if args.resume else None
    dataset_train = create_dataset("", root=args.images, is_training=True)
    train_data = InfoBatch(dataset_train, NUM_EPOCHS, rule=args.rule)
    shrink: Any = "epoch" if args.mixing else "batch"  # timm mixes batches of even size only
    batches = train_data.batches(BATCH, drop_last=True, shrink=shrink)
    loader_train = pruned(loader_of(args, dataset_train), batches, train_data)
    mixup = MixupWithLabels(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=10)
    losses_of = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)

    def loss_fn(output: Tensor, target: Any) -> Tensor:
        if args.mixing:
            losses, scores = target.losses_and_scores(output)
            return train_data.update(losses, scores=scores)
        return train_data.update(losses_of(output, target))

    saver = CheckpointSaver(model, optimizer, checkpoint_dir=str(args.output), max_history=2)
    updates_per_epoch = len(loader_train)
    schedule, num_epochs = create_scheduler_v2(
        optimizer,
        num_epochs=NUM_EPOCHS,
        step_on_epochs=False,
        updates_per_epoch=updates_per_epoch,
    )
    start_epoch = resume_epoch or 0
    if args.resume:
        beside = Path(args.resume).with_name(f"infobatch-{start_epoch - 1}.pth")
        train_data.load_state_dict(torch.load(beside, weights_only=True))
        if train_data.epoch != start_epoch:
            raise RuntimeError(f"{beside} is not of epoch {start_epoch - 1}.")
        schedule.step_update(start_epoch * updates_per_epoch)
    found = []
    for epoch in range(start_epoch, args.stop_after):
        for x, target in loader_train:
            if args.mixing:
                x, target = mixup(x, target)
            loss = loss_fn(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epochs_done = train_data.epoch + train_data.num_reported / len(train_data.plan)
            found.append(round(epochs_done * updates_per_epoch))
            schedule.step_update(found[-1])
        saver.save_checkpoint(epoch, metric=float(epoch))
        torch.save(train_data.state_dict(), args.output / f"infobatch-{epoch}.pth")
        schedule.step(epoch + 1)
    assert num_epochs == NUM_EPOCHS
    return Outcome(model, train_data, found)


UPDATES = NUM_IMAGES // BATCH * NUM_EPOCHS


@pytest.mark.parametrize("prefetcher", [True, False])
@pytest.mark.parametrize("mix", [True, False])
def test_train_py_with_and_without_the_prefetcher(
    tmp_path: Path, images: Path, prefetcher: bool, mix: bool
) -> None:
    outcome = train(Options(images, tmp_path, prefetcher, mix, workers=2 if prefetcher else 0))
    assert outcome.train_data.epoch == NUM_EPOCHS
    assert outcome.train_data.savings.fraction > 0.1
    assert outcome.train_data.scores.isfinite().all()
    assert outcome.updates[-1] == UPDATES
    if mix:
        assert len(outcome.updates) < UPDATES
    else:
        assert outcome.updates == list(range(1, UPDATES + 1))  # as without the library


def test_a_resumed_run_ends_with_the_same_model(tmp_path: Path, images: Path) -> None:
    whole = train(Options(images, tmp_path))
    stopped, elsewhere = tmp_path / "stopped", tmp_path / "resumed"
    stopped.mkdir()
    elsewhere.mkdir()
    train(Options(images, stopped, stop_after=4))
    for name in ("last", "checkpoint-2", "model_best"):
        resumed = train(Options(images, elsewhere, resume=str(stopped / f"{name}.pth.tar")))
        assert resumed.train_data.savings == whole.train_data.savings
        for ours, theirs in zip(resumed.weights, whole.weights, strict=True):
            assert torch.equal(ours, theirs)


def test_the_state_of_another_epoch_is_noticed(tmp_path: Path, images: Path) -> None:
    train(Options(images, tmp_path, stop_after=3))
    checkpoint = str(tmp_path / "checkpoint-1.pth.tar")
    (tmp_path / "infobatch-2.pth").rename(tmp_path / "infobatch-1.pth")
    with pytest.raises(RuntimeError, match="infobatch-1.pth is not of epoch 1"):
        train(Options(images, tmp_path, resume=checkpoint))
    (tmp_path / "infobatch-1.pth").unlink()
    with pytest.raises(FileNotFoundError, match="infobatch-1.pth"):
        train(Options(images, tmp_path, resume=checkpoint))


def test_create_loader_on_the_wrapper_sets_the_transform_but_does_not_follow_the_plan(
    tmp_path: Path, images: Path
) -> None:
    dataset: Any = create_dataset("", root=images, is_training=True)
    train_data = InfoBatch(dataset, NUM_EPOCHS)
    loader = loader_of(Options(images, tmp_path, prefetcher=False), train_data)
    assert dataset.transform is not None
    x, y = next(iter(loader))
    assert x.shape == (BATCH, 3, SIZE, SIZE)
    with pytest.raises(OrderError, match="batch_sampler=train_data.batches"):
        train_data.update(torch.ones(len(y)))


class InOrder:
    """A batch sampler that gives the batches of an earlier run again."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def train_without(args: Options, batches: list[list[int]], loss_fn: Callable[..., Tensor]) -> Any:
    """One epoch of train.py as it is, on these batches."""
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=SIZE, num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    dataset: Any = create_dataset("", root=args.images, is_training=True)
    loader = pruned(loader_of(args, dataset), InOrder(batches), dataset)
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    return model


def test_torchs_loss_is_timms_and_the_rule_full_trains_as_without_the_library(
    tmp_path: Path, images: Path
) -> None:
    args = Options(images, tmp_path, rule="full")
    data = InfoBatch(range(NUM_IMAGES), NUM_EPOCHS, rule="full")
    batches = list(data.batches(BATCH, drop_last=True))
    by_timm = train_without(args, batches, LabelSmoothingCrossEntropy(0.1))
    dataset: Any = create_dataset("", root=images, is_training=True)
    train_data = InfoBatch(dataset, NUM_EPOCHS, rule="full")
    losses_of = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=SIZE, num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    loader = pruned(loader_of(args, dataset), train_data.batches(BATCH, drop_last=True), train_data)
    for x, y in loader:
        optimizer.zero_grad()
        train_data.update(losses_of(model(x), y)).backward()
        optimizer.step()
    assert train_data.epoch == 1
    for ours, theirs in zip(model.parameters(), by_timm.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
