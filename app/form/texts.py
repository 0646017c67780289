"""Turns what was typed into the form into the table of a task file, and back. Pure.

Several values with commas between them are a sweep. A text that cannot be read as its field's kind stays a text: the
check of the table then refuses it in its own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import AGENTS, NAMES, PARAMETERS, POLICIES, FormField, shown

_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Several:
    """Several values for one key; each makes a task."""

    values: tuple[Any, ...]


def read(field: FormField, text: str) -> Any:
    """The value that a text stands for, or ``Several``; the text itself where it cannot be read."""
    text = text.strip()
    if field.kind == NAMES:
        return names_in(text)
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
        if field.kind == NAMES:
            if field.key == POLICIES:
                table[POLICIES] = {name: {} for name in value}
            continue
        if isinstance(value, Several):
            if field.table == PARAMETERS or field.table.startswith(f"{POLICIES}."):
                table.setdefault("sweep", {})[field.key] = list(value.values)
                continue
            value = list(value.values)
        place(table, field)[field.name] = value
    return table


def place(table: dict[str, Any], field: FormField) -> dict[str, Any]:
    """The table that a field's key is in, which is made where there is none."""
    for name in field.table.split(".", 1) if field.table else ():
        table = table.setdefault(name, {})
    return table


def names_in(text: str) -> tuple[str, ...]:
    """The names in a field of names."""
    return tuple(dict.fromkeys(_parts(text)))


def texts_of(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, str]:
    """The texts that would make a table if typed; values that are the default are left out."""
    sweep = table.get("sweep")
    swept: Mapping[str, Any] = sweep if isinstance(sweep, dict) else {}
    texts = {}
    for field in fields:
        if field.kind == NAMES:
            if text := _names(field.key, table.get(field.key)):
                texts[field.key] = text
            continue
        inner: Any = table
        for name in field.table.split(".", 1) if field.table else ():
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        value = swept.get(field.key)
        if value is None and isinstance(inner, Mapping):
            value = inner.get(field.name)
        text = _typed(field, value, field.key in swept)
        if text != field.default:
            texts[field.key] = text
    return texts


def beyond(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a table that no field has: mixtures, suites, names that a field cannot hold, and mistakes."""
    named = {field.key for field in fields if field.kind == NAMES}
    keys, tables = {field.key for field in fields} - named, {field.table for field in fields}
    kept: dict[str, Any] = {}
    for key, value in table.items():
        if key == PARAMETERS:
            continue
        if key in named and _names(key, value):
            if value := _beyond_names(key, keys, value):
                kept[key] = value
            continue
        if isinstance(value, Mapping) and (key in tables or key == "sweep"):
            prefix = "" if key == "sweep" else f"{key}."
            value = {name: each for name, each in value.items() if f"{prefix}{name}" not in keys}
            if not value:
                continue
        if key not in keys:
            kept[key] = value
    return kept


def _names(key: str, value: Any) -> str:
    """The names in a table of policies or agents, as one would type them; empty where fields cannot hold it."""
    kind = Mapping if key == POLICIES else str
    if not isinstance(value, Mapping) or not all(isinstance(each, kind) for each in value.values()):
        return ""
    text = ", ".join(map(str, value))
    return text if text.isprintable() and [*names_in(text)] == [*value] else ""


def _beyond_names(key: str, keys: set[str], value: Mapping[str, Any]) -> dict[str, Any]:
    if key == AGENTS:
        return {agent: policy for agent, policy in value.items() if f"{AGENTS}.{agent}" not in keys}
    left = {
        name: {own: each for own, each in policy.items() if f"{POLICIES}.{name}.{own}" not in keys}
        for name, policy in value.items()
    }
    return {name: policy for name, policy in left.items() if policy}


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
