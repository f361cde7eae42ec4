"""The fields of a run's line, each checked: a value of the wrong kind is refused by name.

Written by hand so that each refusal is one sentence with its remedy, and a line that is too deep or
too large is refused before it takes memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from infobatch_lab.visible import short, visible

MOST = 10**15
"""Every number of a line is smaller, so that sums and squares of them are finite."""

LONGEST = 300
"""Names of more characters would fill tables and figures."""

Value = str | float | bool | None
"""A setting."""


class UnreadableError(ValueError):
    """A line that is no run, and why."""


def number(record: Mapping[str, Any], name: str) -> float:
    """A finite number."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST:
        raise UnreadableError(f"{name_of(name)} is {short(value)}, expected a number below 1e15")
    return float(value)


def positive(record: Mapping[str, Any], name: str) -> float:
    """A number of at least 0."""
    found = number(record, name)
    if found < 0:
        raise UnreadableError(f"{name} is {found}, expected a number of at least 0")
    return found


def number_or_none(record: Mapping[str, Any], name: str) -> float | None:
    """A number, or None where there is none."""
    return None if record.get(name) is None else number(record, name)


def positive_or_none(record: Mapping[str, Any], name: str) -> float | None:
    """A number of at least 0, or None where there is none."""
    return None if record.get(name) is None else positive(record, name)


def number_or_nan(record: Mapping[str, Any], name: str) -> float:
    """NaN where an epoch was not measured, or its metric was none: others may be."""
    value = record.get(name)
    is_nan = value is None or (isinstance(value, float) and math.isnan(value))
    return math.nan if is_nan else number(record, name)


def whole(record: Mapping[str, Any], name: str, *, at_least: int = 0) -> int:
    """A whole number."""
    found = number(record, name)
    if found != int(found) or found < at_least:
        raise UnreadableError(
            f"{name} is {short(record[name])}, expected a whole number >= {at_least}"
        )
    return int(found)


def whole_or_none(record: Mapping[str, Any], name: str) -> int | None:
    """A whole number, or None where there is none."""
    return None if record.get(name) is None else whole(record, name)


def text(record: Mapping[str, Any], name: str) -> str:
    """A text that tables and figures show."""
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UnreadableError(f"{name} is {short(value)}, expected a text")
    return name_of(value)


def text_or_none(record: Mapping[str, Any], name: str) -> str | None:
    """A text that tables and figures show, or None where there is none."""
    return text(record, name) if record.get(name) else None


def name_of(given: str) -> str:
    """A name, made visible."""
    if len(given) > LONGEST:
        raise UnreadableError(
            f"{short(given)} has {len(given):,} characters, expected at most {LONGEST}"
        )
    return visible(given)


def value_of(record: Mapping[str, Any], name: str) -> Value:
    """A setting: a text, a number, true or false, or None where there is none."""
    value = record.get(name)
    if isinstance(value, str):
        return name_of(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        number(record, name)
        return value
    raise UnreadableError(f"{name_of(name)} is {short(value)}, expected a text or a number")


def list_of(record: Mapping[str, Any], name: str) -> list[Any]:
    """A list; an empty one where there is none."""
    value = record.get(name)
    return value if isinstance(value, list) else []


def pairs(record: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    """The members of an object, as text; none where there is no object."""
    value = record.get(name)
    return tuple((shown(k), shown(v)) for k, v in value.items()) if isinstance(value, dict) else ()


def shown(value: Any) -> str:
    """A value that is only shown, on the page."""
    return visible(value if isinstance(value, str) else short(value))
