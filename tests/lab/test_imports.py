"""The laboratory stands on the library's public names, as any other user does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import infobatch
import infobatch_lab

FILES = sorted(Path(infobatch_lab.__file__).parent.rglob("*.py"))


def test_the_laboratory_imports_public_names_only() -> None:
    modules = {name for name in infobatch.__all__ if name.islower()}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                assert not [n for n in names if n.startswith("infobatch.")], path
            if isinstance(node, ast.ImportFrom) and node.module:
                package, _, module = node.module.partition(".")
                if package == "infobatch" and module.startswith("integrations."):
                    continue  # public, but not imported with the library
                if package == "infobatch":
                    assert not module or module in modules, (path, node.module)
                    public = getattr(infobatch, module).__all__ if module == "rules" else None
                    if not module:
                        public = [*infobatch.__all__, "__version__"]
                    names = [alias.name for alias in node.names]
                    assert not [n for n in names if public is not None and n not in public], path
                    assert not [n for n in names if n.startswith("_") and n != "__version__"], path


def test_the_laboratory_reads_no_private_attribute_of_the_library() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                named = node.value.func if isinstance(node.value, ast.Call) else node.value
                owner = named.id if isinstance(named, ast.Name) else ""
                is_own = owner in ("self", "cls", "super")
                assert is_own or node.attr.startswith("__"), (path, node.attr)


def test_importing_the_library_loads_no_laboratory() -> None:
    code = "import sys, infobatch; print([m for m in sys.modules if m.startswith('infobatch_lab')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
