"""One call from its JSON object, in any form."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from marlaas.plugins.messages import ToolCall, within_limits

from ..vocabulary import well_formed

LONGEST_NAME = 128
"""Most characters of a tool's name; the same limit as on the wire to environments."""
ARGUMENTS = ("arguments", "parameters")
"""Keys of a call's arguments: Hermes' and Llama's."""


def read_call(text: str, start: int = 0, bare: bool = False) -> tuple[ToolCall | None, int]:
    """The call in the JSON at ``start``, and the end of the JSON.

    The call is None if the JSON is malformed, has other keys, or is larger than environments may send. Models mix up
    ``arguments`` and ``parameters``, so both are accepted; ``bare``: a name without them is a call.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
        within_limits(value, "a call")
    except (ValueError, RecursionError):
        return None, start
    if not isinstance(value, dict):
        return None, end
    given = [value[key] for key in ARGUMENTS if key in value] or ([{}] if bare and value.keys() == {"name"} else [])
    name = value.get("name")
    if len(given) != 1 or not isinstance(given[0], dict):
        return None, end
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        return None, end
    return ToolCall(well_formed(name), _clean(given[0])), end


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


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
