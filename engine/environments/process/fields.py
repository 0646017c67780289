"""The fields of a record from a plugin's process, each checked for type, size and finiteness.

Flows in: parsed JSON of any origin. Flows out: values of the type that was asked for, or ``WireError``. Which fields a
message has is not known here.
"""

from __future__ import annotations

import math
from typing import Any

from marlaas.plugins.host.channel import Record
from marlaas.plugins.messages import DEEPEST
from marlaas.plugins.rewards import LARGEST

LONGEST_NAME = 128
MOST_ENTRIES = 256
LONGEST_NOTE = 1000
"""Characters of what stands in tables and in reasons; the host sends no more of its own."""
LONGEST_PAGE = 10_000
"""Of what is read by itself: a description, a traceback."""


class WireError(ValueError):
    """The process sent something that the protocol does not know."""


def an_object(value: Any, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise WireError(f"{what} must be an object, not {type(value).__name__}")
    return value


def a_list(record: Record, key: str, most: int = MOST_ENTRIES) -> list[Any]:
    """A list of any values, empty where there is none."""
    value = record.get(key, [])
    if not isinstance(value, list) or len(value) > most:
        raise WireError(f"{key} must be a list of at most {most}")
    return value


def pairs(record: Record, key: str) -> list[tuple[str, Any]]:
    """The entries of an object, none where there is none."""
    return entries(record.get(key, {}), key)


def entries(value: Any, what: str) -> list[tuple[str, Any]]:
    """The entries of an object."""
    found = an_object(value, what)
    if len(found) > MOST_ENTRIES:
        raise WireError(f"{what} has over {MOST_ENTRIES} entries")
    return list(found.items())


def a_text(value: Any, what: str) -> str:
    """A text that files and databases can hold: JSON can carry lone surrogates, they cannot."""
    if not isinstance(value, str):
        raise WireError(f"{what} must be a text, not {type(value).__name__}")
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def cut(value: Any, what: str, most: int = LONGEST_NOTE) -> str:
    """A text of at most so many characters; the last one of a longer one is an ellipsis."""
    text = a_text(value, what)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def clean(value: Any, deeper: int = DEEPEST) -> Any:
    """A free-form value, with the texts in it as ``a_text`` has them; lists and objects in at most so many others."""
    if isinstance(value, str):
        return a_text(value, "a text")
    if isinstance(value, list | dict) and not deeper:
        raise WireError(f"a value is nested more than {DEEPEST} deep")
    if isinstance(value, list):
        return [clean(entry, deeper - 1) for entry in value]
    if isinstance(value, dict):
        return {a_text(key, "a key"): clean(entry, deeper - 1) for key, entry in value.items()}
    return value


def a_name(record: Record, key: str) -> str:
    """The field ``key``, a text of a name's length."""
    return named(record.get(key), key)


def named(value: Any, what: str) -> str:
    """A text of a name's length."""
    text = a_text(value, what)
    if not 0 < len(text) <= LONGEST_NAME:
        raise WireError(f"{what} must have 1 to {LONGEST_NAME} characters")
    return text


def a_count(record: Record, key: str) -> int:
    """A whole number from 0 on."""
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise WireError(f"{key} must be a whole number, not {value!r:.80}")
    return value


def bounded(value: Any, what: str) -> float:
    """A number whose square, and the sum of many, is finite."""
    number = a_number(value, what)
    if abs(number) > LARGEST:
        raise WireError(f"{what} must lie between {-LARGEST:g} and {LARGEST:g}")
    return number


def a_number(value: Any, what: str) -> float:
    """A finite number."""
    if type(value) not in (int, float):
        raise WireError(f"{what} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WireError(f"{what} must be finite")
    return number
