"""Turns actions and observations of OpenEnv, which are pydantic models, into text and back.

Only names and types of the fields are used, so the library itself is not needed here.
"""

from __future__ import annotations

import inspect
import json
import typing
from typing import Any

_NO_CONTENT = ("done", "reward", "metadata")


def shown(observation: Any) -> str:
    """An observation as text: a single text field unchanged, several fields one a line, else its metadata's message."""
    dumped = observation.model_dump()
    fields = {name: value for name, value in dumped.items() if name not in _NO_CONTENT and value not in (None, "")}
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    if fields:
        return "\n".join(f"{name}: {_line(value)}" for name, value in fields.items())
    return str((dumped.get("metadata") or {}).get("message", ""))


def action_class(environment: Any) -> Any:
    """The model that ``step`` takes; ``TypeError`` if neither its annotation nor the class shows it."""
    try:
        hints = typing.get_type_hints(environment.step)
    except Exception:  # an annotation may name an import for checkers only
        hints = {}
    parameters = list(inspect.signature(environment.step).parameters)[1:]
    candidates = [hints.get(name) for name in parameters[:1]]
    for base in getattr(environment, "__orig_bases__", ()):
        candidates += typing.get_args(base)[:1]
    for candidate in candidates:
        if isinstance(candidate, type) and hasattr(candidate, "model_fields") and _content(candidate):
            return candidate
    raise TypeError(f"the action of {environment.__name__} is not known: say what a reply means with act=")


def action_of(action: Any, text: str) -> Any:
    """The action in a reply; ``ValueError`` if there is none.

    One required field takes the whole reply, converted if it is a number; several are read from JSON.
    """
    fields = _content(action)
    required = [name for name, field in fields.items() if field.is_required()]
    named = required or list(fields)
    if len(named) > 1:
        return action.model_validate_json(text)  # its ValidationError is a ValueError
    field = fields[named[0]]
    value = text if field.annotation is str else text.strip()
    if field.annotation not in (str, int, float):
        return action.model_validate_json(text) if text.lstrip().startswith("{") else action(**{named[0]: value})
    return action(**{named[0]: value})


def _content(action: Any) -> dict[str, Any]:
    return {name: field for name, field in action.model_fields.items() if name not in _NO_CONTENT}


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
