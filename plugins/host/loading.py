"""Imports a plugin from its snapshot and finds the environments in it.

A plugin is a ``.py`` file, a package folder, a ``.toml`` file or an OpenEnv folder. Every file is compiled first, so
that a broken helper is known at once and not in the middle of a run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ..environment import Environment
from .recognition import LOOKED_FOR, OPENENV_SIGN, recognised, recognised_folder


@dataclass(frozen=True)
class Loaded:
    """What was found in a plugin."""

    environments: dict[str, Environment]
    refused: dict[str, Exception] = field(default_factory=dict)
    """By the name that it would have, why an entry of a ``.toml`` file is no environment."""


def load(path: Path) -> dict[str, Environment]:
    """The environments of a plugin of which all are right; see ``load_all`` for what it raises."""
    loaded = load_all(path)
    for error in loaded.refused.values():
        raise error
    return loaded.environments


def load_all(path: Path) -> Loaded:
    """Import the plugin; raises whatever its code raises, and ``ImportError`` where it declares no environment."""
    name = path.name if path.is_dir() else path.stem
    refused: dict[str, Exception] = {}
    try:
        if path.suffix == ".toml" and path.is_file():
            from ..adapters.toml_plugins import environments_in

            entries, wrong = environments_in(path)
            refused = {one.name: one.error for one in wrong}
        else:
            entries = _environments(path, name)
        found = _named(entries, name)
    except ModuleNotFoundError as error:
        from ..adapters.library import missing  # here, because a plugin that lacks nothing needs no advice

        raise missing(error) from None
    if not found:
        raise ImportError(f"{name} declares no environment: there is none of {LOOKED_FOR}")
    return Loaded(found, refused)


def _environments(path: Path, name: str) -> list[Environment]:
    for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        _compile(source)
    module = _imported(path, f"plugin_{name}")
    native = [value for value in vars(module).values() if isinstance(value, Environment)]
    if native:
        return native
    if (path / OPENENV_SIGN).is_file():
        return recognised_folder(path, module.__name__)
    return recognised(module, name)


def _compile(source: Path) -> None:
    try:
        compile(source.read_bytes(), str(source), "exec")
    except SyntaxError as error:  # its message does not name the file that holds null bytes
        error.filename = error.filename or str(source)
        raise


def _imported(path: Path, module_name: str) -> ModuleType:
    package = path.is_dir()
    entry = path / "__init__.py" if package else path
    if package and not entry.is_file():  # an OpenEnv folder need not be a package
        module = ModuleType(module_name)
        module.__path__ = [str(path)]
        sys.modules[module_name] = module
        return module
    spec = importlib.util.spec_from_file_location(
        module_name, entry, submodule_search_locations=[str(path)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{entry.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _named(environments: Iterable[Environment], plugin: str) -> dict[str, Environment]:
    found: dict[str, Environment] = {}
    for environment in environments:
        if found.setdefault(environment.name, environment) is not environment:
            raise ImportError(f"two environments of {plugin} are called {environment.name!r}")
    return found
