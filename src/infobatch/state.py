"""The state of a run between two epochs, as one plain value, and as a checkpoint.

The plan of an epoch follows from it alone, and the next state from it and the losses of the epoch.
A checkpoint adds what was reported of the epoch that is running; copies and pickles use the same
form.
"""

from __future__ import annotations

import io
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infobatch import metrics as measures
from infobatch.distributed import has_loss, no_losses
from infobatch.epoch import EpochLosses
from infobatch.errors import StateError, warn
from infobatch.metrics import EpochMetrics
from infobatch.plan import Plan, draw
from infobatch.rules import Memory, Rule
from infobatch.rules.base import check_layout, everything, moving_average
from infobatch.scores import merge, unseen

FORMAT = 4
"""The form of checkpoints; 2 is that of infobatch 0.1, and 3 has no metrics."""

BATCH_SHARE = 0.1
"""The weight of the latest batch loss in a sample's score, where one loss per batch is reported."""

NOTHING = b"-"
"""No losses, packed; torch.load(weights_only=True) refuses empty bytes."""

DAMAGED = "it is damaged, go back to an earlier one"


@dataclass(frozen=True)
class Savings:
    """How much pruning has saved so far.

    >>> Savings(num_trained=70, num_full=100).fraction
    0.3
    """

    num_trained: int
    """Samples trained."""
    num_full: int
    """Samples that full training would have seen by now."""

    @property
    def fraction(self) -> float:
        """The fraction of samples that was saved."""
        return (self.num_full - self.num_trained) / self.num_full if self.num_full else 0.0

    def __add__(self, other: Savings) -> Savings:
        return Savings(self.num_trained + other.num_trained, self.num_full + other.num_full)


@dataclass(frozen=True)
class Settings:
    """What a run is made with, and what a checkpoint must agree with."""

    num_samples: int
    num_epochs: int | None
    num_steps: int | None
    delta: float
    rule: Rule

    def prunes(self, epoch: int, num_steps_done: int) -> bool:
        """Eq. 10: whether an epoch that begins here comes before the annealing.

        A delta of 0.55 is meant as 55/100: as a float it is a little more, and epoch 55 of 100
        would be pruned.
        """
        delta = Fraction(self.delta).limit_denominator(10**6)
        if self.num_steps is not None:
            return num_steps_done < delta * self.num_steps
        assert self.num_epochs is not None
        return epoch < delta * self.num_epochs


@dataclass(frozen=True, eq=False)
class RunState:
    """A run at the start of an epoch."""

    scores: Tensor
    memory: Memory
    seed: int
    epoch: int = 0
    steps_done: int = 0
    savings: Savings = Savings(0, 0)
    """Of all finished epochs."""
    last_savings: Savings = Savings(0, 0)
    """Of the epoch that was trained last."""
    num_nonfinite: int = 0
    metrics: EpochMetrics = field(default_factory=EpochMetrics)
    """Of the epoch that ended last."""
    prunes: bool = field(default=True, kw_only=True)
    """Whether this epoch comes before the annealing."""


def initial(settings: Settings, seed: int) -> RunState:
    """The state of a run that begins."""
    return RunState(
        unseen(settings.num_samples),
        settings.rule.init(settings.num_samples),
        seed,
        prunes=settings.prunes(0, 0),
    )


def plan_of(state: RunState, settings: Settings) -> Plan:
    """The plan of the epoch that the state stands at."""
    scores, rule = state.scores, settings.rule
    groups = rule.groups(scores, state.memory, state.epoch) if state.prunes else everything(scores)
    if groups.num_samples != settings.num_samples:
        raise ValueError(
            f"{rule!r} groups {groups.num_samples} samples, expected {settings.num_samples}."
        )
    return draw(groups, state.seed, state.epoch)


def savings_of(plan: Plan, num_trained: int) -> Savings:
    """What an epoch has saved when so many of its samples are trained."""
    return Savings(num_trained, round(plan.num_samples * num_trained / len(plan)))


def at_epoch(state: RunState, settings: Settings, epoch: int) -> RunState:
    """The same state at the start of another epoch."""
    return replace(state, epoch=epoch, prunes=settings.prunes(epoch, state.steps_done))


