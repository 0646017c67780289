"""An environment's settings: read from the signature of its function, checked against a task's configuration.

Flows in: a function, or a mapping as it stands in a task file. Flows out: typed parameters, or a complete configuration
with defaults filled in. Errors are sentences for the person who wrote the task file.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin

ALLOWED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "json": "a value that JSON can hold",
}
_SCALARS: dict[object, str] = {int: "int", float: "float", str: "str", bool: "bool"}


@dataclass(frozen=True)
class Parameter:
    """One typed keyword parameter of an environment function."""

    name: str
    type: str
    """int, float, str, bool or json"""
    default: Any
    required: bool = False


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with real types where the annotations can be resolved, else as written."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # an annotation may name anything, and evaluating it may raise anything
        return inspect.signature(function)


def type_name(annotation: Any) -> str | None:
    """``int``, ``float``, ``str``, ``bool`` or ``json`` for an annotation; None where it is none of these."""
    if annotation in ("int", "float", "str", "bool"):
        return str(annotation)
    if annotation in (list, dict, Any) or get_origin(annotation) in (list, dict):
        return "json"
    return _SCALARS.get(annotation) if isinstance(annotation, type) else None


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The settings of an environment function: every parameter after ``ep``, except ``task``."""
    found = []
    for name, parameter in list(signature_of(function).parameters.items())[1:]:
        if name == "task":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"parameter {name!r} of {function.__name__} must be a plain keyword parameter")
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        annotation = type(default) if parameter.annotation is parameter.empty and not required else parameter.annotation
        kind = type_name(annotation)
        if kind is None:
            raise TypeError(
                f"parameter {name!r} of {function.__name__} needs a type and may be int, float, str, bool, list or dict"
            )
        entry = Parameter(name, kind, default, required)
        if not required:
            entry = Parameter(name, kind, checked(entry, default), required)
        found.append(entry)
    return tuple(found)


def complete(parameters: Sequence[Parameter], config: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """``config`` with every default filled in; ``ValueError`` says what is wrong with it."""
    known = {parameter.name: parameter for parameter in parameters}
    for name in config:
        if name not in known:
            raise ValueError(_unknown(name, tuple(known), owner))
    values = {}
    for name, parameter in known.items():
        if name in config:
            values[name] = checked(parameter, config[name], owner)
        elif parameter.required:
            raise ValueError(f"{owner} needs {name!r}: {ALLOWED[parameter.type]}.")
        else:
            values[name] = parameter.default
    return values


def checked(parameter: Parameter, value: Any, owner: str = "") -> Any:
    """``value`` as the parameter's type; whole numbers are welcome where numbers are."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    match parameter.type:
        case "int":
            fits = whole
        case "float":
            fits = whole or (isinstance(value, float) and math.isfinite(value))
            value = float(value) if whole and abs(value) < 2**53 else value
        case "str":
            fits = isinstance(value, str)
        case "bool":
            fits = isinstance(value, bool)
        case _:
            fits = _is_json(value)
    if not fits:
        of = f" of {owner}" if owner else ""
        raise ValueError(f"{parameter.name!r}{of} must be {ALLOWED[parameter.type]}, not {value!r}.")
    return value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _unknown(name: str, known: tuple[str, ...], owner: str) -> str:
    from difflib import get_close_matches  # only the engine gets here; a plugin's process need not load it

    if not known:
        return f"{owner} has no parameters, so {name!r} means nothing to it."
    nearest = get_close_matches(str(name), known, n=1, cutoff=0.5)
    guess = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"{owner} has no parameter {name!r}; it has {', '.join(known)}.{guess}"
