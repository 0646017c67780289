"""TOML from untrusted sources, with limits."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Any

DEEPEST = 32
"""Nested tables, or parts of a dotted key. ``tomllib`` keeps every prefix: 20,000 parts (40 kB) take gigabytes."""
TOO_DEEP = "tables or lists lie too deep in each other"
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEPER = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_PART}[ \t]*\.[ \t]*){{{DEEPEST}}}", re.MULTILINE)
_TOKEN = re.compile(
    r'#[^\n]*|"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'|[A-Za-z0-9_+:-]+|[\[\]{}=,.\n]",
    re.DOTALL,
)


def read_toml(text: str) -> dict[str, Any]:
    """Raises ``ValueError`` for wrong TOML (``tomllib.TOMLDecodeError``), numbers of thousands of digits, and nesting
    beyond ``DEEPEST``."""
    if match := _DEEPER.search(text):
        line = text.count("\n", 0, match.end()) + 1
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


@dataclass(frozen=True)
class Position:
    """From 1; columns are characters."""

    line: int = 1
    column: int = 1


def key_positions(text: str) -> dict[str, Position]:
    """By key and table: ``train.seed``, ``eval.suite[0].name``. Keys in braces are not among them.

    A quoted ``"train.seed"`` reads like ``train.seed``. Repeated tables: the first place. Expects texts that
    ``tomllib`` accepts.
    """
    text = text.replace("\r\n", "\n") + "\n"
    places: dict[str, int] = {}
    tables = Counter[str]()
    """Of each list of tables [[…]], by its path: their number so far."""
    inside = ""
    parts: list[tuple[str, int]] = []
    brackets = depth = 0
    in_value = False
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word[0] == "#":
            continue
        if in_value:
            depth += (word in "[{") - (word in "]}")
            in_value = depth > 0 or word != "\n"
        elif word in "[]":
            brackets += 1
        elif word in "=\n":
            path = inside if word == "=" else ""
            for place, (part, begin) in enumerate(parts, 1):
                path = f"{path}.{part}" if path else part
                places.setdefault(path, begin)
                tables[path] += brackets == 4 and place == len(parts)
                if tables[path]:
                    path = f"{path}[{tables[path] - 1}]"
                    places.setdefault(path, begin)
            if brackets:
                inside = path
            in_value, brackets, parts = word == "=", 0, []
        elif word != ".":
            parts.append((_content(word), token.start()))
    ends = [0, *(end.end() for end in re.finditer("\n", text))]
    lines = {path: bisect_right(ends, start) for path, start in places.items()}
    return {path: Position(lines[path], start - ends[lines[path] - 1] + 1) for path, start in places.items()}


def _content(word: str) -> str:
    if word[0] not in "\"'":
        return word
    return word[1:-1] if "\\" not in word else next(iter(tomllib.loads(f"{word} = 0")))
