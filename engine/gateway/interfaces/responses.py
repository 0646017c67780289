"""OpenAI's Responses: one answer as items (thoughts, a message, calls of functions), whole or event by event."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ..answerer import Answered, Refusal
from ..wire import Choice, Piece, Token, ToolCall
from . import logprobs
from .errors import Form, parameter
from .exchange import Who, new_id
from .reading import decode
from .responses_input import ResponsesBody, ask
from .sse import Event
from .streamed import StreamedChoice


class Responses:
    """Implements ``exchange.Exchange``."""

    form: Form = "openai"

    def __init__(self, body: bytes, who: Who) -> None:
        self._sent = decode(body, ResponsesBody)
        self.asked = ask(self._sent, who)
        self._id = new_id("resp_")
        self._created = int(time.time())
        self._events = 0
        self._streamed = StreamedChoice()
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        """The item that is being told, and in ``_part`` its text so far."""
        self._part: list[str] = []
        self._tokens: list[Token] = []
        self._finish = "stop"

    def reply(self, answer: Answered) -> dict[str, Any]:
        """A ``response``."""
        choice = answer.choices[0]
        items = [_reasoning(choice.thinking)] if choice.thinking else []
        if choice.text or not choice.tool_calls:
            items.append(self._message(choice.text, choice.tokens))
        items += [_call(call) for call in choice.tool_calls]
        return self._response(items, choice.finish, answer)

    def opening(self) -> Iterable[Event]:
        """The response, still without output."""
        yield self._event("response.created", response=self._response([]))
        yield self._event("response.in_progress", response=self._response([]))

    def piece(self, piece: Piece) -> Iterable[Event]:
        """Thoughts and text, each in an item of its kind."""
        self._streamed.add(piece)
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

    def choice(self, choice: Choice) -> Iterable[Event]:
        """Calls of functions come whole, an item each."""
        yield from self.piece(self._streamed.rest(choice))
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

    def closing(self, answer: Answered) -> Iterable[Event]:
        """The whole response."""
        response = self._response(self._items, self._finish, answer)
        yield self._event(f"response.{response['status']}", response=response)

    def broken(self, refusal: Refusal) -> Iterable[Event]:
        """An error in place of an event."""
        where = parameter(refusal, "responses")
        yield self._event("error", code=refusal.code or None, message=refusal.message, param=where)

    def _kind(self) -> str:
        return "" if self._open is None else str(self._open["type"])

    def _place(self) -> dict[str, Any]:
        item = self._open or {}
        return {"item_id": item.get("id"), "output_index": len(self._items), "content_index": 0}

    def _begin(self, item: dict[str, Any], part: dict[str, Any]) -> Iterable[Event]:
        self._open, self._part = item, []
        opened = {**item, "content": [], "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=len(self._items), item=opened)
        yield self._event("response.content_part.added", **self._place(), part=part)

    def _end_item(self) -> Iterable[Event]:
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
        return logprobs.content(tokens) if self.asked.wishes.logprobs else []

    def _event(self, name: str, /, **data: Any) -> Event:
        self._events += 1
        return Event({"type": name, **data, "sequence_number": self._events - 1}, name)

    def _response(
        self, items: list[dict[str, Any]], finish: str = "", answer: Answered | None = None
    ) -> dict[str, Any]:
        cut = finish == "length"
        sent = self._sent
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
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
