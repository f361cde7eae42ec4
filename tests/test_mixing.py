"""MixUp and CutMix, against a reference that rebuilds each image's target from its two sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from infobatch import InfoBatch
from infobatch.mixing import Mixed, from_timm, from_torchvision
from tests.test_device import NoHostReads
from tests.vision import timm, torchvision

Mixup, v2 = timm.data.Mixup, torchvision.transforms.v2


def target_of(label: int, num_classes: int, smoothing: float) -> list[float]:
    """The target of one sample, smoothed: some of the mass is spread over all classes."""
    target = [smoothing / num_classes] * num_classes
    target[label] += 1 - smoothing
    return target


def image_targets(mixed: Mixed, num_classes: int) -> list[list[float]]:
    """The target of each image: those of its two samples, by their shares."""
    labels, smoothing = mixed.labels.tolist(), mixed.label_smoothing
    lams = torch.as_tensor(mixed.lam).double().expand(len(labels)).tolist()
    return [
        [
            lam * one + (1 - lam) * other
            for one, other in zip(
                target_of(labels[image], num_classes, smoothing),
                target_of(labels[partner], num_classes, smoothing),
                strict=True,
            )
        ]
        for image, (partner, lam) in enumerate(zip(mixed.partner.tolist(), lams, strict=True))
    ]


def slow_loss(mixed: Mixed, logits: Tensor, weights: list[float]) -> Tensor:
    """The mean over the images of both samples' weighted shares of the cross entropy."""
    labels, num_classes = mixed.labels.tolist(), logits.shape[1]
    lams = torch.as_tensor(mixed.lam).double().expand(len(labels)).tolist()
    total = torch.zeros((), dtype=torch.float64)
    for image, (partner, lam) in enumerate(zip(mixed.partner.tolist(), lams, strict=True)):
        log_probs = logits[image].double().log_softmax(0)
        for sample, share in ((image, lam), (partner, 1 - lam)):
            target = target_of(labels[sample], num_classes, mixed.label_smoothing)
            for in_class, log_prob in zip(target, log_probs, strict=True):
                total = total - weights[sample] * share * in_class * log_prob
    return total / len(labels)


def slow_scores(mixed: Mixed, logits: Tensor, targets: list[list[float]]) -> list[float]:
    """The error on the sample's class, over the images that it is in, as first or as partner."""
    probs = logits.double().softmax(1).tolist()
    scores = [0.0] * len(logits)
    for image, partner in enumerate(mixed.partner.tolist()):
        for sample in (image, partner):
            label = int(mixed.labels[sample])
            scores[sample] += abs(targets[image][label] - probs[image][label])
    return scores


@st.composite
def batches(draw: st.DrawFn) -> tuple[Mixed, Tensor]:
    """Any batch, mixed in any way, and logits for it."""
    size, num_classes = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    share = st.floats(0, 1, width=32)
    lam = draw(st.one_of(share, st.lists(share, min_size=size, max_size=size).map(torch.tensor)))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    mixed = Mixed(
        torch.randint(num_classes, (size,), generator=rng),
        torch.tensor(draw(st.permutations(range(size)))),
        lam,
        label_smoothing=draw(st.sampled_from([0.0, 0.1, 0.7])),
    )
    return mixed, 3 * torch.randn(size, num_classes, generator=rng)


# Losses and scores --------------------------------------------------------------------------------


@given(batches())
def test_the_unweighted_loss_is_the_cross_entropy_of_the_images(
    batch: tuple[Mixed, Tensor],
) -> None:
    mixed, logits = batch
    targets = torch.tensor(image_targets(mixed, logits.shape[1]))
    losses, _ = mixed.losses_and_scores(logits)
    torch.testing.assert_close(losses.mean(), functional.cross_entropy(logits, targets))


@given(batches())
def test_the_scores_are_those_of_the_reference(batch: tuple[Mixed, Tensor]) -> None:
    mixed, logits = batch
    _, scores = mixed.losses_and_scores(logits)
    targets = image_targets(mixed, logits.shape[1])
    assert scores.tolist() == pytest.approx(slow_scores(mixed, logits, targets), abs=1e-5)


