"""OpenAI's chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from ..answerer import Answered, Refusal
from ..wire import Chat, Choice, Message, Piece, ToolCall
from . import logprobs
from .errors import Form, body as error_body
from .exchange import Who, new_id
from .openai_body import SamplingBody, usage
from .reading import (
    Likeliest,
    Part,
    Tokens,
    chosen,
    decode,
    function,
    text_of,
    unsupported,
    wrong,
)
from .sse import END, Event
from .streamed import StreamedChoice

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
FINISH = {"stop": "stop", "length": "length", "tool": "tool_calls"}


class Called(Struct):
    """The function in a call of a tool."""

    name: str
    arguments: str = "{}"


class SentCall(Struct):
    """A call of a tool in an assistant's message."""

    id: str
    function: Called
    type: str = "function"


class SentMessage(Struct):
    """A message of the conversation."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[SentCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class TemplateWords(Struct):
    """What vLLM's clients hand to the chat template; of it, whether to think."""

    enable_thinking: bool | None = None


class ChatBody(SamplingBody, kw_only=True):
    """Body of ``/v1/chat/completions``; keys that are not here are ignored."""

    model: str
    messages: list[SentMessage]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Likeliest | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateWords | None = None
    modalities: list[str] | None = None


class ChatCompletions:
    """Implements ``exchange.Exchange``."""

    form: Form = "openai"

    def __init__(self, body: bytes, who: Who) -> None:
        sent = decode(body, ChatBody)
        self._usage = sent.wants_usage
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._streamed: dict[int, StreamedChoice] = {}
        _refuse(sent)
        tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(sent.tools or ()))
        self.asked = Chat(
            id=0,
            key=who.key,
            model=sent.model,
            messages=tuple(_message(one, f"messages[{index}]") for index, one in enumerate(sent.messages)),
            tools=tools,
            wishes=sent.wishes(
                max_tokens=sent.max_completion_tokens or sent.max_tokens,
                logprobs=bool(sent.logprobs),
                top_logprobs=sent.top_logprobs or 0,
                tool_choice=_tool_choice(sent.tool_choice, tools),
                thinking=_thinking(sent),
            ),
            stream=bool(sent.stream),
            agent=who.agent,
            once=who.once,
        )

    def reply(self, answer: Answered) -> dict[str, Any]:
        """A ``chat.completion``."""
        rows = []
        for choice in answer.choices:
            message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
            if choice.thinking:
                message["reasoning_content"] = choice.thinking
            if choice.tool_calls:
                message["tool_calls"] = [_told_call(call) for call in choice.tool_calls]
                message["content"] = choice.text or None
            rows.append(
                {
                    "index": choice.choice,
                    "message": message,
                    "logprobs": self._logprobs(choice),
                    "finish_reason": FINISH.get(choice.finish, choice.finish),
                }
            )
        return {**self._head("chat.completion", answer.model), "choices": rows, "usage": usage(answer)}

    def opening(self) -> Iterable[Event]:
        """Each choice begins with its role."""
        for index in range(self.asked.wishes.n):
            self._streamed[index] = StreamedChoice()
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, piece: Piece) -> Iterable[Event]:
        """Thoughts, text, and the tokens that they are."""
        self._streamed[piece.choice].add(piece)
        delta = {}
        if piece.thinking:
            delta["reasoning_content"] = piece.thinking
        if piece.text:
            delta["content"] = piece.text
        if delta or piece.tokens:
            yield self._chunk(piece.choice, delta, self._logprobs(piece))

    def choice(self, choice: Choice) -> Iterable[Event]:
        """Calls of tools come whole, and then why the choice ends."""
        yield from self.piece(self._streamed[choice.choice].rest(choice))
        for index, call in enumerate(choice.tool_calls):
            yield self._chunk(choice.choice, {"tool_calls": [{"index": index, **_told_call(call)}]})
        yield self._chunk(choice.choice, {}, finish=FINISH.get(choice.finish, choice.finish))

    def closing(self, answer: Answered) -> Iterable[Event]:
        """What it cost, where the client asked for it."""
        if self._usage:
            head = self._head("chat.completion.chunk", answer.model)
            yield Event({**head, "choices": [], "usage": usage(answer)})
        yield END

    def broken(self, refusal: Refusal) -> Iterable[Event]:
        """An error in place of a chunk."""
        return (Event(error_body(refusal, self.form)), END)

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": model, "system_fingerprint": None}

    def _chunk(
        self, index: int, delta: dict[str, Any], logprob_rows: dict[str, Any] | None = None, finish: str | None = None
    ) -> Event:
        row = {"index": index, "delta": delta, "logprobs": logprob_rows, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk", self.asked.model), "choices": [row]}
        return Event({**chunk, "usage": None} if self._usage else chunk)

    def _logprobs(self, said: Choice | Piece) -> dict[str, Any] | None:
        if not self.asked.wishes.logprobs:
            return None
        return {"content": logprobs.content(said.tokens), "refusal": None}


def _refuse(sent: ChatBody) -> None:
    if not sent.messages:
        raise wrong("messages is empty.", "messages")
    if sent.functions:
        raise unsupported("functions is the older form of tools: send tools.", "functions")
    if any(kind != "text" for kind in sent.modalities or ()):
        raise unsupported("This model writes text alone: modalities may name nothing else.", "modalities")
    if sent.top_logprobs and not sent.logprobs:
        raise wrong("top_logprobs needs logprobs to be true.", "top_logprobs")


def _message(sent: SentMessage, where: str) -> Message:
    if sent.role not in ROLES:
        raise wrong(f"{where}.role is {sent.role!r}, and must be one of {', '.join(ROLES)}.", f"{where}.role")
    if sent.role == "tool" and not sent.tool_call_id:
        raise wrong(f"{where} is a tool's result without tool_call_id.", f"{where}.tool_call_id")
    return Message(
        role=ROLES[sent.role],
        content=text_of(sent.content, f"{where}.content"),
        thinking=sent.reasoning_content or sent.reasoning or "",
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments) for call in sent.tool_calls or ()
        ),
        tool_call_id=sent.tool_call_id or "",
        name=sent.name or "",
    )


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    inner = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(inner, dict):
        raise unsupported(f"{where} is no function; tools of other types are not supported.", where)
    return function(inner.get("name"), inner.get("description"), inner.get("parameters"), where)


def _tool_choice(choice: str | dict[str, Any] | None, tools: tuple[dict[str, Any], ...]) -> str:
    if choice is None or choice in ("auto", "none"):
        return choice or ""
    if choice == "required":
        if not tools:
            raise wrong("tool_choice is 'required', and there are no tools.", "tool_choice")
        return "required"
    inner = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise wrong("tool_choice must be auto, none, required, or name a function.", "tool_choice")
    return chosen(inner["name"], tools)


def _thinking(sent: ChatBody) -> bool | None:
    if sent.chat_template_kwargs is not None and sent.chat_template_kwargs.enable_thinking is not None:
        return sent.chat_template_kwargs.enable_thinking
    return None if sent.reasoning_effort is None else sent.reasoning_effort != "none"


def _told_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
