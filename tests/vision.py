"""torchvision and timm, for a machine on which they do not import as they are: take them from here.

Beside a torch without CUDA the operators of torchvision's usual wheels do not load, and the import
fails for want of two schemas. With those declared, all but the operators works.
"""

from __future__ import annotations

import torch

try:
    import torchvision.transforms.v2
except RuntimeError:
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _operator in ("nms", "qnms"):
        _schemas.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision.transforms.v2

import timm.data
import timm.loss

__all__ = ["timm", "torchvision"]
