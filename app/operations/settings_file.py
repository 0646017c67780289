"""``marlaas.toml``: one key written, and differences of configurations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.task import TaskSpec

from ..text.format import line

# Comments, order and other keys stay.


def write_setting(path: Path, key: str, word: str, table: str = "") -> None:
    """Set a key at the top or in a table. Raises ``ConfigError``."""
    try:
        text = path.read_bytes().decode() if path.exists() else ""  # line ends as they are
        _replace(path, with_setting(text, key, word, table))
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}.", where=str(path)) from error
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}.", "Mend it first.", where=str(path)) from error


def with_setting(text: str, key: str, word: str, table: str = "") -> str:
    """The TOML ``text`` with ``key = word``. Raises ``ValueError`` for broken TOML."""
    import tomlkit

    document = tomlkit.parse(text)
    if table:
        document.setdefault(table, tomlkit.table())[key] = word
    elif key in document:
        document[key] = word
    else:  # before all tables and comments
        return f"{key} = {tomlkit.string(word).as_string()}\n{text}"
    return tomlkit.dumps(document)


def _replace(path: Path, text: str) -> None:
    """Replace the file in one step with its permissions; of a link, its target."""
    from marlaas.plugins.durable import to_disk  # its package loads asyncio

    path = path.resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.touch(0o600)
        part.write_text(text, encoding="utf-8", newline="")
        to_disk(part)
        if path.exists():
            part.chmod(path.stat().st_mode & 0o777)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# Keys are dotted, ``train.learning_rate``, in the order of a task file.

_LONGEST = 200
"""Characters of a value."""


@dataclass(frozen=True)
class Setting:
    """One key."""

    key: str
    values: tuple[str, ...]
    """Of each task; ``-``: it has none."""
    default: bool
    """True if the first task has the default."""
    differs: bool
    """True if tasks differ."""


def settings(configs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> list[Setting]:
    """Every key of some tasks, in the order of a task file. ``parameters``: defaults of the first one's environment."""
    defaults = flat(TaskSpec("", "", "").to_json()) | {
        f"environment_config.{key}": value for key, value in parameters.items()
    }
    given = [
        {**config, "environment_config": {**parameters, **(config.get("environment_config") or {})}}
        for config in configs[:1]
    ]
    rows = differences([*given, *configs[1:]], all_keys=True)
    return [
        Setting(
            line(key, 60),
            tuple(value_cell(value) for value in values),
            key in defaults and _same(values[0], defaults[key]),
            any(not _same(value, values[0]) for value in values),
        )
        for key, values in rows.items()
    ]


def _same(one: Any, other: Any) -> bool:
    """Equal in JSON: a tuple is a list, 1 is 1.0 but not true."""
    return value_cell(one) == value_cell(other) or (one == other and isinstance(one, bool) == isinstance(other, bool))


def value_cell(value: Any, width: int = _LONGEST) -> str:
    """A value of a task file as a cell of a table; ``-`` for none."""
    if value is None or value == {}:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return line(text, width) or '""'


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration with dotted keys; an empty table has none."""
    keys: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            keys |= flat(value, f"{prefix}{name}.")
        else:
            keys[prefix + name] = value
    return keys


def differences(configs: Sequence[Mapping[str, Any]], all_keys: bool = False) -> dict[str, tuple[Any, ...]]:
    """Each key's value in each configuration, None if it is missing: keys that differ, or all keys."""
    tables = [flat(config) for config in configs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = {key: tuple(table.get(key) for table in tables) for key in keys}
    return {key: values for key, values in rows.items() if all_keys or any(value != values[0] for value in values)}


def difference_rows(configs: Sequence[Mapping[str, Any]], width: int, all_keys: bool = False) -> list[tuple[str, ...]]:
    """``differences`` as rows of a table, without what stands above it; values in ``width`` cells."""
    return [
        (line(key, 40), *(value_cell(value, width) for value in values))
        for key, values in differences(configs, all_keys).items()
        if key not in ("tenant", "name", "environment")
    ]
