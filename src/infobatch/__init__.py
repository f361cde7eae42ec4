"""Unbiased dynamic data pruning for PyTorch: a third of the training saved, nothing lost."""

from infobatch import mixing, rules, schedule
from infobatch.dataset import InfoBatch
from infobatch.errors import OrderError, StateError
from infobatch.loader import DataLoader
from infobatch.plan import Plan
from infobatch.pruner import Pruner
from infobatch.state import Savings

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
]

__version__ = "0.1.0"
