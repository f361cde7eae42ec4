"""Lightning trains what a plain loop on the same plan trains, to the last bit."""

from __future__ import annotations

import copy
import csv
import importlib
import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch import InfoBatch
from infobatch.integrations.lightning import InfoBatchCallback
from tests.ranks import on_ranks

NUM_SAMPLES, NUM_EPOCHS, BATCH = 100, 8, 8

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    # The loader is not resumable by itself: the callback knows where to go on.
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


def points() -> TensorDataset:
    """Two classes that overlap; each sample brings its number, to be seen in a batch."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_SAMPLES, 5, generator=rng)
    y = (x @ torch.randn(5, generator=rng) + torch.randn(NUM_SAMPLES, generator=rng) > 0).long()
    return TensorDataset(x, y, torch.arange(NUM_SAMPLES))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


@dataclass
class Trail:
    """What a run did, step by step."""

    steps: list[tuple[list[int], list[float]]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    epochs_validated: list[int] = field(default_factory=list)


def module_of(package: Any) -> type[Any]:
    """The user's module, for `lightning` or `pytorch_lightning`."""

    class Module(package.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self, data: Any, schedule: str | None = None) -> None:
            super().__init__()
            self.net, self.data, self.trail, self.kind = network(), data, Trail(), schedule

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            x, y, indices = batch
            self.trail.rates.append(self.optimizers().param_groups[0]["lr"])
            self.trail.epochs.append(self.trainer.current_epoch)
            losses = cross_entropy(self.net(x), y, reduction="none")
            if not isinstance(self.data, InfoBatch):
                self.trail.steps.append((indices.tolist(), [1.0] * len(y)))
                return losses.mean()
            loss = self.data.update(losses)
            self.trail.steps.append((indices.tolist(), self.data.batch_weights.tolist()))
            return loss

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            if batch_idx == 0 and not self.trainer.sanity_checking:
                self.trail.epochs_validated.append(self.trainer.current_epoch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
            if self.kind is None:
                return optimizer
            total = int(self.trainer.estimated_stepping_batches)
            schedule = (
                OneCycleLR(optimizer, max_lr=0.3, total_steps=total)
                if self.kind == "one-cycle"
                else LambdaLR(optimizer, lambda step: 1 - step / total)
            )
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return Module


Module = module_of(lightning.pytorch)


def trainer_of(
    folder: Path, *callbacks: Any, package: Any = lightning.pytorch, **options: Any
) -> Any:
    settings: dict[str, Any] = {
        "max_epochs": NUM_EPOCHS, "accelerator": "cpu", "devices": 1, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
        "default_root_dir": folder,
    }  # fmt: skip
    return package.Trainer(callbacks=list(callbacks), **{**settings, **options})


def loader_of(data: InfoBatch[Any], kind: str = "stock") -> Any:
    if kind == "ours":
        return infobatch.DataLoader(data, batch_size=BATCH)
    if kind in ("batches", "lighter"):
        shrink: Any = "batch" if kind == "lighter" else "epoch"
        return DataLoader(data, batch_sampler=data.batches(BATCH, shrink=shrink))
    workers = {"num_workers": 2, "persistent_workers": True} if kind == "workers" else {}
    return DataLoader(data, batch_size=BATCH, sampler=data.sampler, **workers)  # type: ignore[arg-type]


def validation() -> DataLoader[Any]:
    return DataLoader(points(), batch_size=50)


def make(rule: Any = None) -> InfoBatch[Any]:
    return InfoBatch(points(), NUM_EPOCHS, rule=rule, seed=1)


def fit(
    folder: Path,
    *callbacks: Any,
    rule: Any = None,
    loader: str = "stock",
    schedule: str | None = None,
    checkpoint: Path | None = None,
    **options: Any,
) -> Any:
    """A run of the callback with the trainer; the module, with its trail and its data."""
    data = make(rule)
    module = Module(data, schedule)
    trainer = trainer_of(folder, *callbacks, InfoBatchCallback(data), **options)
    trainer.fit(module, loader_of(data, loader), validation(), ckpt_path=checkpoint)
    return module


def parameters(module: Any) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.net.parameters()]


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(parameters(one), parameters(other), strict=True))


