"""OpenAI's Responses: bodies and items in, one answer as items out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from ...wire import Answered, Chat, Choice, Message, Piece, Refusal, Token, ToolCall, Wishes
from . import openai
from .exchange import (
    Exchange,
    Likeliest,
    Part,
    Share,
    Temperature,
    Tokens,
    TopK,
    Who,
    check,
    decode,
    event,
    function,
    new_id,
    parameter,
    schema_of,
    text_of,
    tool_choice,
    unsupported,
    wrong,
)

# Bodies of OpenAI's Responses interface, and its items as turns of a conversation.

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
    """How to think."""

    effort: str | None = None
    summary: str | None = None


class TextForm(Struct):
    """The form of the answer."""

    format: dict[str, Any] | None = None


class ResponsesBody(Struct):
    """Body of ``/v1/responses``; unknown keys are ignored."""

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
    """The body's question to the engine. Raises ``Refusal``."""
    kept = "are not kept: send the whole conversation as input."
    check(
        (not sent.input, wrong("input is empty.", "input")),
        (sent.previous_response_id, unsupported(f"Responses {kept}", "previous_response_id")),
        (sent.conversation, unsupported(f"Conversations {kept}", "conversation")),
        (sent.background, unsupported("background is not supported: wait, or stream the answer.", "background")),
    )
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
        tool_choice=tool_choice(sent.tool_choice, tools),
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
        retry=who.retry,
    )


def turns(items: Sequence[Item]) -> list[Message]:
    """The conversation: consecutive thoughts, message and calls of tools are one turn, as the model gave them.

    Raises ``Refusal``.
    """
    messages: list[Message] = []
    open_ = False
    """True if the last message is a turn of the model that may continue."""
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
    parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
    return "\n".join(part.text for part in parts if part.text)


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        raise unsupported(f"{where} is of type {tool.get('type')!r}; functions are supported.", where)
    return function(tool.get("name"), tool.get("description"), tool.get("parameters"), where)


# OpenAI's Responses: one answer as items (thoughts, a message, calls of functions), whole or event by event.


class Responses(Exchange):
    """Requests to ``/v1/responses``."""

    def __init__(self, body: bytes, who: Who) -> None:
        self._sent = decode(body, ResponsesBody)
        self.asked = ask(self._sent, who)
        super().__init__("resp_")
        self._events = 0
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._part: list[str] = []
        self._tokens: list[Token] = []
        self._finish = "stop"

    def reply(self, answer: Answered) -> dict[str, Any]:
        choice = answer.choices[0]
        items = [_reasoning(choice.thinking)] if choice.thinking else []
        if choice.text or not choice.tool_calls:
            items.append(self._message(choice.text, choice.tokens))
        items += [_call(call) for call in choice.tool_calls]
        return self._response(items, choice.finish, answer)

    def opening(self) -> Iterable[bytes]:
        yield self._event("response.created", response=self._response([]))
        yield self._event("response.in_progress", response=self._response([]))

    def piece(self, piece: Piece, offset: int) -> Iterable[bytes]:
        self._tokens += piece.tokens
        if piece.thinking:
            if self._kind() != "reasoning":
                yield from self._end_item()
                yield from self._begin(_reasoning(""), {"type": "reasoning_text", "text": ""})
            self._part.append(piece.thinking)
            yield self._event("response.reasoning_text.delta", **self._place(), delta=piece.thinking)
        if piece.text:
            if self._kind() != "message":
                yield from self._end_item()
                yield from self._begin(self._message("", ()), _output_text("", []))
            self._part.append(piece.text)
            rows = self._rows(piece.tokens)
            yield self._event("response.output_text.delta", **self._place(), delta=piece.text, logprobs=rows)

    def choice(self, choice: Choice) -> Iterable[bytes]:
        yield from self._end_item()
        if not choice.tool_calls and not any(item["type"] == "message" for item in self._items):
            yield from self._begin(self._message("", ()), _output_text("", []))
            yield from self._end_item()
        for call in choice.tool_calls:
            item = _call(call)
            place = {"item_id": item["id"], "output_index": len(self._items)}
            opened = {**item, "arguments": "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=len(self._items), item=opened)
            yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
            done = {"arguments": call.arguments, "name": call.name}
            yield self._event("response.function_call_arguments.done", **place, **done)
            yield self._event("response.output_item.done", output_index=len(self._items), item=item)
            self._items.append(item)
        self._finish = choice.finish

    def closing(self, answer: Answered) -> Iterable[bytes]:
        response = self._response(self._items, self._finish, answer)
        yield self._event(f"response.{response['status']}", response=response)

    def broken(self, refusal: Refusal) -> bytes:
        where = parameter(refusal, "responses")
        return self._event("error", code=refusal.code or None, message=refusal.message, param=where)

    def _kind(self) -> str:
        return "" if self._open is None else str(self._open["type"])

    def _place(self) -> dict[str, Any]:
        item = self._open or {}
        return {"item_id": item.get("id"), "output_index": len(self._items), "content_index": 0}

    def _begin(self, item: dict[str, Any], part: dict[str, Any]) -> Iterable[bytes]:
        self._open, self._part = item, []
        opened = {**item, "content": [], "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=len(self._items), item=opened)
        yield self._event("response.content_part.added", **self._place(), part=part)

    def _end_item(self) -> Iterable[bytes]:
        if self._open is None:
            return
        text, place = "".join(self._part), self._place()
        if self._kind() == "reasoning":
            part: dict[str, Any] = {"type": "reasoning_text", "text": text}
            yield self._event("response.reasoning_text.done", **place, text=text)
        else:
            part = _output_text(text, self._rows(self._tokens))
            yield self._event("response.output_text.done", **place, text=text, logprobs=part["logprobs"])
        yield self._event("response.content_part.done", **place, part=part)
        item = {**self._open, "content": [part]}
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _message(self, text: str, tokens: Iterable[Token]) -> dict[str, Any]:
        part = _output_text(text, self._rows(tokens))
        return {"id": new_id("msg_"), "type": "message", "role": "assistant", "status": "completed", "content": [part]}

    def _rows(self, tokens: Iterable[Token]) -> list[dict[str, Any]]:
        return openai.content(tokens) if self.asked.wishes.logprobs else []

    def _event(self, name: str, /, **data: Any) -> bytes:
        self._events += 1
        return event({"type": name, **data, "sequence_number": self._events - 1}, name)

    def _response(
        self, items: list[dict[str, Any]], finish: str = "", answer: Answered | None = None
    ) -> dict[str, Any]:
        cut = finish == "length"
        sent = self._sent
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress" if answer is None else "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": sent.instructions,
            "max_output_tokens": sent.max_output_tokens,
            "metadata": sent.metadata or {},
            "model": self.asked.model if answer is None else answer.model,
            "output": items,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": sent.reasoning.effort if sent.reasoning else None, "summary": None},
            "store": False,
            "temperature": sent.temperature,
            "text": {"format": (sent.text.format if sent.text else None) or {"type": "text"}},
            "tool_choice": sent.tool_choice or "auto",
            "tools": [{"strict": None, **tool} for tool in sent.tools or ()],
            "top_logprobs": sent.top_logprobs or 0,
            "top_p": sent.top_p,
            "truncation": "disabled",
            "usage": None if answer is None else _usage(answer),
        }


def _output_text(text: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": rows}


def _reasoning(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": new_id("rs_"), "type": "reasoning", "status": "completed", "summary": [], "content": content}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": new_id("fc_"),
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _usage(answer: Answered) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
