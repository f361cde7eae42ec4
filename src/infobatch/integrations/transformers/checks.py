"""Settings of a Trainer that cannot be pruned: one sentence each."""

from __future__ import annotations

from inspect import signature
from typing import Any


def check_settings(trainer: Any) -> None:
    """Raise if the arguments or the data cannot be pruned: `check_settings(trainer)`."""
    args, data = trainer.args, trainer.train_dataset
    if getattr(args, "packing", False) or getattr(args, "padding_free", False):
        raise ValueError(
            "packing (or padding_free) merges samples, and a merged sample has no loss of its "
            "own: set packing=False and padding_free=False."
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"train_dataset is a {type(data).__name__}, which cannot skip samples: expected a data "
            "set with __getitem__ and __len__."
        )
    if args.train_sampling_strategy != "random":
        raise ValueError(
            f"train_sampling_strategy is {args.train_sampling_strategy!r}, expected 'random': "
            "the order of an epoch is the pruner's."
        )
    if args.max_steps <= 0 and args.num_train_epochs != int(args.num_train_epochs):
        raise ValueError(
            f"num_train_epochs is {args.num_train_epochs}, expected a whole number: give "
            "max_steps to end within an epoch."
        )
    num_sharing_a_batch = trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size()
    if args.n_gpu > 1 or num_sharing_a_batch > 1:
        raise ValueError(
            "several devices share a batch (DataParallel, or tensor, context or sequence "
            "parallelism), expected one process per device with batches of its own: start "
            "with torchrun or accelerate launch."
        )
    if "labels" in signature(trainer.token_losses).parameters:
        raise TypeError(
            "token_losses takes (outputs, labels), expected (outputs, inputs): write inputs in "
            'place of labels, and inputs["labels"] where you used them.'
        )