class PlainLoop:
    """The same training without Lightning: `PlainLoop(data).run()`."""

    def __init__(self, data: InfoBatch[Any], accumulate: int = 1) -> None:
        self.net, self.trail, self.steps_per_epoch = network(), Trail(), list[int]()
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.2, momentum=0.9)
        x, y, _ = points().tensors
        for epoch in range(NUM_EPOCHS):
            assert data.epoch == epoch
            indices, weights = data.plan.indices, data.plan.weights
            batches = list(zip(indices.split(BATCH), weights.split(BATCH), strict=True))
            self.steps_per_epoch.append(len(batches))
            for number, (batch, weight) in enumerate(batches, start=1):
                losses = cross_entropy(self.net(x[batch]), y[batch], reduction="none")
                loss = data.update(losses, batch)
                (loss / accumulate).backward()
                self.trail.steps.append((batch.tolist(), weight.tolist()))
                if number % accumulate == 0 or number == len(batches):
                    optimizer.step()
                    optimizer.zero_grad()


@pytest.mark.parametrize("loader", ["stock", "ours", "workers"])
def test_it_trains_what_a_plain_loop_trains(tmp_path: Path, loader: str) -> None:
    plain = PlainLoop(make())
    module = fit(tmp_path, loader=loader)
    assert module.trail.steps == plain.trail.steps
    assert same(module, plain)
    assert module.data.savings.fraction > 0.15


def test_gradient_accumulation_leaks_nothing_into_the_next_epoch(tmp_path: Path) -> None:
    plain = PlainLoop(make(), accumulate=3)
    module = fit(tmp_path, accumulate_grad_batches=3)
    assert any(steps % 3 for steps in plain.steps_per_epoch)
    assert module.trail.steps == plain.trail.steps
    assert same(module, plain)


class InOrder:
    """A sampler that gives the order of each epoch, as the full rule has it."""

    def __init__(self, orders: list[list[int]]) -> None:
        self.orders, self.epoch = orders, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(self.orders[self.epoch])

    def __len__(self) -> int:
        return NUM_SAMPLES


def test_the_rule_full_trains_exactly_as_lightning_alone(tmp_path: Path) -> None:
    module = fit(tmp_path, rule="full", schedule="one-cycle")
    samples = [index for indices, _ in module.trail.steps for index in indices]
    orders = [samples[start : start + NUM_SAMPLES] for start in range(0, len(samples), NUM_SAMPLES)]
    alone = Module(points(), "one-cycle")
    loader = DataLoader(points(), batch_size=BATCH, sampler=InOrder(orders))
    trainer_of(tmp_path).fit(alone, loader, validation())
    assert alone.trail == module.trail
    assert same(alone, module)


@pytest.mark.parametrize(("interval", "per_epoch"), [(1.0, 1), (0.5, 2), (12, 1)])
def test_validation_runs_in_every_epoch(tmp_path: Path, interval: float, per_epoch: int) -> None:
    module = fit(tmp_path, val_check_interval=interval)
    assert module.trail.epochs_validated == sorted(list(range(NUM_EPOCHS)) * per_epoch)


@pytest.mark.parametrize("bar_first", [True, False])
def test_the_progress_bar_shows_the_length_of_each_epoch(tmp_path: Path, bar_first: bool) -> None:
    shown = []

    class Bar(TQDMProgressBar):
        def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
            super().on_train_epoch_start(trainer)
            shown.append(self.train_progress_bar.total)

    data, bar = make(), Bar()
    ours = InfoBatchCallback(data)
    callbacks = [bar, ours] if bar_first else [ours, bar]
    trainer = trainer_of(tmp_path, *callbacks, enable_progress_bar=True)
    trainer.fit(Module(data), loader_of(data), validation())
    assert shown == PlainLoop(make()).steps_per_epoch


