"""Errors say argument, value and what was expected; a warning points at the user's own line."""

from __future__ import annotations

import inspect
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import infobatch
from infobatch import OrderError, Pruner, StateError
from infobatch.errors import check_fraction, check_whole, warn


def test_the_exceptions_are_kinds_of_those_that_people_catch() -> None:
    assert issubclass(OrderError, RuntimeError)
    assert issubclass(StateError, ValueError)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_whole_numbers_of_any_library_are_whole(value: Any) -> None:
    checked = check_whole("num_epochs", value, at_least=3)
    assert checked == 3
    assert type(checked) is int


def test_without_a_limit_any_whole_number_will_do() -> None:
    for value in (-(10**30), -1, 0, 10**30):
        assert check_whole("seed", value) == value


@pytest.mark.parametrize("value", [2.0, 2.5, "2", None, True, [2], float("nan"), Fraction(2)])
def test_what_is_no_whole_number_is_named(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        check_whole("num_epochs", value, at_least=1)
    expected = f"num_epochs is {value!r}, expected a whole number of at least 1."
    assert str(caught.value) == expected


def test_a_number_that_is_too_small_is_named() -> None:
    with pytest.raises(ValueError, match="^num_epochs is 0, expected .* of at least 1.$"):
        check_whole("num_epochs", 0, at_least=1)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.5), Fraction(1, 2), np.int64(0)])
def test_fractions_of_any_library_are_fractions(value: Any) -> None:
    checked = check_fraction("delta", value, one_allowed=False)
    assert checked == value
    assert type(checked) is float


def test_one_is_a_fraction_where_it_is_allowed() -> None:
    assert check_fraction("delta", 1, one_allowed=True) == 1.0
    with pytest.raises(ValueError, match="^prune_ratio is 1, expected 0 <= prune_ratio < 1.$"):
        check_fraction("prune_ratio", 1, one_allowed=False)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), -5, 2])
def test_what_lies_outside_is_named(value: float) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check_fraction("delta", value, one_allowed=True)
    assert str(caught.value) == f"delta is {value!r}, expected 0 <= delta <= 1."


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], 1j, Decimal("0.5")])
def test_what_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        check_fraction("delta", value, one_allowed=True)
    assert str(caught.value) == f"delta is {value!r}, expected a number with 0 <= delta <= 1."


# Where a warning points --------------------------------------------------------------------------


def line() -> int:
    """The line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_warning_points_at_the_line_that_called_the_library() -> None:
    expected = line() + 2
    with pytest.warns(RuntimeWarning, match="something") as caught:
        warn("something.")
    assert (caught[0].filename, caught[0].lineno) == (__file__, expected)


def test_however_deep_it_comes_from() -> None:
    pruner = Pruner(4, 2)
    samples = pruner.plan.indices
    expected = line() + 2
    with pytest.warns(RuntimeWarning, match="are NaN or infinite") as caught:
        pruner.update(torch.full((4,), torch.nan), samples)
    assert (caught[0].filename, caught[0].lineno) == (__file__, expected)


def test_and_through_torchs_loader() -> None:
    """The loop that reads an epoch a second time is in the user's own file."""
    data = infobatch.InfoBatch([0, 1, 2, 3], 2)
    loader = torch.utils.data.DataLoader(data, batch_sampler=data.batches(2))
    list(loader)
    expected = line() + 2
    with pytest.warns(RuntimeWarning, match="no losses were reported") as caught:
        list(loader)
    assert (caught[0].filename, caught[0].lineno) == (__file__, expected)


def test_where_there_is_only_the_library_it_points_at_the_outermost_line() -> None:
    names = {"__name__": "infobatch.anything", "warn": warn}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec("def f(): warn('deep.')\nf()", names)
    assert caught[0].filename == __file__  # this test is what called it
