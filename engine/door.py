"""Lazy imports for a package (PEP 562): each name in its stub is imported when it is first needed.

So the command line does not load numpy. Names are not cached: one that is replaced in its module is replaced for all
later users.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def door(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package from the stub next to its ``__init__.py``."""
    modules: dict[str, str] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            modules |= {name.name: node.module or "" for name in node.names}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"The package {package} has no {name!r}.")
        module = modules[name]
        if not module:  # ``from . import MODULE``: the module itself is exported
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{module}"), name)

    return find, lambda: sorted(modules), sorted(modules)
