"""Calls that a client forces: the reply is the bare object ``{"name": …, "arguments": …}``. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from marlaas.plugins.messages import ToolCall

from .call import read_call

ONE = "tool:"
"""Prefix of the name of the one tool to call."""
REQUIRED = "required"
"""Any tool must be called."""


def forces(choice: str) -> bool:
    """True if a ``tool_choice`` allows the model only a call."""
    return choice not in ("", "auto", "none")


def schema_of_call(choice: str, tools: Sequence[dict[str, Any]]) -> str:
    """The JSON schema of a call, as JSON; empty if nothing is forced.

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
    """The call in a reply under a schema of ``schema_of_call``; empty if the reply was cut off or holds infinite
    numbers.
    """
    text = text.strip()
    call, end = read_call(text)
    return () if call is None or end < len(text) else (call,)


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
