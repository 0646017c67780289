"""What a person types: commands, replies, calls; and what an environment is given of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.app.cli.env_play import COMMANDS, call_of, command_of, reply_of
from marlaas.plugins.messages import Ask, Message, ToolCall
from marlaas.plugins.tools import schema_of

ASK = Ask("agent", (Message("user", "?"),))
TOOL = {
    "type": "function",
    "function": {
        "name": "buy",
        "parameters": {
            "type": "object",
            "properties": {
                "item": {"type": "string"},
                "count": {"type": "integer"},
                "gift": {"type": "boolean"},
                "colours": {"type": "array"},
                "size": {"enum": ["s", "1"]},
            },
        },
    },
}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("/call buy", {}),
        ("/call buy item=ink count=3", {"item": "ink", "count": 3}),
        ('/call buy item="blue ink" gift=true', {"item": "blue ink", "gift": True}),
        ("/call buy item=3 count=three", {"item": "3", "count": "three"}),
        ("/call buy 'colours=[\"red\"]'", {"colours": ["red"]}),
        ("/call buy size=1", {"size": "1"}),
        ('/call buy {"item": "ink", "count": 3}', {"item": "ink", "count": 3}),
        ("/call buy unknown=7 other=x=y", {"unknown": 7, "other": "x=y"}),
        ("/call buy count=NaN", {"count": "NaN"}),
    ],
)
def test_a_call_has_the_types_of_the_schema(text: str, arguments: dict[str, Any]) -> None:
    assert call_of(text, [TOOL]) == ToolCall("buy", arguments)


def test_the_schemas_of_real_tools_are_understood() -> None:
    def price(item: str, pieces: int) -> int:
        """The price."""
        return len(item) * pieces

    assert call_of("/call price item=12 pieces=12", [schema_of(price)]).arguments == {"item": "12", "pieces": 12}


@pytest.mark.parametrize(
    "text", ["/call", "/call ", "/call buy ink", "/call buy item='", "/call buy {1", "/call buy =3"]
)
def test_a_broken_call_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"call|ARGUMENT"):
        call_of(text, [TOOL])


@pytest.mark.parametrize("tools", [[], [{}], [{"function": 3}], [{"function": {"name": "buy", "parameters": []}}]])
def test_schemas_that_say_nothing_leave_json_and_texts(tools: list[dict[str, Any]]) -> None:
    assert call_of("/call buy count=3 item=ink", tools).arguments == {"count": 3, "item": "ink"}


def test_commands_are_told_from_replies() -> None:
    assert [command_of(f"/{name}") for name in COMMANDS] == list(COMMANDS)
    assert {command_of(text) for text in ("hello", "", "//quit", "/call buy", "a /quit", "/quit\nand more")} == {""}
    with pytest.raises(ValueError, match="//half"):
        command_of("/half")


def test_calls_stand_on_lines_of_their_own() -> None:
    reply = reply_of("Let me see.\n/call buy item=ink\n//sic\n/call buy item=pen", ASK, [TOOL], 3)
    assert (reply.text, reply.finish, reply.turn) == ("Let me see.\n/sic", "tool", 3)
    assert [call.arguments["item"] for call in reply.tool_calls] == ["ink", "pen"]


def test_a_reply_ends_at_the_first_stop_text() -> None:
    reply = reply_of("a; b END c", replace(ASK, stop=("END", ";")), [])
    assert (reply.text, reply.finish) == ("a", "stop")


@given(st.text())
def test_anything_else_is_the_reply_as_it_stands(text: str) -> None:
    if not any(row.strip().startswith("/") for row in text.split("\n")):
        assert command_of(text) == "" and reply_of(text, ASK, []).text == text


@given(st.text(alphabet=st.sampled_from("/cal buy={}[]\"'\\\n1t"), max_size=40))
def test_whatever_is_typed_is_a_reply_or_a_sentence(text: str) -> None:
    try:
        reply = reply_of(f"/call {text}", ASK, [TOOL])
    except ValueError:
        return
    json.dumps([call.arguments for call in reply.tool_calls], allow_nan=False)