def test_data_that_were_trained_before_start_anew(tmp_path: Path) -> None:
    data = make()
    for epoch in range(2):  # so that the plan is a pruned one, shorter than others to come
        samples = data.plan.indices
        data.update(samples.float() + epoch, samples)
    again = copy.deepcopy(data)
    again.set_epoch(0)
    plain, module = PlainLoop(again), Module(data)
    trainer = trainer_of(tmp_path, InfoBatchCallback(data))
    trainer.fit(module, loader_of(data), validation())
    assert max(plain.steps_per_epoch) > plain.steps_per_epoch[0]
    assert module.trail.steps == plain.trail.steps
    assert module.trail.epochs_validated == list(range(NUM_EPOCHS))
    assert same(module, plain)


# Learning rates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["one-cycle", "lambda"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_schedule_per_batch_ends_each_epoch_where_full_training_does(
    tmp_path: Path, schedule: str, accumulate: int
) -> None:
    options: dict[str, Any] = {"schedule": schedule, "accumulate_grad_batches": accumulate}
    full, pruned = (fit(tmp_path, rule=rule, **options).trail for rule in ("full", None))
    for trail in (full, pruned):
        assert sorted(set(trail.epochs)) == list(range(NUM_EPOCHS))
    first_rates = [
        [trail.rates[trail.epochs.index(epoch)] for epoch in range(NUM_EPOCHS)]
        for trail in (full, pruned)
    ]
    assert first_rates[0] == first_rates[1]
    assert len(pruned.rates) < 0.9 * len(full.rates)


@pytest.mark.parametrize("num_epochs_before", [3, NUM_EPOCHS])
def test_a_second_run_on_the_same_data_has_the_whole_curve(
    tmp_path: Path, num_epochs_before: int
) -> None:
    """As after lr_find: the data stand in a pruned epoch when the schedule is made."""
    expected = fit(tmp_path, rule="full", schedule="one-cycle").trail
    data = make()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "max_epochs of the Trainer is 3")
        before = trainer_of(tmp_path, InfoBatchCallback(data), max_epochs=num_epochs_before)
        before.fit(Module(data, "one-cycle"), loader_of(data), validation())
    module = Module(data, "one-cycle")
    trainer_of(tmp_path, InfoBatchCallback(data)).fit(module, loader_of(data), validation())
    for epoch in range(NUM_EPOCHS):
        rates = [t.rates[t.epochs.index(epoch)] for t in (module.trail, expected)]
        assert rates[0] == rates[1]


def test_another_number_of_epochs_is_told_of(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="max_epochs of the Trainer is 2, and .* for 8 epochs"):
        fit(tmp_path, max_epochs=2)


def test_a_scheduler_that_is_not_torchs_is_told_of(tmp_path: Path) -> None:
    class Theirs:
        """As timm's: it has a step and a state, and no base class."""

        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        def step(self, *_: Any) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    class WithTheirs(Module):  # type: ignore[misc,valid-type]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
            return [optimizer], [{"scheduler": Theirs(optimizer), "interval": "step"}]

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step()

    data = make()
    trainer = trainer_of(tmp_path, InfoBatchCallback(data))
    with pytest.warns(RuntimeWarning, match="Theirs is no scheduler of torch"):
        trainer.fit(WithTheirs(data), loader_of(data), validation())


def test_max_steps_may_end_within_an_epoch_that_workers_have_fetched(tmp_path: Path) -> None:
    for max_steps in (20, 21, 22):
        data = InfoBatch(points(), num_steps=max_steps)
        module = Module(data)
        trainer = trainer_of(tmp_path, InfoBatchCallback(data), max_epochs=-1, max_steps=max_steps)
        trainer.fit(module, loader_of(data, "workers"), validation())
        assert len(module.trail.steps) == max_steps


def test_a_schedule_with_a_frequency_is_refused(tmp_path: Path) -> None:
    class Rarely(Module):  # type: ignore[misc,valid-type]
        def configure_optimizers(self) -> Any:
            optimizers, (config,) = super().configure_optimizers()
            return optimizers, [{**config, "frequency": 4}]

    data = make()
    trainer = trainer_of(tmp_path, InfoBatchCallback(data))
    with pytest.raises(ValueError, match="frequency of a scheduler .* is 4, expected 1"):
        trainer.fit(Rarely(data, "lambda"), loader_of(data), validation())


# Resume -------------------------------------------------------------------------------------------


