"""The four interfaces over HTTP: what the engine is asked, what clients hear whole or streamed, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from starlette.routing import Route

from marlaas.engine import wire
from marlaas.engine.gateway.http.anthropic import Messages
from marlaas.engine.gateway.http.exchange import Exchange, Part, decode
from marlaas.engine.gateway.http.link import Link
from marlaas.engine.gateway.http.main import Gateway, document
from marlaas.engine.gateway.http.openai import ChatCompletions, Completions
from marlaas.engine.gateway.http.responses import Responses
from marlaas.engine.gateway.limits import Limits
from marlaas.engine.wire import Refusal

from .scripted import KEY, Engine, echo, gateway, refusal_of, tool

CHAT = "/v1/chat/completions"

SAY = {"model": "base", "messages": [{"role": "user", "content": "Hi"}]}

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def test_chat_answer_and_ask_the_engine() -> None:
    body = {
        **SAY,
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I add.",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ],
        "n": 2,
        "seed": 4,
        "stop": "END",
        "max_completion_tokens": 9,
        "tools": [ADD],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "logprobs": True,
        "top_logprobs": 2,
        "a_key_that_nobody_knows": {"x": 1},
    }
    async with gateway(echo) as client:
        status, answer = await client.post(f"/e/solver{CHAT}", body)
        asked = client.engine.asked[0]
    assert status == 200
    assert answer["object"] == "chat.completion" and answer["model"] == "17@best"
    first = answer["choices"][0]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert first["message"]["content"] == "hello" and first["message"]["reasoning_content"] == "hm"
    assert first["finish_reason"] == "stop"
    assert first["logprobs"]["content"][1] == {
        "token": "llo",
        "logprob": -1.25,
        "bytes": [108, 108, 111],
        "top_logprobs": [
            {"token": "y", "logprob": -0.25, "bytes": [121]},
            {"token": "llo", "logprob": -1.25, "bytes": [108, 108, 111]},
        ],
    }
    assert answer["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 14,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert (asked.key, asked.agent, asked.model, asked.stream) == (KEY, "solver", "base", False)
    assert asked.messages == (
        wire.Message("system", "Be\nbrief"),
        wire.Message("user", "Hi"),
        wire.Message("assistant", "", "I add.", (wire.ToolCall("c", "add", "{}"),)),
        wire.Message("tool", "3", tool_call_id="c"),
    )
    assert asked.wishes == wire.Wishes(
        max_tokens=9,
        seed=4,
        stop=("END",),
        n=2,
        logprobs=True,
        top_logprobs=2,
        tool_choice="tool:add",
        schema='{"type":"object"}',
    )


async def test_a_stream_tells_all_once_and_what_it_cost() -> None:
    body = {**SAY, "stream": True, "stream_options": {"include_usage": True}, "n": 2, "logprobs": True}
    async with gateway(echo) as client:
        events = await client.stream(CHAT, body)
    assert events.pop() == ("", None)
    usage = events.pop()[1]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 14
    for index in range(2):
        rows = [data["choices"][0] for _, data in events if data["choices"][0]["index"] == index]
        assert rows[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(row["delta"].get("content", "") for row in rows) == "hello"
        assert "".join(row["delta"].get("reasoning_content", "") for row in rows) == "hm"
        tokens = [token["token"] for row in rows if row["logprobs"] for token in row["logprobs"]["content"]]
        assert tokens == ["he", "llo"]
        assert [row["finish_reason"] for row in rows] == [None] * (len(rows) - 1) + ["stop"]


async def test_a_call_of_a_tool_in_chat() -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "call_1", "type": "function", "function": function}
    async with gateway(tool) as client:
        _, answer = await client.post(CHAT, {**SAY, "tools": [ADD]})
        events = await client.stream(CHAT, {**SAY, "stream": True, "tools": [ADD]})
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("tool_calls", [call])
    deltas = [data["choices"][0]["delta"] for _, data in events if data]
    assert [call for delta in deltas for call in delta.get("tool_calls", ())] == [{"index": 0, **call}]
    assert "".join(delta.get("content", "") for delta in deltas) == "Well"


def test_thinking_by_either_word() -> None:
    for change, thinking in (
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": None, "another": 3}}, None),
        ({}, None),
    ):
        asked = ChatCompletions(json.dumps({**SAY, **change}).encode(), KEY).asked
        assert asked.wishes.thinking is thinking


COMPLETIONS = "/v1/completions"


async def test_token_prompts_in_a_batch_with_echo_and_likelihoods() -> None:
    body = {"model": "base", "prompt": [[5, 6], [5, 6, 7]], "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1}
    async with gateway(echo) as client:
        status, answer = await client.post(COMPLETIONS, body)
        asked = client.engine.asked[0]
    assert status == 200
    assert asked.prompts == ((5, 6), (5, 6, 7)) and asked.echo
    assert asked.wishes.logprobs and asked.wishes.top_logprobs == 1 and asked.wishes.max_tokens == 1
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["he", "llo"],
        "token_logprobs": [None, -1.25],
        "top_logprobs": [None, {"y": -0.25, "llo": -1.25}],
        "text_offset": [0, 2],
    }


async def test_a_stream_has_offsets_that_go_on() -> None:
    body = {"model": "base", "prompt": "Say", "stream": True, "logprobs": 2, "stream_options": {"include_usage": True}}
    async with gateway(echo) as client:
        events = await client.stream(COMPLETIONS, body)
    assert events.pop() == ("", None)
    assert events.pop()[1]["usage"]["total_tokens"] == 18
    rows = [data["choices"][0] for _, data in events]
    assert "".join(row["text"] for row in rows) == "hello"
    assert [at for row in rows if row["logprobs"] for at in row["logprobs"]["text_offset"]] == [0, 2]
    assert rows[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(("sent", "asked"), [("x", ("x",)), ([1, 2], ((1, 2),)), (["a", "b"], ("a", "b"))])
def test_each_form_of_a_prompt(sent: object, asked: object) -> None:
    request = Completions(json.dumps({"model": "base", "prompt": sent}).encode(), KEY).asked
    assert isinstance(request, wire.Complete) and request.prompts == asked and request.wishes.max_tokens == 16


RESPONSES = "/v1/responses"

ADD_ITEM = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}


async def test_responses_answer_and_ask_the_engine() -> None:
    body = {
        "model": "base",
        "instructions": "Be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Add"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "I add."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well"}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a":1}'},
            {"type": "function_call", "call_id": "d", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
            {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "4"}]},
            {"role": "assistant", "content": "One"},
            {"role": "assistant", "content": "Two"},
        ],
        "tools": [ADD_ITEM],
        "tool_choice": "required",
        "max_output_tokens": 5,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "include": ["message.output_text.logprobs"],
    }
    async with gateway(echo) as client:
        status, answer = await client.post(RESPONSES, body)
        asked = client.engine.asked[0]
    assert status == 200
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    part = answer["output"][1]["content"][0]
    assert part["text"] == "hello" and [row["token"] for row in part["logprobs"]] == ["he", "llo"]
    assert answer["status"] == "completed" and answer["usage"]["total_tokens"] == 18
    calls = (wire.ToolCall("c", "add", '{"a":1}'), wire.ToolCall("d", "add", "{}"))
    assert asked.messages == (
        wire.Message("system", "Be brief"),
        wire.Message("user", "Add"),
        wire.Message("assistant", "Well", "I add.", calls),
        wire.Message("tool", "3", tool_call_id="c"),
        wire.Message("tool", "4", tool_call_id="d"),
        wire.Message("assistant", "One"),
        wire.Message("assistant", "Two"),
    )
    assert asked.wishes.tool_choice == "required" and asked.wishes.schema == '{"type":"object"}'


async def test_what_was_answered_can_be_sent_back() -> None:
    async with gateway(tool) as client:
        _, answer = await client.post(RESPONSES, {"model": "base", "input": "Add", "tools": [ADD_ITEM]})
        sent = [{"role": "user", "content": "Add"}, *answer["output"]]
        await client.post(RESPONSES, {"model": "base", "input": sent, "tools": [ADD_ITEM]})
        call = wire.ToolCall("call_1", "add", '{"a": 1}')
        assert client.engine.asked[1].messages[1] == wire.Message("assistant", "Well", tool_calls=(call,))


@pytest.mark.parametrize("script", [echo, tool])
async def test_a_stream_ends_with_what_it_told(script: Any) -> None:
    async with gateway(script) as client:
        events = await client.stream(RESPONSES, {"model": "base", "input": "Hi", "stream": True, "tools": [ADD_ITEM]})
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [name for name, _ in events][:2] == ["response.created", "response.in_progress"]
    response = events[-1][1]["response"]
    assert events[-1][0] == "response.completed"
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert response["output"] == done
    text = "".join(data["delta"] for name, data in events if name == "response.output_text.delta")
    message = next(item for item in done if item["type"] == "message")
    assert message["content"][0]["text"] == text == ("hello" if script is echo else "Well")
    if script is tool:
        assert done[-1]["arguments"] == '{"a": 1}' and done[-1]["call_id"] == "call_1"


async def test_an_answer_that_was_cut_is_incomplete() -> None:
    async def cut(engine: Any, request: Any) -> None:
        engine.say(wire.Answered((wire.Choice(0, "hel", "length"),), "base", 1, 3, id=request.id))

    async with gateway(cut) as client:
        _, answer = await client.post(RESPONSES, {"model": "base", "input": "Hi"})
        events = await client.stream(RESPONSES, {"model": "base", "input": "Hi", "stream": True})
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1][0] == "response.incomplete"


async def test_the_engines_refusals_name_its_parameters() -> None:
    async def refuses(engine: Engine, request: Any) -> None:
        before = (wire.Piece(request.id, 0, text="he"),) if request.stream else ()
        engine.say(*before, wire.Refused(request.id, 400, "invalid_request", "No.", "response_format"))

    body = {"model": "base", "input": "Add"}
    async with gateway(refuses) as client:
        _, refused = await client.post(RESPONSES, body)
        events = await client.stream(RESPONSES, {**body, "stream": True})
    assert [(error["message"], error["param"]) for error in (refused["error"], events[-1][1])] == [
        ("No.", "text.format")
    ] * 2


ANTHROPIC = "/v1/messages"

TALK: dict[str, Any] = {"model": "base", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}

ADDING = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}


async def test_anthropic_answer_and_ask_the_engine() -> None:
    body = {
        **TALK,
        "system": [{"type": "text", "text": "Be brief"}],
        "messages": [
            {"role": "user", "content": "Add"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I add.", "signature": ""},
                    {"type": "text", "text": "Well"},
                    {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "Go on"},
                ],
            },
        ],
        "stop_sequences": ["END"],
        "top_k": 5,
        "tools": [ADDING],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
    }
    async with gateway(echo) as client:
        client.headers = {"x-api-key": KEY}
        status, answer = await client.post(ANTHROPIC, body)
        asked = client.engine.asked[0]
    assert status == 200
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    assert answer["content"] == [thought, {"type": "text", "text": "hello"}]
    assert answer["stop_reason"] == "end_turn" and answer["type"] == "message"
    assert answer["usage"]["input_tokens"] == 7 and answer["usage"]["cache_read_input_tokens"] == 4
    assert asked.key == KEY
    assert asked.messages == (
        wire.Message("system", "Be brief"),
        wire.Message("user", "Add"),
        wire.Message("assistant", "Well", "I add.", (wire.ToolCall("c", "add", '{"a":1}'),)),
        wire.Message("tool", "3", tool_call_id="c"),
        wire.Message("user", "Go on"),
    )
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert asked.tools == ({"type": "function", "function": function},)
    wishes = wire.Wishes(max_tokens=9, top_k=5, stop=("END",), tool_choice="required", thinking=False)
    assert asked.wishes == wishes


async def test_a_stream_has_a_block_of_each_kind() -> None:
    async with gateway(echo) as client:
        events = await client.stream(ANTHROPIC, {**TALK, "stream": True})
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [data["index"] for _, data in events[1:8]] == [0, 0, 0, 1, 1, 1, 1]
    assert events[-2][1]["delta"]["stop_reason"] == "end_turn" and events[-2][1]["usage"]["output_tokens"] == 7


async def test_a_call_of_a_tool_in_anthropic() -> None:
    body = {**TALK, "tools": [ADDING]}
    async with gateway(tool) as client:
        _, answer = await client.post(ANTHROPIC, body)
        events = await client.stream(ANTHROPIC, {**body, "stream": True})
    assert answer["stop_reason"] == "tool_use"
    assert answer["content"][1] == {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}
    assert [data["delta"] for name, data in events if name == "content_block_delta"] == [
        {"type": "text_delta", "text": "Well"},
        {"type": "input_json_delta", "partial_json": '{"a":1}'},
    ]


async def test_a_text_that_ended_it_is_named() -> None:
    async def stopped(engine: Engine, request: Any) -> None:
        choice = wire.Choice(0, "he", "stop", stopped="END")
        engine.say(wire.Answered((choice,), "base", 3, 5, id=request.id))

    body = {**TALK, "stop_sequences": ["END"]}
    async with gateway(stopped) as client:
        _, whole = await client.post(ANTHROPIC, body)
        streamed = (await client.stream(ANTHROPIC, {**body, "stream": True}))[-2][1]["delta"]
    assert [(end["stop_reason"], end["stop_sequence"]) for end in (whole, streamed)] == [("stop_sequence", "END")] * 2


INTERFACES: dict[Callable[[bytes, str], Exchange], dict[str, Any]] = {
    ChatCompletions: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    Completions: {"model": "m", "prompt": "x"},
    Responses: {"model": "m", "input": "x"},
    Messages: {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]},
}

each = pytest.mark.parametrize("interface", INTERFACES)


@pytest.mark.parametrize(
    ("interface", "change", "where", "words"),
    [
        (ChatCompletions, {"temperature": "hot"}, "temperature", "Expected `float"),
        (ChatCompletions, {"temperature": -0.1}, "temperature", ">= 0"),
        (ChatCompletions, {"presence_penalty": 2.5}, "presence_penalty", "<= 2"),
        (ChatCompletions, {"n": 0}, "n", ">= 1"),
        (ChatCompletions, {"n": 65}, "n", "<= 64"),
        (ChatCompletions, {"max_tokens": -1}, "max_tokens", ">= 1"),
        (ChatCompletions, {"messages": []}, "messages", "empty"),
        (ChatCompletions, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
        (
            ChatCompletions,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "text alone",
        ),
        (ChatCompletions, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "tool_call_id"),
        (ChatCompletions, {"top_logprobs": 3}, "top_logprobs", "logprobs"),
        (ChatCompletions, {"tools": [{"type": "function"}]}, "tools[0]", "no function"),
        (ChatCompletions, {"tool_choice": {"type": "web_search"}}, "tool_choice", "nobody here could run"),
        (ChatCompletions, {"tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice", "'gone'"),
        (ChatCompletions, {"tool_choice": "required"}, "tool_choice", "no tools"),
        (
            ChatCompletions,
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format",
            "no schema",
        ),
        (ChatCompletions, {"response_format": {"type": "xml"}}, "response_format", "'xml'"),
        (ChatCompletions, {"functions": [{}]}, "functions", "send tools"),
        (ChatCompletions, {"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        (ChatCompletions, {"stop": ["a"] * 17}, "stop", "16"),
        (ChatCompletions, {"stop": "a" * 501}, "stop", "500"),
        (ChatCompletions, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
        (ChatCompletions, {"tools": [{"function": {"name": "x" * 129}}]}, "tools[0]", "128"),
        (ChatCompletions, {"seed": 1 << 70}, "seed", "<="),
        (
            ChatCompletions,
            {"chat_template_kwargs": {"enable_thinking": "no"}},
            "chat_template_kwargs.enable_thinking",
            "bool",
        ),
        (Completions, {"prompt": []}, "prompt", ""),
        (Completions, {"prompt": [1, "a"]}, "prompt", ""),
        (Completions, {"prompt": [[]]}, "prompt", ""),
        (Completions, {"prompt": [-1]}, "prompt[0]", ""),
        (Completions, {"prompt": {"a": 1}}, "prompt", ""),
        (Completions, {"prompt": ["x"] * 1025}, "prompt", ""),
        (Completions, {"prompt": ["x"] * 1000, "n": 100}, "n", ""),
        (Completions, {"suffix": "end"}, "suffix", ""),
        (Completions, {"best_of": 3}, "best_of", ""),
        (Completions, {"max_tokens": 0}, "max_tokens", ""),
        (Completions, {"logprobs": 21}, "logprobs", ""),
        (Responses, {"input": []}, "input", ""),
        (Responses, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", ""),
        (Responses, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content", ""),
        (Responses, {"input": [{"type": "function_call", "name": "x"}]}, "input[0]", ""),
        (Responses, {"previous_response_id": "resp_1"}, "previous_response_id", ""),
        (Responses, {"conversation": "c"}, "conversation", ""),
        (Responses, {"background": True}, "background", ""),
        (Responses, {"tools": [{"type": "namespace", "name": "a"}]}, "tools[0]", "without name or tools"),
        (Responses, {"tool_choice": {"type": "web_search_preview"}}, "tool_choice", "nobody here could run"),
        (Messages, {"max_tokens": None}, "", "max_tokens"),
        (Messages, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "", "text alone"),
        (Messages, {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "", "lacks"),
        (Messages, {"messages": [{"role": "robot", "content": "x"}]}, "", "robot"),
        (
            Messages,
            {
                "tools": [{"type": "bash_20250124", "name": "bash"}],
                "tool_choice": {"type": "tool", "name": "bash"},
            },
            "tool_choice",
            "'bash', which is not among the tools",
        ),
        (Messages, {"tool_choice": {"type": "tool", "name": "x"}}, "", "'x'"),
        (Messages, {"tool_choice": {"type": "any"}}, "", "tool_choice is 'any', and there are no tools."),
        (
            Messages,
            {"tools": [ADDING], "tool_choice": {"type": "required"}},
            "",
            "tool_choice is of type 'required'; auto, any, tool and none are known.",
        ),
    ],
)
def test_what_is_wrong_is_named(
    interface: Callable[[bytes, str], Exchange], change: dict[str, Any], where: str, words: str
) -> None:
    refusal = refusal_of(interface, {**INTERFACES[interface], **change})
    assert (refusal.where == where or not where) and words in refusal.message


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (r'"a\ud83d b"', "a\ufffd b"),
        (r'"\uDE00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\\ud83d"', "\\ud83d"),
    ],
)
def test_half_a_character_is_valid_json(sent: str, text: str) -> None:
    body = f'{{"type": "text", "text": {sent}}}'.encode()
    assert decode(body, Part).text == text


def test_what_is_no_json_beside_half_a_character_is_refused() -> None:
    for body in (rb'{"text": "\ud83d"', rb'{"type": "x", "text": NaN, "a": "\ud83d"}'):
        with pytest.raises(Refusal, match="The body is no JSON"):
            decode(body, Part)


def test_every_route_is_described() -> None:
    routes = [route for route in Gateway(Link(), Limits()).application.routes if isinstance(route, Route)]
    served = {route.path.replace("{id:path}", "{id}"): {*(route.methods or {"GET"})} - {"HEAD"} for route in routes}
    told = {path: {method.upper() for method in methods} for path, methods in document()["paths"].items()}
    assert told == served


def test_all_that_it_refers_to_is_there() -> None:
    text = json.dumps(document())
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', text))
    assert references and all(reduce(getitem, name.split("/"), json.loads(text)) for name in references)
    for path, methods in json.loads(text)["paths"].items():
        named = {parameter["name"] for method in methods.values() for parameter in method["parameters"]}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}


SEARCH = {"type": "web_search", "filters": None}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent",
    "tools": [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("spawn", "add")],
}


async def calling(engine: Engine, request: Any) -> None:
    """Calls every tool that it is offered."""
    names = [offered["function"]["name"] for offered in request.tools]
    arguments = {"apply_patch": '{"input": "*** Begin Patch"}'}
    calls = tuple(wire.ToolCall(f"c{n}", name, arguments.get(name, "{}")) for n, name in enumerate(names))
    engine.say(wire.Answered((wire.Choice(0, "", "tool", tool_calls=calls),), "base", 3, 5, id=request.id))


async def test_tools_that_are_no_functions_of_responses() -> None:
    """As Codex sends them at its defaults."""
    body = {"model": "base", "input": "Hi", "tools": [ADD_ITEM, SEARCH, AGENTS, PATCH]}
    async with gateway(calling) as client:
        status, answer, headers = await client.posted(RESPONSES, body)
        events = await client.stream(RESPONSES, {**body, "stream": True})
        asked = client.engine.asked[0]
    assert status == 200 and headers["x-marlaas-ignored"] == "tools of type web_search"
    assert [each["function"]["name"] for each in asked.tools] == ["add", "spawn", "multi_agent__add", "apply_patch"]
    assert "(lark):\nstart: X" in asked.tools[-1]["function"]["description"]
    told = [{key: item.get(key) for key in ("type", "name", "namespace", "input")} for item in answer["output"]]
    assert told == [
        {"type": "function_call", "name": "add", "namespace": None, "input": None},
        {"type": "function_call", "name": "spawn", "namespace": "multi_agent", "input": None},
        {"type": "function_call", "name": "add", "namespace": "multi_agent", "input": None},
        {"type": "custom_tool_call", "name": "apply_patch", "namespace": None, "input": "*** Begin Patch"},
    ]
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert [{**item, "id": ""} for item in done] == [{**item, "id": ""} for item in answer["output"]]
    (text,) = [data["input"] for name, data in events if name == "response.custom_tool_call_input.done"]
    assert text == "*** Begin Patch"

    # the next request sends what was answered, and results, some with what no model here can read
    seen = [{"type": "input_image"}, {"type": "input_text", "text": "ok"}]
    results = [
        {"type": "custom_tool_call_output", "call_id": "c3", "output": seen},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "c0", "output": "3"},
    ]
    async with gateway(calling) as client:
        status, _, headers = await client.posted(RESPONSES, {**body, "input": [*done, *results]})
        (asked,) = client.engine.asked
    assert status == 200
    first, *rest = asked.messages
    assert [(call.name, call.arguments) for call in first.tool_calls][1:] == [
        ("spawn", "{}"),
        ("multi_agent__add", "{}"),
        ("apply_patch", '{"input":"*** Begin Patch"}'),
    ]
    assert [message.content for message in rest] == [
        "[input_image: left out, since this model reads text alone]\nok",
        "3",
    ]
    assert headers["x-marlaas-ignored"].split("; ") == [
        "tools of type web_search",
        "parts of results of type input_image",
        "items of type web_search_call",
    ]


async def test_tools_that_are_no_functions_of_chat_completions() -> None:
    custom = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [custom]}}
    body = {**SAY, "tools": [ADD, custom, {"type": "web_search"}], "tool_choice": allowed}
    async with gateway(calling) as client:
        _, answer, headers = await client.posted(CHAT, body)
        message = answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "c0", "content": [{"type": "tool_reference", "tool_name": "add"}]}
        await client.post(CHAT, {**body, "messages": [message, result]})
        first, second = client.engine.asked
    assert headers["x-marlaas-ignored"] == "tools of type web_search"
    assert [each["function"]["name"] for each in first.tools] == ["apply_patch"]
    assert first.wishes.tool_choice == "required"
    (call,) = message["tool_calls"]
    assert call == {"id": "c0", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin Patch"}}
    assert second.messages[0].tool_calls == (wire.ToolCall("c0", "apply_patch", '{"input":"*** Begin Patch"}'),)
    assert second.messages[1].content == "add"


async def test_what_claude_code_sends() -> None:
    """A line that differs in every request, tools and blocks of servers, and a count of tokens."""
    body = {
        **TALK,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: a; cch=1"},
            {"type": "text", "text": "Be brief."},
        ],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}, {"name": "add", "input_schema": {}}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]},
        ],
        "thinking": {"type": "adaptive"},
    }
    async with gateway(echo) as client:
        _, _, headers = await client.posted(ANTHROPIC, body)
        _, counted = await client.post(f"{ANTHROPIC}/count_tokens", {**body, "max_tokens": 9, "stream": True})
        events = await client.stream(ANTHROPIC, {**body, "stream": True})
        asked, count, _ = client.engine.asked
    assert asked.messages[0].content == "Be brief." and asked.wishes.thinking is True
    assert [each["function"]["name"] for each in asked.tools] == ["add"]
    assert count.messages == asked.messages and count.wishes.max_tokens == 0
    assert counted == {"input_tokens": 11}
    assert events[0][1]["message"]["usage"]["input_tokens"] == 11
    assert headers["x-marlaas-ignored"].split("; ") == [
        "tools of type web_search_20250305",
        "blocks of type server_tool_use",
        "parts of results of type image",
    ]
