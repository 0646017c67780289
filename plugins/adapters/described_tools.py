"""Makes functions of tools with a name, a description and a JSON schema, for agents.

The signature repeats the schema, so the model reads one form of schema for all tools.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from ..tools import Tool

Call = Callable[[dict[str, Any]], Awaitable[Any]]
_TYPES: dict[object, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def described_tool(name: str, description: str, schema: Mapping[str, Any], call: Call) -> Tool:
    """A function of that name; ``schema``: the JSON schema of its arguments, an object with properties.

    Facts that a signature cannot express, such as bounds, are left to the tool; descriptions of arguments go into its
    docstring.
    """

    async def tool(**arguments: Any) -> Any:
        return await call(arguments)

    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    required = schema.get("required") or ()
    usable = {argument: facts for argument, facts in properties.items() if argument.isidentifier()}
    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = "\n".join([description, *_about(usable)]).strip()
    tool.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                argument,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if argument in required else facts.get("default"),
                annotation=_annotation(facts),
            )
            for argument, facts in usable.items()
        ]
    )
    return tool


def _about(properties: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"{name}: {facts['description']}" for name, facts in properties.items() if facts.get("description")]


def _annotation(facts: Mapping[str, Any]) -> Any:
    if facts.get("enum"):
        return Literal[tuple(facts["enum"])]
    kind = facts.get("type")
    found = _TYPES.get(kind) if isinstance(kind, str) else None
    if found is None:
        return Any
    inner = facts.get("items")
    if found is list and isinstance(inner, Mapping) and (of := _annotation(inner)) is not Any:
        return list[of]  # type: ignore[valid-type]
    return found
