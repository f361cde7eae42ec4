"""Every OrderError and StateError names an entry of the troubleshooting page, which quotes it."""

from __future__ import annotations

import ast
import functools
import importlib
import pickle
import re
from pathlib import Path

import pytest
import torch

import infobatch
from infobatch import OrderError, StateError

SOURCE = Path(infobatch.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
KINDS = ("OrderError", "StateError", "infobatch.OrderError", "infobatch.StateError")
MESSAGE_END = re.compile(r" \(see docs/troubleshooting\.md#([a-z-]+)\)\.$")


@functools.cache
def entries() -> dict[str, str]:
    """The text below each heading of the third level, on one line."""
    _, *parts = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)
    found = {}
    for part in parts:
        name, _, text = part.partition("\n")
        found[name] = " ".join(text.partition("\n## ")[0].replace("\n> ", "\n").split())
    return found


@functools.cache
def sites() -> dict[str, tuple[str, str]]:
    """Where the library makes such an exception: the sentence up to its remedy, and the entry."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in KINDS:
                place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                entry = node.args[1] if len(node.args) > 1 else None
                assert isinstance(entry, ast.Constant), f"{place} names no entry"
                problem = sentence(node.args[0], path).partition(":")[0]
                found[place] = problem, str(entry.value)
    return found


def sentence(node: ast.expr, path: Path) -> str:
    """A sentence as the page quotes it, with … where it has values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(sentence(part, path) for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        module = ".".join(("infobatch", *path.relative_to(SOURCE).with_suffix("").parts))
        return str(getattr(importlib.import_module(module), node.id))
    return "…"


def test_the_sites_are_found() -> None:
    """So that the tests below cannot pass by looking at nothing."""
    found = [entry for _, entry in sites().values()]
    assert {"dropped-batch", "no-batch", "damaged-checkpoint", "ranks-differ"} <= set(found)
    assert found.count("no-batch") == 5


@pytest.mark.parametrize("place", sites())
def test_the_entry_quotes_the_sentence_of(place: str) -> None:
    problem, entry = sites()[place]
    assert entry in entries(), f"the page has no entry {entry}"
    assert problem in entries()[entry]


def test_every_entry_belongs_to_a_sentence() -> None:
    assert set(entries()) == {entry for _, entry in sites().values()}


def test_a_message_ends_with_the_name_of_its_entry() -> None:
    pruner = infobatch.Pruner(num_samples=4, num_epochs=2)
    with pytest.raises(OrderError, match=MESSAGE_END) as order:
        pruner.update(torch.ones(2))
    with pytest.raises(StateError, match=MESSAGE_END) as state:
        pruner.load_state_dict({})
    named = [MESSAGE_END.search(str(caught.value)) for caught in (order, state)]
    assert [match[1] for match in named if match] == ["no-batch", "not-a-state"]


@pytest.mark.parametrize("kind", [OrderError, StateError])
def test_an_exception_can_be_made_again_from_its_message(
    kind: type[OrderError] | type[StateError],
) -> None:
    """Worker processes send pickles, and torch raises `type(error)(message)` for its workers'."""
    error = kind("3 samples were fetched.", "dropped-batch")
    message = "3 samples were fetched (see docs/troubleshooting.md#dropped-batch)."
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == str(kind(str(error))) == message
