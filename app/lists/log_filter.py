"""The small query over logs, as it is typed, and the filter of the store that it means.

``level:error task:17 tenant:bio kind:worker some words``: all must hold. A word with a colon but another field is
searched for as it is: logs are full of colons. Pure; knows neither argparse nor Textual.
"""

from __future__ import annotations

import re
from dataclasses import replace

from marlaas.engine.errors import ConfigError
from marlaas.engine.store import LEVELS, EventFilter

HINT = "level:error task:17 tenant:bio some words"
FIELDS = ("level", "task", "tenant", "kind")
_TERM = re.compile(rf'(?:({"|".join(FIELDS)}):)?(?:"([^"]*)"?|(\S+))', re.IGNORECASE)


def parse(text: str) -> EventFilter:
    """The filter that a text means, at any moment while it is typed. Raises ``ConfigError`` with one sentence."""
    wanted = EventFilter()
    for match in _TERM.finditer(text):
        field, value = (match[1] or "").lower(), match[2] if match[3] is None else match[3]
        if not value or (not field and value.lower().removesuffix(":") in FIELDS and value.endswith(":")):
            continue  # its value has not been typed yet
        if not field:
            wanted = replace(wanted, words=(*wanted.words, value))
        elif field == "level":
            wanted = replace(wanted, level=level_of(value))
        elif field == "task":
            wanted = replace(wanted, task=_task_of(value))
        elif field == "tenant":
            wanted = replace(wanted, tenant=value)
        else:
            wanted = replace(wanted, kind=value)
    return wanted


def level_of(text: str) -> str:
    """A level by its name or the beginning of it. Raises ``ConfigError``."""
    for level in LEVELS:
        if level.startswith(text.lower()):
            return level
    raise ConfigError(f"There is no level {text!r}.", f"Known are {', '.join(LEVELS)}.")


def _task_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ConfigError(f"{text!r} is no task number.")
    return int(text)


def with_field(text: str, field: str, value: str) -> str:
    """The same text with another value for a field, or without that field."""
    rest = re.sub(rf'(?i)\b{field}:(?:"[^"]*"?|\S*)\s*', "", text).strip()
    if not value:
        return rest
    quoted = f'"{value}"' if re.search(r"\s", value) else value
    return f"{field}:{quoted} {rest}".strip()
