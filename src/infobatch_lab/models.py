"""Small networks for small images, and any network of timm: `create("resnet8", 3, 10)`.

The ResNets are in their CIFAR form (He et al., 2016): a 3 x 3 stem without pooling. They are here
because those of timm are for larger images, and too slow for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from infobatch_lab.errors import UserError, optional


def create(name: str, num_channels: int, num_classes: int) -> nn.Module:
    """Create a network by name, with random weights from torch's global generator."""
    if name.startswith("timm:"):
        timm = optional("timm")
        wanted = name.removeprefix("timm:")
        if wanted not in timm.list_models():
            raise UserError(f"model is {name!r}, but timm has no model {wanted!r}.")
        network: nn.Module = timm.create_model(
            wanted, num_classes=num_classes, in_chans=num_channels
        )
        return network
    if name not in MODELS:
        raise UserError(f"model is {name!r}, expected one of {', '.join(MODELS)} or timm:NAME.")
    return MODELS[name](num_channels, num_classes)


def conv(inputs: int, outputs: int, size: int = 3, *, stride: int = 1) -> nn.Sequential:
    """A convolution with batch norm; the image keeps its size, divided by `stride`."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


def conv_relu(inputs: int, outputs: int, size: int = 3, *, stride: int = 1) -> nn.Sequential:
    """A convolution with batch norm and ReLU."""
    return conv(inputs, outputs, size, stride=stride).append(nn.ReLU(inplace=True))


def head(features: int, num_classes: int) -> tuple[nn.Module, ...]:
    """Average pooling and a linear layer."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, num_classes)


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)). The last norm starts at zero: a block starts as its shortcut."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else conv(inputs, outputs, 1, stride=stride)
        )
        norms = [module for module in body.modules() if isinstance(module, nn.BatchNorm2d)]
        nn.init.zeros_(norms[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def basic(inputs: int, width: int, stride: int) -> tuple[Residual, int]:
    """Two 3 x 3 convolutions; returns the block and the channels that leave it."""
    body = nn.Sequential(conv_relu(inputs, width, stride=stride), conv(width, width))
    return Residual(body, inputs, width, stride), width


def bottleneck(inputs: int, width: int, stride: int) -> tuple[Residual, int]:
    """1 x 1, 3 x 3, 1 x 1 to four times the width."""
    body = nn.Sequential(
        conv_relu(inputs, width, 1),
        conv_relu(width, width, stride=stride),
        conv(width, 4 * width, 1),
    )
    return Residual(body, inputs, 4 * width, stride), 4 * width


def resnet(
    num_channels: int,
    num_classes: int,
    *,
    blocks: tuple[int, ...],
    width: int,
    block: Callable[[int, int, int], tuple[Residual, int]] = basic,
) -> nn.Module:
    """`blocks` per stage; each stage after the first halves the image and doubles the width."""
    layers: list[nn.Module] = [conv_relu(num_channels, width)]
    channels = width
    for stage, num_blocks in enumerate(blocks):
        for place in range(num_blocks):
            stride = 2 if stage > 0 and place == 0 else 1
            layer, channels = block(channels, width * 2**stage, stride)
            layers.append(layer)
    return nn.Sequential(*layers, *head(channels, num_classes))


def resnet8(num_channels: int, num_classes: int) -> nn.Module:
    """3 stages of one block, 16 to 64 channels."""
    return resnet(num_channels, num_classes, blocks=(1, 1, 1), width=16)


def resnet14(num_channels: int, num_classes: int) -> nn.Module:
    """3 stages of two blocks, 16 to 64 channels."""
    return resnet(num_channels, num_classes, blocks=(2, 2, 2), width=16)


def resnet18(num_channels: int, num_classes: int) -> nn.Module:
    """4 stages of two blocks, 64 to 512 channels."""
    return resnet(num_channels, num_classes, blocks=(2, 2, 2, 2), width=64)


def resnet50(num_channels: int, num_classes: int) -> nn.Module:
    """4 stages of 3, 4, 6 and 3 bottlenecks, 64 to 512 channels, four times that between them."""
    blocks = (3, 4, 6, 3)
    return resnet(num_channels, num_classes, blocks=blocks, width=64, block=bottleneck)


def conv_pool_relu(inputs: int, outputs: int) -> nn.Sequential:
    """A convolution, pooled before its norm, so that norm and ReLU cost a quarter."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def tiny(num_channels: int, num_classes: int) -> nn.Module:
    """Two convolutions and four patches of their features, for images of 8 x 8."""
    return nn.Sequential(
        conv_relu(num_channels, 16),
        nn.MaxPool2d(2),
        conv_relu(16, 32),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, num_classes),
    )


def convnet(num_channels: int, num_classes: int) -> nn.Module:
    """Four convolutions, 16 to 64 channels, for grey images on a CPU."""
    return nn.Sequential(
        conv_pool_relu(num_channels, 16),
        conv_pool_relu(16, 32),
        conv_relu(32, 64),
        conv_relu(64, 64),
        *head(64, num_classes),
    )


def convnet_groups(num_channels: int, num_classes: int) -> nn.Module:
    """`convnet` with group norm, which does not mix the samples of a batch."""
    network = convnet(num_channels, num_classes)
    for part in network.modules():
        for name, norm in part.named_children():
            if isinstance(norm, nn.BatchNorm2d):
                setattr(part, name, nn.GroupNorm(8, norm.num_features))
    return network


def resnet8_pooled(num_channels: int, num_classes: int, *, width: int = 16) -> nn.Module:
    """Eight layers, halved early, for colour images on a CPU; `width` to 4 x `width` channels."""
    return nn.Sequential(
        conv_pool_relu(num_channels, width),
        conv_pool_relu(width, 2 * width),
        basic(2 * width, 2 * width, 1)[0],
        conv_pool_relu(2 * width, 4 * width),
        basic(4 * width, 4 * width, 1)[0],
        *head(4 * width, num_classes),
    )


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "tiny": tiny,
    "convnet": convnet,
    "convnet-groups": convnet_groups,
    "resnet8-pooled": resnet8_pooled,
    "resnet8-pooled-32": partial(resnet8_pooled, width=32),
    "resnet8": resnet8,
    "resnet14": resnet14,
    "resnet18": resnet18,
    "resnet50": resnet50,
}
