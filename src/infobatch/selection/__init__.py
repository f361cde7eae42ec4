"""Choosing a subset once, before training: `select(dataset, "herding", 0.3, statistics=...)`."""

from infobatch.selection.base import Chosen, Method
from infobatch.selection.collecting import collect, collect_runs
from infobatch.selection.statistics import Statistics
from infobatch.selection.subset import Subset, select
from infobatch.selection.table import METHODS
from infobatch.selection.visits import Visits

__all__ = [
    "METHODS",
    "Chosen",
    "Method",
    "Statistics",
    "Subset",
    "Visits",
    "collect",
    "collect_runs",
    "select",
]
