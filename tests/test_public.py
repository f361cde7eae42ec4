"""The surface is what it says, importing does nothing, and the files know only what they should."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import subprocess
import sys
import textwrap
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

import pytest

import infobatch
from infobatch.samplers import Batches, PlanSampler, ShardSampler

SOURCE = Path(infobatch.__file__).parent

LEAVES = {SOURCE / "__main__.py"}
"""Hands over to the laboratory, lazily: not a part of the library."""


def test_the_public_names() -> None:
    assert infobatch.__all__ == sorted(infobatch.__all__)
    assert infobatch.__all__ == [
        "DataLoader", "InfoBatch", "OrderError", "Plan", "Pruner", "Savings", "StateError",
        "mixing", "rules", "schedule", "selection",
    ]  # fmt: skip
    public = {
        name
        for name, value in vars(infobatch).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(infobatch.__all__) - {"mixing", "rules", "schedule", "selection"}


def test_the_documented_members() -> None:
    members = {name for name in dir(infobatch.InfoBatch) if not name.startswith("_")}
    assert members == {
        "batch_weights", "batches", "delta", "epoch", "hand_out", "load_scores", "load_state_dict",
        "metrics", "num_batches", "num_epochs", "num_nonfinite", "num_reported", "num_samples",
        "num_steps", "num_steps_done", "plan", "rule", "sampler", "savings", "scores", "seed",
        "set_epoch", "set_step", "shrink", "state_dict", "sync", "update", "with_indices",
    }  # fmt: skip


# Docstrings --------------------------------------------------------------------------------------

PUBLIC_CLASSES = [
    *(getattr(infobatch, name) for name in infobatch.__all__),
    *(getattr(infobatch.rules, name) for name in infobatch.rules.__all__),
    *(getattr(infobatch.selection, name) for name in infobatch.selection.__all__),
    infobatch.mixing.Mixed,
    infobatch.schedule.Schedule,
    Batches,
    PlanSampler,
    ShardSampler,
]
PUBLIC_CLASSES = [value for value in PUBLIC_CLASSES if inspect.isclass(value)]


def fields_of(kind: type) -> dict[str, bool]:
    """The public attributes that a class declares or sets, and whether a string explains each."""
    source = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(source, ast.ClassDef)
    found: dict[str, bool] = {}
    for block in (source.body, *(node.body for node in source.body if is_init(node))):
        for node, after in zip(block, [*block[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign | ast.Assign):
                continue
            is_explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            for target in [node.target] if isinstance(node, ast.AnnAssign) else node.targets:
                name = ast.unparse(target)
                if block is not source.body and not name.startswith("self."):
                    continue  # a local variable
                found[name.removeprefix("self.")] = is_explained
    return {name: known for name, known in found.items() if name[0] not in "_("}


def is_init(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def is_explained_in(kind: type, name: str) -> bool:
    """Whether the docstring of the class, or of one that it inherits from, explains a name."""
    texts = [base.__doc__ or "" for base in kind.__mro__ if base.__module__.startswith("infobatch")]
    return any(
        f"`{name}`" in text or f"`{name}=" in text or f"\n        {name}: " in text
        for text in texts
    )


@pytest.mark.parametrize("kind", PUBLIC_CLASSES, ids=lambda kind: kind.__qualname__)
def test_every_public_attribute_has_a_docstring(kind: type) -> None:
    assert kind.__doc__
    missing = [
        name
        for name, is_explained in fields_of(kind).items()
        if not (is_explained or is_explained_in(kind, name))
    ]
    for name, member in vars(kind).items():
        is_member = inspect.isfunction(member) or isinstance(member, property | cached_property)
        if is_member and not name.startswith("_") and not inspect.getdoc(getattr(kind, name)):
            missing.append(name)
    assert missing == []


def test_infobatch_and_pruner_explain_what_they_share_in_the_same_words() -> None:
    for name, member in vars(infobatch.InfoBatch).items():
        if not name.startswith("_") and hasattr(infobatch.Pruner, name):
            assert member.__doc__ == vars(infobatch.Pruner)[name].__doc__, name


@pytest.mark.parametrize("kind", [infobatch.InfoBatch, infobatch.Pruner])
def test_help_explains_every_parameter_and_shows_the_loop(kind: type) -> None:
    text = pydoc.plain(pydoc.render_doc(kind))
    for name in inspect.signature(kind).parameters:
        assert re.search(rf"^ *\|? +{name}: \w", text, re.MULTILINE), name
    assert ".update(" in text


def imports_of(path: Path) -> set[str]:
    """The modules of infobatch that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("infobatch"):
            found.add(node.module.removeprefix("infobatch").lstrip("."))
    return found


