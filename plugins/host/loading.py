"""Imports a plugin's snapshot.

Every file is compiled first: a broken helper is found before a run.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ..environment import Environment

LOOKED_FOR = (
    "@env over a function, load_environment, a Taskset in __all__, a subclass of gymnasium.Env or of OpenEnv's "
    "Environment, and a class with reset, get_reward and documented methods"
)
OPENENV_SIGN = "openenv.yaml"
_GYM_HOMES = ("gymnasium", "gem", "gym")
_NO_ENVIRONMENTS = ("__init__", "app")


@dataclass(frozen=True)
class Loaded:
    """The content of a plugin."""

    environments: dict[str, Environment]
    refused: dict[str, Exception] = field(default_factory=dict)


def load_all(path: Path) -> Loaded:
    """Raises what the plugin's code raises, and ``ImportError`` without environments."""
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
        from ..adapters.declaring import missing  # here, because a plugin that lacks nothing needs no advice

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


# Unchanged modules for other libraries.
#
# A module with an ``@env`` environment is native. Else, in order: ``load_environment`` (verifiers, old form); a
# ``Taskset`` class in ``__all__`` (new form); OpenEnv's ``Environment``; ``gymnasium.Env`` or GEM's; ``reset``,
# ``get_reward`` and documented public methods (TRL). Bases are known by their modules: no library is imported.


def recognised(module: ModuleType, plugin: str) -> list[Environment]:
    """The environments of a module for another library."""
    from .. import adapters  # here, because most plugins are native and never need them

    if callable(load := getattr(module, "load_environment", None)):
        return [adapters.verifiers(load, name=plugin)]
    from ..adapters.verifiers_rollouts import taskset_in

    if (taskset := taskset_in(module)) is not None:
        return [adapters.verifiers_taskset(taskset, name=plugin)]
    classes = own_classes(module)
    if found := [kind for kind in classes if rests_on(kind, "Environment", ("openenv",))]:
        return [adapters.openenv(kind) for kind in found]
    if found := [kind for kind in classes if rests_on(kind, "Env", _GYM_HOMES)]:
        return [adapters.gymnasium(kind) for kind in found]
    return [adapters.tool_class(kind) for kind in classes if _has_tools_and_reward(kind)]


def recognised_folder(path: Path, package: str) -> list[Environment]:
    """The package of an ``openenv.yaml`` folder must be imported."""
    from .. import adapters

    places = sorted((path / "server").glob("*.py")) or sorted(path.glob("*.py"))
    prefix = f"{package}.server" if (path / "server").is_dir() else package
    found: list[type] = []
    sys.path.append(str(path))  # its modules find each other there when they run as programs
    for place in places:
        if place.stem not in _NO_ENVIRONMENTS:
            module = importlib.import_module(f"{prefix}.{place.stem}")
            found += [kind for kind in own_classes(module) if rests_on(kind, "Environment", ("openenv",))]
    return [adapters.openenv(kind) for kind in found]


def own_classes(module: ModuleType) -> list[type]:
    """Instantiable classes of a module, not imported ones."""
    values = vars(module).values()
    kinds = [value for value in values if isinstance(value, type) and value.__module__ == module.__name__]
    return [kind for kind in dict.fromkeys(kinds) if not inspect.isabstract(kind) and not kind.__name__.startswith("_")]


def rests_on(kind: type, base: str, homes: tuple[str, ...]) -> bool:
    """True if a base of that name is from one of these libraries."""
    return any(each.__name__ == base and each.__module__.partition(".")[0] in homes for each in kind.__mro__[1:])


def _has_tools_and_reward(kind: type) -> bool:
    from ..adapters.tool_classes import tool_names

    wanted = all(inspect.isfunction(getattr(kind, name, None)) for name in ("reset", "get_reward"))
    return wanted and bool(tool_names(kind))
