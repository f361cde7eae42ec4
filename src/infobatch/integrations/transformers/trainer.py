"""The Trainer that prunes: a step of it, whose loss is weighted sample by sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from infobatch.integrations.transformers.loop import INDEX, PrunedLoop
from infobatch.integrations.transformers.losses import tokens


class InfoBatchTrainer(PrunedLoop):
    """A Trainer that prunes: write it where you wrote `Trainer`; nothing else changes.

    It is also a mixin, `class MyTrainer(InfoBatchTrainer, SFTTrainer): ...`. Settings are
    attributes of the class, with the meaning they have for `InfoBatch`.

    >>> class MyTrainer(InfoBatchTrainer):
    ...     rule = "tiers"
    """

    _loss_is_known = False

    def token_losses(
        self, outputs: Mapping[str, Any], labels: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of each target of each sample, and which places are targets.

        Override it if your model has another loss than the cross entropy of its labels. `outputs`
        are the model's, without its loss; both answers have one row per sample.
        """
        logits, log_probs = outputs.get("logits"), outputs.get("log_probs")
        # Of trl, which needs no logits; beside logits they come from a second pass, for metrics.
        if log_probs is not None and (log_probs.requires_grad or logits is None):
            return -log_probs, outputs["label_mask"]
        if logits is None or labels is None or labels.is_floating_point():
            raise ValueError(
                "the loss of each sample is not known: it needs labels that are classes or tokens, "
                "and a model that returns logits (use_liger_kernel=False); for any other loss "
                "override token_losses()."
            )
        return tokens(
            logits,
            labels,
            shift=self._loss_shifts_labels,
            label_smoothing=self.args.label_smoothing_factor,
        )

    # A step --------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The Trainer's own loss in its own normalisation, weighted where the epoch is pruned."""
        indices = inputs.pop(INDEX, None)
        if indices is None:  # an evaluation
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs.get("labels")
        with outputs_of(model) as outputs:
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        is_pruned = self.pruner.plan.num_pruned > 0
        with torch.set_grad_enabled(is_pruned):
            losses, targets = self.token_losses(outputs, labels)
        self._check_loss(loss, losses, targets, indices, num_items_in_batch, outputs)
        if self.args.max_steps > 0:
            # An epoch's last step may have fewer batches, and counts like any other.
            accumulate = self.args.gradient_accumulation_steps
            self.pruner.set_step((self.state.global_step + 1) * accumulate - 1)
        self.pruner.update(losses.detach(), indices, mask=targets)
        if is_pruned:
            of_sample = torch.where(targets, losses, 0).reshape(len(losses), -1).sum(1)
            # The Trainer's loss is the sum over all targets by a number that is its own business.
            total = of_sample.detach().sum()
            # A batch may be learned to the last bit: avoid 0 / 0.
            per_target = torch.where(total == 0, 0, loss.detach() / total)
            loss = (of_sample * self.pruner.batch_weights * self._scale).sum() * per_target
        return (loss, outputs) if return_outputs else loss

    @property
    def _scale(self) -> float:
        """What makes the mean weight of lighter batches 1."""
        plan = self.pruner.plan
        is_scaled = self.shrink == "batch" and plan.rescaled
        return len(plan) / plan.num_samples if is_scaled else 1.0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["infobatch/saved"] = self.pruner.savings.fraction
        super().log(logs, start_time)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        self._loss_is_known = False
        return super().set_initial_training_values(args, dataloader)

    # What cannot be pruned -----------------------------------------------------------------------

    def _check_loss(
        self,
        loss: Tensor,
        losses: Tensor,
        targets: Tensor,
        indices: Tensor,
        num_items: Any,
        outputs: Mapping[str, Any],
    ) -> None:
        """Refuse a batch whose rows are no samples, or a loss that is not made of `losses`."""
        if len(losses) != len(indices):
            raise ValueError(
                f"the batch has {len(losses)} rows for {len(indices)} samples, expected one each: "
                "use a data collator that neither packs nor splits samples."
            )
        if self._loss_is_known or not loss.isfinite():  # read on the host once in a run
            return
        total = torch.where(targets, losses, 0).sum()
        counts = [targets.sum()] if num_items is None else [targets.sum(), num_items]
        known = [total / n * k for n in counts for k in (1, self.accelerator.num_processes)]
        rtol = 1e-4 if loss.dtype == torch.float32 else 1e-2
        if outputs.get("aux_loss") is not None or not any(
            torch.isclose(loss.float(), mean.float(), rtol=rtol) for mean in known
        ):
            raise ValueError(
                f"the loss is {loss.item():.6g}, but {known[0].item():.6g} by the targets of the "
                "batch, so it has other terms, which would not be weighted: leave them out (aux "
                "losses, loss_type='dft'), or override token_losses()."
            )
        self._loss_is_known = True


@contextmanager
def outputs_of(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """What a model returns inside, but for its loss, whose graph may be freed."""
    seen: dict[str, Any] = {}

    def note(module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not isinstance(outputs, Mapping):
            raise TypeError(
                f"the model returns a {type(outputs).__name__}, expected a dict of outputs: set "
                "return_dict=True in its config."
            )
        seen.update((name, value) for name, value in outputs.items() if name != "loss")

    handle = model.register_forward_hook(note)
    try:
        yield seen
    finally:
        handle.remove()
