"""The Trainer that prunes: a step of it, whose loss is weighted sample by sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from infobatch.integrations.transformers.loop import INDEX, PrunedLoop
from infobatch.integrations.transformers.losses import Heads, Losses, fitting_heads, is_made_of


class InfoBatchTrainer(PrunedLoop):
    """A transformers `Trainer` that prunes. Write it where you wrote `Trainer`.

    It is also a mixin: `class MyTrainer(InfoBatchTrainer, SFTTrainer): ...`. The settings of
    `InfoBatch` are attributes of the class: `prune_ratio`, `delta`, `rule` and `shrink`.

    >>> class MyTrainer(InfoBatchTrainer):
    ...     rule = "tiers"
    """

    _loss_is_known = False
    _heads: list[str] | None = None
    """The heads that the model may have, after the batches so far; None: any."""

    def token_losses(self, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Losses:
        """The loss of each target of each sample, and which places are targets.

        Override it if your model has a loss that is not known here. `inputs` is what the model
        received, with the labels; `outputs` is what it returned, without its loss. Both tensors
        must have one row per sample, and the mean over the targets must be the loss of the model.
        """
        heads = self._fitting_heads(outputs, inputs)
        names = [name for name in heads if self._heads is None or name in self._heads]
        if not names:
            raise ValueError(
                f"the loss of each sample is not known: the model takes {', '.join(inputs)} and "
                f"returns {', '.join(outputs)}, which is no head that InfoBatchTrainer knows. "
                "Override token_losses(outputs, inputs); return the loss of each target, one row "
                "per sample, and which places are targets (with use_liger_kernel the model returns "
                "no logits: switch it off)."
            )
        return heads[names[0]]()

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
        given = dict(inputs)  # with label smoothing the Trainer takes the labels out
        with outputs_of(model) as outputs:
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if not self._loss_is_known:
            self._narrow_heads(loss, outputs, given, num_items_in_batch)
        # The plan of this batch: the update of an epoch's last batch moves on to the next one.
        is_pruned, scale = self.pruner.plan.num_pruned > 0, self._scale
        with torch.set_grad_enabled(is_pruned):
            losses, targets = self.token_losses(outputs, given)
        self._check_loss(loss, losses, targets, indices, num_items_in_batch, outputs)
        if self.args.max_steps > 0:
            # An epoch's last step may have fewer batches, and counts like any other.
            accumulate = self.args.gradient_accumulation_steps
            self.pruner.set_step((self.state.global_step + 1) * accumulate - 1)
        self.pruner.update(losses.detach(), indices, mask=targets)
        if is_pruned:
            of_sample = torch.where(targets, losses, 0).reshape(len(losses), -1).sum(1)
            # The Trainer's loss is the sum over all targets, divided by a number of its own choice.
            total = of_sample.detach().sum()
            # A batch may be learned to the last bit: avoid 0 / 0.
            per_target = torch.where(total == 0, 0, loss.detach() / total)
            loss = (of_sample * self.pruner.batch_weights * scale).sum() * per_target
        return (loss, outputs) if return_outputs else loss

    @property
    def _scale(self) -> float:
        """The factor that makes the mean weight of smaller batches 1."""
        plan = self.pruner.plan
        is_scaled = self.shrink == "batch" and plan.rescaled
        return len(plan) / plan.num_samples if is_scaled else 1.0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update(self.pruner.metrics)
        super().log(logs, start_time)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        self._heads, self._loss_is_known = None, False
        return super().set_initial_training_values(args, dataloader)

    # Which loss it is ----------------------------------------------------------------------------

    def _fitting_heads(self, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Heads:
        config = getattr(self.model, "config", None)
        return fitting_heads(
            outputs,
            inputs,
            shifts_labels=self._loss_shifts_labels,
            label_smoothing=self.args.label_smoothing_factor,
            ignored_pixel=getattr(config, "semantic_loss_ignore_index", 255),
        )

    @torch.no_grad()
    def _narrow_heads(
        self, loss: Tensor, outputs: Mapping[str, Any], inputs: Mapping[str, Any], num_items: Any
    ) -> None:
        """Keep the heads whose losses add up to the loss of this batch too.

        Mostly the first batch leaves one. A model that starts with equal logits leaves several,
        until it has learned something.
        """
        heads = self._fitting_heads(outputs, inputs)
        if self._heads is not None:
            heads = {name: heads[name] for name in self._heads if name in heads}
        agreeing = [name for name in heads if self._is_made_of(loss, *heads[name](), num_items)]
        if agreeing:  # else the sentence of _check_loss has the numbers
            self._heads = agreeing

    def _is_made_of(self, loss: Tensor, losses: Tensor, targets: Tensor, num_items: Any) -> bool:
        num_processes = self.accelerator.num_processes
        return is_made_of(loss, losses, targets, num_items=num_items, num_processes=num_processes)

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
        if outputs.get("aux_loss") is not None:
            raise ValueError(
                "the model adds aux_loss, which belongs to the batch and not to its samples, so it "
                "cannot be weighted: set output_router_logits=False in its config."
            )
        if not self._is_made_of(loss, losses, targets, num_items):
            mean = torch.where(targets, losses, 0).sum() / targets.sum()
            raise ValueError(
                f"the loss is {loss.item():.6g}, but {mean.item():.6g} by the targets of the "
                "batch, so it has other terms, which would not be weighted: leave them out "
                "(loss_type='dft'), or override token_losses(outputs, inputs) so that the mean of "
                "what it returns is the loss."
            )
        self._loss_is_known = self._heads is None or len(self._heads) == 1


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
