"""TOML from untrusted sources: parsed within limits on depth and size, with the place of each key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

# TOML from untrusted sources: ``tomllib`` with limits on depth, which would otherwise cost memory by its square.
#
# Standard library only.

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


# Where each key of a TOML text stands, which ``tomllib`` does not tell. Pure; standard library only.
#
# Reads texts that ``tomllib`` has accepted, and relies on that: it looks for keys and for the ends of values, and
# checks nothing.

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
"""Between expressions, and between the entries of a list: white space, ends of lines, and comments."""
_SPACE = re.compile(r"[ \t]*")
_PLAIN = re.compile(r"[^,\]}\n#]*")
"""A number, a date, true or false."""
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}' r"|'''(?:[^']|'(?!''))*'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)


@dataclass(frozen=True)
class Position:
    """A place in a text; line and column are counted from 1, the column in characters."""

    line: int = 1
    column: int = 1


def key_positions(text: str) -> dict[str, Position]:
    """The place of each key and table: ``train.seed``, ``eval.suite[0].name``, ``steps[2]`` for an entry of a list.

    Parts are joined by points as they are, so that a quoted ``"train.seed"`` is found like ``train.seed``. Of a table
    that is named several times the first place counts. Raises ``ValueError`` for a text that it notices is not TOML.
    """
    reader = _Reader(text.replace("\r\n", "\n"))
    reader.read()
    return reader.places


class _Reader:
    """One pass over a text, of which ``at`` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.places: dict[str, Position] = {}
        self._tables: dict[str, int] = {}
        """Of each list of tables [[…]], by its path: how many there are so far."""
        self._line, self._counted = 1, 0

    def read(self) -> None:
        inside = ""
        while self._skip(_BLANK) < len(self.text):
            if self._next("["):
                inside = self._header()
            else:
                self._pair(inside)

    def _header(self) -> str:
        """Read [a.b] or [[a.b]]; returns the path of the table that follows."""
        several = self._next("[[")
        self.at += 2 if several else 1
        self._skip(_SPACE)
        parts = self._key()
        self._skip(_SPACE)
        self.at += 2 if several else 1
        path = ""
        for place, (part, start) in enumerate(parts):
            path = _below(path, part)
            self._note(path, start)
            if several and place == len(parts) - 1:
                self._tables[path] = self._tables.get(path, 0) + 1
            if path in self._tables:
                path = f"{path}[{self._tables[path] - 1}]"
                self._note(path, start)
        return path

    def _pair(self, inside: str) -> None:
        """Read one key with its value."""
        path = inside
        for part, start in self._key():
            path = _below(path, part)
            self._note(path, start)
        self._skip(_SPACE)
        if not self._next("="):
            raise ValueError(f"a key without a value at character {self.at}")
        self.at += 1
        self._value(path)

    def _key(self) -> list[tuple[str, int]]:
        """Read a key: its parts, each with the place of its first character."""
        parts = []
        while True:
            start = self.at
            if found := _BARE.match(self.text, self.at):
                part = found[0]
            elif found := _STRING.match(self.text, self.at):
                part = _content(found[0])
            else:
                raise ValueError(f"no key at character {self.at}")
            self.at = found.end()
            parts.append((part, start))
            before = self.at
            self._skip(_SPACE)
            if not self._next("."):
                self.at = before
                return parts
            self.at += 1
            self._skip(_SPACE)

    def _value(self, path: str) -> None:
        self._skip(_SPACE)
        if self._next("["):
            self._inside("]", path)
        elif self._next("{"):
            self._inside("}", path)
        else:
            match = _STRING.match(self.text, self.at) or _PLAIN.match(self.text, self.at)
            assert match is not None, "the second pattern matches anything"
            self.at = match.end()

    def _inside(self, end: str, path: str) -> None:
        """Read the entries of a list, or the pairs of a table in braces."""
        self.at += 1
        entry = 0
        while self._skip(_BLANK) < len(self.text) and not self._next(end):
            start = self.at
            if end == "}":
                self._pair(path)
            else:
                self._note(f"{path}[{entry}]", start)
                self._value(f"{path}[{entry}]")
            if self.at == start:
                raise ValueError(f"no value at character {start}")
            entry += 1
            self._skip(_BLANK)
            if self._next(","):
                self.at += 1
        self.at += 1

    def _next(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def _note(self, path: str, start: int) -> None:
        """Keep a place, unless the path has one. Places come in the order of the text, but for parts of one key."""
        if path in self.places:
            return
        if start >= self._counted:
            self._line += self.text.count("\n", self._counted, start)
            self._counted = start
            line = self._line
        else:
            line = self._line - self.text.count("\n", start, self._counted)
        self.places[path] = Position(line, start - self.text.rfind("\n", 0, start))


def _below(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _content(quoted: str) -> str:
    """The text that a quoted key stands for."""
    return quoted[1:-1] if "\\" not in quoted else next(iter(tomllib.loads(f"{quoted} = 0")))