def test_a_sample_passes_through_the_files_in_one_direction() -> None:
    order = [
        "errors",
        "groups",
        "scores",
        "rules",
        "plan",
        "shard",
        "uniform",
        "callers",
        "tracking",
        "distributed",
        "samplers",
        "indexed",
        "mixing",
        "losses",
        "buffer",
        "epoch",
        "metrics",
        "state",
        "no_compile",
        "pruner",
        "official",
        "dataset",
        "schedule",
        "loader",
        "",
    ]
    for path in set(SOURCE.glob("*.py")) - LEAVES:
        name = path.stem.removeprefix("__init__")
        imported = {module.split(".")[0] for module in imports_of(path)}
        assert all(order.index(module) < order.index(name) for module in imported - {""}), name


def test_the_library_never_imports_the_laboratory() -> None:
    for path in set(SOURCE.rglob("*.py")) - LEAVES:
        assert "infobatch_lab" not in path.read_text(), path


def test_integrations_use_public_names_only() -> None:
    public = {"", "indexed", "mixing", "rules", "schedule", "selection"}
    for path in (SOURCE / "integrations").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "infobatch":
                assert {name.name for name in node.names} <= set(infobatch.__all__), path
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                owner = node.value.attr  # self.pruner._private, self.train_data._private
                is_ours = owner in ("pruner", "train_data", "_pruner", "_data", "sampler")
                assert not (is_ours and node.attr.startswith("_")), (path, node.lineno)
        own = f"integrations.{path.parent.name}"  # an integration of several files
        assert {name for name in imports_of(path) if not name.startswith(own)} <= public, path


def test_scores_rules_and_plan_do_not_know_each_other() -> None:
    assert imports_of(SOURCE / "scores.py") == set()
    assert imports_of(SOURCE / "plan.py") <= {"groups", "errors"}
    for path in (SOURCE / "rules").glob("*.py"):
        assert {m for m in imports_of(path) if not m.startswith("rules")} <= {"groups", "errors"}


def test_selection_knows_nothing_of_training() -> None:
    for path in (SOURCE / "selection").glob("*.py"):
        imported = {module for module in imports_of(path) if not module.startswith("selection")}
        assert imported <= {"errors"}, path


def test_the_public_names_of_selection() -> None:
    assert infobatch.selection.__all__ == [
        "METHODS", "Chosen", "Method", "Statistics", "Subset", "Visits", "collect",
        "collect_runs", "select",
    ]  # fmt: skip


def test_importing_patches_nothing_and_loads_only_torch_and_numpy() -> None:
    code = """
import sys, torch, numpy, torch.utils.data as data
def snapshot():
    return {(c.__name__, n): id(v) for c in vars(data).values() if isinstance(c, type)
            for n, v in vars(c).items()} | {("iter", n): id(v)
            for n, v in vars(data.dataloader._BaseDataLoaderIter).items()}
before, modules = snapshot(), set(sys.modules)
import infobatch
assert snapshot() == before
new = {m.split(".")[0] for m in set(sys.modules) - modules}
known = {"infobatch", "numpy", "torch", *sys.stdlib_module_names}
print(sorted(new - known))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]", result.stdout


@pytest.mark.parametrize("member", ["InfoBatch", "Pruner"])
def test_the_signatures(member: str) -> None:
    parameters = inspect.signature(getattr(infobatch, member)).parameters
    expected = ["num_epochs", "prune_ratio", "delta", "num_steps", "rule", "seed"]
    assert list(parameters)[1:] == expected
    assert parameters["delta"].default == 0.875
    assert parameters["seed"].default == 0
    assert parameters["rule"].kind is parameters["seed"].kind is inspect.Parameter.KEYWORD_ONLY
