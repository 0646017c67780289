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
    """By key and table: ``train.seed``, ``eval.suite[0].name``, ``steps[2]`` for a list's entry.

    A quoted ``"train.seed"`` reads like ``train.seed``. Repeated tables: the first place. Expects texts that
    ``tomllib`` accepts.
    """
    text = text.replace("\r\n", "\n")
    places: dict[str, int] = {}
    tables = Counter[str]()
    """Of each list of tables [[…]], by its path: their number so far."""
    around: list[tuple[str, int]] = []
    """The open brackets of a value: path and next entry of a list; of a table in braces -1."""
    inside = path = ""
    parts: list[tuple[str, int]] = []
    brackets, in_value, entry_begins = 0, False, False
    for token in _TOKEN.finditer(text):
        word, start = token[0], token.start()
        if word[0] == "#":
            continue
        if not in_value:
            if word == "[" and not parts:
                brackets += 1
            elif word in ("]", "=") and parts:
                path = "" if word == "]" else around[-1][0] if around else inside
                for place, (part, begin) in enumerate(parts, 1):
                    path = f"{path}.{part}" if path else part
                    places.setdefault(path, begin)
                    tables[path] += brackets == 2 and place == len(parts)
                    if word == "]" and tables[path]:
                        path = f"{path}[{tables[path] - 1}]"
                        places.setdefault(path, begin)
                in_value, parts = word == "=", []
                if word == "]":
                    inside, brackets = path, 0
            elif word == "}" and around:
                around.pop()
                in_value, entry_begins = True, False
            elif word not in "].,\n":
                parts.append((_content(word), start))
            continue
        if entry_begins and word not in "],\n":
            path, entry_begins = f"{around[-1][0]}[{around[-1][1]}]", False
            places.setdefault(path, start)
        match word:
            case "[" | "{":
                in_value = entry_begins = word == "["
                around.append((path, 0 if in_value else -1))
            case "]" | "}" if around:
                around.pop()
                entry_begins = False
            case "," if around:
                path, entry = around.pop()
                in_value = entry_begins = entry >= 0
                around.append((path, entry + 1 if in_value else -1))
            case "\n":
                in_value = bool(around)
    ends = [0, *(end.end() for end in re.finditer("\n", text))]
    lines = {path: bisect_right(ends, start) for path, start in places.items()}
    return {path: Position(lines[path], start - ends[lines[path] - 1] + 1) for path, start in places.items()}


def _content(word: str) -> str:
    if word[0] not in "\"'":
        return word
    return word[1:-1] if "\\" not in word else next(iter(tomllib.loads(f"{word} = 0")))
