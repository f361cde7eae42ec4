"""What torch.compile must not trace, because it is different in every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch.compiler import is_compiling

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def untraced(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function that a compiled step calls as it is, with one break in the graph.

    Traced, the bookkeeping of a batch would be compiled for one place of the plan and again for the
    next. `torch.compiler.disable` is taken only where something is compiled: it imports the
    compiler, which takes as long as importing torch, and slows every call down.

    >>> untraced(len)("abc")
    3
    """
    disabled: Callable[Arguments, Result] | None = None

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        nonlocal disabled
        if not is_compiling():
            return function(*args, **kwargs)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return call
