"""torchvision and timm, also for a machine on which they do not import as they are."""

from __future__ import annotations

from infobatch_lab.errors import declare_torchvision_operators

declare_torchvision_operators()

import timm.data  # noqa: E402
import timm.loss  # noqa: E402
import torchvision.transforms.v2  # noqa: E402

__all__ = ["timm", "torchvision"]
