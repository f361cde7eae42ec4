"""A checkpoint: whether it belongs to this run, and what it holds of an epoch that is running."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from infobatch.errors import StateError, warn
from infobatch.plan import Plan
from infobatch.record import Reported, no_losses

FORMAT = 2
NOTHING = b"{}"
"""No tensors, packed; torch.load would take empty bytes for code."""


def check_same_plan(plan: Plan, fingerprint: str) -> None:
    """Refuse a plan other than the checkpoint's: `check_same_plan(plan, state["plan"])`."""
    if plan.fingerprint != fingerprint:
        raise StateError(
            f"torch {torch.__version__} draws another plan for epoch {plan.epoch} than the "
            "checkpoint's: resume with the torch that wrote it, or from an epoch's end."
        )


def check_same_run(state: Mapping[str, Any], **own: object) -> None:
    """Refuse the checkpoint of another run: `check_same_run(state, num_epochs=90)`."""
    if state["format"] != FORMAT:
        raise StateError(
            f"the checkpoint has format {state['format']}, expected {FORMAT}: load it with the "
            "infobatch that wrote it."
        )
    for name, value in own.items():
        if state[name] != value:
            raise StateError(
                f"the checkpoint has {name} {state[name]}, this run {value}: resume with the same "
                f"{name}, or start anew without the checkpoint."
            )
    if state["scores"].shape != (state["num_samples"],):
        raise StateError(
            f"the checkpoint has scores of shape {tuple(state['scores'].shape)} for "
            f"{state['num_samples']} samples: it is damaged, go back to an earlier one."
        )


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors whose names and sizes change as training goes on: `pack({"losses": losses})`.

    As bytes, so that the form of a checkpoint never changes: torch.distributed.checkpoint loads
    only what is already there, in the same size.
    """
    if not tensors:
        return NOTHING
    buffer = io.BytesIO()
    torch.save({name: values.clone() for name, values in tensors.items()}, buffer)
    return buffer.getvalue()


def unpack(packed: bytes) -> dict[str, Tensor]:
    """The tensors that were packed: `unpack(pack({"losses": losses}))`."""
    if packed == NOTHING:
        return {}
    try:
        tensors: dict[str, Tensor] = torch.load(
            io.BytesIO(packed), map_location="cpu", weights_only=True
        )
    except (EOFError, OSError, RuntimeError, UnpicklingError, ValueError) as error:
        raise StateError(
            f"{len(packed)} bytes of the checkpoint cannot be read ({type(error).__name__}): it is "
            "damaged, go back to an earlier one."
        ) from error
    return tensors


def pack_running(reported: Reported) -> bytes:
    """What was reported of a running epoch, up to where it is: `pack_running(reported)`."""
    end = len(reported.done) - int(reported.done.numpy()[::-1].argmax())  # after the last one done
    parts = {"losses": reported.losses[:end]}
    if not torch.equal(reported.done, reported.known):
        parts["done"] = reported.done[:end]
    return pack(parts)


def unpack_running(plan: Plan, parts: Mapping[str, Tensor]) -> Reported:
    """What was reported of the epoch of this plan: `unpack_running(plan, unpack(packed))`."""
    losses, end = no_losses(len(plan)), len(parts["losses"])
    losses[:end] = parts["losses"]
    if "done" not in parts:
        return Reported(losses)
    done = torch.zeros(len(plan), dtype=torch.bool)
    done[:end] = parts["done"]
    return Reported(losses, done)


def warn_of_unknown(reported: Reported, epoch: int) -> None:
    """Say what a checkpoint of one rank lacks: `warn_of_unknown(reported, epoch=3)`."""
    num_unknown = reported.num_done - int(reported.known.count_nonzero())
    if num_unknown:
        warn(
            f"the checkpoint was taken in the middle of epoch {epoch} without sync(): "
            f"{num_unknown} samples that other ranks had trained keep their older scores."
        )