def after(
    state: RunState, settings: Settings, plan: Plan, result: EpochLosses, next_epoch: int
) -> RunState:
    """The state that follows an epoch, of which `result` was reported.

    The scores are changed in place: a second copy of them would be the largest thing in memory.
    """
    if result.num_done == 0:
        return at_epoch(state, settings, next_epoch)
    indices, losses = plan.indices, result.losses
    if not result.known.all():
        indices, losses = indices[result.known], losses[result.known]
    scores = losses
    if result.of_batches:
        # Batch Loss Score: one batch says little of a sample, the average over many says more.
        scores = moving_average(state.scores[indices], losses, BATCH_SHARE)
    rule, memory = settings.rule, state.memory
    remembered = rule.remember(state.scores, memory, state.epoch, indices, scores)
    if remembered is not memory:
        check_layout(rule, memory, remembered)
        for name, values in remembered.items():
            memory[name].copy_(values)  # ours: it stays as it is when the scores change
    loss = None if result.scores_given else measures.mean_loss(plan, result)
    noise = None
    if rule.unbiased or plan.num_pruned == 0:  # else the weights make up for nothing
        noise = measures.gradient_noise(plan, result)
    first_loss = loss if state.savings.num_full == 0 else state.metrics.first_loss
    skipped_loss = measures.skipped_loss(plan, state.scores)
    num_nonfinite = merge(state.scores, indices, scores)
    savings = savings_of(plan, result.num_done)
    closed = replace(
        state,
        savings=state.savings + savings,
        last_savings=savings,
        num_nonfinite=state.num_nonfinite + num_nonfinite,
        metrics=EpochMetrics(loss, first_loss, noise, skipped_loss),
    )
    return at_epoch(closed, settings, next_epoch)


# Checkpoints -------------------------------------------------------------------------------------


def to_dict(
    state: RunState, settings: Settings, steps_done: int, running: tuple[Plan, EpochLosses] | None
) -> dict[str, Any]:
    """A checkpoint: tensors of constant size, numbers, strings and bytes."""
    return {
        "format": FORMAT,
        "num_samples": settings.num_samples,
        "num_epochs": settings.num_epochs,
        "num_steps": settings.num_steps,
        "delta": settings.delta,
        "rule": repr(settings.rule),
        "seed": state.seed,
        "epoch": state.epoch,
        "prunes": int(state.prunes),
        "steps_at_start": state.steps_done,
        "steps_done": steps_done,
        "scores": state.scores.clone(),
        "memory": {name: values.clone() for name, values in state.memory.items()},
        "num_trained": state.savings.num_trained,
        "num_full": state.savings.num_full,
        "last_num_trained": state.last_savings.num_trained,
        "last_num_full": state.last_savings.num_full,
        "num_nonfinite": state.num_nonfinite,
        "metrics": measures.pack(state.metrics),
        "plan": "" if running is None else running[0].fingerprint,
        "scores_given": int(running is not None and running[1].scores_given),
        "of_batches": int(running is not None and running[1].of_batches),
        **pack(None if running is None else running[1]),
    }


