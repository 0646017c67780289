"""One call from its JSON object, in whatever form the object was found."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from marlaas.plugins.messages import ToolCall, within_limits

from ..vocabulary import well_formed

LONGEST_NAME = 128
"""Most characters of a tool's name; the same limit as on the wire to environments."""


def read_call(text: str, arguments: str, required: bool = False) -> ToolCall | None:
    """The call that JSON spells, or None if it is malformed in any way, or larger than environments may send.

    ``arguments`` is the key of the object that holds them; where it is not ``required`` it may be left out.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        within_limits(value, "a call")
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or (required and arguments not in value):
        return None
    name, given = value.get("name"), value.get(arguments, {})
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not isinstance(given, dict):
        return None
    return ToolCall(well_formed(name), _clean(given))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _finite(number: str) -> float:
    """A float; raises ``ValueError`` for numbers so large that they would become infinite."""
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(constant: str) -> NoReturn:
    """Raise ``ValueError``: NaN and infinities are not JSON, and other readers would fail on them."""
    raise ValueError(f"{constant} is no JSON.")