class Save(Callback):
    """Checkpoints at each of some places: `Save(folder, "batch")`."""

    def __init__(self, folder: Path, place: str, after_step: int = 0) -> None:
        self.folder, self.place, self.after_step = folder, place, after_step
        self.steps_at: dict[Path, int] = {}

    def _save(self, trainer: Any, place: str) -> None:
        num_steps = len(trainer.lightning_module.trail.steps)
        wanted = self.after_step in (0, num_steps)
        if place == self.place and wanted and not trainer.sanity_checking:
            path = self.folder / f"{place}-{len(self.steps_at)}.ckpt"
            self.steps_at[path] = num_steps
            trainer.save_checkpoint(path)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._save(trainer, "batch")

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self._save(trainer, "validation")

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        self._save(trainer, "epoch")


def check_resume(folder: Path, place: str, every: int, **options: Any) -> None:
    """From every so-many-th checkpoint of a run, the rest is what it was in that run."""
    saved = Save(folder, place)
    whole = fit(folder, saved, **options)
    steps = len(whole.trail.steps)
    checkpoints = [*saved.steps_at.items()][::every]
    assert len(checkpoints) > 2
    for checkpoint, num_steps in checkpoints:
        if num_steps == steps and place != "batch":
            continue  # nothing is left
        resumed = fit(folder, checkpoint=checkpoint, **options)
        assert resumed.trail.steps == whole.trail.steps[num_steps:], checkpoint.name
        assert resumed.trail.rates == whole.trail.rates[num_steps:], checkpoint.name
        assert same(resumed, whole), checkpoint.name
        assert resumed.data.savings == whole.data.savings
        assert resumed.data.epoch == NUM_EPOCHS
        validated = resumed.trail.epochs_validated
        missing = set(range(NUM_EPOCHS)) - set(validated)
        assert missing == set(range(min(validated, default=NUM_EPOCHS))), checkpoint.name


def test_resume_at_an_epochs_end(tmp_path: Path) -> None:
    check_resume(tmp_path, "epoch", every=1, schedule="lambda")


def test_resume_after_the_validation_of_an_epoch(tmp_path: Path) -> None:
    check_resume(tmp_path, "validation", every=1, schedule="one-cycle")


def test_resume_after_a_validation_within_an_epoch(tmp_path: Path) -> None:
    check_resume(tmp_path, "validation", every=3, val_check_interval=0.5)


@pytest.mark.parametrize("loader", ["stock", "ours"])
def test_resume_after_any_batch(tmp_path: Path, loader: str) -> None:
    check_resume(tmp_path, "batch", every=5, loader=loader, schedule="lambda")


def test_resume_after_the_last_batch_of_each_epoch(tmp_path: Path) -> None:
    ends = PlainLoop(make()).steps_per_epoch
    saved = Save(tmp_path, "batch")
    whole = fit(tmp_path, saved)
    paths = list(saved.steps_at)
    for epoch in range(1, NUM_EPOCHS):
        num_steps = sum(ends[:epoch])
        resumed = fit(tmp_path, checkpoint=paths[num_steps - 1])
        assert resumed.trail.steps == whole.trail.steps[num_steps:], epoch
        assert same(resumed, whole)


def test_resume_with_workers(tmp_path: Path) -> None:
    check_resume(tmp_path, "batch", every=30, loader="workers", schedule="one-cycle")


def test_lightnings_own_checkpoints_resume(tmp_path: Path) -> None:
    keep = ModelCheckpoint(dirpath=tmp_path, every_n_epochs=2, save_top_k=-1, filename="{epoch}")
    whole = fit(tmp_path, keep, enable_checkpointing=True)
    path = tmp_path / "epoch=3.ckpt"
    resumed = fit(tmp_path, keep, enable_checkpointing=True, checkpoint=path)
    assert same(resumed, whole)
    start = sum(PlainLoop(make()).steps_per_epoch[:4])
    assert resumed.trail.steps == whole.trail.steps[start:]


# Logging ------------------------------------------------------------------------------------------


