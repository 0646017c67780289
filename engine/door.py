"""The door of a package: the names that its stub lists are imported from their modules when they are asked for.

So ``from ..store import Reader`` loads no writer, and the command line no arrays (PEP 562). A type checker reads the
stub, ``__init__.pyi``. Nothing is kept: whoever replaces a name in its module replaces it for all who ask later.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def door(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, by the stub beside its ``__init__.py``."""
    modules: dict[str, str] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            modules |= {name.name: node.module or "" for name in node.names}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"The package {package} has no {name!r}.")
        module = modules[name]
        if not module:  # a module that is exported whole
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{module}"), name)

    return find, lambda: sorted(modules), sorted(modules)
