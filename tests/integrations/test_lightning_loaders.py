"""Several training loaders in Lightning, and the length of an epoch that other callbacks see."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import DataLoader

from infobatch.integrations.lightning import InfoBatchCallback
from tests.conftest import Numbers
from tests.integrations.test_lightning import (
    BATCH,
    NUM_EPOCHS,
    NUM_SAMPLES,
    Module,
    PlainLoop,
    Save,
    loader_of,
    make,
    same,
    trainer_of,
    validation,
)

FULL_LENGTH = -(-NUM_SAMPLES // BATCH)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
]


class Among(Module):
    """Trains on the pruned loader, and notes what comes from the other one, epoch by epoch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.others: list[list[list[int] | None]] = []
        self.last: list[list[bool]] = []

    def on_train_epoch_start(self) -> None:
        self.others.append([])
        self.last.append([])

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        other = batch["other"]
        if self.others:  # a resumed epoch does not start
            self.others[-1].append(None if other is None else other.tolist())
            self.last[-1].append(self.trainer.is_last_batch)
        return super().training_step(batch["pruned"], batch_idx)  # type: ignore[no-any-return]


def combine(data: Any, mode: str | None, num_others: int, kind: str = "batches") -> Any:
    """The pruned loader beside one with this many batches of one sample."""
    loaders = {"other": DataLoader(Numbers(num_others)), "pruned": loader_of(data, kind)}
    return loaders if mode is None else CombinedLoader(loaders, cast(Any, mode))


def fit(
    folder: Path, mode: str | None, num_others: int, *callbacks: Any, schedule: str | None = None,
    rule: str | None = None, kind: str = "batches", checkpoint: Path | None = None, **options: Any,
) -> Any:  # fmt: skip
    data = make(rule)
    module = Among(data, schedule)
    trainer = trainer_of(folder, InfoBatchCallback(data), *callbacks, **options)
    loaders = combine(data, mode, num_others, kind)
    trainer.fit(module, loaders, validation(), ckpt_path=checkpoint)
    return module


@pytest.mark.parametrize(
    ("mode", "num_others"),
    [
        (None, FULL_LENGTH),  # a dict: Lightning's mode is max_size_cycle
        ("max_size_cycle", 3),
        ("max_size", 3),
        ("max_size", FULL_LENGTH),
        ("min_size", FULL_LENGTH),
        ("min_size", 40),
    ],
)
def test_an_epoch_is_one_pass_over_the_pruned_loader(
    tmp_path: Path, mode: str | None, num_others: int
) -> None:
    plain = PlainLoop(make())
    module = fit(tmp_path, mode, num_others)
    assert module.trail.steps == plain.trail.steps
    assert same(module, plain)
    assert module.data.epoch == NUM_EPOCHS
    assert module.data.savings.fraction > 0.15
    assert module.trail.epochs_validated == list(range(NUM_EPOCHS))
    for epoch, num_steps in enumerate(plain.steps_per_epoch):
        ends = "gives None" if mode == "max_size" else "starts again"
        expected: list[Any] = [
            [step % num_others] if step < num_others or ends == "starts again" else None
            for step in range(num_steps)
        ]
        assert module.others[epoch] == expected
        assert module.last[epoch] == [False] * (num_steps - 1) + [True]


@pytest.mark.parametrize(
    ("mode", "num_others", "remedy"),
    [
        (None, FULL_LENGTH + 1, "min_size"),
        ("max_size", 40, "min_size"),
        ("min_size", FULL_LENGTH - 1, "max_size_cycle"),
        ("sequential", 1, "min_size"),
    ],
)
def test_an_epoch_that_is_more_or_less_than_that_is_refused(
    tmp_path: Path, mode: str | None, num_others: int, remedy: str
) -> None:
    with pytest.raises(ValueError, match=f"one pass over the pruned .* mode '{remedy}'"):
        fit(tmp_path, mode, num_others)


