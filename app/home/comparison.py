"""How tasks differ: their configurations flow in, the keys that are not the same everywhere flow out. Pure.

Keys are dotted, ``train.learning_rate``, in the order in which a task file has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = None
"""The value of a key that a configuration does not have."""
Flat = dict[str, Any]
"""Values by dotted key."""


def flat(config: Mapping[str, Any], prefix: str = "") -> Flat:
    """A configuration without tables in it; an empty table has no key."""
    keys: Flat = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            keys |= flat(value, f"{prefix}{name}.")
        else:
            keys[prefix + name] = value
    return keys


def differences(configs: Sequence[Mapping[str, Any]], all_keys: bool = False) -> dict[str, tuple[Any, ...]]:
    """Of each key whose value is not the same in all, or of each key at all: its value in each configuration."""
    tables = [flat(config) for config in configs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = {key: tuple(table.get(key, ABSENT) for table in tables) for key in keys}
    return {key: values for key, values in rows.items() if all_keys or any(value != values[0] for value in values)}
