"""A checkpoint: whether it belongs to this run, and what it holds of an epoch that is running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from infobatch.errors import StateError
from infobatch.plan import Plan
from infobatch.record import IndexedRecord, OrderedRecord, Record

FORMAT = 1


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
    if len(state["scores"]) != state["num_samples"]:
        raise StateError(
            f"the checkpoint has {len(state['scores'])} scores for {state['num_samples']} samples: "
            "it is damaged, go back to an earlier one."
        )


def pack(plan: Plan, record: Record | None) -> dict[str, Any]:
    """What was reported of a running epoch; empty between epochs: `pack(plan, record)`."""
    if record is None or record.num_reported == 0:
        return {}
    indices, losses = record.reported()
    by_index = isinstance(record, IndexedRecord)
    return {
        "plan": plan.fingerprint,
        "losses": losses.clone(),
        "by_index": by_index,
        "indices": indices.clone() if by_index else indices[:0].clone(),
    }


def unpack(plan: Plan, running: Mapping[str, Any]) -> Record:
    """The record that was packed, for the same plan drawn again: `unpack(plan, running)`."""
    if plan.fingerprint != running["plan"]:
        raise StateError(
            f"torch {torch.__version__} draws another plan for epoch {plan.epoch} than the "
            "checkpoint's: resume with the torch that wrote it, or from an epoch's end."
        )
    losses = running["losses"]
    record: Record = IndexedRecord(plan) if running["by_index"] else OrderedRecord(plan)
    record.to(losses.device)
    record.write(running["indices"] if running["by_index"] else slice(0, len(losses)), losses)
    return record
