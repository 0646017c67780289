"""Turns a task's table into the text of a task file, which the form saves and the Python client sends.

Only what the table has is written: defaults are left to the program that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def written(table: Mapping[str, Any]) -> str:
    """TOML that ``tomllib`` reads back as an equal table; keys that are None are left out.

    Raises ``ConfigError`` for a value that TOML does not know.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    from marlaas.engine.errors import ConfigError

    try:
        return tomlkit.dumps(_said(table))
    except (TOMLKitError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"The task cannot be written as TOML: {error}.") from error


def without_steps(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a task as its author would write it: the steps of an evaluation follow from its versions."""
    return {key: value for key, value in config.items() if key != "steps" or config.get("kind") != "eval"}


def _said(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without keys that are None; plain values before tables, as TOML wants them."""
    kept = {key: _said(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    there = {key: value for key, value in kept.items() if value is not None}
    return dict(sorted(there.items(), key=lambda item: isinstance(item[1], dict) or _tables(item[1])))


def _tables(value: Any) -> bool:
    """Whether it is written as tables with one name, such as [[mixture]]."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, Mapping) for one in value)