def pack(reported: EpochLosses | None) -> dict[str, bytes]:
    """What was reported of a running epoch, up to its last entry that is done, as bytes.

    Its size changes from step to step, and torch.distributed.checkpoint loads only tensors that
    are already there in the same size.
    """
    if reported is None:
        return {"losses": NOTHING, "trained": NOTHING}
    end = len(reported.done) - int(reported.done.numpy()[::-1].argmax())
    trained = NOTHING
    if not torch.equal(reported.done, has_loss(reported.losses)):
        trained = reported.done[:end].numpy().tobytes()
    return {"losses": reported.losses[:end].numpy().tobytes(), "trained": trained}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was found to be whole, and to belong to this run."""

    state: RunState
    steps_done: int
    running: tuple[Plan, EpochLosses] | None
    lengthened: str = ""
    """How much longer this run is than the one that wrote it."""

    def warn(self) -> None:
        """Say what a reader of the checkpoint should know."""
        if self.lengthened:
            warn(
                f"this run is longer than the checkpoint's, {self.lengthened}: the new length "
                "counts for every epoch that begins after this."
            )
        if self.running is not None:
            _, reported = self.running
            num_unknown = reported.num_done - int(has_loss(reported.losses).count_nonzero())
            if num_unknown:
                warn(
                    f"the checkpoint was taken in the middle of epoch {self.state.epoch} without "
                    f"sync(): {num_unknown} samples that other ranks had trained keep their older "
                    "scores."
                )


def from_dict(saved: Mapping[str, Any], settings: Settings) -> Checkpoint:
    """Read a checkpoint, or raise a StateError; nothing is changed."""
    try:
        return _read(saved, settings)
    except StateError:
        raise
    except Exception as error:  # whatever a damaged or strange state may lead to
        reason = f"no {error}" if isinstance(error, KeyError) else f"a {type(error).__name__}"
        raise StateError(
            f"state is not what state_dict() returns ({reason}): load the pruner's own entry of "
            f"the checkpoint; if this is it, {DAMAGED}.",
            "not-a-state",
        ) from error


def _read(saved: Mapping[str, Any], settings: Settings) -> Checkpoint:
    if not isinstance(saved, Mapping) or "format" not in saved:
        raise StateError(
            f"state is not what state_dict() returns (a {type(saved).__name__} without a format): "
            "load the pruner's own entry of the checkpoint.",
            "not-a-state",
        )
    written_in = saved["format"]
    if type(written_in) is not int or written_in not in (2, 3, FORMAT):
        raise StateError(
            f"the checkpoint has format {_brief(written_in)}, expected {FORMAT}: load it with the "
            "infobatch that wrote it.",
            "newer-checkpoint",
        )
    if written_in == 2:
        saved = _from_format_2(saved, settings)
    if written_in < FORMAT:
        nothing = measures.pack(EpochMetrics())
        saved = {**saved, "metrics": nothing, "scores_given": 0, "of_batches": 0}
    lengthened = _check_same_run(saved, settings)
    state = RunState(
        _scores(saved["scores"], settings.num_samples),
        _memory(saved["memory"], settings),
        _whole(saved, "seed", expected=None),
        _whole(saved, "epoch"),
        _whole(saved, "steps_at_start"),
        Savings(_whole(saved, "num_trained"), _whole(saved, "num_full")),
        Savings(_whole(saved, "last_num_trained"), _whole(saved, "last_num_full")),
        _whole(saved, "num_nonfinite"),
        _metrics(saved["metrics"]),
        prunes=bool(_whole(saved, "prunes", range(2))),
    )
    losses, trained, running = _bytes(saved, "losses"), _bytes(saved, "trained"), None
    scores_given = bool(_whole(saved, "scores_given", range(2)))
    of_batches = bool(_whole(saved, "of_batches", range(2)))
    if losses == NOTHING and (saved["plan"] != "" or trained != NOTHING):
        raise StateError(
            f"the checkpoint has the plan of an epoch without its losses: {DAMAGED}.",
            "damaged-checkpoint",
        )
    if losses != NOTHING:
        # The epoch keeps its plan, even where a longer run would prune it.
        plan = plan_of(state, settings)
        if plan.fingerprint != saved["plan"]:
            raise StateError(
                f"torch {torch.__version__} draws another plan for epoch {plan.epoch} than the "
                "checkpoint's: resume with the torch that wrote it, or from an epoch's end.",
                "another-torch",
            )
        reported = unpack(losses, trained, len(plan))
        running = plan, replace(reported, scores_given=scores_given, of_batches=of_batches)
    elif lengthened:
        state = at_epoch(state, settings, state.epoch)
    return Checkpoint(state, _whole(saved, "steps_done"), running, lengthened)


def unpack(losses: bytes, trained: bytes, num_entries: int) -> EpochLosses:
    """What was packed, for a plan of so many entries."""
    num_losses = len(losses) // 4
    is_whole = 0 < len(losses) == 4 * num_losses <= 4 * num_entries
    if not is_whole or (trained != NOTHING and len(trained) != num_losses):
        raise StateError(
            f"the checkpoint has {len(losses)} bytes of losses and {len(trained)} of what was "
            f"trained for an epoch of {num_entries} samples: {DAMAGED}.",
            "damaged-checkpoint",
        )
    whole = no_losses(num_entries)
    whole[:num_losses] = torch.frombuffer(bytearray(losses), dtype=torch.float32)
    done, are_flags = None, True
    if trained != NOTHING:
        flags = np.frombuffer(trained, dtype=np.uint8)
        done, are_flags = torch.zeros(num_entries, dtype=torch.bool), bool(flags.max() <= 1)
        done[:num_losses] = torch.from_numpy(flags != 0)
    reported = EpochLosses(whole, done)
    # The last entry packed is always one that is done.
    if not are_flags or not reported.done[num_losses - 1]:
        raise StateError(
            f"the checkpoint has losses that state_dict() never writes: {DAMAGED}.",
            "damaged-checkpoint",
        )
    return reported


def _check_same_run(saved: Mapping[str, Any], settings: Settings) -> str:
    """Raise for the checkpoint of another run; returns in words how much longer this one is."""
    own = {
        "num_samples": settings.num_samples,
        "delta": settings.delta,
        "rule": repr(settings.rule),
    }
    for name, value in own.items():
        if type(saved[name]) is not type(value) or _by_value(saved[name]) != _by_value(value):
            raise _other_run(name, saved[name], value)
    lengthened = ""
    for name in ("num_epochs", "num_steps"):
        before, now = saved[name], getattr(settings, name)
        if (before is None) != (now is None):
            raise _other_run(name, before, now)
        if before is None:
            continue
        if _whole(saved, name, COUNTS[1:]) > now:
            raise _other_run(name, before, now)
        if before < now:
            lengthened = f"{name} {now} in place of {before}"
    return lengthened


def _by_value(rule: object) -> object:
    """The repr of a rule with its numbers by value: a rule is the same with 7 and with 7.0."""
    if not isinstance(rule, str):
        return rule
    return re.sub(r"(?<![\w.])\d+(\.\d+)?(e[+-]?\d+)?", lambda number: repr(float(number[0])), rule)


def _other_run(name: str, saved: object, own: object) -> StateError:
    found = saved if type(saved) is type(own) else _brief(saved)
    return StateError(
        f"the checkpoint has {name} {found}, this run {own}: resume with the same {name}, or start "
        "anew without the checkpoint.",
        "another-run",
    )


def _brief(value: object) -> str:
    """What a checkpoint has, for a sentence; a list or a tensor may be of any length."""
    is_short = value is None or isinstance(value, (int, float, str))
    return reprlib.repr(value) if is_short else f"a {type(value).__name__}"


COUNTS = range(2**63)


def _whole(saved: Mapping[str, Any], name: str, expected: range | None = COUNTS) -> int:
    """A whole number, and neither True nor 2.0; None expects any of them."""
    value = saved[name]
    if type(value) is not int or (expected is not None and value not in expected):
        span = "" if expected is None else f" from {expected[0]} to {expected[-1]}"
        raise StateError(
            f"the checkpoint has {name} {_brief(value)}, expected a whole number{span}: {DAMAGED}.",
            "damaged-checkpoint",
        )
    return value


def _bytes(saved: Mapping[str, Any], name: str) -> bytes:
    value = saved[name]
    if not isinstance(value, bytes):
        raise StateError(
            f"the checkpoint has a {type(value).__name__} as {name}, expected bytes: {DAMAGED}.",
            "damaged-checkpoint",
        )
    return value


def _tensor(value: object, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A plain tensor on the host; it may still be the one of the checkpoint."""
    if not isinstance(value, Tensor):
        raise StateError(
            f"state is not what state_dict() returns ({name} is a {type(value).__name__}): load "
            "the pruner's own entry of the checkpoint.",
            "not-a-state",
        )
    is_strided = value.layout is torch.strided and not value.is_nested
    if not is_strided or value.is_quantized or value.is_meta:
        raise StateError(
            f"the checkpoint has {name} as a sparse, nested, quantized or meta tensor, expected a "
            f"plain one: {DAMAGED}.",
            "damaged-checkpoint",
        )
    if tuple(value.shape) != shape or value.dtype != dtype:
        raise StateError(
            f"the checkpoint has {name} of shape {tuple(value.shape)} and {value.dtype}, expected "
            f"{shape} and {dtype}: {DAMAGED}.",
            "damaged-checkpoint",
        )
    return value.detach().cpu()


