"""Imports a plugin from its snapshot and finds the environments in it.

Flows in: the path of a ``.py`` file or of a package folder. Flows out: environments by name. Every file is compiled
first, so that a broken helper is known now and not in the middle of a run.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from ..definition import Environment


def load(path: Path) -> dict[str, Environment]:
    """Import the plugin; raises whatever its code raises, and ``ImportError`` where it declares no environment."""
    package = path.is_dir()
    for source in sorted(path.rglob("*.py")) if package else [path]:
        compile(source.read_bytes(), str(source), "exec")
    name = path.name if package else path.stem
    entry = path / "__init__.py" if package else path
    spec = importlib.util.spec_from_file_location(
        f"plugin_{name}", entry, submodule_search_locations=[str(path)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{entry.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return _environments(vars(module), name)


def _environments(names: dict[str, object], plugin: str) -> dict[str, Environment]:
    found: dict[str, Environment] = {}
    for value in names.values():
        if isinstance(value, Environment) and found.setdefault(value.name, value) is not value:
            raise ImportError(f"two environments of {plugin} are called {value.name!r}")
    if not found:
        raise ImportError(f"{plugin} declares no environment: put @env over an async function")
    return found
