"""TOML tables in, frozen dataclasses out, or a sentence for each mistake: what is wrong, where, and what is allowed.

Works on any dataclass whose fields are int, float, str, bool, lists of these, other such dataclasses, tables of these
by name, or free tables; ``between`` and ``one_of`` attach the allowed range to a field. Knows nothing of tasks.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..errors import ConfigError, as_one

UNKNOWN, MISSING, TYPE, RANGE, CHOICE = "unknown_key", "missing", "wrong_type", "out_of_range", "no_choice"
CONFLICT, REFUSED = "conflict", "refused"
"""Codes of errors in a task file: about one key alone, and (the last) about keys that contradict each other."""
STAND_IN = "?"
"""A text in place of one that must be given and is not, so that the rest of a file can be checked."""
HELPED = 100
"""Unknown keys for which a known one is looked for, which takes time: more are no slips."""
Auto = Literal["auto"]
AUTO: Auto = "auto"
"""In place of a number that the engine chooses by the base (``automatic``)."""
T = TypeVar("T")
_NONE = object()
"""In place of a value that is not there, or wrong."""
_WORDS = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}


def between(default: Any, low: float, high: float) -> Any:
    """A numeric field with its allowed range, both ends included; None is the default of one that may be absent.

    Of a list of numbers (or texts) it is the range of each number.
    """
    return dataclasses.field(default=default, metadata={"range": (low, high)})


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


@dataclass(frozen=True)
class Fault:
    """One mistake in a table."""

    path: str
    """The key at fault."""
    says: str
    """What is wrong with it."""
    hint: str = ""
    """How to mend it."""
    also: tuple[str, ...] = ()
    """Further keys that it clashes with."""
    code: str = CONFLICT
    meant: str = ""
    """The key that was probably meant, if ``path`` is none."""

    def spoils(self, other: Fault) -> bool:
        """Whether another fault may only be there because of this one: a key of it has a stand-in for a value."""
        spoilt = [path for path in (self.path, self.meant) if path]
        return any(_related(mine, its) for mine in spoilt for its in (other.path, *other.also))

    def error(self, where: str) -> ConfigError:
        """The fault as an error in the file ``where``."""
        return ConfigError(self.says, self.hint, where=where, path=self.path, also=self.also, code=self.code)


def refuse(faults: Iterable[Fault], where: str) -> None:
    """Raise ``ConfigError`` for the first of the faults, with all others, if there are any."""
    if mistakes := [fault.error(where) for fault in dict.fromkeys(faults)]:
        raise as_one(mistakes)


def build(cls: type[T], table: dict[str, Any], where: str, prefix: str = "") -> T:
    """Make ``cls`` from a parsed TOML table.

    ``where`` names the file in messages, ``prefix`` the table. Raises ``ConfigError``, with all mistakes: unknown keys,
    missing keys without default, wrong types and values out of range.
    """
    faults: list[Fault] = []
    made = shaped(cls, table, faults, prefix)
    refuse(faults, where)
    return made


def shaped(cls: type[T], table: dict[str, Any], faults: list[Fault], prefix: str = "") -> T:
    """Make ``cls`` from a parsed TOML table as well as that can be done; what is wrong is added to ``faults``.

    A key that is wrong has its default then, or a stand-in.
    """
    hints = _hints(typing.cast(Hashable, cls))
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    meant = set()
    for key in table:
        if key not in fields and len(faults) >= HELPED:
            faults.append(Fault(prefix + key, f"unknown key {_shown(prefix + key)}.", code=UNKNOWN))
        elif key not in fields:
            close = difflib.get_close_matches(key, [name for name in fields if name not in table], n=1)
            meant.update(close)
            near = prefix + close[0] if close else ""
            hint = _in_tables(key, hints, prefix) or nearest(key, list(fields))
            faults.append(Fault(prefix + key, f"unknown key {_shown(prefix + key)}.", hint, code=UNKNOWN, meant=near))
    values = {}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        value = _value(table[name], hints[name], field, faults, prefix + name) if name in table else _NONE
        if value is not _NONE:
            values[name] = value
        elif required:
            values[name] = STAND_IN if hints[name] is str else None
        if required and name not in table and name not in meant:
            says, hint = f"{prefix + name!r} is missing.", f"It must be {_expected(hints[name])}."
            faults.append(Fault(prefix + name, says, hint, code=MISSING))
    return cls(**values)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """The types of a class's fields: to find them out takes most of the time of a task file's check."""
    return typing.get_type_hints(cls)


def _in_tables(key: str, hints: dict[str, Any], prefix: str) -> str:
    """A hint where tables below have such a key: it was written one level too high. Else empty."""
    tables = (
        name
        for name, kind in hints.items()
        if dataclasses.is_dataclass(kind) and any(field.name == key for field in dataclasses.fields(kind))
    )
    found = " or ".join(f"'{prefix}{name}.{key}'" for name in tables)
    return f"Did you mean {found}?" if found else ""


def _value(value: Any, kind: Any, field: dataclasses.Field[Any], faults: list[Fault], name: str) -> Any:
    """The value as its field holds it, as far as it is right, else ``_NONE``; what is wrong is added to ``faults``."""
    origin, auto = typing.get_origin(kind), False
    if origin in (types.UnionType, typing.Union):  # of a list and something else, whichever was written
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        auto = Auto in options
        if auto and value == AUTO:
            return AUTO
        lists = (option for option in options if (typing.get_origin(option) is tuple) == isinstance(value, list))
        kind = next(lists, options[0])
        origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        cls = typing.cast(type[Any], kind)
        if not isinstance(value, dict):
            faults.append(_no_table(name))
        return shaped(cls, value if isinstance(value, dict) else {}, faults, f"{name}.")
    if origin is dict:
        if not isinstance(value, dict):
            return _wrong(faults, _no_table(name))
        of = typing.get_args(kind)[1]
        if of is Any:
            _check_free(value, faults, name)
            return value
        held = {key: _value(inner, of, field, faults, f"{name}.{key}") for key, inner in value.items()}
        return {key: inner for key, inner in held.items() if inner is not _NONE}
    if origin is tuple and dataclasses.is_dataclass(of := typing.get_args(kind)[0]):
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            hint = f"Write [[{name}]] and its keys below it."
            return _wrong(faults, Fault(name, f"{name!r} must be a list of tables.", hint, code=TYPE))
        cls = typing.cast(type[Any], of)
        return tuple(shaped(cls, entry, faults, f"{name}[{place}].") for place, entry in enumerate(value))
    if origin is tuple:
        items = typing.get_args(typing.get_args(kind)[0]) or typing.get_args(kind)[:1]  # of int | str: both
        if not isinstance(value, list) or not all(any(_is(entry, item) for item in items) for entry in value):
            words = " or ".join(_WORDS[item] for item in items)
            return _wrong(faults, Fault(name, f"{name!r} must be a list, each entry {words}.", code=TYPE))
        found = [fault for entry in value if (fault := _out_of_range(entry, field, name))]
        return _wrong(faults, *found) if found else tuple(value)
    if not _is(value, kind):
        or_auto = ' or "auto"' if auto else ""
        says = f"{name!r} is {_shown(value)}; it must be {_expected(kind)}{or_auto}."
        return _wrong(faults, Fault(name, says, _allowed(field), code=TYPE))
    if fault := _out_of_range(value, field, name):
        return _wrong(faults, fault)
    return float(value) if kind is float else value


def _wrong(faults: list[Fault], *found: Fault) -> object:
    """Add what was found, and return that there is no value."""
    faults += found
    return _NONE


def _related(one: str, other: str) -> bool:
    """Whether two keys are the same, or one lies in the table that the other is."""
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith((f"{short}.", f"{short}["))


def _no_table(name: str) -> Fault:
    return Fault(name, f"{name!r} must be a table.", f"Write [{name}] and its keys below it.", code=TYPE)


def _check_free(value: Any, faults: list[Fault], name: str) -> None:
    """Refuse what JSON cannot hold: dates, times, infinities and NaN."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_free(inner, faults, f"{name}.{key}")
    elif isinstance(value, list):
        for inner in value:
            _check_free(inner, faults, name)
    elif not isinstance(value, (bool, int, str)) and not _is(value, float):
        says = f"{name!r} is {value}; it must be a text, a finite number, true or false, a list or a table."
        faults.append(Fault(name, says, code=TYPE))


def _out_of_range(value: Any, field: dataclasses.Field[Any], name: str) -> Fault | None:
    if "range" in field.metadata and not isinstance(value, str):
        low, high = field.metadata["range"]
        if not low <= value <= high:
            says = f"{name!r} is {value}; it must lie between {_plain(low)} and {_plain(high)}."
            return Fault(name, says, code=RANGE)
    choices = field.metadata.get("choices")
    if choices and value not in choices:
        return Fault(name, f"{name!r} is {_shown(value)}.", nearest(value, choices), code=CHOICE)
    return None


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
