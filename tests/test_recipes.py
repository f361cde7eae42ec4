"""The recipes of docs/losses.md give, where nothing is pruned, the losses of torch's criteria."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tests.vision  # noqa: F401  # so that the page can import torchvision
from tests.snippets import BLOCK, ROOT, a_users_namespace

F = torch.nn.functional

TEXT = (ROOT / "docs" / "losses.md").read_text()
SECTIONS = {part.splitlines()[0]: part for part in TEXT.split("\n## ")}

PLAIN = {
    "Classification with class weights": lambda ns: F.cross_entropy(
        ns["model"](ns["x"]), ns["y"], ns["class_weights"]
    ),
    "Segmentation with two losses": lambda ns: (
        F.cross_entropy(ns["decode_head"](ns["features"]), ns["y"], ignore_index=255)
        + 0.4 * F.cross_entropy(ns["auxiliary_head"](ns["features"]), ns["y"], ignore_index=255)
    ),
    "Sequence to sequence": lambda ns: F.cross_entropy(
        ns["project"](ns["hidden"]).permute(1, 2, 0), ns["target"], ignore_index=0
    ),
    "CTC": lambda ns: F.ctc_loss(
        ns["log_probs"], ns["y"], torch.full((len(ns["y"]),), 12), ns["lengths"]
    ),
    "Question answering": lambda ns: (
        (
            F.cross_entropy(ns["start_logits"], ns["start"])
            + F.cross_entropy(ns["end_logits"], ns["end"])
        )
        / 2
    ),
    "Multi-label": lambda ns: F.binary_cross_entropy_with_logits(
        ns["tagger"](ns["x"]), ns["y"], pos_weight=torch.full((6,), 3.0)
    ),
    "Regression": lambda ns: F.smooth_l1_loss(ns["regressor"](ns["x"]), ns["y"]),
    "Contrastive": lambda ns: (
        (
            F.cross_entropy(ns["similarity"], ns["own"])
            + F.cross_entropy(ns["similarity"].T, ns["own"])
        )
        / 2
    ),
}


def run(section: str, num_blocks: int | None = None) -> dict[str, Any]:
    """What the code of a section leaves behind."""
    namespace = a_users_namespace()
    for _, text in BLOCK.findall(SECTIONS[section])[:num_blocks]:
        exec(compile(text, section, "exec", dont_inherit=True), namespace)
    return namespace


@pytest.mark.parametrize("section", PLAIN)
def test_the_loss_of(section: str) -> None:
    namespace = run(section)
    assert namespace["train_data"].epoch == 1
    expected = PLAIN[section](namespace)
    assert float(namespace["loss"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert namespace["loss"].requires_grad


def test_the_losses_of_a_detector_are_of_each_image_and_each_has_a_gradient() -> None:
    namespace = run("Detection", num_blocks=2)
    detector, images, targets = (namespace[name] for name in ("detector", "images", "targets"))
    losses = detector(images, targets)
    heads = {
        "classification": detector.head.classification_head,
        "bbox_regression": detector.head.regression_head,
    }
    assert losses.keys() == heads.keys()
    for name, head in heads.items():
        assert losses[name].shape == (4,)
        for loss in losses[name]:
            for part in (head, detector.backbone):
                gradients = torch.autograd.grad(loss, list(part.parameters()), retain_graph=True)
                assert all(bool(gradient.any()) for gradient in gradients), name
    detector.__class__ = namespace["RetinaNet"]
    plain = detector(images, targets)
    for name in heads:
        assert torch.allclose(losses[name].mean(), plain[name])
    assert torch.allclose(namespace["loss"], sum(plain.values()))


def test_a_detector_may_report_one_number() -> None:
    namespace = run("Detection")
    assert namespace["train_data"].epoch == 2
    assert namespace["loss"].requires_grad


def test_every_section_with_a_recipe_is_checked() -> None:
    others = {"# One loss per sample", "Detection", "A loss that is one number"}
    assert PLAIN.keys() == SECTIONS.keys() - others
