"""How a setting is declared: once, with its default, its help and its check.

The command line, the checks and the lines of finished runs are all derived from the declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from infobatch_lab.errors import UserError


def setting(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    choices: Sequence[str] = (),
    valid: Callable[[Any], bool] = lambda value: True,
    expected: str = "",
) -> Any:
    """Declare a field of `Settings`, or of a task's own `Options`.

    Without a default, the data set says what suits it. A value must be one of `choices`, where
    they are given; a choice that ends in ":" stands for everything that begins with it.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "valid": valid,
        "expected": expected,
    }
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check(values: Any) -> None:
    """Raise `UserError` if a field of a dataclass of settings has a value it cannot have."""
    for field in dataclasses.fields(values):
        if "help" not in field.metadata:
            continue
        value = getattr(values, field.name)
        if value is None and field.default is None:
            continue  # not set
        check_choice(field.name, value, field.metadata["choices"])
        if not field.metadata["valid"](value):
            raise UserError(f"{field.name} is {value}, expected {field.metadata['expected']}.")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise `UserError` if `value` is none of the choices."""
    if not choices or value in choices:
        return
    prefixes = tuple(choice for choice in choices if choice.endswith(":"))
    if not (prefixes and value.startswith(prefixes)):
        raise UserError(f"{name} is {value!r}, expected one of {in_words(choices)}.")


def in_words(choices: Sequence[str]) -> str:
    """The choices as a list for a reader.

    >>> in_words(["tiny", "timm:"]), in_words(["digits", "folder:"])
    ('tiny or timm:NAME', 'digits or folder:PATH')
    """
    of_names = ("timm:", "tried:")
    names = [f"{c}{'NAME' if c in of_names else 'PATH'}" if c[-1] == ":" else c for c in choices]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
