"""Losses and scores of samples that MixUp or CutMix has put into one image in pairs.

Image k shows sample k by the fraction lam and its partner by 1 - lam, and its loss has a term for
each. Sorted by sample instead of by image, the terms are per-sample losses with the same sum,
and each carries the weight of its own sample. The score of a sample is the error of the
probability of its class, over the two images that contain it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from infobatch.errors import check_fraction


@dataclass(frozen=True, eq=False)
class Mixed:
    """How a batch was mixed: image k shows the samples k and `partner[k]`.

    >>> mixed = Mixed(torch.tensor([0, 1]), partner=torch.tensor([1, 0]), lam=0.75)
    >>> mixed.losses_and_scores(logits=torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    (tensor([0.2685, 1.0516]), tensor([0.3808, 0.3808]))
    """

    labels: Tensor
    """The class of each sample, as it was before mixing."""
    partner: Tensor
    """The second sample that each image shows: a permutation of the batch."""
    lam: Tensor | float
    """How much of image k is sample k, from 0 to 1: one number, or one per image."""
    label_smoothing: float = field(default=0.0, kw_only=True)
    """As in torch's `CrossEntropyLoss` and timm's `Mixup`."""
    num_classes: int | None = field(default=None, kw_only=True)
    """If given, the number of logits is checked."""

    def __post_init__(self) -> None:
        _check_labels(self.labels)
        shape = tuple(self.labels.shape)
        _check("partner", self.partner, shape, whole=True, meaning="a permutation of the batch")
        if not isinstance(self.lam, Tensor):
            check_fraction("lam", self.lam, one_allowed=True)
        elif self.lam.dim():
            _check("lam", self.lam, shape, whole=False, meaning="one number, or one per image")
        check_fraction("label_smoothing", self.label_smoothing, one_allowed=False)

    def losses_and_scores(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """One loss and one score per sample, for `update(losses, scores=scores)`.

        `logits` is the model's output for the mixed images. The mean of the losses is the cross
        entropy with the images' soft targets. The scores have no gradient. Both are float32 or
        wider, and nothing is copied to the host.
        """
        shape = (len(self.labels), self.num_classes or "classes")
        _check("logits", logits, shape, whole=False, meaning="the model's output for the images")
        labels = self.labels.to(logits.device).long()
        partner = self.partner.to(logits.device).long()
        partner_labels = labels[partner]
        # Half precision cannot tell the probabilities of a sample that is learned from 1.
        dtype = torch.promote_types(logits.dtype, torch.float32)
        lam = torch.as_tensor(self.lam, dtype=dtype, device=logits.device)
        log_probs = logits.log_softmax(1, dtype=dtype)

        own, partners = _at(log_probs, labels), _at(log_probs, partner_labels)
        own_loss = lam * self._cross_entropy(own, log_probs)
        partner_loss = (1 - lam) * self._cross_entropy(partners, log_probs)
        # What an image says of its partner is added to what the partner's own image says.
        losses = own_loss.index_add(0, partner, partner_loss)

        with torch.no_grad():
            same = (labels == partner_labels).to(dtype)  # both shares are of one class
            own_target = self._smoothed(lam + (1 - lam) * same, logits.shape[1])
            partner_target = self._smoothed((1 - lam) + lam * same, logits.shape[1])
            own_error = (own_target - own.exp()).abs()
            partner_error = (partner_target - partners.exp()).abs()
            return losses, own_error.index_add(0, partner, partner_error)

    def _cross_entropy(self, log_prob: Tensor, log_probs: Tensor) -> Tensor:
        """Of each image, for the class with this `log_prob`."""
        if self.label_smoothing == 0:
            return -log_prob
        uniform = log_probs.mean(1)
        return -(1 - self.label_smoothing) * log_prob - self.label_smoothing * uniform

    def _smoothed(self, target: Tensor, num_classes: int) -> Tensor:
        return (1 - self.label_smoothing) * target + self.label_smoothing / num_classes


def from_timm(mixup: Any, soft_targets: Tensor, labels: Tensor) -> Mixed:
    """How a timm `Mixup` mixed a batch: `from_timm(mixup, soft_targets, labels)`.

    `mixup` is the object that mixed it, and `soft_targets` is what it made of `labels`.
    """
    try:
        mode, label_smoothing = mixup.mode, mixup.label_smoothing
    except AttributeError as error:
        raise TypeError(
            f"mixup is a {type(mixup).__name__}, expected the timm.data.Mixup that mixed the batch."
        ) from error
    _check_labels(labels)
    flipped = torch.arange(len(labels), device=labels.device).flip(0)
    one_lam = mode not in ("pair", "elem")
    return _read(soft_targets, labels, flipped, label_smoothing, one_lam=one_lam)


def from_torchvision(
    soft_targets: Tensor, labels: Tensor, *, label_smoothing: float = 0.0
) -> Mixed:
    """How torchvision's v2 `MixUp`, `CutMix`, or a `RandomChoice` of both, mixed a batch.

    `soft_targets` is what it made of `labels`. `label_smoothing` is that of the criterion.

    >>> soft_targets = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    >>> from_torchvision(soft_targets, torch.tensor([0, 1])).lam
    tensor(0.7500)
    """
    _check_labels(labels)
    rolled = torch.arange(len(labels), device=labels.device).roll(1)
    mixed = _read(soft_targets, labels, rolled, 0.0, one_lam=True)
    return replace(mixed, label_smoothing=label_smoothing)


def _read(
    soft_targets: Tensor, labels: Tensor, partner: Tensor, label_smoothing: float, *, one_lam: bool
) -> Mixed:
    """Read lam from the target of each image for its partner's class."""
    shape = (len(labels), "classes")
    _check("soft_targets", soft_targets, shape, whole=False, meaning="what mixing made of labels")
    num_classes = soft_targets.shape[1]
    partner_labels = labels[partner]
    partner_target = _at(soft_targets, partner_labels.to(soft_targets.device).long())
    off_value = label_smoothing / num_classes
    partner_share = (partner_target.float() - off_value) / (1 - label_smoothing)
    # Two samples of one class: any lam gives this target. Then 1, as where nothing was mixed.
    tells = (labels != partner_labels).to(soft_targets.device)
    lam = 1 - torch.where(tells, partner_share.clamp(0, 1), 0)
    if one_lam:
        lam = lam.amin()  # of those that tell, if there are any: they are equal, the others 1
    return Mixed(labels, partner, lam, label_smoothing=label_smoothing, num_classes=num_classes)


def _at(rows: Tensor, classes: Tensor) -> Tensor:
    """Of each row, the value of its class."""
    return rows.gather(1, classes.unsqueeze(1)).squeeze(1)


def _check_labels(labels: object) -> None:
    meaning = "the class of each sample, as it was before mixing"
    _check("labels", labels, ("batch",), whole=True, meaning=meaning)


def _check(
    name: str, value: object, shape: tuple[int | str, ...], *, whole: bool, meaning: str
) -> None:
    """Raise if it is no tensor of this shape, in which a word stands for any size of at least 1."""
    if isinstance(value, Tensor):
        given = f"{value.dtype} of shape {tuple(value.shape)}"
        is_number = not value.is_complex() and value.dtype != torch.bool
        right_kind = is_number and value.is_floating_point() != whole
        right_shape = value.dim() == len(shape) and all(
            size > 0 if isinstance(expected, str) else size == expected
            for size, expected in zip(value.shape, shape, strict=True)
        )
        if right_kind and right_shape:
            return
    else:
        given = f"a {type(value).__name__}"
    kind = "whole numbers" if whole else "a floating-point tensor"
    sizes = ", ".join(str(size) for size in shape)
    raise ValueError(f"{name} is {given}, expected {meaning}: {kind} of shape ({sizes}).")