@given(batches(), st.data())
def test_each_term_carries_the_weight_of_its_own_sample(
    batch: tuple[Mixed, Tensor], data: st.DataObject
) -> None:
    mixed, logits = batch
    weight = st.sampled_from([0.0, 1.0, 2.0, 4.0])
    weights = data.draw(st.lists(weight, min_size=len(logits), max_size=len(logits)))
    losses, _ = mixed.losses_and_scores(logits)
    loss = (losses * torch.tensor(weights)).mean()
    assert float(loss) == pytest.approx(float(slow_loss(mixed, logits, weights)), abs=1e-5)


@given(batches())
def test_with_lam_1_it_is_plain_cross_entropy(batch: tuple[Mixed, Tensor]) -> None:
    mixed, logits = batch
    labels, smoothing = mixed.labels, mixed.label_smoothing
    plain = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    unmixed = Mixed(labels, mixed.partner, 1.0, label_smoothing=smoothing)
    torch.testing.assert_close(unmixed.losses_and_scores(logits)[0], plain)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_pruned_epoch_of_mixed_batches(label_smoothing: float) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(90, 6), torch.randint(4, (90,))
    data = InfoBatch(TensorDataset(x, y, torch.arange(90)), num_epochs=10)
    data.update(torch.rand(90), data.plan.indices)
    assert len(data.plan.weights.unique()) == 2
    model = nn.Linear(6, 4)
    expected: dict[int, float] = {}
    for inputs, labels, samples in DataLoader(data, batch_size=16, sampler=data.sampler):
        partner, lam = torch.randperm(len(inputs)), torch.rand(len(inputs))
        mixed = Mixed(labels, partner, lam, label_smoothing=label_smoothing)
        share = lam.unsqueeze(1)
        logits = model(share * inputs + (1 - share) * inputs[partner])
        losses, scores = mixed.losses_and_scores(logits)
        assert not scores.requires_grad

        weights = data.batch_weights.tolist()
        loss = data.update(losses, scores=scores)
        slow = slow_loss(mixed, logits, weights)
        torch.testing.assert_close(loss.double(), slow)
        (gradient,) = torch.autograd.grad(loss, model.weight, retain_graph=True)
        (slow_gradient,) = torch.autograd.grad(slow, model.weight)
        torch.testing.assert_close(gradient, slow_gradient)
        targets = image_targets(mixed, 4)
        slow_ones = slow_scores(mixed, logits.detach(), targets)
        expected.update(zip(samples.tolist(), slow_ones, strict=True))
    assert data.epoch == 2
    assert len(expected) < 90
    recorded = [float(data.scores[sample]) for sample in expected]
    assert recorded == pytest.approx(list(expected.values()), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_dtype(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 4).to(dtype).requires_grad_()
    mixed = Mixed(torch.randint(4, (6,)), torch.randperm(6), 0.7, label_smoothing=0.1)
    losses, scores = mixed.losses_and_scores(logits)
    exact_losses, exact_scores = mixed.losses_and_scores(logits.double())
    assert losses.dtype == scores.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(losses.double(), exact_losses)
    torch.testing.assert_close(scores.double(), exact_scores)
    losses.mean().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    assert bool(logits.grad.any())


def test_a_step_reads_nothing_back_to_the_host() -> None:
    labels = torch.zeros(8, device="meta", dtype=torch.int64)
    soft_targets = torch.rand(8, 4, device="meta")
    timm_mixup = Mixup(mode="elem", num_classes=4)
    with NoHostReads():  # type: ignore[no-untyped-call]
        for mixed in (
            from_timm(timm_mixup, soft_targets, labels),
            from_torchvision(soft_targets, labels, label_smoothing=0.1),
            Mixed(labels, labels, 0.3),
        ):
            logits = torch.rand(8, 4, device="meta", requires_grad=True)
            losses, scores = mixed.losses_and_scores(logits)
            losses.mean().backward()
            assert losses.device.type == scores.device.type == "meta"


# What timm and torchvision do ---------------------------------------------------------------------


class Batch:
    """Images that say what they hold: sample i is 1 in channel i, and 0 in all others."""

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        self.images = torch.eye(len(labels))[..., None, None].repeat(1, 1, 16, 16)

    def check(self, mixed: Mixed, images: Tensor, soft_targets: Tensor, *, one_lam: bool) -> None:
        """What was read is what the images hold, and gives the loss of the library's targets."""
        held = images.mean((2, 3))  # of image k, the share of each sample
        lams = torch.as_tensor(mixed.lam).expand(len(held))
        tells = (self.labels != self.labels[mixed.partner]).tolist()
        if one_lam and any(tells):
            tells = [True] * len(tells)
        for image, (partner, lam) in enumerate(zip(mixed.partner.tolist(), lams, strict=True)):
            if tells[image]:
                expected = torch.zeros(len(held))
                expected[image] += lam
                expected[partner] += 1 - lam
                torch.testing.assert_close(held[image], expected, atol=1e-5, rtol=0)
            else:
                assert lam == 1
        logits = 2 * torch.randn(soft_targets.shape)
        losses, scores = mixed.losses_and_scores(logits)
        log_probs = logits.log_softmax(1)
        torch.testing.assert_close(losses.mean(), -(soft_targets * log_probs).sum(1).mean())
        expected_scores = slow_scores(mixed, logits, soft_targets.tolist())
        assert scores.tolist() == pytest.approx(expected_scores, abs=1e-5)


def some_labels() -> Iterator[Tensor]:
    """With few and with many pairs of one class, and with nothing else."""
    for num_classes in (10, 3, 2):
        for size in (2, 8, 12):
            yield torch.randint(num_classes, (size,))
    yield torch.full((6,), 7)


@pytest.fixture(autouse=True)
def _seed_numpy() -> None:
    np.random.seed(0)  # timm's source of randomness


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("mixup_alpha", "cutmix_alpha", "cutmix_minmax"),
    [(0.8, 0.0, None), (0.0, 1.0, None), (0.8, 1.0, None), (0.0, 0.0, (0.2, 0.8))],
)
@pytest.mark.parametrize("prob", [1.0, 0.5])
def test_timm(
    mode: str,
    label_smoothing: float,
    mixup_alpha: float,
    cutmix_alpha: float,
    cutmix_minmax: tuple[float, float] | None,
    prob: float,
) -> None:
    mixup = Mixup(
        mixup_alpha=mixup_alpha,
        cutmix_alpha=cutmix_alpha,
        cutmix_minmax=cutmix_minmax,
        prob=prob,
        mode=mode,
        label_smoothing=label_smoothing,
        num_classes=10,
    )
    for labels in some_labels():
        batch = Batch(labels)
        images, soft_targets = mixup(batch.images, labels)
        mixed = from_timm(mixup, soft_targets, labels)
        batch.check(mixed, images, soft_targets, one_lam=mode == "batch")


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("off", ["by prob", "by mixup_enabled"])
def test_a_timm_batch_that_is_not_mixed_has_lam_1(
    mode: str, label_smoothing: float, off: str
) -> None:
    prob = 0.0 if off == "by prob" else 1.0
    mixup = Mixup(prob=prob, mode=mode, label_smoothing=label_smoothing, num_classes=10)
    mixup.mixup_enabled = off == "by prob"
    for labels in some_labels():
        _, soft_targets = mixup(Batch(labels).images, labels)
        mixed = from_timm(mixup, soft_targets, labels)
        assert torch.as_tensor(mixed.lam).unique().tolist() == [1.0]
        logits = torch.randn(len(labels), 10)
        losses, _ = mixed.losses_and_scores(logits)
        per_image = timm.loss.SoftTargetCrossEntropy()
        expected = [per_image(logits[[i]], soft_targets[[i]]) for i in range(len(labels))]
        torch.testing.assert_close(losses, torch.stack(expected))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "transform",
    [
        v2.MixUp(alpha=0.8, num_classes=10),
        v2.CutMix(num_classes=10),
        v2.RandomChoice([v2.MixUp(num_classes=10), v2.CutMix(num_classes=10)]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_torchvision(transform: Any, label_smoothing: float) -> None:
    for labels in (*some_labels(), torch.tensor([1, 0, 0]), torch.tensor([4])):
        batch = Batch(labels)
        images, soft_targets = transform(batch.images, labels)
        mixed = from_torchvision(soft_targets, labels, label_smoothing=label_smoothing)
        smoothed = (1 - label_smoothing) * soft_targets + label_smoothing / 10
        batch.check(mixed, images, smoothed, one_lam=True)
        logits = torch.randn(len(labels), 10)
        criterion = nn.CrossEntropyLoss(label_smoothing=label_smoothing)
        losses, _ = mixed.losses_and_scores(logits)
        torch.testing.assert_close(losses.mean(), criterion(logits, soft_targets))


# A training ---------------------------------------------------------------------------------------


def test_mislabelled_samples_score_higher_in_a_training_with_mixup() -> None:
    from sklearn.datasets import load_digits
    from sklearn.metrics import roc_auc_score

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    wrong = torch.zeros(len(labels), dtype=torch.bool)
    wrong[torch.randperm(len(labels))[: len(labels) // 10]] = True
    shifts = torch.randint(1, 10, labels.shape)
    labels = torch.where(wrong, (labels + shifts) % 10, labels)

    num_epochs = 12
    data = InfoBatch(TensorDataset(images, labels), num_epochs)
    loader = DataLoader(data, batch_size=32, sampler=data.sampler)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mix = v2.MixUp(alpha=0.4, num_classes=10)
    for _ in range(num_epochs):
        for x, y in loader:
            x, soft_targets = mix(x, y)
            mixed = from_torchvision(soft_targets, y)
            losses, scores = mixed.losses_and_scores(model(x))
            loss = data.update(losses, scores=scores)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert data.epoch == num_epochs
    assert data.savings.fraction > 0.2
    assert roc_auc_score(wrong, data.scores) > 0.9


# What is refused ----------------------------------------------------------------------------------

LABELS = torch.tensor([0, 1, 2, 0])
FLIPPED = torch.tensor([3, 2, 1, 0])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"labels": [0, 1]}, "labels is a list, expected the class of each sample"),
        ({"labels": torch.rand(4, 3)}, r"labels is torch.float32 of shape \(4, 3\).*before mixing"),
        ({"labels": LABELS[:0]}, r"labels is torch.int64 of shape \(0,\)"),
        ({"partner": FLIPPED[:3]}, r"partner is torch.int64 of shape \(3,\).*permutation.*\(4\)"),
        ({"partner": torch.rand(4)}, "partner is torch.float32"),
        ({"partner": FLIPPED.bool()}, "partner is torch.bool"),
        ({"lam": 1.5}, "lam is 1.5, expected 0 <= lam <= 1"),
        ({"lam": torch.rand(4, 1)}, r"lam is torch.float32 of shape \(4, 1\), expected one number"),
        ({"lam": torch.ones(4).long()}, "lam is torch.int64"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0, expected 0 <= label_smoothing < 1"),
        ({"logits": torch.rand(4)}, r"logits is torch.float32 of shape \(4,\).*\(4, 5\)"),
        ({"logits": torch.rand(3, 5)}, r"logits is torch.float32 of shape \(3, 5\).*\(4, 5\)"),
        ({"logits": torch.rand(4, 6)}, r"logits is torch.float32 of shape \(4, 6\).*\(4, 5\)"),
        ({"logits": torch.ones(4, 5).long()}, "logits is torch.int64"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {
        "labels": LABELS,
        "partner": FLIPPED,
        "lam": 0.5,
        "num_classes": 5,
    } | changed
    logits = arguments.pop("logits", torch.rand(4, 5))
    with pytest.raises(ValueError, match=sentence):
        Mixed(**arguments).losses_and_scores(logits)


@pytest.mark.parametrize(
    ("soft_targets", "labels", "sentence"),
    [
        (LABELS, LABELS, r"soft_targets is torch.int64 of shape \(4,\), expected what mixing made"),
        (
            torch.rand(2, 5),
            LABELS,
            r"soft_targets is torch.float32 of shape \(2, 5\).*\(4, c",
        ),
        (LABELS, torch.rand(4, 5), "labels is torch.float32"),
    ],
)
def test_targets_that_do_not_fit_are_refused(
    soft_targets: Tensor, labels: Tensor, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        from_torchvision(soft_targets, labels)
    with pytest.raises(ValueError, match=sentence):
        from_timm(Mixup(num_classes=5), soft_targets, labels)


def test_logits_of_another_number_of_classes_than_the_targets_are_refused() -> None:
    mixup = Mixup(num_classes=5)
    _, soft_targets = mixup(torch.rand(4, 1, 2, 2), LABELS)
    mixed = from_timm(mixup, soft_targets, LABELS)
    with pytest.raises(ValueError, match=r"logits is .* \(4, 6\), expected .* \(4, 5\)"):
        mixed.losses_and_scores(torch.rand(4, 6))


def test_something_else_than_a_timm_mixup_is_refused() -> None:
    with pytest.raises(TypeError, match="mixup is a Tensor, expected the timm.data.Mixup"):
        from_timm(torch.rand(4, 5), torch.rand(4, 5), LABELS)
