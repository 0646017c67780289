"""Bounds on the values that a chat template builds, checked before each operation, method or filter. Pure.

They raise ``jinja2.TemplateError`` where a result would be large. ``sandbox`` counts the work of a whole rendering.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2

SIZE = 1 << 24
"""The most characters of a text: far above any context."""
ITEMS = 1 << 18
"""The most items of a list, with all that are nested in it."""
MOST = "a template may have at most"
_DIGITS = 64
"""The most digits that a number may be rounded to."""
_BITS = 4096
_WIDTH = re.compile(r"\d{7,}|%[^a-zA-Z%]*\*|:[^}]*\{")
"""Refused in a format: a width of millions, or one that is computed."""
_REFUSED = ("translate", "maketrans", "to_bytes", "from_bytes")
"""Methods that no chat template needs, and the size of whose results cannot be told beforehand."""
_TEXTUAL = {"capitalize", "center", "count", "d", "default", "e", "escape", "format", "indent", "length", "lower"} | {
    *("replace", "safe", "string", "title", "tojson", "trim", "truncate", "upper", "wordcount")
}
"""Filters that treat a text as a whole; the others split it into characters."""


def weight(value: Any) -> int:
    """Raise unless ``value`` is small, and return how many steps to count for looking at it."""
    if isinstance(value, str | bytes):
        check_size(len(value))
        return len(value) >> 5
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise jinja2.TemplateError("a template may not compute large numbers")
    if not isinstance(value, list | tuple | dict):
        return 0
    entries, size = 1, 0
    inside: list[Any] = [value]
    while inside:
        one = inside.pop()
        if isinstance(one, str):
            size += len(one)
            continue
        entries += len(one)
        if entries > ITEMS:
            raise jinja2.TemplateError(f"{MOST} {ITEMS} items in one value")
        inner = [*one.keys(), *one.values()] if isinstance(one, dict) else one
        inside.extend(each for each in inner if isinstance(each, str | list | tuple | dict))
    check_size(size)
    return entries >> 2


def check_size(size: int) -> None:
    """Raise where ``size`` characters are too many for a text."""
    if size > SIZE:
        raise jinja2.TemplateError(f"{MOST} {SIZE} characters in one value")


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise where the result of a binary operator would be large."""
    if operator == "*":
        for some, times in ((left, right), (right, left)):
            most = SIZE if isinstance(some, str | bytes) else ITEMS
            if isinstance(some, str | bytes | list | tuple) and isinstance(times, int) and len(some) * times > most:
                raise jinja2.TemplateError(f"{MOST} {SIZE} characters or {ITEMS} items in one value")
    elif operator == "**":
        if not all(isinstance(one, int | float) for one in (left, right)) or abs(left) > 1 << 31 or abs(right) > 64:
            raise jinja2.TemplateError("a template may not compute large powers")
    elif operator == "%" and isinstance(left, str | bytes):
        _check_format(left, [right], "%")


def check_method(owner: Any, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise where a method of one of Python's built-in types would build something large."""
    if name in _REFUSED:
        raise jinja2.TemplateError(f"a template may not call {name}")
    _check_numbers([*arguments, *options.values()])
    if not isinstance(owner, str | bytes):
        return
    match name:
        case "format" | "format_map":
            _check_format(owner, [*arguments, *options.values()], "{")
        case "replace":
            _check_replaced(owner, arguments)
        case "expandtabs":
            tabs = owner.count("\t") if isinstance(owner, str) else owner.count(b"\t")
            check_size(tabs * max(8, *(one for one in arguments if isinstance(one, int))))
        case "split" | "rsplit" | "splitlines":
            if len(owner) > SIZE >> 2:
                raise jinja2.TemplateError(f"{MOST} {SIZE >> 2} characters in a text that it splits")
        case "join" if arguments:
            check_joined(owner, arguments[0])


def check_joined(between: Any, parts: Iterable[Any]) -> None:
    """Raise where joining ``parts`` with the text ``between`` would make a large text."""
    if isinstance(parts, str | list | tuple | dict):
        check_size(len(parts) * len(between) if isinstance(between, str | bytes) else 0)


def check_filter(name: str, value: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise where a filter would build something large."""
    given = [*arguments, *options.values()]
    if isinstance(value, str) and len(value) > ITEMS and name not in _TEXTUAL:
        raise jinja2.TemplateError(f"{MOST} {ITEMS} characters in a text that it takes apart")
    if name not in ("default", "d"):
        _check_numbers(given)
    match name:
        case "replace":
            _check_replaced(str(value), given)
        case "format":
            _check_format(str(value), given, "%")
        case "indent":
            width = next(iter(given), 4)
            check_size((str(value).count("\n") + 1) * (len(width) if isinstance(width, str) else int(width)))
        case "round" if any(isinstance(one, int) and abs(one) > _DIGITS for one in given):
            raise jinja2.TemplateError(f"{MOST} {_DIGITS} digits that it rounds to")
        case "sum" if any(isinstance(one, list | tuple | dict) for one in given):
            raise jinja2.TemplateError("a template may sum up nothing but numbers")
        case "join":
            check_joined(next(iter(given), ""), value)
        case "tojson":
            if any(isinstance(one, str) and len(one) > 16 for one in [*given, *_texts(options.get("separators"))]):
                raise jinja2.TemplateError("a template may not write JSON with long separators")
            if any(isinstance(one, int) and one > 16 for one in given):
                raise jinja2.TemplateError("a template may not indent JSON as wide as that")


def _texts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _check_numbers(values: Iterable[Any]) -> None:
    if any(isinstance(one, int) and abs(one) > ITEMS for one in values):
        raise jinja2.TemplateError(f"a template may not give numbers beyond {ITEMS} to methods and filters")


def _check_replaced(text: str | bytes, arguments: Sequence[Any]) -> None:
    if len(arguments) >= 2 and all(isinstance(one, type(text)) for one in arguments[:2]):
        old, new = arguments[:2]
        check_size((text.count(old) if old else len(text) + 1) * len(new))


def _check_format(text: str | bytes, values: Sequence[Any], sign: str) -> None:
    shown = text.decode("latin-1") if isinstance(text, bytes) else text
    if _WIDTH.search(shown):
        raise jinja2.TemplateError("a template may not format with such a width")
    check_size(shown.count(sign) * sum(map(_length, values)))


def _length(value: Any) -> int:
    """About how many characters a value has as text; at least those of the texts in it."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    return sum(map(_length, value)) if isinstance(value, list | tuple) else 32
