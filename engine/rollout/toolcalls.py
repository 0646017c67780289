"""Tool calls in a model's text. Anything else stays text. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from marlaas.plugins.messages import ToolCall, within_limits

from ..samplers.vocabulary import well_formed

Form = Callable[[str, bool], tuple[str, tuple[ToolCall, ...]]]
"""(text, True with tools) to (text without calls, calls in order)."""
LONGEST_NAME = 128
"""As on the wire to environments."""
ARGUMENTS = ("arguments", "parameters")
"""Hermes' and Llama's."""


def read_call(text: str, start: int = 0, bare: bool = False) -> tuple[ToolCall | None, int]:
    """The call at ``start``, and its JSON's end.

    None if malformed, too large, or with other keys. Models mix up ``arguments`` and ``parameters``; ``bare``: a name
    without them is a call.
    """
    try:
        value, end = _DECODER.raw_decode(text, _SPACE.match(text, start).end())  # type: ignore[union-attr]
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
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON.")


_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


# Hermes and Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, anywhere, any number.

HERMES = "<tool_call>"
MOST_BROKEN = 256
"""Then the rest is text: each costs a search."""
_CLOSING = re.compile(r"\s*</tool_call>")


def split_hermes(text: str, tools: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without well-formed calls, and the calls.

    An incomplete tag is text up to the next tag.
    """
    calls: list[ToolCall] = []
    rest: list[str] = []
    at = looked = broken = 0
    while broken < MOST_BROKEN and (start := text.find(HERMES, looked)) >= 0:
        looked = start + len(HERMES)
        call, end = read_call(text, looked, bare=True)
        closing = _CLOSING.match(text, end)
        if call is not None and closing:
            calls.append(call)
            rest.append(text[at:start])
            at = looked = closing.end()
        else:
            broken += 1
    rest.append(text[at:])
    whole = "".join(rest)
    return (whole.strip() if calls else whole), tuple(calls)


# Llama 3: the whole reply is ``{"name": …, "parameters": {…}}``, perhaps behind ``<|python_tag|>``. Without tools and
# tag it is an answer.

LLAMA = "<|python_tag|>"


def split_llama(text: str, tools: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """Empty text and the call, or the text."""
    body = text.strip()
    tagged = body.startswith(LLAMA)
    if not (tools or tagged):
        return text, ()
    body = body.removeprefix(LLAMA).lstrip()
    call, end = read_call(body)
    return (text, ()) if call is None or end < len(body) else ("", (call,))


def form_of(template: str, control: Collection[str]) -> Form:
    """The template's, else its control tokens'."""
    is_llama = HERMES not in template and (LLAMA in control or '"parameters"' in template)
    return split_llama if is_llama else split_hermes


# A forced reply is the bare object ``{"name": …, "arguments": …}``.

ONE = "tool:"
"""Before the tool's name."""
REQUIRED = "required"
"""Any tool."""


def forces(choice: str) -> bool:
    """True: only a call is allowed."""
    return choice not in ("", "auto", "none")


def schema_of_call(choice: str, tools: Sequence[dict[str, Any]]) -> str:
    """JSON; empty if nothing is forced.

    ``tools`` have OpenAI's form. Raises ``ValueError`` for an unknown choice, or one that no tool meets.
    """
    if not forces(choice):
        return ""
    name = choice.removeprefix(ONE) if choice.startswith(ONE) else ""
    if not name and choice != REQUIRED:
        raise ValueError(f"tool_choice cannot be {choice[:128]!r}.")
    chosen = [function for function in map(_function, tools) if name in ("", function["name"])]
    if not chosen:
        raise ValueError(f"tool_choice wants {name[:128] or 'a tool'}, which is not among the tools.")
    schemas = [_schema(number, function) for number, function in enumerate(chosen)]
    return json.dumps(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})


def forced_call(text: str) -> tuple[ToolCall, ...]:
    """Empty if cut off, or with infinite numbers."""
    text = text.strip()
    call, end = read_call(text)
    return () if call is None or end < len(text) else (call,)


_CUT = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(.*)', re.DOTALL)


def cut_call(text: str) -> tuple[str, str] | None:
    """Name and the beginning of the arguments of a forced call that was cut off after its name."""
    found = _CUT.fullmatch(text.strip())
    return None if found is None else (str(json.loads(found[1])), found[2])


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError("A tool that may be forced is a function with a name.")
    return function


def _schema(number: int, function: dict[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    arguments = parameters if isinstance(parameters, dict) and parameters else {"type": "object"}
    if arguments.get("type", "object") != "object":
        raise ValueError(f"The parameters of the tool {function['name'][:128]!r} are of another type than object.")
    own = {"$id": f"urn:tool:{number}", "type": "object", **arguments}  # references count from here, not from the call
    fields = {"name": {"const": function["name"]}, "arguments": own}
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
