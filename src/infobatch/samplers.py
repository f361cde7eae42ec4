"""The plan for torch's DataLoader: as batches, as samples, as one rank's part or as a whole.

A sampler asks the run one question, when a loader draws from it for the first time: what is this
epoch? Until then, asking for an iterator, once or twice, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar

from torch.utils.data import DistributedSampler, Sampler

from infobatch import distributed
from infobatch.callers import LoaderCall
from infobatch.errors import check_whole, warn
from infobatch.rules import Rule
from infobatch.shard import Batching, Shard, by_size, by_steps, steps_of
from infobatch.tracking import BatchTracker, SampleTracker, Tracker
from infobatch.uniform import UniformShard

Shrink = Literal["epoch", "batch"]

AnyTracker = TypeVar("AnyTracker", bound=Tracker, covariant=True)


class Reader(Protocol[AnyTracker]):
    """A sampler, as the run sees it."""

    sharded: bool
    """Whether it reads this rank's part only."""
    shrink: Shrink

    @property
    def uniform_size(self) -> int:
        """The batch size, where the samples of a batch have one weight; 0 where they have not."""

    def track(self, shard: Shard, indices: Any, call: LoaderCall | None) -> AnyTracker:
        """Begin to read a shard of the epoch whose samples are `indices`."""


