"""What can go wrong, and the checks that say so in one sentence."""

from __future__ import annotations

import operator
import sys
import warnings
from numbers import Real


class OrderError(RuntimeError):
    """The batches that were fetched and the losses that were reported do not match."""

    def __init__(self, sentence: str, entry: str = "") -> None:
        super().__init__(_with_entry(sentence, entry))


class StateError(ValueError):
    """A checkpoint does not fit this run, or the ranks of a run do not fit each other."""

    def __init__(self, sentence: str, entry: str = "") -> None:
        super().__init__(_with_entry(sentence, entry))


def _with_entry(sentence: str, entry: str) -> str:
    # Without an entry when an exception is made again from its message: by pickle, or by torch.
    if not entry:
        return sentence
    return f"{sentence.removesuffix('.')} (see docs/troubleshooting.md#{entry})."


def check_whole(name: str, value: object, *, at_least: int | None = None) -> int:
    """Return an int, or raise: `check_whole("num_epochs", 3, at_least=1)`."""
    expected = "a whole number" if at_least is None else f"a whole number of at least {at_least}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected {expected}.")
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} is {number}, expected {expected}.")
    return number


def check_fraction(name: str, value: object, *, one_allowed: bool) -> float:
    """Return a float from 0 to 1, or raise: `check_fraction("delta", 1, one_allowed=True)`."""
    upper = "<= 1" if one_allowed else "< 1"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}, expected a number with 0 <= {name} {upper}.")
    fraction = float(value)
    if not (0 <= fraction < 1 or (one_allowed and fraction == 1)):
        raise ValueError(f"{name} is {value!r}, expected 0 <= {name} {upper}.")
    return fraction


def warn(message: str) -> None:
    """Warn at the line of the user's own code that led here: `warn("3 losses are NaN.")`."""
    frame, level = sys._getframe(1), 2
    while _is_library(frame.f_globals.get("__name__", "")) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("infobatch", "torch")
