"""The laboratory stands on the library's public names, as any other user does."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import infobatch
import infobatch_lab

FILES = sorted(Path(infobatch_lab.__file__).parent.rglob("*.py"))
LIBRARY = Path(infobatch.__file__).parent

MODULES = {
    "infobatch",
    *(f"infobatch.{name}" for name in infobatch.__all__ if name.islower()),
    # Public too, but not imported with the library.
    *(f"infobatch.integrations.{name}" for name in ("accelerate", "lightning", "transformers")),
}


@cache
def public_names(module: str) -> frozenset[str]:
    """The names in a module's `__all__`; where it has none, those that it defines itself.

    The file is read and not imported, because an integration needs its framework.
    """
    path = LIBRARY.parent.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    defined = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {ast.unparse(target) for target in node.targets}
            if ast.unparse(node.targets[0]) == "__all__":
                return frozenset(ast.literal_eval(node.value))
    return frozenset(name for name in defined if not name.startswith("_"))


def is_of_the_library(module: str) -> bool:
    return module.split(".")[0] == "infobatch"


def module_of(node: ast.expr, bound: dict[str, str]) -> str | None:
    """The module of the library that an expression is; `bound` has names that stand for one."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "optional":
        argument = node.args[0] if node.args else None
        name = argument.value if isinstance(argument, ast.Constant) else ""
        return name if isinstance(name, str) and is_of_the_library(name) else None
    first, *rest = ast.unparse(node).split(".")
    name = ".".join([bound.get(first, ""), *rest])
    return name if name in MODULES else None


def taken_from_the_library(code: str) -> Iterator[tuple[str, str | None]]:
    """Each module that the code names, with the name that it takes, or None for all of it."""
    nodes = list(ast.walk(ast.parse(code)))
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in filter(lambda alias: is_of_the_library(alias.name), node.names):
                yield alias.name, None
                bound[alias.asname or "infobatch"] = alias.name if alias.asname else "infobatch"
        elif isinstance(node, ast.ImportFrom) and node.module and is_of_the_library(node.module):
            for alias in node.names:
                yield node.module, alias.name
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Assign) and (module := module_of(node.value, bound)):
            bound |= {ast.unparse(target): module for target in node.targets}
    for node in nodes:
        if isinstance(node, ast.Call) and (module := module_of(node, bound)):
            yield module, None
        elif isinstance(node, ast.Attribute) and (module := module_of(node.value, bound)):
            yield module, node.attr


def not_public(code: str) -> list[str]:
    """What the code takes from the library that is not public."""
    return [
        f"{module}.{name or ''}".strip(".")
        for module, name in taken_from_the_library(code)
        if module not in MODULES
        or not (name is None or name in public_names(module) or name == "__version__")
    ]


def test_the_laboratory_takes_public_names_only() -> None:
    found = {path.name: names for path in FILES if (names := not_public(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from infobatch.pruner import Pruner", ["infobatch.pruner.Pruner"]),
        ("from infobatch import pruner", ["infobatch.pruner"]),
        ("import infobatch.plan", ["infobatch.plan"]),
        ("import infobatch; infobatch.plan.Plan", ["infobatch.plan"]),
        ("import infobatch as library; library.rules.Groups2", ["infobatch.rules.Groups2"]),
        ("from infobatch.rules import MeanOf", ["infobatch.rules.MeanOf"]),
        ("from infobatch.selection import herding", ["infobatch.selection.herding"]),
        ("from infobatch import selection; selection.base", ["infobatch.selection.base"]),
        ("from infobatch.mixing import check_fraction", ["infobatch.mixing.check_fraction"]),
        ("from infobatch.mixing import _check", ["infobatch.mixing._check"]),
        ("from infobatch.schedule import Plan", ["infobatch.schedule.Plan"]),
        (
            "from infobatch.integrations.transformers import checks",
            ["infobatch.integrations.transformers.checks"],
        ),
        (
            "from infobatch.integrations.transformers.loop import INDEX",
            ["infobatch.integrations.transformers.loop.INDEX"],
        ),
        (
            "from infobatch.integrations.accelerate import IndexedBatches",
            ["infobatch.integrations.accelerate.IndexedBatches"],
        ),
        ("optional('infobatch.shard')", ["infobatch.shard"]),
        ("optional('infobatch.selection').craig", ["infobatch.selection.craig"]),
        ("def f():\n s = errors.optional('infobatch.rules')\n s.x()", ["infobatch.rules.x"]),
        ("import infobatch; print(infobatch.rules.RULES, infobatch.__version__)", []),
        ("from infobatch.integrations.lightning import InfoBatchCallback", []),
        ("from infobatch.schedule import Schedule\nfrom infobatch.mixing import Mixed", []),
        ("from infobatch_lab import rules; rules.create('mean'); optional('timm').x", []),
    ],
)
def test_what_is_not_public_is_found(code: str, names: list[str]) -> None:
    assert not_public(code) == names


def test_public_names_are_those_of_the_module() -> None:
    for module in (infobatch, infobatch.rules, infobatch.selection):
        assert public_names(module.__name__) == set(module.__all__)
    for path in LIBRARY.rglob("*.py"):
        if "\n__all__ =" in path.read_text():
            name = ".".join(path.relative_to(LIBRARY.parent).parent.parts)
            assert path.name == "__init__.py"
            assert name in MODULES, f"{name} has an __all__: is it public?"


def test_the_laboratory_reads_no_private_attribute_of_the_library() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                named = node.value.func if isinstance(node.value, ast.Call) else node.value
                owner = named.id if isinstance(named, ast.Name) else ""
                is_own = owner in ("self", "cls", "super")
                is_public = node.attr.startswith("__") or (owner, node.attr) == ("os", "_exit")
                assert is_own or is_public, (path, node.attr)


def test_importing_the_library_loads_no_laboratory() -> None:
    code = "import sys, infobatch; print([m for m in sys.modules if m.startswith('infobatch_lab')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
