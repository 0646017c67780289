"""TOML tables in, frozen dataclasses out, or one sentence that says what is wrong, where, and what is allowed.

Works on any dataclass whose fields are int, float, str, bool, lists of these, other such dataclasses, tables of these
by name, or free tables; ``between`` and ``one_of`` attach the allowed range to a field. Knows nothing of tasks.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from ..errors import ConfigError

UNKNOWN, MISSING, TYPE, RANGE, CHOICE = "unknown_key", "missing", "wrong_type", "out_of_range", "no_choice"
CONFLICT, REFUSED = "conflict", "refused"
"""Codes of errors in a task file: about one key alone, and (the last) about keys that contradict each other."""
T = TypeVar("T")
_WORDS = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}


def between(default: Any, low: float, high: float) -> Any:
    """A numeric field with its allowed range, both ends included; None is the default of one that may be absent."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


def each_between(low: int, high: int) -> Any:
    """A list of numbers (or texts), empty by default, with the allowed range of each number."""
    return dataclasses.field(default=(), metadata={"range": (low, high)})


def one_of(default: str, *choices: str) -> Any:
    """A text field with its allowed values."""
    return dataclasses.field(default=default, metadata={"choices": choices})


def each_of(*choices: str) -> Any:
    """A list of texts, empty by default, with the allowed values of each."""
    return dataclasses.field(default=(), metadata={"choices": choices})


def nearest(word: str, known: Sequence[str]) -> str:
    """A hint that names the closest known word, else all of them."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(sorted(known)) or 'none'}."


def build(cls: type[T], table: dict[str, Any], where: str, prefix: str = "") -> T:
    """Make ``cls`` from a parsed TOML table.

    ``where`` names the file in messages, ``prefix`` the table. Raises ``ConfigError`` on an unknown key, a missing key
    without default, a wrong type or a value out of range.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise ConfigError(
                f"{where}: unknown key {_shown(prefix + key)}.",
                nearest(key, list(fields)),
                path=prefix + key,
                code=UNKNOWN,
            )
    values = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _value(table[name], hints[name], field, where, prefix + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(
                f"{where}: {prefix + name!r} is missing.",
                f"It must be {_expected(hints[name])}.",
                path=prefix + name,
                code=MISSING,
            )
    return cls(**values)


def _value(value: Any, kind: Any, field: dataclasses.Field[Any], where: str, name: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):  # of a list and something else, whichever was written
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        lists = (option for option in options if (typing.get_origin(option) is tuple) == isinstance(value, list))
        kind = next(lists, options[0])
        origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise _no_table(where, name)
        return build(typing.cast(type[Any], kind), value, where, f"{name}.")
    if origin is dict:
        if not isinstance(value, dict):
            raise _no_table(where, name)
        of = typing.get_args(kind)[1]
        if of is Any:
            _check_free(value, where, name)
            return value
        return {key: _value(inner, of, field, where, f"{name}.{key}") for key, inner in value.items()}
    if origin is tuple and dataclasses.is_dataclass(of := typing.get_args(kind)[0]):
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            says = f"{where}: {name!r} must be a list of tables."
            raise ConfigError(says, f"Write [[{name}]] and its keys below it.", path=name, code=TYPE)
        cls = typing.cast(type[Any], of)
        return tuple(build(cls, entry, where, f"{name}[{place}].") for place, entry in enumerate(value))
    if origin is tuple:
        items = typing.get_args(typing.get_args(kind)[0]) or typing.get_args(kind)[:1]  # of int | str: both
        if not isinstance(value, list) or not all(any(_is(entry, item) for item in items) for entry in value):
            words = " or ".join(_WORDS[item] for item in items)
            raise ConfigError(f"{where}: {name!r} must be a list, each entry {words}.", path=name, code=TYPE)
        for entry in value:
            _check_range(entry, field, where, name)
        return tuple(value)
    if not _is(value, kind):
        says = f"{where}: {name!r} is {_shown(value)}; it must be {_expected(kind)}."
        raise ConfigError(says, _allowed(field), path=name, code=TYPE)
    _check_range(value, field, where, name)
    return float(value) if kind is float else value


def _no_table(where: str, name: str) -> ConfigError:
    says, hint = f"{where}: {name!r} must be a table.", f"Write [{name}] and its keys below it."
    return ConfigError(says, hint, path=name, code=TYPE)


def _check_free(value: Any, where: str, name: str) -> None:
    """Refuse what JSON cannot hold: dates, times, infinities and NaN."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_free(inner, where, f"{name}.{key}")
    elif isinstance(value, list):
        for inner in value:
            _check_free(inner, where, name)
    elif not isinstance(value, (bool, int, str)) and not _is(value, float):
        raise ConfigError(
            f"{where}: {name!r} is {value}; it must be a text, a finite number, true or false, a list or a table.",
            path=name,
            code=TYPE,
        )


def _check_range(value: Any, field: dataclasses.Field[Any], where: str, name: str) -> None:
    if "range" in field.metadata and not isinstance(value, str):
        low, high = field.metadata["range"]
        if not low <= value <= high:
            says = f"{where}: {name!r} is {value}; it must lie between {_plain(low)} and {_plain(high)}."
            raise ConfigError(says, path=name, code=RANGE)
    choices = field.metadata.get("choices")
    if choices and value not in choices:
        raise ConfigError(f"{where}: {name!r} is {_shown(value)}.", nearest(value, choices), path=name, code=CHOICE)


def _is(value: Any, kind: Any) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return abs(value) < 2**1000 if isinstance(value, int) else isinstance(value, float) and math.isfinite(value)
    return isinstance(value, kind)


def _expected(kind: Any) -> str:
    return _WORDS.get(kind, "a table" if dataclasses.is_dataclass(kind) else "given")


def _allowed(field: dataclasses.Field[Any]) -> str:
    if "range" in field.metadata:
        low, high = field.metadata["range"]
        return f"Allowed: {_plain(low)} to {_plain(high)}."
    choices = field.metadata.get("choices")
    return f"Allowed: {', '.join(choices)}." if choices else ""


def _plain(bound: float) -> str:
    """A bound as a person would write it: no exponent for whole numbers."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
