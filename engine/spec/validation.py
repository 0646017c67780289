"""TOML tables in, frozen dataclasses or all mistakes out.

Fields are int, float, str, bool, lists of these, such dataclasses, tables of these by name, or free tables. Knows
nothing of tasks.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

from ..errors import ConfigError, as_one

UNKNOWN, MISSING, TYPE, RANGE, CHOICE = "unknown_key", "missing", "wrong_type", "out_of_range", "no_choice"
CONFLICT, REFUSED = "conflict", "refused"
"""Error codes: of one key; ``CONFLICT``: of keys that contradict each other."""
STAND_IN = "?"
"""For a missing text, so that the rest can be checked."""
HELPED = 100
"""Unknown keys with a hint, which takes time."""
Auto = Literal["auto"]
AUTO: Auto = "auto"
"""Chosen by the base (``automatic``)."""
T = TypeVar("T")
_NONE = object()
"""For a missing or wrong value."""
_WORDS = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}


def between(default: Any, low: float, high: float) -> Any:
    """A number field with an inclusive range; of a list, for each number."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


def one_of(default: str, *choices: str) -> Any:
    """A text field of allowed values."""
    return dataclasses.field(default=default, metadata={"choices": choices})


def each_of(*choices: str) -> Any:
    """A list of allowed texts, empty by default."""
    return dataclasses.field(default=(), metadata={"choices": choices})


def nearest(word: str, known: Sequence[str]) -> str:
    """The closest known word, else all."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(sorted(known)) or 'none'}."


def fault(
    path: str, cause: str, hint: str = "", also: tuple[str, ...] = (), code: str = CONFLICT, meant: str = ""
) -> ConfigError:
    """``also``: keys that it clashes with; ``meant``: the probable key of an unknown ``path``."""
    return ConfigError(cause, hint, path=path, also=(*also, meant) if meant else also, code=code)


def spoils(first: ConfigError, other: ConfigError) -> bool:
    """True if ``other`` may only follow from ``first``: a key has a stand-in value."""
    spoilt = (first.path, *(first.also if first.code == UNKNOWN else ()))
    return any(_related(mine, its) for mine in spoilt for its in (other.path, *other.also))


def refuse(faults: Iterable[ConfigError], where: str) -> None:
    """Raise ``ConfigError`` with all faults, if any."""
    if mistakes := {(one.path, one.cause): one.at(where) for one in faults}:
        raise as_one(list(mistakes.values()))


def build(cls: type[T], table: dict[str, Any], where: str, prefix: str = "") -> T:
    """Make ``cls`` from a parsed table.

    ``where`` names the file, ``prefix`` the table. Raises ``ConfigError`` with all mistakes: unknown or missing keys,
    wrong types, values out of range.
    """
    faults: list[ConfigError] = []
    made = shaped(cls, table, faults, prefix)
    refuse(faults, where)
    return made


def shaped(cls: type[T], table: dict[str, Any], faults: list[ConfigError], prefix: str = "") -> T:
    """``build`` with mistakes added to ``faults``.

    A wrong key gets its default, or a stand-in.
    """
    hints, meant = _hints(typing.cast(Any, cls)), set[str]()
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in (key for key in table if key not in fields):
        hint, close = "", list[str]()
        if len(faults) < HELPED:
            close = difflib.get_close_matches(key, [name for name in fields if name not in table], n=1)
            hint = _in_tables(key, hints, prefix) or nearest(key, list(fields))
        meant.update(close)
        near = prefix + close[0] if close else ""
        faults.append(fault(prefix + key, f"unknown key {_shown(prefix + key)}.", hint, code=UNKNOWN, meant=near))
    values = {}
    for name, field in fields.items():
        value = _value(table[name], hints[name], field, faults, prefix + name) if name in table else _NONE
        if value is not _NONE:
            values[name] = value
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            values[name] = STAND_IN if hints[name] is str else None
            if name not in table and name not in meant:
                hint = f"It must be {_WORDS.get(hints[name], 'given')}."
                faults.append(fault(prefix + name, f"{prefix + name!r} is missing.", hint, code=MISSING))
    return cls(**values)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Most of a task file's check."""
    return typing.get_type_hints(cls)


