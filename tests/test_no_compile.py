"""Functions that torch.compile leaves alone: called as they are, one break in the graph."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from infobatch import Pruner
from infobatch.no_compile import no_compile


def test_outside_of_a_compiled_step_nothing_changes() -> None:
    @no_compile
    def divide(a: int, *, by: int) -> float:
        """Divide."""
        return a / by

    assert divide(6, by=3) == 2
    assert divide.__name__ == "divide"
    assert divide.__doc__ == "Divide."
    with pytest.raises(ZeroDivisionError):
        divide(6, by=0)


def test_the_compiler_is_not_imported_unless_something_is_compiled() -> None:
    program = (
        "import sys, torch; before = 'torch._dynamo' in sys.modules\n"
        "from infobatch import Pruner\n"
        "pruner = Pruner(4, 2)\n"
        "pruner.update(torch.ones(4), pruner.plan.indices)\n"
        "assert before or 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_in_a_compiled_step_it_is_called_as_it_is_and_compiled_once() -> None:
    torch._dynamo.reset()
    seen: list[int] = []

    @no_compile
    def count(x: Tensor) -> Tensor:
        seen.append(len(seen))
        return x + len(seen)  # another number in each step

    counter = CompileCounter()

    @torch.compile(backend=counter)
    def step(x: Tensor) -> Tensor:
        return count(x * 2) * 3

    for number in range(1, 6):
        assert step(torch.ones(2)).tolist() == [3.0 * (2 + number)] * 2
    assert seen == [0, 1, 2, 3, 4]  # in every step, and never while tracing
    assert counter.frame_count == 2  # before and after the one break


def test_update_is_such_a_function() -> None:
    torch._dynamo.reset()
    compiled, plain, counter = Pruner(40, 4), Pruner(40, 4), CompileCounter()

    @torch.compile(backend=counter)
    def step(x: Tensor, indices: Tensor) -> Tensor:
        return compiled.update((x - 1) ** 2, indices) * 2

    num_frames = []
    for _ in range(3):
        for indices in plain.plan.indices.split(10):
            x = indices.float()
            if len(indices) < 10:  # another shape is another graph
                compiled.update((x - 1) ** 2, indices)
                plain.update((x - 1) ** 2, indices)
                continue
            assert torch.equal(step(x, indices), plain.update((x - 1) ** 2, indices) * 2)
            num_frames.append(counter.frame_count)
    assert torch.equal(compiled.scores, plain.scores)
    assert set(num_frames) == {2}
