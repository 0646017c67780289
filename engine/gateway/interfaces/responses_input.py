"""Bodies of OpenAI's Responses interface, and its items as turns of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ..wire import Chat, Message, ToolCall, Wishes
from .exchange import Who
from .reading import (
    Likeliest,
    Part,
    Share,
    Temperature,
    Tokens,
    TopK,
    chosen,
    function,
    schema_of,
    text_of,
    unsupported,
    wrong,
)

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
LOGPROBS = "message.output_text.logprobs"


class Item(Struct):
    """One item of the input: a message, thoughts, a call of a tool or its result."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Reasoning(Struct):
    """Whether and how to think."""

    effort: str | None = None
    summary: str | None = None


class TextForm(Struct):
    """The form of the answer."""

    format: dict[str, Any] | None = None


class ResponsesBody(Struct):
    """Body of ``/v1/responses``; keys that are not here are ignored."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    top_logprobs: Likeliest | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextForm | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    stream: bool | None = None


def ask(sent: ResponsesBody, who: Who) -> Chat:
    """What this body asks of the engine. Raises ``Refusal``."""
    _refuse(sent)
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(sent.tools or ()))
    messages = [Message("system", sent.instructions)] if sent.instructions else []
    messages += [Message("user", sent.input)] if isinstance(sent.input, str) else turns(sent.input)
    likeliest = sent.top_logprobs or 0
    wishes = Wishes(
        max_tokens=sent.max_output_tokens,
        temperature=sent.temperature,
        top_p=sent.top_p,
        top_k=sent.top_k,
        logprobs=bool(likeliest) or LOGPROBS in (sent.include or ()),
        top_logprobs=likeliest,
        tool_choice=_tool_choice(sent.tool_choice, tools),
        schema=schema_of(sent.text.format if sent.text else None, "text.format"),
        thinking=None if sent.reasoning is None or sent.reasoning.effort is None else sent.reasoning.effort != "none",
    )
    return Chat(
        id=0,
        key=who.key,
        model=sent.model,
        messages=tuple(messages),
        tools=tools,
        wishes=wishes,
        stream=bool(sent.stream),
        agent=who.agent,
        once=who.once,
    )


def turns(items: Sequence[Item]) -> list[Message]:
    """The conversation: thoughts, a message and calls of tools that follow each other are one turn, as they were when
    the model answered. Raises ``Refusal``."""
    messages: list[Message] = []
    open_ = False
    """Whether the last message is a turn of the model that may go on."""
    for index, item in enumerate(items):
        where = f"input[{index}]"
        text, thinking = "", ""
        calls: tuple[ToolCall, ...] = ()
        if item.type == "message":
            if item.role not in ROLES:
                raise wrong(f"{where}.role is {item.role!r}, and must be one of {', '.join(ROLES)}.", f"{where}.role")
            text = text_of(item.content, f"{where}.content")
            if item.role != "assistant":
                messages.append(Message(ROLES[item.role], text))
                open_ = False
                continue
        elif item.type == "function_call_output" and item.call_id:
            messages.append(Message("tool", text_of(item.output, f"{where}.output"), tool_call_id=item.call_id))
            open_ = False
            continue
        elif item.type == "reasoning":
            thinking = _thoughts(item)
        elif item.type == "function_call" and item.call_id and item.name:
            calls = (ToolCall(item.call_id, item.name, item.arguments or "{}"),)
        elif item.type in ("function_call", "function_call_output"):
            raise wrong(f"{where} is a {item.type} that lacks call_id or name.", where)
        else:
            raise unsupported(f"{where} is of type {item.type!r}: only text and functions can be sent.", where)
        last = messages[-1] if open_ else None
        if last is None or (last.tool_calls and not calls) or (last.content and not calls):
            messages.append(Message("assistant", text, thinking, calls))
        else:
            thinking = "\n".join(filter(None, (last.thinking, thinking)))
            messages[-1] = Message("assistant", last.content or text, thinking, (*last.tool_calls, *calls))
        open_ = True
    return messages


def _thoughts(item: Item) -> str:
    """What the model thought: its own words, or else their summary."""
    parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
    return "\n".join(part.text for part in parts if part.text)


def _refuse(sent: ResponsesBody) -> None:
    if not sent.input:
        raise wrong("input is empty.", "input")
    if sent.previous_response_id:
        raise unsupported("Responses are not kept: send the whole conversation as input.", "previous_response_id")
    if sent.conversation:
        raise unsupported("Conversations are not kept: send the whole conversation as input.", "conversation")
    if sent.background:
        raise unsupported("background is not supported: wait for the answer, or stream it.", "background")


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        raise unsupported(f"{where} is of type {tool.get('type')!r}; functions are supported.", where)
    return function(tool.get("name"), tool.get("description"), tool.get("parameters"), where)


def _tool_choice(choice: str | dict[str, Any] | None, tools: Sequence[dict[str, Any]]) -> str:
    if choice is None or choice in ("auto", "none"):
        return str(choice or "")
    if choice == "required":
        if not tools:
            raise wrong("tool_choice is 'required', and there are no tools.", "tool_choice")
        return "required"
    if not isinstance(choice, dict) or not isinstance(choice.get("name"), str):
        raise wrong("tool_choice must be auto, none, required, or name a function.", "tool_choice")
    return chosen(choice["name"], tools)