def test_what_was_saved_is_in_the_logger(tmp_path: Path) -> None:
    logger, board = CSVLogger(tmp_path), TensorBoardLogger(tmp_path)
    data = make()
    module = Module(data)
    kept: list[float] = []
    totals: list[float] = []  # of weight x loss, in each epoch

    class Kept(Callback):
        def on_train_epoch_start(self, *_: Any) -> None:
            kept.append(len(data.plan) / NUM_SAMPLES)
            totals.append(0.0)

        def on_train_batch_end(self, *arguments: Any) -> None:
            _, _, outputs, batch, _ = arguments
            totals[-1] += float(outputs["loss"]) * len(batch[0])

    trainer = trainer_of(tmp_path, InfoBatchCallback(data), Kept(), logger=[logger, board])
    trainer.fit(module, loader_of(data), validation())
    with Path(logger.log_dir, "metrics.csv").open() as table:
        logged = [row for row in csv.DictReader(table) if row["infobatch/saved"]]
    assert [float(row["infobatch/kept_fraction"]) for row in logged] == pytest.approx(kept)
    trained = [sum(kept[: epoch + 1]) / (epoch + 1) for epoch in range(NUM_EPOCHS)]
    assert [1 - float(row["infobatch/saved"]) for row in logged] == pytest.approx(trained)
    assert float(logged[-1]["infobatch/num_trained"]) == data.savings.num_trained
    losses = [float(row["infobatch/loss"]) for row in logged]
    assert losses == pytest.approx([total / NUM_SAMPLES for total in totals], rel=1e-5)
    assert {"infobatch/gradient_noise", "infobatch/skipped_loss"} <= logged[-1].keys()
    events = EventAccumulator(board.log_dir).Reload()
    assert [event.value for event in events.Scalars("infobatch/kept_fraction")] == pytest.approx(
        kept
    )


# What cannot be -----------------------------------------------------------------------------------


def test_a_loader_without_the_sampler_is_refused(tmp_path: Path) -> None:
    data = make()
    shuffled = DataLoader(data, batch_size=BATCH, shuffle=True)
    for loaders in (shuffled, [shuffled, shuffled]):
        trainer = trainer_of(tmp_path, InfoBatchCallback(data))
        with pytest.raises(ValueError, match="0 training loaders have the batches .* expected one"):
            trainer.fit(Module(data), loaders, validation())