class Run(Protocol):
    """What a sampler asks."""

    @property
    def num_samples(self) -> int: ...

    @property
    def rule(self) -> Rule: ...

    def begin(self, iteration: object, reader: Reader[AnyTracker]) -> AnyTracker:
        """Answer what to go through; `iteration` is alive as long as someone reads."""

    def shard(self, *, sharded: bool, uniform_size: int = 0) -> Shard:
        """What is left of the current epoch."""

    def set_epoch(self, epoch: int) -> None: ...

    @property
    def epoch(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def sampler(self) -> ShardSampler: ...


class PlanSampler(Sampler[int]):
    """The samples of the current epoch, all of them, the same on all ranks."""

    sharded = False
    """Whether it gives this rank's part only."""
    shrink: Shrink = "epoch"
    """A pruned epoch has fewer samples; batches are made of them as usual."""
    uniform_size = 0
    """Its batches may have samples of any weight."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def set_epoch(self, epoch: int) -> None:
        """Tell the run the epoch, as loops do that use torch's DistributedSampler."""
        self._run.set_epoch(epoch)

    def track(self, shard: Shard, indices: Any, call: LoaderCall | None) -> SampleTracker:
        """Begin to read a shard of the epoch; the run calls this."""
        tracker = SampleTracker(shard, indices, call)
        if tracker.end == 0 and shard.start == 0:
            raise nothing_left(len(shard), None if call is None else call.batch_size)
        return tracker

    def __iter__(self) -> Iterator[int]:
        return SampleIterator(self._run, self)

    def __len__(self) -> int:
        return len(self._run.shard(sharded=self.sharded))


class ShardSampler(PlanSampler, DistributedSampler[int]):
    """The epoch's samples on this rank: `DataLoader(train_data, sampler=train_data.sampler)`.

    It is a `DistributedSampler` because it does the work of one. So frameworks that shard any
    other kind of sampler (Lightning) leave it alone, and can read the attributes of one.
    """

    sharded = True
    """It gives this rank's part only."""
    shuffle = True
    """The plan of an epoch is in random order."""
    drop_last = False
    """Ranks are evened out by a repeat that weighs 0; no sample is left out."""

    @property
    def unsharded(self) -> PlanSampler:
        """The whole epoch, for frameworks that shard by themselves; report it by index."""
        return PlanSampler(self._run)

    @property
    def dataset(self) -> range:  # type: ignore[override]
        """The samples by their indices; the sampler does not know the data."""
        return range(self._run.num_samples)

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The number of ranks."""
        return distributed.world_size()

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Which of the ranks this is."""
        return distributed.rank()

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The current epoch, counted from 0."""
        return self._run.epoch

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The seed of every choice and order."""
        return self._run.seed

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """How many samples of the epoch this rank has left."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """How many samples all ranks together have left, with repeats."""
        return len(self) * distributed.world_size()


class Batches(Sampler[list[int]]):
    """The batches of the current epoch, for `DataLoader(train_data, batch_sampler=...)`.

    With `shrink="epoch"` a pruned epoch has fewer batches; with `shrink="batch"` it has as many as
    full training, but smaller ones.
    """

    def __init__(
        self,
        run: Run,
        batch_size: int,
        *,
        drop_last: bool = False,
        shrink: Shrink = "epoch",
        sharded: bool = True,
        uniform: bool = False,
        sampler: object = None,
    ) -> None:
        self._size = check_whole("batch_size", batch_size, at_least=1)
        if shrink not in ("epoch", "batch"):
            raise ValueError(
                f"shrink is {shrink!r}, expected 'epoch' (fewer batches) or 'batch' (smaller ones)."
            )
        if uniform:
            _check_uniform(run.rule, shrink, drop_last=drop_last)
        self._run = run
        self.drop_last = bool(drop_last)
        """Whether a last batch that is not full is left out."""
        self.shrink: Shrink = shrink
        """A pruned epoch has fewer batches ("epoch") or smaller ones ("batch")."""
        self.sharded = bool(sharded)
        """Whether the batches are this rank's part of the epoch, or the whole epoch."""
        self.uniform = bool(uniform)
        """Whether all samples of a batch have the same weight."""
        self._has_warned = False
        # Lightning replaces the sampler inside the batch samplers of distributed runs, by making
        # them anew from the arguments that it finds here. Made so, ours is what it was: it is this
        # rank's part already, and `sampler` changes nothing.
        settings = {"drop_last": drop_last, "shrink": shrink, "sharded": sharded}
        settings["uniform"] = uniform
        setattr(self, "__pl_saved_args", (run, batch_size))
        setattr(self, "__pl_saved_arg_names", ("run", "batch_size"))
        setattr(self, "__pl_saved_kwargs", {**settings, "sampler": sampler})
        setattr(self, "__pl_saved_default_kwargs", {})

    @property
    def batch_size(self) -> int | None:
        """As given; None if batches differ in size and a framework that shards would rely on it."""
        has_any_size = self.shrink == "batch" or self.uniform
        return None if has_any_size and not self.sharded else self._size

    @property
    def uniform_size(self) -> int:
        """The batch size with `uniform=True`, else 0."""
        return self._size if self.uniform else 0

    @property
    def sampler(self) -> PlanSampler:
        """The same samples, one by one."""
        sampler = self._run.sampler
        return sampler if self.sharded else sampler.unsharded

    def set_epoch(self, epoch: int) -> None:
        """Tell the run the epoch, as loops do that use torch's DistributedSampler."""
        self._run.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the state of the `InfoBatch` says where to continue."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load, see `state_dict()`."""

    def __iter__(self) -> Iterator[list[int]]:
        return BatchIterator(self._run, self)

    def __len__(self) -> int:
        shard = self._run.shard(sharded=self.sharded, uniform_size=self.uniform_size)
        if isinstance(shard, UniformShard):
            return shard.batching.num_batches
        return self._batching(shard).num_batches

    def track(self, shard: Shard, indices: Any, call: LoaderCall | None) -> BatchTracker:
        """Begin to read a shard of the epoch; the run calls this."""
        if isinstance(shard, UniformShard):
            return BatchTracker(shard, indices, shard.batching, call)
        batching = self._batching(shard)
        self._check(batching, shard)
        return BatchTracker(shard, indices, batching, call)

    def _batching(self, shard: Shard) -> Batching:
        if self.shrink == "epoch":
            return by_size(len(shard), self._size, drop_last=self.drop_last)
        # A plain loader's number of steps, for the samples of one rank.
        num_full = -(-self._run.num_samples // shard.world_size)
        num_steps = steps_of(num_full, self._size, drop_last=self.drop_last)
        if not self.sharded:
            # A framework deals out the batches, and every rank needs one of the last round.
            num_steps = -(-num_steps // distributed.world_size()) * distributed.world_size()
        num_kept = -(-shard.end // shard.world_size)
        done = num_kept - len(shard)
        if self.drop_last:
            num_kept = round(num_kept * num_steps * self._size / num_full)
        if num_steps == 0 or num_kept < num_steps or done >= num_kept:
            return Batching(0, 0, 1)
        return by_steps(num_kept, num_steps, done=done)

    def _check(self, batching: Batching, shard: Shard) -> None:
        """Raise where an epoch has no batches, or batches without samples."""
        if batching.num_batches == 0 and shard.start == 0:
            if self.shrink == "batch" and self._run.num_samples >= self._size:
                raise ValueError(
                    f'shrink is "batch", but {shard.end} samples are kept, too few for a batch in '
                    f"each step of {shard.world_size} ranks in batches of {self._size}: use larger "
                    'batches, or shrink="epoch".'
                )
            raise nothing_left(len(shard), self._size)
        if (
            self.shrink == "batch"
            and self._size > 1
            and batching.num_batches > 1
            and batching.step < 2 * batching.per
            and not self._has_warned
        ):
            self._has_warned = True
            warn(
                f'shrink is "batch" and leaves batches of one sample of {self._size}, too little '
                "for batch normalisation and for the hardware: use larger batches, or "
                'shrink="epoch".'
            )


def _check_uniform(rule: Rule, shrink: Shrink, *, drop_last: bool) -> None:
    """Raise where batches of one weight each are not possible, or not what is meant."""
    if shrink == "batch":
        raise ValueError(
            'uniform is True and shrink is "batch", which fixes where batches begin whatever their '
            "weights: leave one of them out."
        )
    if drop_last:
        raise ValueError(
            "uniform is True and drop_last too, but there is no small last batch to drop: the "
            "batches of a weight differ by one sample at most. Leave drop_last out."
        )
    if rule.max_groups is None:
        raise ValueError(
            f"uniform is True, but {rule!r} gives a probability per sample, and so a weight per "
            "sample: use a rule that makes few groups (mean, tiers)."
        )


def nothing_left(num_samples: int, batch_size: int | None) -> ValueError:
    """The error for an epoch that is smaller than a batch."""
    return ValueError(
        f"drop_last leaves nothing of an epoch of {num_samples} samples in batches of "
        f"{batch_size}: use smaller batches, or drop_last=False."
    )


class BatchIterator(Iterator[list[int]]):
    """One iteration over the batches of an epoch; it begins with the first one drawn."""

    _tracker: BatchTracker | None = None

    def __init__(self, run: Run, reader: Batches) -> None:
        self._run, self._reader = run, reader

    def __next__(self) -> list[int]:
        if self._tracker is None:
            self._tracker = self._run.begin(self, self._reader)
        return self._tracker.draw()

    def state_dict(self) -> dict[str, Any]:
        """Nothing, for torchdata's StatefulDataLoader: an iteration begins where the run stands."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load, see `state_dict()`."""


class SampleIterator(Iterator[int]):
    """One iteration over the samples of an epoch; it begins with the first one drawn."""

    def __init__(self, run: Run, reader: PlanSampler) -> None:
        # The bare chain of lists is as fast as one list. It must not lead back to this object: the
        # run sees from what is alive whether an iteration is still going on.
        self._samples = chain.from_iterable(_chunks(run, reader))

    def __iter__(self) -> Iterator[int]:
        return self._samples

    def __next__(self) -> int:
        return next(self._samples)

    def state_dict(self) -> dict[str, Any]:
        """Nothing, for torchdata's StatefulDataLoader: an iteration begins where the run stands."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load, see `state_dict()`."""


class Iteration:
    """Alive as long as an iteration over samples is."""


def _chunks(run: Run, reader: PlanSampler) -> Iterator[Iterator[int]]:
    iteration = Iteration()
    yield from run.begin(iteration, reader).chunks()
