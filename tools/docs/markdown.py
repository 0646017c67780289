"""Turns plain values into Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; characters that would end a cell are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def cell(text: str) -> str:
    """A text on one line, with the characters escaped that would end a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """A text marked as code; empty where there is none."""
    return f"`{text}`" if text else ""


def value(given: Any) -> str:
    """A value as a TOML file has it."""
    return code(json.dumps(list(given) if isinstance(given, tuple) else given, ensure_ascii=False))


def number(given: float) -> str:
    """A bound, without a needless ``.0``."""
    return f"{int(given):,}" if float(given).is_integer() else f"{given:g}"


def allowed(low: float | None, high: float | None, choices: Sequence[str]) -> str:
    """What a key may hold, besides its type."""
    if choices:
        return ", ".join(value(choice) for choice in dict.fromkeys(choices))
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"


def sentence(text: str) -> str:
    """With a capital, unless it begins with the program's name, and a full stop."""
    text = text.strip()
    first = text[:1] if text.startswith("marlaas") else text[:1].upper()
    return text and first + text[1:] + ("" if text[-1] in ".!?:" else ".")