@pytest.mark.filterwarnings("ignore:You requested to overfit")
@pytest.mark.filterwarnings("ignore:.*limit_train_batches=1")
@pytest.mark.parametrize(
    "limit",
    [{"limit_train_batches": 0.5}, {"limit_train_batches": 1}, {"overfit_batches": 2}],
)
def test_epochs_that_are_cut_are_refused(tmp_path: Path, limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected neither; give InfoBatch a .*Subset"):
        fit(tmp_path, **limit)


def test_a_fast_dev_run_takes_a_few_batches(tmp_path: Path) -> None:
    assert len(fit(tmp_path, fast_dev_run=3, schedule="one-cycle").trail.steps) == 3


def test_the_package_named_pytorch_lightning_works_too(tmp_path: Path) -> None:
    data = make()
    module = module_of(pytorch_lightning)(data, "one-cycle")
    trainer = trainer_of(tmp_path, InfoBatchCallback(data), package=pytorch_lightning)
    trainer.fit(module, loader_of(data), validation())
    assert same(module, fit(tmp_path, schedule="one-cycle"))
    assert module.trail.epochs_validated == list(range(NUM_EPOCHS))


def test_without_lightning_the_other_package_is_taken_or_the_extra_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "infobatch.integrations.lightning"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    other = importlib.import_module(name)
    assert issubclass(other.InfoBatchCallback, pytorch_lightning.Callback)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install infobatch\[lightning\]"):
        importlib.import_module(name)


# Two processes ------------------------------------------------------------------------------------


def runs_on_rank(folder: Path) -> list[dict[str, Any]]:
    """Under Lightning's DDP strategy, in a process that is one of two: a run, and it resumed."""
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    options: dict[str, Any] = {"schedule": "lambda", "devices": 2, "strategy": "ddp"}
    epochs, batches = Save(folder, "epoch"), Save(folder, "batch", after_step=25)
    whole = fit(folder, epochs, batches, **options)
    outcomes = [outcome(whole)]
    for loader in ("batches", "lighter"):
        outcomes[0][loader] = outcome(fit(folder, loader=loader, **options))
    for saved, number in ((epochs, 2), (batches, 0)):
        checkpoint, num_steps = [*saved.steps_at.items()][number]
        resumed = fit(folder, checkpoint=checkpoint, **options)
        outcomes.append({**outcome(resumed), "steps before": num_steps})
    return outcomes


def outcome(module: Any) -> dict[str, Any]:
    return {
        "trail": module.trail,
        "parameters": parameters(module),
        "savings": module.data.savings,
        "metrics": dict(module.trainer.callback_metrics),
    }


def two_shares_in_one_process(rates: list[float]) -> tuple[list[Any], nn.Module]:
    """What two ranks should train: of each, the steps; and the network they should end with."""
    data, net, steps = make(), network(), ([], [])  # type: ignore[var-annotated]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    x, y, _ = points().tensors
    remaining = iter(rates)
    for _ in range(NUM_EPOCHS):
        plan, losses_of = data.plan, torch.zeros(NUM_SAMPLES)
        padding = len(plan) % 2
        indices = torch.cat([plan.indices, plan.indices[:padding]])
        weights = torch.cat([plan.weights, torch.zeros(padding)])
        for start in range(0, len(indices), 2 * BATCH):
            optimizer.zero_grad()
            for rank in range(2):
                batch = indices[start + rank : start + 2 * BATCH : 2]
                weight = weights[start + rank : start + 2 * BATCH : 2]
                losses = cross_entropy(net(x[batch]), y[batch], reduction="none")
                ((losses * weight).mean() / 2).backward()
                own = weight > 0
                losses_of[batch[own]] = losses.detach()[own]
                steps[rank].append((batch.tolist(), weight.tolist()))
            optimizer.param_groups[0]["lr"] = next(remaining)
            optimizer.step()
        data.update(losses_of[plan.indices], plan.indices)
    return list(steps), net


def own_samples(run: dict[str, Any]) -> list[list[tuple[int, float]]]:
    """Step by step, without the repeat at weight 0 that fills up a share."""
    return [
        [pair for pair in zip(*step, strict=True) if pair[1] > 0] for step in run["trail"].steps
    ]


def test_two_processes_train_their_shares_save_and_resume(tmp_path: Path) -> None:
    ranks = on_ranks(2, runs_on_rank, tmp_path, tmp_path)
    steps, net = two_shares_in_one_process(ranks[0][0]["trail"].rates)
    for (whole, *resumed), expected in zip(ranks, steps, strict=True):
        assert [indices for indices, _ in whole["trail"].steps] == [i for i, _ in expected]
        assert [weights for _, weights in whole["trail"].steps] == [w for _, w in expected]
        for found, wanted in zip(whole["parameters"], net.parameters(), strict=True):
            torch.testing.assert_close(found, wanted.detach())
        assert whole["trail"].epochs_validated == list(range(NUM_EPOCHS))
        assert whole["trail"].rates[-1] < 0.01
        assert whole["savings"].num_full == NUM_SAMPLES * NUM_EPOCHS
        assert whole["savings"].fraction > 0.15
        assert float(whole["metrics"]["infobatch/saved"]) == pytest.approx(
            whole["savings"].fraction
        )
        # Lightning leaves our batches as they are: each rank's part.
        assert whole["batches"]["trail"].steps == whole["trail"].steps
        assert all(map(torch.equal, whole["batches"]["parameters"], whole["parameters"]))
        lighter = whole["lighter"]
        steps_per_epoch = -(-NUM_SAMPLES // 2 // BATCH)
        assert len(lighter["trail"].steps) == NUM_EPOCHS * steps_per_epoch
        assert lighter["savings"].fraction == pytest.approx(whole["savings"].fraction, abs=0.1)
        assert lighter["trail"].epochs_validated == list(range(NUM_EPOCHS))
        for run in resumed:
            num_steps = run["steps before"]
            assert 0 < num_steps < len(whole["trail"].steps)
            assert own_samples(run) == own_samples(whole)[num_steps:]
            assert run["trail"].rates == whole["trail"].rates[num_steps:]
            assert run["savings"] == whole["savings"]
            assert all(map(torch.equal, run["parameters"], whole["parameters"]))
