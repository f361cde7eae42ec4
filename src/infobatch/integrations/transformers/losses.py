"""The loss of each target of each sample, before the Trainer's loss sums over them."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy, pad

IGNORED = -100
"""The label of what is no target, all over transformers."""


def tokens(
    logits: Tensor, labels: Tensor, *, shift: bool, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The cross entropy of each label, and which labels are targets."""
    if shift:
        labels = pad(labels, (0, 1), value=IGNORED)[..., 1:]
    losses = cross_entropy(
        logits.float().flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses.view(labels.shape), labels != IGNORED
