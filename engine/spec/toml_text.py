"""TOML from untrusted sources: ``tomllib`` with limits on depth, which would otherwise cost memory by its square.

Standard library only.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

DEEPEST = 32
"""The most nested tables, and parts of a dotted key. ``tomllib`` keeps every prefix of a key: 20,000 parts, in 40 kB
of text, take gigabytes."""
TOO_DEEP = "tables or lists lie too deep in each other"
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEPER = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_PART}[ \t]*\.[ \t]*){{{DEEPEST}}}", re.MULTILINE)


def read_toml(text: str) -> dict[str, Any]:
    """The table that a text holds.

    Raises ``ValueError`` (``tomllib.TOMLDecodeError`` is one) where it is not TOML, also for numbers of thousands of
    digits, and for keys or tables nested deeper than ``DEEPEST``.
    """
    if found := _DEEPER.search(text):
        line = text.count("\n", 0, found.end()) + 1
        raise ValueError(f"a key with more than {DEEPEST} parts (at line {line}, column 1)")
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    layer: list[Any] = [table]
    for _ in range(DEEPEST):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if layer:  # copying or printing it would exceed the recursion limit
        raise ValueError(TOO_DEEP)
    return table
