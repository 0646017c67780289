"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ...wire import Answered, Chat, Choice, Message, Piece, Refusal, ToolCall, Wishes
from .exchange import (
    Exchange,
    Form,
    Part,
    Share,
    Tokens,
    TopK,
    Who,
    body as error_body,
    chosen,
    decode,
    event,
    function,
    schema_of,
    stops,
    text_of,
    unsupported,
    wrong,
)

FINISH = {"stop": "end_turn", "length": "max_tokens", "tool": "tool_use"}


class Block(Struct):
    """A block of a message: text, thoughts, a call of a tool or its result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Part] | None = None


class SentMessage(Struct):
    """A message of the conversation."""

    role: str
    content: str | list[Block]


class Thinking(Struct):
    """True or false: think."""

    type: str


class SentTool(Struct):
    """A tool that the model may call."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Struct):
    """The tool to call."""

    type: str
    name: str | None = None


class OutputConfig(Struct):
    """The form of the answer."""

    format: dict[str, Any] | None = None


class MessagesBody(Struct):
    """Body of ``/v1/messages``; unknown keys are ignored."""

    model: str
    messages: list[SentMessage]
    max_tokens: Tokens
    system: str | list[Part] | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    stop_sequences: list[str] | None = None
    tools: list[SentTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    stream: bool | None = None


class Messages(Exchange):
    """Requests to ``/v1/messages``."""

    form: Form = "anthropic"

    def __init__(self, body: bytes, who: Who) -> None:
        sent = decode(body, MessagesBody)
        if not sent.messages:
            raise wrong("messages is empty.", "messages")
        super().__init__("msg_")
        self._block = 0
        self._open = ""
        self._end_of: dict[str, str | None] = {}
        messages = [Message("system", text_of(sent.system, "system"))] if sent.system else []
        for index, one in enumerate(sent.messages):
            messages += turns(one, f"messages[{index}]")
        tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(sent.tools or ()))
        self.asked = Chat(
            id=0,
            key=who.key,
            model=sent.model,
            messages=tuple(messages),
            tools=tools,
            wishes=_wishes(sent, tools),
            stream=bool(sent.stream),
            agent=who.agent,
            once=who.once,
            retry=who.retry,
        )

    def reply(self, answer: Answered) -> dict[str, Any]:
        choice = answer.choices[0]
        blocks: list[dict[str, Any]] = []
        if choice.thinking:
            blocks.append({"type": "thinking", "thinking": choice.thinking, "signature": ""})
        if choice.text or not choice.tool_calls:
            blocks.append({"type": "text", "text": choice.text})
        blocks += [
            {"type": "tool_use", "id": one.id, "name": one.name, "input": _input(one)} for one in choice.tool_calls
        ]
        return {
            **self._head(answer.model),
            "content": blocks,
            **_why(choice),
            "usage": _usage(answer),
        }

    def opening(self) -> Iterable[bytes]:
        message = {
            **self._head(self.asked.model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        yield _event("message_start", message=message)

    def piece(self, piece: Piece, offset: int) -> Iterable[bytes]:
        if piece.thinking:
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": piece.thinking})
        if piece.text:
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})

    def choice(self, choice: Choice) -> Iterable[bytes]:
        for call in choice.tool_calls:
            yield from self._end()
            yield from self._begin("tool_use", {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            arguments = msgspec.json.encode(_input(call)).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})
        yield from self._end()
        self._end_of = _why(choice)

    def closing(self, answer: Answered) -> Iterable[bytes]:
        yield _event("message_delta", delta=self._end_of, usage=_usage(answer))
        yield _event("message_stop")

    def broken(self, refusal: Refusal) -> bytes:
        return event(error_body(refusal, self.form), "error")

    def _head(self, model: str) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": model}

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterable[bytes]:
        if self._open != kind:
            yield from self._end()
            self._open = kind
            yield _event("content_block_start", index=self._block, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._block, delta=delta)

    def _end(self) -> Iterable[bytes]:
        if self._open:
            yield _event("content_block_stop", index=self._block)
            self._open = ""
            self._block += 1


def turns(sent: SentMessage, where: str) -> list[Message]:
    """A message as our turns: each result of a tool is a separate one. Raises ``Refusal`` for content without text."""
    if sent.role not in ("user", "assistant", "system"):
        raise wrong(f"{where}.role is {sent.role!r}, and must be user or assistant.", f"{where}.role")
    if isinstance(sent.content, str):
        return [Message(sent.role, sent.content)]
    results, texts, thoughts, calls = [], [], [], []
    for index, block in enumerate(sent.content):
        place = f"{where}.content[{index}]"
        if block.type == "text" and block.text is not None:
            texts.append(block.text)
        elif block.type == "thinking" and block.thinking is not None:
            thoughts.append(block.thinking)
        elif block.type == "tool_use" and block.id and block.name:
            arguments = msgspec.json.encode(block.input or {}).decode()
            calls.append(ToolCall(block.id, block.name, arguments))
        elif block.type == "tool_result" and block.tool_use_id:
            content = text_of(block.content, f"{place}.content")
            results.append(Message("tool", content, tool_call_id=block.tool_use_id))
        elif block.type in ("text", "thinking", "tool_use", "tool_result"):
            raise wrong(f"{place} is a block of type {block.type!r} that lacks what it needs.", place)
        elif block.type != "redacted_thinking":
            raise unsupported(f"This model reads text alone: a block of type {block.type!r} cannot be sent.", place)
    if texts or thoughts or calls or not results:
        results.append(Message(sent.role, "\n".join(texts), "\n".join(thoughts), tuple(calls)))
    return results


def _tool(tool: SentTool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise unsupported(f"{where} is of type {tool.type!r}; tools with a schema of their own are supported.", where)
    return function(tool.name, tool.description, tool.input_schema, where)


def _wishes(sent: MessagesBody, tools: Sequence[dict[str, Any]]) -> Wishes:
    form = sent.output_format or (sent.output_config.format if sent.output_config else None)
    return Wishes(
        max_tokens=sent.max_tokens,
        temperature=sent.temperature,
        top_p=sent.top_p,
        top_k=sent.top_k,
        stop=stops(sent.stop_sequences, "stop_sequences"),
        tool_choice=_tool_choice(sent.tool_choice, tools),
        schema=schema_of(form, "output_config.format"),
        thinking=None if sent.thinking is None else sent.thinking.type != "disabled",
    )


def _tool_choice(choice: ToolChoice | None, tools: Sequence[dict[str, Any]]) -> str:
    if choice is None:
        return ""
    if choice.type == "tool":
        return chosen(choice.name or "", tools)
    if choice.type not in ("auto", "any", "none"):
        raise wrong(f"tool_choice is of type {choice.type!r}; auto, any, tool and none are known.", "tool_choice")
    if choice.type == "any" and not tools:
        raise wrong("tool_choice is 'any', and there are no tools.", "tool_choice")
    return "required" if choice.type == "any" else choice.type


def _why(choice: Choice) -> dict[str, str | None]:
    if choice.stopped and choice.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stopped}
    return {"stop_reason": FINISH.get(choice.finish, choice.finish), "stop_sequence": None}


def _input(call: ToolCall) -> dict[str, Any]:
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {"arguments": call.arguments}


def _usage(answer: Answered) -> dict[str, Any]:
    return {
        "input_tokens": max(0, answer.prompt_tokens - answer.cached_tokens),
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": answer.completion_tokens,
    }


def _event(name: str, /, **data: Any) -> bytes:
    return event({"type": name, **data}, name)
