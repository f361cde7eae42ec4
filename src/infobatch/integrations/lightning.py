"""PyTorch Lightning: a callback that keeps the Trainer right while epochs shrink.

Lightning reads the length of an epoch once and takes it for that of all others. From that come the
batch after which validation runs, the progress bar, and the end of a resumed epoch. The callback
tells it each epoch's length, moves schedules per batch as full training would, saves and restores
the pruner with Lightning's checkpoints, and logs what was saved.

With several training loaders an epoch is one pass over the pruned one.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from infobatch import InfoBatch
from infobatch.schedule import Schedule, may_step_per_batch

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import Callback
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "infobatch.integrations.lightning needs Lightning: pip install infobatch[lightning]"
            ) from error

FULL = 1.0
"""The `limit_train_batches` of a Trainer that has no limit."""


class InfoBatchCallback(Callback):
    """Makes Lightning's Trainer work with pruned epochs, whose lengths differ.

    Give it to the Trainer, give `batch_sampler=train_data.batches(128)` to the training loader, and
    return `train_data.update(losses)` from `training_step`.

    >>> train_data = InfoBatch([0.0, 1.0], num_epochs=10)
    >>> InfoBatchCallback(train_data).train_data.epoch
    0
    """

    def __init__(self, train_data: InfoBatch[Any]) -> None:
        self.train_data = train_data
        self._to_load: dict[str, Any] | None = None

    # Before training -----------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let `configure_optimizers`, which comes next, find the length of a full epoch."""
        if stage != "fit":
            return
        # First of all callbacks, so that the others find the length of an epoch when it starts.
        trainer.callbacks.remove(self)  # type: ignore[attr-defined]
        trainer.callbacks.insert(0, self)  # type: ignore[attr-defined]
        num_epochs = self.train_data.num_epochs
        if num_epochs is not None and self.train_data.plan.num_pruned:
            self.train_data.set_epoch(num_epochs)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let schedules that step per batch follow the pruner, before their states are restored."""
        num_epochs = self.train_data.num_epochs
        if num_epochs is None:
            return
        if trainer.max_steps == -1 and trainer.max_epochs != num_epochs and not is_trial(trainer):
            warnings.warn(
                f"max_epochs of the Trainer is {trainer.max_epochs}, and InfoBatch was made for "
                f"{num_epochs} epochs, by which it stops pruning and moves schedules: give both "
                "the same number.",
                RuntimeWarning,
                stacklevel=2,
            )
        if not pl_module.automatic_optimization:
            return
        for config in trainer.lr_scheduler_configs:
            scheduler = config.scheduler
            if config.interval != "step" or isinstance(scheduler, Schedule):
                continue
            if not isinstance(scheduler, LRScheduler):
                warnings.warn(
                    f"{type(scheduler).__name__} is no scheduler of torch, so it cannot be kept on "
                    "its curve, which is made for epochs of full length: step it once per epoch.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if may_step_per_batch(scheduler):
                if config.frequency != 1:
                    raise ValueError(
                        f"frequency of a scheduler that steps per batch is {config.frequency}, "
                        "expected 1: batches are fewer in a pruned epoch, step at each of them."
                    )
                trainer.fit_loop.setup_data()
                loader = self._loader(trainer)
                # A loader that was given a batch sampler does not know the size of its batches.
                batches = loader if loader.batch_size is not None else loader.batch_sampler
                config.scheduler = Schedule(
                    scheduler,
                    self.train_data,
                    batch_size=getattr(batches, "batch_size", None),  # type: ignore[arg-type]
                    drop_last=getattr(batches, "drop_last", False),
                    accumulate=trainer.accumulate_grad_batches,
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin where a checkpoint was taken: what is left of an epoch comes after what is done."""
        loader, loop = self._loader(trainer), trainer.fit_loop
        if is_trial(trainer):
            return
        self._check_lengths(trainer)
        assert loop._data_fetcher is not None
        epoch = loop.epoch_progress.current.processed  # type: ignore[attr-defined]
        if self._load() or self.train_data.epoch != epoch:
            self.train_data.set_epoch(epoch)
            iter(loop._data_fetcher)  # the one there is may have begun in another epoch

        num_batches, batches = len(loader), loop.epoch_loop.batch_progress
        if loop.restarting:
            after_batch = loop.epoch_loop.restarted_on_train_batch_end
            num_done = batches.current.completed + after_batch
            if not batches.is_last_batch:
                num_batches += num_done
            elif after_batch:
                # The next epoch begins; Lightning sees that by comparing with its own length.
                batches.current.completed = max(num_done, num_batches)
            else:
                num_batches = num_done  # only the end of the epoch is left to do
        loop._data_fetcher.length = num_batches
        set_length(trainer, num_batches)

    def _loader(self, trainer: Any) -> DataLoader[Any]:
        """Return the training loader, or raise if it cannot be used."""
        limit = trainer.limit_train_batches
        is_cut = (isinstance(limit, int) or limit != FULL) and not is_trial(trainer)
        if is_cut or trainer.overfit_batches:
            raise ValueError(
                f"limit_train_batches is {trainer.limit_train_batches} and overfit_batches "
                f"{trainer.overfit_batches}, which cut or replace the plan of an epoch: expected "
                "neither; give InfoBatch a torch.utils.data.Subset, or the Trainer fast_dev_run."
            )
        ours: list[DataLoader[Any]] = [dl for dl in loaders(trainer) if self._reads(dl)]
        if len(ours) != 1:
            raise ValueError(
                f"{len(ours)} training loaders have the batches or the sampler of this InfoBatch, "
                "expected one: give trainer.fit() a DataLoader with "
                "batch_sampler=train_data.batches(batch_size), alone or among others."
            )
        return ours[0]

    def _reads(self, loader: Any) -> bool:
        """Whether a loader follows the plan."""
        samplers = [getattr(loader, "sampler", None)]
        samplers.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
        return isinstance(loader, DataLoader) and self.train_data.sampler in samplers

    def _check_lengths(self, trainer: Trainer) -> None:
        """Raise where an epoch would be more or less than one pass over the pruned loader."""
        loader, num_batches = self._loader(trainer), trainer.num_training_batches
        if num_batches == len(loader) or self.train_data.plan.num_pruned:
            return
        is_cut = num_batches < len(loader)
        raise ValueError(
            f"the pruned loader has {len(loader)} batches, and an epoch of the training loaders "
            f"together {num_batches}, expected the same, since an epoch is one pass over the "
            f"pruned loader: give trainer.fit() a CombinedLoader with mode "
            f"{'max_size_cycle' if is_cut else 'min_size'!r}."
        )

    # An epoch ------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the length of the epoch; Lightning asks its loaders for an iterator after this."""
        if not is_trial(trainer):
            set_length(trainer, len(self._loader(trainer)))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch that ends, and close it."""
        pl_module.log_dict(dict(self.train_data.metrics), sync_dist=True, batch_size=1)
        # max_steps may end a run within an epoch, which is then left as it is.
        if not is_trial(trainer) and trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self.train_data.set_epoch(trainer.current_epoch + 1)

    # A checkpoint --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        self.train_data.sync()  # all ranks come here: Lightning makes them wait for each other
        return self.train_data.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Not yet: `configure_optimizers`, which comes next, must find the length of a full epoch.
        self._to_load = state_dict

    def _load(self) -> bool:
        """Whether there was a state to load."""
        if self._to_load is None:
            return False
        self.train_data.load_state_dict(self._to_load)
        self._to_load = None
        return True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Of a run that had ended already, training does not even start."""
        self._load()


def is_trial(trainer: Any) -> bool:
    """Whether a run takes a few batches and no more: `Trainer(fast_dev_run=True)`."""
    return bool(trainer.fast_dev_run)


def loaders(trainer: Trainer) -> list[Any]:
    """All training loaders."""
    combined = trainer.fit_loop._combined_loader
    return [] if combined is None else combined.flattened


def set_length(trainer: Trainer, num_batches: int) -> None:
    """Tell Lightning how many batches the epoch has, and so after which of them to validate."""
    trainer.fit_loop.max_batches = num_batches
    combined = trainer.fit_loop._combined_loader
    assert combined is not None
    combined.limits = num_batches  # of each loader: none makes the epoch longer than the pruned one
    interval = trainer.val_check_interval
    if trainer.val_check_batch is None or trainer.check_val_every_n_epoch is None:
        return  # by time, or by batches whatever the epoch
    if isinstance(interval, int):
        trainer.val_check_batch = min(interval, num_batches)
    else:
        trainer.val_check_batch = max(1, int(num_batches * interval))
