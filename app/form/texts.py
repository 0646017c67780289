"""Turns what was typed into the form into the table of a task file, and back. Pure.

Several values with commas between them are a sweep. A text that cannot be read as its field's kind stays a text: the
check of the table then refuses it in its own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import PARAMETERS, FormField, shown

_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Several:
    """Several values for one key; each makes a task."""

    values: tuple[Any, ...]


def read(field: FormField, text: str) -> Any:
    """The value that a text stands for, or ``Several``; the text itself where it cannot be read."""
    text = text.strip()
    if field.kind == "list":
        return [int(part) if part.isdecimal() else part for part in _parts(text)]
    if field.swept and _is_list(field, text):
        inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if field.kind == "str" and not field.choices:
            try:
                return Several(tuple(json.loads(f"[{inner}]")))
            except ValueError:
                return text
        return Several(tuple(_scalar(field.kind, part) for part in _parts(inner)))
    return _scalar(field.kind, text)


def table_of(fields: Sequence[FormField], texts: Mapping[str, str]) -> dict[str, Any]:
    """The table of a task file with what was typed and nothing else. Sweeps of parameters are in ``[sweep]``."""
    table: dict[str, Any] = {}
    for field in fields:
        text = texts.get(field.key, "")
        if not text.strip():
            continue
        value = read(field, text)
        if isinstance(value, Several):
            if field.table == PARAMETERS:
                table.setdefault("sweep", {})[field.key] = list(value.values)
                continue
            value = list(value.values)
        inner = table.setdefault(field.table, {}) if field.table else table
        inner[field.name] = value
    return table


def texts_of(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, str]:
    """The texts that would make a table if typed; values that are the default are left out."""
    sweep = table.get("sweep")
    swept: Mapping[str, Any] = sweep if isinstance(sweep, dict) else {}
    texts = {}
    for field in fields:
        inner = table.get(field.table) if field.table else table
        value = swept.get(field.key)
        if value is None and isinstance(inner, Mapping):
            value = inner.get(field.name)
        text = _typed(field, value, field.key in swept)
        if text != field.default:
            texts[field.key] = text
    return texts


def beyond(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a table that no field has: named policies, who speaks for which agent, and mistakes."""
    keys, tables = {field.key for field in fields}, {field.table for field in fields}
    kept: dict[str, Any] = {}
    for key, value in table.items():
        if key == PARAMETERS:
            continue
        if isinstance(value, Mapping) and (key in tables or key == "sweep"):
            prefix = "" if key == "sweep" else f"{key}."
            value = {name: each for name, each in value.items() if f"{prefix}{name}" not in keys}
            if not value:
                continue
        if key not in keys:
            kept[key] = value
    return kept


def joined(table: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A table with what another one says besides."""
    return {
        key: joined(table[key], more[key])
        if key in table and isinstance(table[key], Mapping) and isinstance(more.get(key), Mapping)
        else table.get(key, more.get(key))
        for key in {**table, **more}
    }


def _typed(field: FormField, value: Any, swept: bool) -> str:
    if not isinstance(value, list | tuple) or (field.kind == "json" and not swept):
        return shown(value)
    if field.kind in ("str", "json") and not field.choices:
        return json.dumps(list(value), ensure_ascii=False)
    return ", ".join(map(shown, value))


def _is_list(field: FormField, text: str) -> bool:
    """Whether a text is a list: commas separate numbers and words; lists of free texts and JSON need brackets."""
    if field.kind == "json":
        return False
    bracketed = text.startswith("[") and text.endswith("]")
    return bracketed or ("," in text and (field.kind != "str" or bool(field.choices)))


def _parts(text: str) -> list[str]:
    return [part.strip().strip("\"'") for part in text.split(",") if part.strip()]


def _scalar(kind: str, text: str) -> Any:
    try:
        match kind:
            case "int":
                return int(text)
            case "float":
                return int(text) if text.lstrip("+-").isdecimal() else float(text)
            case "bool":
                return _WORDS.get(text.lower(), text)
            case "json":
                return json.loads(text)
    except ValueError:  # no number, a number of thousands of digits, or no JSON
        return text
    return text
