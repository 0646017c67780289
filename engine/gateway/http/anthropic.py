"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ...wire import Answered, Chat, Choice, Message, Piece, Refusal, ToolCall
from .exchange import (
    Body,
    Exchange,
    Form,
    Part,
    Share,
    Tokens,
    Tools,
    body as error_body,
    check,
    decode,
    event,
    schema_of,
    text_of,
    unsupported,
    wishes_of,
    wrong,
)

BILLING = "x-anthropic-billing-header:"
FINISH = {"stop": "end_turn", "length": "max_tokens", "tool": "tool_use"}


class Block(msgspec.Struct):
    """A block of a message: text, thoughts, a call of a tool or its result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Part] | None = None


class SentMessage(msgspec.Struct):
    """A message of the conversation."""

    role: str
    content: str | list[Block]


class SentTool(msgspec.Struct):
    """A tool that the model may call."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """The tool to call."""

    type: str
    name: str | None = None


class MessagesBody(Body, kw_only=True):
    """Body of ``/v1/messages``."""

    messages: list[SentMessage]
    max_tokens: Tokens
    system: str | list[Part] | None = None
    temperature: Share | None = None
    stop_sequences: list[str] | None = None
    tools: list[SentTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


class Messages(Exchange):
    """Requests to ``/v1/messages``."""

    form: Form = "anthropic"
    prefix = "msg_"
    body: type[MessagesBody] = MessagesBody

    def ask(self, body: bytes) -> Chat:
        self._block, self._open = 0, ""
        self._end_of: dict[str, str | None] = {}
        sent = decode(body, self.body)
        if not sent.messages:
            raise wrong("messages is empty.", "messages")
        for index, tool in enumerate(sent.tools or ()):
            if tool.type in (None, "custom"):
                self.tools.add(tool.name, tool.description, tool.input_schema, f"tools[{index}]")
            else:
                self.tools.leave_out("tools", tool.type)
        messages = [Message("system", text)] if (text := _system(sent.system)) else []
        for index, message in enumerate(sent.messages):
            messages += turns(message, f"messages[{index}]", self.tools)
        form = sent.output_format or (sent.output_config or {}).get("format")
        wishes = wishes_of(
            sent,
            sent.stop_sequences,
            "stop_sequences",
            max_tokens=sent.max_tokens,
            tool_choice=sent.tool_choice and _tool_choice(sent.tool_choice, self.tools),
            schema=schema_of(form, "output_config.format"),
            thinking=None if sent.thinking is None else sent.thinking.get("type") != "disabled",
        )
        return Chat(tuple(messages), self.tools.functions, model=sent.model, wishes=wishes, stream=bool(sent.stream))

    def reply(self, answer: Answered) -> dict[str, Any]:
        choice = answer.choices[0]
        blocks = [_thought(choice.thinking)] if choice.thinking else []
        if choice.text or not choice.tool_calls:
            blocks.append({"type": "text", "text": choice.text})
        blocks += [_use(call, _input(call)) for call in choice.tool_calls]
        return {**self._head(answer.model), "content": blocks, **_why(choice), "usage": _usage(answer)}

    def opening(self, prompt_tokens: int) -> Iterable[bytes]:
        unknown = {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        yield _event("message_start", message={**self._head(self.asked.model), "content": [], **unknown})

    def piece(self, piece: Piece) -> Iterable[bytes]:
        if piece.thinking:
            yield from self._add("thinking", _thought(""), {"type": "thinking_delta", "thinking": piece.thinking})
        if piece.text:
            yield from self._add("text", {"type": "text", "text": ""}, {"type": "text_delta", "text": piece.text})

    def choice(self, choice: Choice) -> Iterable[bytes]:
        for call in choice.tool_calls:
            arguments = call.arguments if choice.finish == "length" else msgspec.json.encode(_input(call)).decode()
            yield from self._add(call.id, _use(call, {}), {"type": "input_json_delta", "partial_json": arguments})
        yield from self._end()
        self._end_of = _why(choice)

    def closing(self, answer: Answered) -> Iterable[bytes]:
        yield _event("message_delta", delta=self._end_of, usage=_usage(answer))
        yield _event("message_stop")

    def broken(self, refusal: Refusal) -> bytes:
        return event(error_body(refusal, self.form), "error")

    def _head(self, model: str) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": model}

    def _add(self, name: str, block: dict[str, Any], delta: dict[str, Any]) -> Iterable[bytes]:
        if self._open != name:
            yield from self._end()
            self._open = name
            yield _event("content_block_start", index=self._block, content_block=block)
        yield _event("content_block_delta", index=self._block, delta=delta)

    def _end(self) -> Iterable[bytes]:
        if self._open:
            yield _event("content_block_stop", index=self._block)
            self._open = ""
            self._block += 1


class CountBody(MessagesBody):
    """Body of ``/v1/messages/count_tokens``: without the options of an answer."""

    max_tokens: int = 0


class CountTokens(Messages):
    """Requests to ``/v1/messages/count_tokens``: an answer without tokens."""

    body = CountBody

    def ask(self, body: bytes) -> Chat:
        asked = super().ask(body)
        return msgspec.structs.replace(asked, wishes=msgspec.structs.replace(asked.wishes, max_tokens=0), stream=False)

    def reply(self, answer: Answered) -> dict[str, Any]:
        return {"input_tokens": answer.prompt_tokens}


def _system(sent: str | list[Part] | None) -> str:
    """Without Claude Code's first line, which differs in every request: no two would share a prompt."""
    if not isinstance(sent, list):
        return sent or ""
    return text_of([part for part in sent if not (part.text or "").startswith(BILLING)], "system")