def _scores(value: object, num_samples: int) -> Tensor:
    scores = _tensor(value, "scores", (num_samples,), torch.float32)
    if np.isinf(scores.numpy()).any():
        raise StateError(f"the checkpoint has infinite scores: {DAMAGED}.", "damaged-checkpoint")
    return scores


def _memory(value: object, settings: Settings) -> Memory:
    layout = settings.rule.init(settings.num_samples)
    if not isinstance(value, Mapping) or value.keys() != layout.keys():
        names = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        raise StateError(
            f"the checkpoint remembers {names} for the rule, expected {sorted(layout)}: {DAMAGED}.",
            "damaged-checkpoint",
        )
    return {
        name: _tensor(value[name], f"memory {name!r}", tuple(known.shape), known.dtype)
        for name, known in layout.items()
    }


def _metrics(value: object) -> EpochMetrics:
    packed = _tensor(value, "metrics", (measures.PACKED_SIZE,), torch.float64)
    if bool(packed.isinf().any()):
        raise StateError(f"the checkpoint has infinite metrics: {DAMAGED}.", "damaged-checkpoint")
    return measures.unpack(packed)


def _from_format_2(saved: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """A checkpoint of infobatch 0.1 in today's form; rules remembered nothing before an update."""
    memory = _unpack_2(saved["memory"])
    layout = settings.rule.init(settings.num_samples)
    if memory and memory.keys() != layout.keys():
        raise StateError(
            f"the checkpoint is of infobatch 0.1, where {saved['rule']} remembered other things: "
            "resume it with infobatch 0.1, or start anew without the checkpoint.",
            "older-checkpoint",
        )
    running = _unpack_2(saved["running"])
    packed = {"losses": NOTHING, "trained": NOTHING}
    if running:
        packed["losses"] = running["losses"].numpy().tobytes()
        packed["trained"] = running["done"].numpy().tobytes() if "done" in running else NOTHING
    prunes = settings.prunes(_whole(saved, "epoch"), _whole(saved, "steps_at_start"))
    return {
        **saved, **packed, "format": FORMAT, "memory": memory or layout, "prunes": int(prunes)
    }  # fmt: skip


def _unpack_2(packed: bytes) -> dict[str, Tensor]:
    if packed == b"{}":
        return {}
    loaded: dict[str, Tensor] = torch.load(
        io.BytesIO(packed), map_location="cpu", weights_only=True
    )
    return loaded
