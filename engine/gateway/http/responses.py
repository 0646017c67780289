"""OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from ...wire import Answered, Chat, Choice, Message, Piece, Refusal, Token, ToolCall
from . import openai
from .exchange import (
    Body,
    Exchange,
    Likeliest,
    Part,
    Tokens,
    Tools,
    check,
    decode,
    event,
    new_id,
    parameter,
    schema_of,
    text_of,
    unsupported,
    wishes_of,
    wrong,
)

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
LOGPROBS = "message.output_text.logprobs"
OF_SERVERS = ("_call", "mcp_list_tools", "tool_search", "tool_reference")
"""Ends of the types of items whose tools a server runs."""
CALLS = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
PARTS = {"reasoning": "reasoning_text", "message": "output_text"}
"""Of an item's only part."""


class Item(Struct):
    """One item of the input: a message, thoughts, a call of a tool or its result."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    """Of a call with free text."""
    output: str | list[Part] | None = None


class ResponsesBody(Body, kw_only=True):
    """Body of ``/v1/responses``."""

    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    top_logprobs: Likeliest | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None


def turns(items: Sequence[Item], tools: Tools) -> list[Message]:
    """Consecutive thoughts, message and tool calls are one turn, as sampled. Raises ``Refusal``.

    Items of tools that a server would have to run are left out, with a note.
    """
    messages: list[Message] = []
    open_ = False
    """True if the last message is a turn of the model that may continue."""
    for index, item in enumerate(items):
        where, last = f"input[{index}]", messages[-1] if open_ else None
        if item.type not in CALLS and item.type.removesuffix("_output").endswith(OF_SERVERS):
            tools.leave_out("items", item.type)
            continue
        turn = _turn(item, where, tools)
        open_ = turn.role == "assistant"
        if open_ and last is not None and (turn.tool_calls or not (last.tool_calls or last.content)):
            thinking = "\n".join(filter(None, (last.thinking, turn.thinking)))
            calls = (*last.tool_calls, *turn.tool_calls)
            messages[-1] = Message("assistant", last.content or turn.content, thinking, calls)
        else:
            messages.append(turn)
    return messages


def _turn(item: Item, where: str, tools: Tools) -> Message:
    namespace = item.namespace or ""
    match item.type:
        case "message":
            if item.role not in ROLES:
                raise wrong(f"{where}.role is {item.role!r}, and must be one of {', '.join(ROLES)}.", f"{where}.role")
            return Message(ROLES[item.role], text_of(item.content, f"{where}.content"))
        case "function_call_output" | "custom_tool_call_output" if item.call_id:
            return Message("tool", tools.result(item.output, f"{where}.output"), tool_call_id=item.call_id)
        case "reasoning":
            parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
            return Message("assistant", thinking="\n".join(part.text for part in parts if part.text))
        case "function_call" if item.call_id and item.name:
            call = tools.call(item.call_id, item.name, item.arguments or "{}", namespace)
            return Message("assistant", tool_calls=(call,))
        case "custom_tool_call" if item.call_id and item.name:
            call = tools.text_call(item.call_id, item.name, item.input or "", namespace)
            return Message("assistant", tool_calls=(call,))
        case kind if kind in CALLS:
            raise wrong(f"{where} is a {kind} that lacks call_id or name.", where)
    raise unsupported(f"{where} is of type {item.type!r}: only text and calls of tools can be sent.", where)


def _add(tools: Tools, tool: dict[str, Any], where: str, namespace: str = "") -> None:
    name, about = tool.get("name"), tool.get("description")
    match tool.get("type", "function"):
        case "function":
            tools.add(name, about, tool.get("parameters"), where, namespace)
        case "custom":
            tools.add_text(name, about, tool.get("format"), where, namespace)
        case "namespace" if isinstance(name, str) and isinstance(tool.get("tools"), list) and not namespace:
            for index, inner in enumerate(tool["tools"]):
                if not isinstance(inner, dict):
                    raise wrong(f"{where}.tools[{index}] is no object.", where)
                _add(tools, inner, f"{where}.tools[{index}]", name)
        case "namespace":
            raise wrong(f"{where} is a namespace without name or tools.", where)
        case kind:
            tools.leave_out("tools", kind)


class Responses(Exchange):
    """Requests to ``/v1/responses``."""

    prefix = "resp_"

    def ask(self, body: bytes) -> Chat:
        self._sent = sent = decode(body, ResponsesBody)
        self._events = 0
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._tokens: list[Token] = []
        self._finish = "stop"
        lost = "are not kept: send the whole conversation as input."
        check(
            (not sent.input, wrong("input is empty.", "input")),
            (sent.previous_response_id, unsupported(f"Responses {lost}", "previous_response_id")),
            (sent.conversation, unsupported(f"Conversations {lost}", "conversation")),
            (sent.background, unsupported("background is not supported: wait, or stream the answer.", "background")),
        )
        for index, tool in enumerate(sent.tools or ()):
            _add(self.tools, tool, f"tools[{index}]")
        choice = self.tools.openai_choice(sent.tool_choice)
        system = [Message("system", sent.instructions)] if sent.instructions else []
        messages = [Message("user", sent.input)] if isinstance(sent.input, str) else turns(sent.input, self.tools)
        self._effort = (sent.reasoning or {}).get("effort")
        wishes = wishes_of(
            sent,
            max_tokens=sent.max_output_tokens,
            logprobs=bool(sent.top_logprobs) or LOGPROBS in (sent.include or ()),
            top_logprobs=sent.top_logprobs,
            tool_choice=choice,
            schema=schema_of((sent.text or {}).get("format"), "text.format"),
            thinking=None if self._effort is None else self._effort != "none",
        )
        return Chat(
            (*system, *messages), self.tools.functions, model=sent.model, wishes=wishes, stream=bool(sent.stream)
        )

    def reply(self, answer: Answered) -> dict[str, Any]:
        choice = answer.choices[0]
        items = [self._item("reasoning", choice.thinking)] if choice.thinking else []
        if choice.text or not choice.tool_calls:
            items.append(self._item("message", choice.text, choice.tokens))
        return self._response([*items, *map(self._call, choice.tool_calls)], choice.finish, answer)

    def opening(self, prompt_tokens: int) -> Iterable[bytes]:
        yield self._event("response.created", response=self._response([]))
        yield self._event("response.in_progress", response=self._response([]))

    def piece(self, piece: Piece) -> Iterable[bytes]:
        self._tokens += piece.tokens
        if piece.thinking:
            yield from self._add("reasoning", piece.thinking)
        if piece.text:
            yield from self._add("message", piece.text, logprobs=self._rows(piece.tokens))

    def choice(self, choice: Choice) -> Iterable[bytes]:
        yield from self._end_item()
        if not choice.tool_calls and not any(item["type"] == "message" for item in self._items):
            yield from self._begin("message")
            yield from self._end_item()
        for item in map(self._call, choice.tool_calls):
            key, name = "arguments", "function_call_arguments"
            if "input" in item:
                key, name = "input", "custom_tool_call_input"
            index, text = len(self._items), item[key]
            place = {"item_id": item["id"], "output_index": index}
            begun = {**item, key: "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=index, item=begun)
            yield self._event(f"response.{name}.delta", **place, delta=text)
            yield self._event(f"response.{name}.done", **place, **{key: text}, name=item["name"])
            yield self._done(item)
        self._finish = choice.finish

    def closing(self, answer: Answered) -> Iterable[bytes]:
        response = self._response(self._items, self._finish, answer)
        yield self._event(f"response.{response['status']}", response=response)

    def broken(self, refusal: Refusal) -> bytes:
        where = parameter(refusal, "responses")
        return self._event("error", code=refusal.code or None, message=refusal.message, param=where)

    def _add(self, kind: str, text: str, **more: Any) -> Iterable[bytes]:
        if self._open is None or self._open["type"] != kind:
            yield from self._end_item()
            yield from self._begin(kind)
        self._text += text
        yield self._event(f"response.{PARTS[kind]}.delta", **self._place(), delta=text, **more)

    def _begin(self, kind: str) -> Iterable[bytes]:
        self._open, self._text = self._item(kind), ""
        begun = {**self._open, "content": [], "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=len(self._items), item=begun)
        yield self._event("response.content_part.added", **self._place(), part=self._open["content"][0])

    def _end_item(self) -> Iterable[bytes]:
        if self._open is None:
            return
        kind, place = self._open["type"], self._place()
        item = {**self._item(kind, self._text, self._tokens), "id": self._open["id"]}
        (part,) = item["content"]
        rows = {"logprobs": part["logprobs"]} if kind == "message" else {}
        yield self._event(f"response.{PARTS[kind]}.done", **place, text=self._text, **rows)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._done(item)
        self._open = None

    def _done(self, item: dict[str, Any]) -> bytes:
        self._items.append(item)
        return self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        return {"item_id": (self._open or {}).get("id"), "output_index": len(self._items), "content_index": 0}

    def _item(self, kind: str, text: str = "", tokens: Iterable[Token] = ()) -> dict[str, Any]:
        part: dict[str, Any] = {"type": PARTS[kind], "text": text}
        if kind == "reasoning":
            return {"id": new_id("rs_"), "type": kind, "status": "completed", "summary": [], "content": [part]}
        part |= {"annotations": [], "logprobs": self._rows(tokens)}
        return {"id": new_id("msg_"), "type": kind, "role": "assistant", "status": "completed", "content": [part]}

    def _rows(self, tokens: Iterable[Token]) -> list[dict[str, Any]]:
        return openai.content(tokens) if self.asked.wishes.logprobs else []

    def _call(self, call: ToolCall) -> dict[str, Any]:
        sent = self.tools.sent(call)
        prefix, kind, key = (
            ("ctc_", "custom_tool_call", "input") if sent.tool.text else ("fc_", "function_call", "arguments")
        )
        item = {"id": new_id(prefix), "type": kind, "status": "completed", "call_id": sent.id, "name": sent.tool.name}
        namespace = {"namespace": sent.tool.namespace} if sent.tool.namespace else {}
        return {**item, **namespace, key: sent.arguments}

    def _event(self, name: str, /, **data: Any) -> bytes:
        self._events += 1
        return event({"type": name, **data, "sequence_number": self._events - 1}, name)

    def _response(
        self, items: list[dict[str, Any]], finish: str = "", answer: Answered | None = None
    ) -> dict[str, Any]:
        sent, status = self._sent, "incomplete" if finish == "length" else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress" if answer is None else status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if finish == "length" else None,
            "instructions": sent.instructions,
            "max_output_tokens": sent.max_output_tokens,
            "metadata": sent.metadata or {},
            "model": self.asked.model if answer is None else answer.model,
            "output": items,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": self._effort, "summary": None},
            "store": False,
            "temperature": sent.temperature,
            "text": {"format": (sent.text or {}).get("format") or {"type": "text"}},
            "tool_choice": sent.tool_choice or "auto",
            "tools": [{"strict": None, **tool} for tool in sent.tools or ()],
            "top_logprobs": sent.top_logprobs or 0,
            "top_p": sent.top_p,
            "truncation": "disabled",
            "usage": None if answer is None else _usage(answer),
        }


def _usage(answer: Answered) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
