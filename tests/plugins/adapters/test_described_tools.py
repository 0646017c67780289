"""Tools that another library describes by JSON schemas reach the model as if they were written here."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.plugins.adapters.declaring import described_tool
from marlaas.plugins.tools import schema_of

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "what to look for"},
        "limit": {"type": "integer", "default": 3},
        "order": {"type": "string", "enum": ["up", "down"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "extra": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "not a name": {"type": "string"},
    },
    "required": ["query"],
}


async def test_the_schema_comes_through() -> None:
    async def call(arguments: dict[str, Any]) -> Any:
        return arguments

    tool = described_tool("search", "Look it up.", SCHEMA, call)
    function = schema_of(tool)["function"]
    assert function["name"] == "search"
    assert function["description"] == "Look it up.\nquery: what to look for"
    assert function["parameters"]["required"] == ["query"]
    properties = function["parameters"]["properties"]
    assert {name: facts.get("type") for name, facts in properties.items()} == {
        "query": "string",
        "limit": "integer",
        "order": None,
        "tags": "array",
        "extra": None,
    }
    assert properties["order"]["enum"] == ["up", "down"] and properties["tags"]["items"] == {"type": "string"}
    assert await tool(query="x") == {"query": "x"}


@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": None}])
def test_no_arguments(schema: dict[str, Any]) -> None:
    async def call(arguments: dict[str, Any]) -> Any:
        return None

    assert schema_of(described_tool("stop", "", schema, call))["function"]["parameters"]["properties"] == {}
