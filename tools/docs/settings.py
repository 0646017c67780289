"""The page about ``marlaas.toml``: from the documented file that every new home starts with."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from marlaas.engine.home import DOCUMENTED, Settings

from .markdown import allowed, code, table, value

_KEY = re.compile(r"# (\w+) = (.+)")
_HEAD = """# Settings

`marlaas.toml` in the home holds the settings. A new home gets a file with every key and its default, commented out. The
engine reads it when it starts. `MARLAAS_BASE` overrides `base`; `--home` and `MARLAAS_HOME` choose the home itself.
"""


@dataclasses.dataclass(frozen=True)
class Key:
    """One key as the documented file has it."""

    table: str
    name: str
    default: Any
    about: str


def page() -> str:
    """The Markdown of the page."""
    keys = list(documented())
    parts = [_HEAD]
    for name in dict.fromkeys(key.table for key in keys):
        parts.append(f"## {code(f'[{name}]') if name else 'Top level'}")
        parts.append(table(("Key", "Default", "Allowed", "Meaning"), (_row(key) for key in keys if key.table == name)))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def documented() -> Iterator[Key]:
    """The keys of the file, each with the words above it; keys that stand together share theirs."""
    name, said = "", ""
    words: list[str] = []
    for line in DOCUMENTED.splitlines()[1:]:
        if line.startswith("["):
            name, words, said = line.strip("[]"), [], ""
        elif found := _KEY.fullmatch(line):
            said, words = " ".join(words) or said, []
            yield Key(name, found[1], tomllib.loads(f"{found[1]} = {found[2]}")[found[1]], said)
        elif line:
            words.append(line.removeprefix("# "))


def _row(key: Key) -> tuple[str, ...]:
    cls: Any = type(getattr(Settings(), key.table)) if key.table else Settings
    metadata = next(field.metadata for field in dataclasses.fields(cls) if field.name == key.name)
    low, high = metadata.get("range", (None, None))
    return code(key.name), value(key.default), allowed(low, high, metadata.get("choices", ())), key.about
