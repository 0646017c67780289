"""An environment's settings: read from the signature of its function, checked against a task's configuration.

A configuration is completed with defaults. Errors are sentences for the person who wrote the task file.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args, get_origin

from .json_values import not_json
from .messages import within_limits

ALLOWED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "json": "a value that JSON can hold",
}
_SCALARS: dict[object, str] = {int: "int", float: "float", str: "str", bool: "bool"}


@dataclass(frozen=True)
class Range:
    """The bounds of a number, both allowed: ``digits: Annotated[int, Range(1, 4)] = 2``; None leaves a side open."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Parameter:
    """One typed keyword parameter of an environment function."""

    name: str
    type: str
    """int, float, str, bool or json"""
    default: Any
    required: bool = False
    low: int | float | None = None
    """The least that a number may be."""
    high: int | float | None = None
    """The most that a number may be."""
    choices: tuple[int | str, ...] = ()
    """All values that are allowed; empty if any is."""

    @property
    def allowed(self) -> str:
        """What its value must be, for the end of a sentence."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        kind = ALLOWED[self.type]
        if self.low is not None and self.high is not None:
            return f"{kind} from {self.low} to {self.high}"
        if self.low is not None:
            return f"{kind}, at least {self.low}"
        return kind if self.high is None else f"{kind}, at most {self.high}"


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with real types where the annotations can be resolved, else as written."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # an annotation may name anything, and evaluating it may raise anything
        return inspect.signature(function)


def type_name(annotation: Any) -> str | None:
    """``int``, ``float``, ``str``, ``bool`` or ``json`` for an annotation; None if it is none of these.

    A ``Literal`` is of the type of its values, if they are all texts or all whole numbers.
    """
    if get_origin(annotation) is Literal:
        kinds = {type(choice) for choice in get_args(annotation)}
        return _SCALARS[kinds.pop()] if kinds in ({int}, {str}) else None
    if annotation in ("int", "float", "str", "bool"):
        return str(annotation)
    if annotation in (list, dict, Any) or get_origin(annotation) in (list, dict):
        return "json"
    return _SCALARS.get(annotation) if isinstance(annotation, type) else None


def parameters_of(function: Callable[..., Any], given: int = 1) -> tuple[Parameter, ...]:
    """The settings of an environment function: every parameter but ``task`` and the first ones, as many as ``given``.

    Raises ``TypeError`` or ``ValueError`` for one that no task file could set, or whose default is not allowed.
    """
    return tuple(
        _parameter(name, parameter, f"parameter {name!r} of {function.__name__}")
        for name, parameter in list(signature_of(function).parameters.items())[given:]
        if name != "task"
    )


def complete(parameters: Sequence[Parameter], config: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """``config`` with every default filled in; ``ValueError`` explains what is wrong with it."""
    known = {parameter.name: parameter for parameter in parameters}
    for name in config:
        if name not in known:
            raise ValueError(_unknown(name, tuple(known), owner))
    values = {}
    for name, parameter in known.items():
        if name in config:
            values[name] = checked(parameter, config[name], owner)
        elif parameter.required:
            raise ValueError(f"{owner} needs {name!r}: {parameter.allowed}.")
        else:
            values[name] = parameter.default
    return values


def checked(parameter: Parameter, value: Any, owner: str = "") -> Any:
    """``value`` as the parameter's type; whole numbers are welcome where numbers are.

    Raises ``ValueError``, one sentence, if it is of another type, out of bounds, none of the choices, or larger than
    anything that is sent to an environment's process or comes from it.
    """
    of = f" of {owner}" if owner else ""
    within_limits(value, f"{parameter.name!r}{of}")
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
            fits = not not_json(value)
    if not fits or not _within(parameter, value):
        raise ValueError(f"{parameter.name!r}{of} must be {parameter.allowed}, not {value!r}.")
    return value


def _parameter(name: str, parameter: inspect.Parameter, what: str) -> Parameter:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise TypeError(f"{what} must be a plain keyword parameter")
    required = parameter.default is parameter.empty
    default = None if required else parameter.default
    annotation = type(default) if parameter.annotation is parameter.empty and not required else parameter.annotation
    bounds = Range()
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        bounds = next((note for note in notes if isinstance(note, Range)), bounds)
    kind = type_name(annotation)
    if kind is None:
        raise TypeError(
            f"{what} needs a type and may be int, float, str, bool, list, dict, or a Literal of texts or whole numbers"
        )
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    if bounds != Range():
        _check_bounds(bounds, kind, choices, what)
    entry = Parameter(name, kind, default, required, bounds.low, bounds.high, choices)
    return entry if required else replace(entry, default=checked(entry, default))


def _check_bounds(bounds: Range, kind: str, choices: tuple[int | str, ...], what: str) -> None:
    if kind not in ("int", "float") or choices:
        raise TypeError(f"{what} has a Range, which is for int and float alone")
    ends = [end for end in (bounds.low, bounds.high) if end is not None]
    if any(isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end) for end in ends):
        raise TypeError(f"{what} has a Range whose ends are not finite numbers")
    if ends != sorted(ends):
        raise ValueError(f"{what} has a Range from {bounds.low} to {bounds.high}, which holds nothing")


def _within(parameter: Parameter, value: Any) -> bool:
    if parameter.low is not None and value < parameter.low:
        return False
    if parameter.high is not None and value > parameter.high:
        return False
    return not parameter.choices or value in parameter.choices


def _unknown(name: str, known: tuple[str, ...], owner: str) -> str:
    from difflib import get_close_matches  # only the engine gets here; a plugin's process need not load it

    if not known:
        return f"{owner} has no parameters, so {name!r} means nothing to it."
    nearest = get_close_matches(str(name), known, n=1, cutoff=0.5)
    guess = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"{owner} has no parameter {name!r}; it has {', '.join(known)}.{guess}"