def _in_tables(key: str, hints: dict[str, Any], prefix: str) -> str:
    """For a key written one level too high."""
    tables = [name for name, kind in hints.items() if key in getattr(kind, "__dataclass_fields__", ())]
    return f"Did you mean {' or '.join(repr(f'{prefix}{name}.{key}') for name in tables)}?" if tables else ""


def _value(value: Any, kind: Any, field: dataclasses.Field[Any], faults: list[ConfigError], name: str) -> Any:
    """``_NONE`` if wrong."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if Auto in options and value == AUTO:
        return AUTO
    lists = (option for option in options if (typing.get_origin(option) is tuple) == isinstance(value, list))
    kind = next(lists, options[0])
    origin, (of, *_) = typing.get_origin(kind), typing.get_args(kind) or (kind,)
    if dataclasses.is_dataclass(kind) or origin is dict:
        if not isinstance(value, dict):
            hint = f"Write [{name}] and its keys below it."
            faults.append(fault(name, f"{name!r} must be a table.", hint, code=TYPE))
            value = {}
        if origin is not dict:
            return shaped(typing.cast(type[Any], kind), value, faults, f"{name}.")
        of = typing.get_args(kind)[1]
        if of is Any:
            _check_free(value, faults, name)
            return value
        held = {key: _value(inner, of, field, faults, f"{name}.{key}") for key, inner in value.items()}
        return {key: inner for key, inner in held.items() if inner is not _NONE}
    if origin is tuple and dataclasses.is_dataclass(of):
        if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
            return tuple(
                shaped(typing.cast(type[Any], of), entry, faults, f"{name}[{place}].")
                for place, entry in enumerate(value)
            )
        hint = f"Write [[{name}]] and its keys below it."
        faults.append(fault(name, f"{name!r} must be a list of tables.", hint, code=TYPE))
        return _NONE
    kinds, entries = typing.get_args(of) or (of,), value if origin is tuple else [value]
    words = " or ".join(_WORDS[each] for each in kinds)
    if not isinstance(entries, list) or not all(any(_is(entry, each) for each in kinds) for entry in entries):
        says = (
            f"is {_shown(value)}; it must be {words}" if origin is not tuple else f"must be a list, each entry {words}"
        )
        or_auto = ' or "auto"' if Auto in options else ""
        faults.append(fault(name, f"{name!r} {says}{or_auto}.", _allowed(field), code=TYPE))
        return _NONE
    if wrong := [mistake for entry in entries if (mistake := _out_of_range(entry, field, name))]:
        faults += wrong
        return _NONE
    return tuple(value) if origin is tuple else float(value) if kind is float else value


def _related(one: str, other: str) -> bool:
    """The same, or one in the other's table."""
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith((f"{short}.", f"{short}["))


def _check_free(value: Any, faults: list[ConfigError], name: str) -> None:
    """JSON holds no dates, times, infinities and NaN."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else ((None, inner) for inner in value)
        for key, inner in pairs:
            _check_free(inner, faults, name if key is None else f"{name}.{key}")
    elif not isinstance(value, bool | int | str) and not _is(value, float):
        says = f"{name!r} is {value}; it must be a text, a finite number, true or false, a list or a table."
        faults.append(fault(name, says, code=TYPE))


def _out_of_range(value: Any, field: dataclasses.Field[Any], name: str) -> ConfigError | None:
    low, high = field.metadata.get("range", (-math.inf, math.inf))
    choices = field.metadata.get("choices")
    if not isinstance(value, str) and not low <= value <= high:
        says = f"{name!r} is {value}; it must lie between {_plain(low)} and {_plain(high)}."
        return fault(name, says, code=RANGE)
    if choices and value not in choices:
        return fault(name, f"{name!r} is {_shown(value)}.", nearest(value, choices), code=CHOICE)
    return None


def _is(value: Any, kind: Any) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return abs(value) < 2**1000 if isinstance(value, int) else isinstance(value, float) and math.isfinite(value)
    return isinstance(value, kind)


def _allowed(field: dataclasses.Field[Any]) -> str:
    choices = field.metadata.get("choices") or [" to ".join(map(_plain, field.metadata.get("range", ())))]
    return f"Allowed: {', '.join(choices)}." if choices != [""] else ""


def _plain(bound: float) -> str:
    """No exponent for whole numbers."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
