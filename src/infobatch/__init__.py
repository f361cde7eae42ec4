"""Dynamic data pruning for PyTorch: train on a third to a half fewer samples."""

import importlib
import typing

from infobatch import mixing, rules, schedule
from infobatch.dataset import InfoBatch
from infobatch.errors import OrderError, StateError
from infobatch.loader import DataLoader
from infobatch.plan import Plan
from infobatch.pruner import Pruner
from infobatch.state import Savings

if typing.TYPE_CHECKING:
    from infobatch import selection

__all__ = [
    "DataLoader",
    "InfoBatch",
    "OrderError",
    "Plan",
    "Pruner",
    "Savings",
    "StateError",
    "mixing",
    "rules",
    "schedule",
    "selection",
]

__version__ = "0.2.0"


def __getattr__(name: str) -> typing.Any:
    # Two dozen small files that training alone does not need: loaded when first used.
    if name == "selection":
        return importlib.import_module("infobatch.selection")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
