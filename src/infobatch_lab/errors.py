"""Errors that a user can mend: shown as one sentence, without a traceback."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class UserError(Exception):
    """A mistake, or a missing file or package, in one sentence."""


def optional(package: str) -> ModuleType:
    """Import a package of the extra `experiments`, or timm: `optional("tensorboard")`."""
    name = package.split(".")[0]
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        remedy = name if name == "timm" else "infobatch[experiments]"
        raise UserError(f"{name} is not installed: pip install {remedy}.") from error
    except (ImportError, RuntimeError) as error:  # a torchvision made for another torch
        raise UserError(f"{name} cannot be imported: {error}.") from error
