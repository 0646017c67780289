"""Recognises environments that were written for other libraries in a module that was dropped as it is.

A module that declares an environment with ``@env`` is native, and nobody looks further. In any other, in this order:

1. ``load_environment``: verifiers in its old form;
2. a ``Taskset`` class in ``__all__``: verifiers in its new form;
3. subclasses of OpenEnv's ``Environment``;
4. subclasses of ``gymnasium.Env``, or of GEM's;
5. classes with ``reset``, ``get_reward`` and documented public methods: TRL's form.

Classes are recognised by the modules of their bases, so no library is imported to look for it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
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
"""Modules in the server folder of an OpenEnv environment that hold none."""


def recognised(module: ModuleType, plugin: str) -> list[Environment]:
    """The environments that a module holds in a form of another library; empty where it holds none."""
    from .. import adapters  # here, because most plugins are native and never need them

    if callable(load := getattr(module, "load_environment", None)):
        return [adapters.verifiers(load, name=plugin)]
    from ..adapters.verifiers_tasksets import taskset_in

    if (taskset := taskset_in(module)) is not None:
        return [adapters.verifiers_taskset(taskset, name=plugin)]
    classes = own_classes(module)
    if found := [kind for kind in classes if rests_on(kind, "Environment", ("openenv",))]:
        return [adapters.openenv(kind) for kind in found]
    if found := [kind for kind in classes if rests_on(kind, "Env", _GYM_HOMES)]:
        return [adapters.gymnasium(kind) for kind in found]
    return [adapters.tool_class(kind) for kind in classes if _has_tools_and_reward(kind)]


def recognised_folder(path: Path, package: str) -> list[Environment]:
    """The environments in a folder with an ``openenv.yaml``, whose package is imported already."""
    from .. import adapters

    places = sorted((path / "server").glob("*.py")) or sorted(path.glob("*.py"))
    prefix = f"{package}.server" if (path / "server").is_dir() else package
    found: list[type] = []
    sys.path.append(str(path))  # where its modules find each other when they run as programs
    for place in places:
        if place.stem not in _NO_ENVIRONMENTS:
            module = importlib.import_module(f"{prefix}.{place.stem}")
            found += [kind for kind in own_classes(module) if rests_on(kind, "Environment", ("openenv",))]
    return [adapters.openenv(kind) for kind in found]


def own_classes(module: ModuleType) -> list[type]:
    """The classes that are written in a module, rather than imported into it, and can be made."""
    values = vars(module).values()
    kinds = [value for value in values if isinstance(value, type) and value.__module__ == module.__name__]
    return [kind for kind in dict.fromkeys(kinds) if not inspect.isabstract(kind) and not kind.__name__.startswith("_")]


def rests_on(kind: type, base: str, homes: tuple[str, ...]) -> bool:
    """Whether a class has a base of that name out of one of these libraries."""
    return any(each.__name__ == base and each.__module__.partition(".")[0] in homes for each in kind.__mro__[1:])


def _has_tools_and_reward(kind: type) -> bool:
    from ..adapters.tool_classes import tool_names

    wanted = all(inspect.isfunction(getattr(kind, name, None)) for name in ("reset", "get_reward"))
    return wanted and bool(tool_names(kind))
