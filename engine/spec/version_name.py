"""The names that tenants give to versions, under which clients find them."""

from __future__ import annotations

import re

from ..errors import ConfigError
from .agents import BASE

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._:-]{0,63}")


def served_name(name: object) -> str:
    """``name``, if it may be one. Raises ``ConfigError``: a name must not read like a task's number or a version's."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower() == BASE:
        raise ConfigError(
            f"A version cannot have the name {name!r}.",
            "A name begins with a letter, and has up to 64 letters, digits and ._:- in all; base is taken.",
        )
    return name
