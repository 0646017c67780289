"""Every key of the application by its configurable name. Loads all views to find them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType

from textual.binding import Binding
from textual.dom import DOMNode

from marlaas.engine.errors import ConfigError

from . import app
from .tui import screens, widgets

_KEY = re.compile(r"((ctrl|shift|alt|super)\+)*([a-z_]+|f?[0-9]+|.)")


@dataclass(frozen=True)
class Key:
    """One key, or several with the same action."""

    name: str
    keys: str
    """Textual's names, separated by commas."""
    what: str


def known_keys() -> list[Key]:
    """All configurable keys, sorted by name."""
    found: dict[str, Key] = {}
    for module in (app, *_modules(screens), *_modules(widgets)):
        for owner in vars(module).values():
            if isinstance(owner, type) and issubclass(owner, DOMNode) and owner.__module__ == module.__name__:
                for binding in vars(owner).get("BINDINGS", ()):
                    if isinstance(binding, Binding) and binding.id:
                        found[binding.id] = Key(binding.id, binding.key, binding.description)
    return [found[name] for name in sorted(found)]


def check_keys(keys: Mapping[str, str], where: str) -> None:
    """Refuse unknown names and keys that no keyboard has. Raises ``ConfigError``."""
    names = [key.name for key in known_keys()]
    for name, wanted in keys.items():
        if name not in names:
            close = get_close_matches(name, names, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"there is no key {name!r}.{hint}", "`marlaas keys` lists them.", where=where)
        if bad := [key for key in wanted.split(",") if len(key) != 1 and not _KEY.fullmatch(key)]:
            raise ConfigError(f"{name!r} cannot be {bad[0]!r}.", "Keys are named like p, P, f5 or ctrl+o.", where=where)


def _modules(package: ModuleType) -> Iterable[ModuleType]:
    for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(entry.name)