def test_two_loaders_of_the_same_plan_are_refused(tmp_path: Path) -> None:
    data = make()
    trainer = trainer_of(tmp_path, InfoBatchCallback(data))
    with pytest.raises(ValueError, match="2 training loaders have the batches .* expected one"):
        trainer.fit(Module(data), [loader_of(data), loader_of(data)], validation())


def test_lighter_batches_among_others(tmp_path: Path) -> None:
    module = fit(tmp_path, None, FULL_LENGTH, kind="lighter")
    steps_of_an_epoch = [[number] for number in range(FULL_LENGTH)]
    assert module.others == [steps_of_an_epoch] * NUM_EPOCHS
    assert module.data.savings.fraction > 0.15


@pytest.mark.parametrize(("mode", "num_others"), [(None, FULL_LENGTH), ("min_size", 20)])
def test_schedules_and_resume_among_others(
    tmp_path: Path, mode: str | None, num_others: int
) -> None:
    saved = Save(tmp_path, "batch")
    whole = fit(tmp_path, mode, num_others, saved, schedule="one-cycle")
    full = fit(tmp_path, mode, num_others, rule="full", schedule="one-cycle")
    firsts = [
        [run.trail.rates[run.trail.epochs.index(epoch)] for epoch in range(NUM_EPOCHS)]
        for run in (whole, full)
    ]
    assert firsts[0] == firsts[1]
    ends = list(accumulate(PlainLoop(make()).steps_per_epoch))
    checkpoints = {num_steps: path for path, num_steps in saved.steps_at.items()}
    for num_steps in (FULL_LENGTH + 4, ends[2], ends[4] - 1):
        checkpoint = checkpoints[num_steps]
        resumed = fit(tmp_path, mode, num_others, schedule="one-cycle", checkpoint=checkpoint)
        assert resumed.trail.steps == whole.trail.steps[num_steps:], num_steps
        assert resumed.trail.rates == whole.trail.rates[num_steps:], num_steps
        assert same(resumed, whole), num_steps


# Lengths ------------------------------------------------------------------------------------------


class Lengths(Callback):
    """What another callback takes for the number of batches of each epoch."""

    def __init__(self) -> None:
        self.seen: dict[int, set[int]] = {}
        self.num_batches: dict[int, int] = {}

    def _look(self, trainer: Any) -> None:
        self.seen.setdefault(trainer.current_epoch, set()).add(trainer.num_training_batches)

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        self._look(trainer)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._look(trainer)
        epoch = trainer.current_epoch
        self.num_batches[epoch] = self.num_batches.get(epoch, 0) + 1

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            self._look(trainer)

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        self._look(trainer)


class Before(Lengths):
    """Stands before ours in the list."""


@pytest.mark.parametrize("reload_every", [0, 1])
def test_other_callbacks_see_the_length_of_the_running_epoch(
    tmp_path: Path, reload_every: int
) -> None:
    data, before, after = make(), Before(), Lengths()
    callbacks = [before, InfoBatchCallback(data), after]
    trainer = trainer_of(tmp_path, *callbacks, reload_dataloaders_every_n_epochs=reload_every)
    trainer.fit(Module(data), loader_of(data, "batches"), validation())
    lengths = dict(enumerate(PlainLoop(make()).steps_per_epoch))
    assert len(set(lengths.values())) > 2
    for other in (before, after):
        assert other.num_batches == lengths
        assert other.seen == {epoch: {length} for epoch, length in lengths.items()}


@pytest.mark.parametrize(
    ("kind", "validated"), [("lighter", range(NUM_EPOCHS)), ("batches", [0, NUM_EPOCHS - 1])]
)
def test_without_the_callback_only_lighter_batches_are_validated_in_every_epoch(
    tmp_path: Path, kind: str, validated: Any
) -> None:
    """Lightning takes the length of epoch 0 for that of all; the last epoch prunes nothing."""
    data = make()
    module = Module(data, "one-cycle" if kind == "lighter" else None)
    trainer_of(tmp_path).fit(module, loader_of(data, kind), validation())
    assert module.trail.epochs_validated == list(validated)
    assert data.epoch == NUM_EPOCHS
    assert data.savings.fraction > 0.15
