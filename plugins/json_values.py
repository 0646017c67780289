"""Rows as JSON values: equal for every environment, score function and program."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, NoReturn

NAMED = 12
"""Columns that an error names."""


def read_json(text: str) -> Any:
    """``NaN`` becomes None, a lone surrogate U+FFFD. Raises ``ValueError``, also for infinite numbers."""
    value = json.loads(text, parse_constant=_constant, parse_float=_finite)
    return whole_characters(value) if "\\u" in text else value


def _constant(name: str) -> None:
    if name != "NaN":
        _endless(name)


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _endless(number)


def _endless(number: str) -> NoReturn:
    raise ValueError(f"{number} is no finite number")


def whole_characters(value: Any) -> Any:
    """U+FFFD for lone surrogates, which UTF-8 lacks."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return [whole_characters(item) for item in value] if isinstance(value, list) else value


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``pyarrow`` as JSON.

    Dates and times become ISO 8601, durations seconds, decimals numbers, bytes base64, NaN None. Below the columns,
    keys without a value are left out: a table gives each structure all keys. Raises ``ValueError`` with the column for
    others.
    """
    found = {}
    for column, value in row.items():
        try:
            found[str(column)] = _as_json(value)
        except ValueError as error:
            raise ValueError(f"the column {column!r} cannot be read: {error}") from None
    return found


def _as_json(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return None if math.isnan(value) else _finite(str(value))
        case Mapping():
            return {str(key): _as_json(item) for key, item in value.items() if item is not None}
        case date() | time():  # a datetime is a date
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return int(value) if value == value.to_integral_value() and "." not in str(value) else float(value)
        case bytes():
            return b64encode(value).decode()
        case list() | tuple():
            return [_as_json(item) for item in value]
    raise ValueError(f"JSON has no value for {type(value).__name__}")


class Row(dict[str, Any]):
    """A missing name is an error with the known ones."""

    def __missing__(self, name: object) -> Any:
        there = ", ".join(map(repr, islice(self, NAMED)))
        raise KeyError(f"the row has no {name!r:.80}, but {there:.400}{' and more' if len(self) > NAMED else ''}")


def row(value: Any) -> Any:
    """An object's errors name its columns."""
    return Row(value) if type(value) is dict else value


def not_json(value: Any) -> str:
    """As in ``['day'] is of the type date``; empty: nothing."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        with suppress(RecursionError):
            return next(_faults(value, ""), str(error))
        return "it is nested too deeply"
    return ""


def _faults(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool | None):
                yield f"{place or 'it'} has the key {key!r}, of the type {type(key).__name__}"
            yield from _faults(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _faults(item, f"{place}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place or 'it'} is {value}"
    elif not isinstance(value, str | int | float | bool | None):
        yield f"{place or 'it'} is of the type {type(value).__name__}"
