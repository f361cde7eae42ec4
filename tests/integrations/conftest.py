"""What all tests of frameworks share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick_garbage_collection() -> Iterator[None]:
    """Leave out what the frameworks imported: each run of a Trainer collects garbage at its end."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
