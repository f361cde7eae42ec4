"""What a user of the command line can do wrong; shown as one sentence, without a traceback."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class UserError(Exception):
    """A mistake, or a missing file or package, in one sentence."""


def optional(package: str) -> ModuleType:
    """A package of the extra `experiments`: `optional("tensorboard")`."""
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(
            f"{package.split('.')[0]} is not installed: pip install infobatch[experiments]."
        ) from error