def turns(sent: SentMessage, where: str, tools: Tools) -> list[Message]:
    """A turn per tool result. Raises ``Refusal`` for content without text.

    Blocks of tools that a server would have to run are left out, with a note.
    """
    if sent.role not in ("user", "assistant", "system"):
        raise wrong(f"{where}.role is {sent.role!r}, and must be user or assistant.", f"{where}.role")
    if isinstance(sent.content, str):
        return [Message(sent.role, sent.content)]
    results, texts, thoughts, calls = [], [], [], []
    for index, block in enumerate(sent.content):
        place = f"{where}.content[{index}]"
        match block:
            case Block("text", text=str(text)):
                texts.append(text)
            case Block("thinking", thinking=str(thinking)):
                thoughts.append(thinking)
            case Block("tool_use", id=str(id), name=str(name)) if id and name:
                calls.append(ToolCall(id, name, msgspec.json.encode(block.input or {}).decode()))
            case Block("tool_result", tool_use_id=str(id)) if id:
                results.append(Message("tool", tools.result(block.content, f"{place}.content"), tool_call_id=id))
            case Block("redacted_thinking"):
                continue
            case Block(type=kind) if kind == "server_tool_use" or kind.endswith("_tool_result"):
                tools.leave_out("blocks", kind)
            case _:
                known = block.type in ("text", "thinking", "tool_use", "tool_result")
                check((known, wrong(f"{place} is a block of type {block.type!r} that lacks what it needs.", place)))
                raise unsupported(f"This model reads text alone: a block of type {block.type!r} cannot be sent.", place)
    if texts or thoughts or calls or not results:
        results.append(Message(sent.role, "\n".join(texts), "\n".join(thoughts), tuple(calls)))
    return results


def _tool_choice(choice: ToolChoice, tools: Tools) -> str:
    kinds = {"auto": "auto", "any": "required", "tool": "tool", "none": "none"}
    unknown = f"tool_choice is of type {choice.type!r}; auto, any, tool and none are known."
    check(
        (choice.type not in kinds, wrong(unknown, "tool_choice")),
        (
            choice.type == "any" and not tools.functions,
            wrong("tool_choice is 'any', and there are no tools.", "tool_choice"),
        ),
    )
    return tools.choice(kinds[choice.type], choice.name)


def _thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _use(call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


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
