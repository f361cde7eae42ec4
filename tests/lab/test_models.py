from __future__ import annotations

import pytest
import torch
from torch import nn

from infobatch_lab.errors import UserError, optional
from infobatch_lab.models import MODELS, create


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet50"])
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32)])
def test_images_in_logits_out(name: str, channels: int, side: int) -> None:
    model = create(name, channels, 7)
    x = torch.randn(4, channels, side, side).to(memory_format=torch.channels_last)
    logits = model(x)
    assert logits.shape == (4, 7)
    logits.sum().backward()
    gradients = [parameter.grad is not None for parameter in model.parameters()]
    assert all(gradients)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("resnet8", 78_042),  # three stages of one block, with 1 x 1 shortcuts
        ("resnet18", 11_173_962),  # the numbers that are known of the CIFAR forms
        ("resnet50", 23_520_842),
    ],
)
def test_the_parameter_counts_of_the_resnets(name: str, num_parameters: int) -> None:
    with torch.device("meta"):
        model = create(name, 3, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


@pytest.mark.parametrize("name", ["resnet8", "resnet14", "resnet18", "resnet50"])
def test_the_number_in_a_name_counts_its_layers(name: str) -> None:
    with torch.device("meta"):
        model = create(name, 3, 10)
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    shortcuts = [
        n for n, m in model.named_modules() if "shortcut" in n and isinstance(m, nn.Conv2d)
    ]
    assert len(layers) - len(shortcuts) == int(name.removeprefix("resnet"))


def test_a_block_begins_as_its_shortcut() -> None:
    model = create("resnet14", 3, 10).eval()
    assert isinstance(model, nn.Sequential)
    x = torch.rand(2, 16, 8, 8)
    assert model[1](x).equal(x)


def test_with_group_norm_a_sample_does_not_depend_on_its_batch() -> None:
    x = torch.rand(4, 1, 28, 28)
    with_groups, with_batches = create("convnet-groups", 1, 10), create("convnet", 1, 10)
    assert torch.allclose(with_groups(x)[:1], with_groups(x[:1]), atol=1e-6)
    assert not torch.allclose(with_batches(x)[:1], with_batches(x[:1]), atol=1e-2)


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights() -> torch.Tensor:
        torch.manual_seed(5)
        return nn.utils.parameters_to_vector(create("resnet8", 1, 10).parameters())

    assert weights().equal(weights())


def test_an_unknown_model() -> None:
    with pytest.raises(UserError, match="model is 'resnet9', expected one of tiny, convnet"):
        create("resnet9", 3, 10)


def test_a_network_of_timm() -> None:
    import tests.vision  # noqa: F401  # lets torchvision be imported beside a torch for processors

    model = create("timm:resnet10t", 1, 7)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    with pytest.raises(UserError, match="timm has no model 'resnet10x'"):
        create("timm:resnet10x", 1, 7)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserError, match=r"no_such is not installed: pip install infobatch\[exp"):
        optional("no_such.part")
