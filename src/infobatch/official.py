"""Names of the authors' package that are not ours, and what to write in their place.

docs/official-package.md is the page for readers.
"""

from __future__ import annotations

_PLAN = "the plan of an epoch is drawn when the epoch begins; train_data.plan shows it"
_WEIGHTS = "read train_data.batch_weights after update(), or train_data.plan.weights"
_NUM_SAVED = "write train_data.savings.num_full - train_data.savings.num_trained"
_NO_PRUNING = 'write InfoBatch(dataset, num_epochs, rule="full")'
_UPDATE = "write loss = train_data.update(losses), which knows the samples of the batch"

INSTEAD = {
    "__setscore__": _UPDATE,
    "cur_batch_index": _UPDATE,
    "get_pruned_count": _NUM_SAVED,
    "get_weights": _WEIGHTS,
    "keep_ratio": "write 1 - train_data.rule.prune_ratio",
    "mean_score": "write train_data.scores.nanmean()",
    "no_prune": _NO_PRUNING,
    "normal_sampler_no_prune": _NO_PRUNING,
    "num_epoch": "write train_data.num_epochs",
    "num_pruned_samples": _NUM_SAVED,
    "prune": _PLAN,
    "pruning_sampler": "write sampler=train_data.sampler, a property",
    "ratio": "write prune_ratio=1 - ratio: there it was the fraction that is kept",
    "reset_weights": "weights belong to the plan of an epoch, and need no reset",
    "save_num": _NUM_SAVED,
    "set_active_indices": _UPDATE,
    "stop_prune": "write train_data.delta * train_data.num_epochs",
    "total_save": _NUM_SAVED,
    "weights": _WEIGHTS,
}


def instead_of(name: str) -> str | None:
    """What to write for a name of the authors' package; None for any other name.

    >>> instead_of("stop_prune")
    "stop_prune is a name of the authors' package: write train_data.delta * train_data.num_epochs."
    """
    if name not in INSTEAD:
        return None
    return f"{name} is a name of the authors' package: {INSTEAD[name]}."
