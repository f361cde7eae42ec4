"""Functions that torch.compile must not trace, because they differ in every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch.compiler import is_compiling

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def no_compile(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a compiled step call `function` as it is, with one break in the graph.

    Traced, the bookkeeping of a batch would be compiled for one place of the plan and again for the
    next. `torch.compiler.disable` is used only where something is compiled: it imports the
    compiler, which takes as long as importing torch, and slows every call down.

    >>> no_compile(len)("abc")
    3
    """
    disabled: Callable[Arguments, Result] | None = None

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        nonlocal disabled
        if is_compiling():
            if disabled is None:
                disabled = torch.compiler.disable(function)
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return call
