"""One person's preferences on every home: ``app.toml`` in the platform's settings folder. Standard library only.

Reading raises ``ConfigError`` with the place of the error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marlaas.engine.errors import ConfigError

KEYS = ("theme", "ascii", "keys")
THEME_NAMES = ("marlaas", "marlaas-light", "marlaas-colour-blind", "ansi-dark", "ansi-light")
"""Ours, and those of the terminal's own sixteen colours."""


_RENAMED = {
    **{f"{name}.leave": "ask.leave" for name in ("api", "manner", "export", "new")},
    **{f"{name}.next": "ask.next" for name in ("api", "manner", "export")},
    "new.up": "ask.up",
    "new.down": "ask.down",
    **{f"task.{way}": f"pane.{way}" for way in ("up", "down", "top", "bottom")},
    "engine.start": "view.start_engine",
    "api.copy_key": "reading.copy",
    "exported.copy": "reading.copy",
}
"""Earlier names of keys, still accepted."""
GONE = (
    "task.grid",
    "rollouts.unshade",
    "export.gguf",
    "configuration.all",
    *(f"{dialog}.close" for dialog in ("configuration", "findings", "rates")),
    *(f"multiples.{way}" for way in ("left", "right", "up", "down")),
)
"""Names of keys that exist no more: a file may still have them."""


@dataclass(frozen=True)
class Preferences:
    """The terminal application's looks and keys."""

    theme: str = ""
    """Empty: the default."""
    ascii: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by action name, as ``marlaas keys`` lists them."""


def preferences_file() -> Path:
    """The preferences' path."""
    from platformdirs import user_config_path

    return user_config_path("marlaas", appauthor=False) / "app.toml"


def read_preferences(path: Path | None = None) -> Preferences:
    """The preferences; defaults without a file."""
    path = path or preferences_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Preferences()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}.", where=str(path)) from error
    try:
        said = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid TOML: {error}.", where=str(path)) from error
    return _checked(path, said)


def _checked(path: Path, said: dict[str, Any]) -> Preferences:
    if unknown := sorted(set(said) - set(KEYS)):
        raise ConfigError(f"there is no setting {unknown[0]!r}; there are {', '.join(KEYS)}.", where=str(path))
    theme, ascii_, keys = said.get("theme", ""), said.get("ascii", False), said.get("keys", {})
    if not isinstance(theme, str):
        raise ConfigError(f"theme must be a name in quotes, not {theme!r}.", where=str(path))
    if theme:
        check_theme(theme, str(path))
    if not isinstance(ascii_, bool):
        raise ConfigError(f"ascii must be true or false, not {ascii_!r}.", where=str(path))
    if not isinstance(keys, dict) or not all(isinstance(key, str) and key for key in keys.values()):
        raise ConfigError("[keys] must name keys in quotes, such as \"task.pause\" = 'P'.", where=str(path))
    known = {name: key for name, key in keys.items() if name not in GONE}
    return Preferences(theme, ascii_, {_RENAMED.get(name, name): key for name, key in known.items()})


def check_theme(name: str, where: str) -> str:
    """``name`` if the theme exists. Raises ``ConfigError``."""
    if name not in THEME_NAMES:
        raise ConfigError(f"There is no theme {name!r}; there are {', '.join(THEME_NAMES)}.", where=where)
    return name
