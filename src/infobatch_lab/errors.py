"""What a user of the command line can do wrong; shown as one sentence, without a traceback."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import torch

EXTRAS = {"timm": "timm", "transformers": "text", "peft": "text", "gguf": "text"}
"""The extras of packages that are not in `experiments`."""


class UserError(Exception):
    """A mistake, or a missing file or package, in one sentence."""


def optional(package: str) -> ModuleType:
    """A package of one of the extras: `optional("tensorboard")`."""
    name = package.split(".")[0]
    if name in EXTRAS:
        declare_torchvision_operators()
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(name, "experiments")
        raise UserError(f"{name} is not installed: pip install infobatch[{extra}].") from error
    except (ImportError, RuntimeError) as error:
        raise UserError(f"{name} cannot be imported: {error}.") from error


def declare_torchvision_operators() -> None:
    """Let torchvision be imported beside a torch that its own operators were not built for.

    timm and transformers import torchvision where they find it. A wheel built for CUDA fails beside
    a torch without, for want of two schemas. Nothing here calls these operators.
    """
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError:
        schemas = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARED.append(schemas)  # torch forgets them with the object


DECLARED: list[torch.library.Library] = []
