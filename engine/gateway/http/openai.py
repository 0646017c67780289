"""OpenAI's chat completions and older completions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated, Any

from msgspec import Meta, Struct

from ...wire import Answered, Chat, Choice, Complete, Message, Piece, Token, ToolCall, Wishes
from .exchange import (
    END,
    Choices,
    Exchange,
    Likeliest,
    Part,
    Penalty,
    Seed,
    Share,
    Temperature,
    Tokens,
    TopK,
    Who,
    check,
    decode,
    event,
    function,
    schema_of,
    stops,
    text_of,
    tool_choice,
    unsupported,
    wrong,
)

# Log-probabilities of chat completions and the Responses interface.

LEAST = -9999.0
"""Replaces minus infinity, which JSON lacks, and a missing value."""


def finite(logprob: float | None) -> float:
    """The log-probability as a JSON number."""
    return logprob if logprob is not None and math.isfinite(logprob) else LEAST


def content(tokens: Iterable[Token]) -> list[dict[str, Any]]:
    """A row for each token, with the likeliest in its place."""
    return [
        {
            **_row(token.text, token.logprob),
            "top_logprobs": [_row(text, logprob) for _, text, logprob in token.likeliest],
        }
        for token in tokens
    ]


def _row(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode("utf-8", "surrogatepass"))}


# Common parts of OpenAI's chat completions and completions, and their usage.


class StreamOptions(Struct):
    """How to stream."""

    include_usage: bool | None = None


class SamplingBody(Struct):
    """How to sample and to stream."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    n: Choices | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def wishes(
        self,
        *,
        max_tokens: int | None,
        logprobs: bool,
        top_logprobs: int,
        tool_choice: str = "",
        thinking: bool | None = None,
    ) -> Wishes:
        if self.logit_bias:
            raise unsupported("logit_bias is not supported: tokens are sampled as the model has them.", "logit_bias")
        return Wishes(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=stops(self.stop),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            n=self.n or 1,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            tool_choice=tool_choice,
            schema=schema_of(self.response_format, "response_format"),
            thinking=thinking,
        )


def usage(answer: Answered) -> dict[str, Any]:
    """An answer's tokens."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


# OpenAI's chat completions.

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
    """vLLM's options for the chat template; only thinking is read."""

    enable_thinking: bool | None = None


class ChatBody(SamplingBody, kw_only=True):
    """Body of ``/v1/chat/completions``; unknown keys are ignored."""

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


class ChatCompletions(Exchange):
    """Requests to ``/v1/chat/completions``."""

    def __init__(self, body: bytes, who: Who) -> None:
        sent = decode(body, ChatBody)
        super().__init__("chatcmpl-")
        self._usage = sent.wants_usage
        check(
            (not sent.messages, wrong("messages is empty.", "messages")),
            (sent.functions, unsupported("functions is the older form of tools: send tools.", "functions")),
            (
                any(kind != "text" for kind in sent.modalities or ()),
                unsupported("This model writes text alone: modalities may name nothing else.", "modalities"),
            ),
            (
                sent.top_logprobs and not sent.logprobs,
                wrong("top_logprobs needs logprobs to be true.", "top_logprobs"),
            ),
        )
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
                tool_choice=tool_choice(sent.tool_choice, tools, "function"),
                thinking=_thinking(sent),
            ),
            stream=bool(sent.stream),
            agent=who.agent,
            once=who.once,
            retry=who.retry,
        )

    def reply(self, answer: Answered) -> dict[str, Any]:
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

    def opening(self) -> Iterable[bytes]:
        return (self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.asked.wishes.n))

    def piece(self, piece: Piece, offset: int) -> Iterable[bytes]:
        parts = {"reasoning_content": piece.thinking, "content": piece.text}
        delta = {name: text for name, text in parts.items() if text}
        if delta or piece.tokens:
            yield self._chunk(piece.choice, delta, self._logprobs(piece))

    def choice(self, choice: Choice) -> Iterable[bytes]:
        for index, call in enumerate(choice.tool_calls):
            yield self._chunk(choice.choice, {"tool_calls": [{"index": index, **_told_call(call)}]})
        yield self._chunk(choice.choice, {}, finish=FINISH.get(choice.finish, choice.finish))

    def closing(self, answer: Answered) -> Iterable[bytes]:
        if self._usage:
            head = self._head("chat.completion.chunk", answer.model)
            yield event({**head, "choices": [], "usage": usage(answer)})
        yield END

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": model, "system_fingerprint": None}

    def _chunk(
        self, index: int, delta: dict[str, Any], logprob_rows: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        row = {"index": index, "delta": delta, "logprobs": logprob_rows, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk", self.asked.model), "choices": [row]}
        return event({**chunk, "usage": None} if self._usage else chunk)

    def _logprobs(self, said: Choice | Piece) -> dict[str, Any] | None:
        if not self.asked.wishes.logprobs:
            return None
        return {"content": content(said.tokens), "refusal": None}


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


def _thinking(sent: ChatBody) -> bool | None:
    if sent.chat_template_kwargs is not None and sent.chat_template_kwargs.enable_thinking is not None:
        return sent.chat_template_kwargs.enable_thinking
    return None if sent.reasoning_effort is None else sent.reasoning_effort != "none"


def _told_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


# OpenAI's older completions, with prompts as text or token ids, single or in batches: evaluators use them.

TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
MOST_PROMPTS = 1024
MOST_CHOICES = 1024
USUAL_TOKENS = 16


class CompletionBody(SamplingBody, kw_only=True):
    """Body of ``/v1/completions``; unknown keys are ignored."""

    model: str
    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    best_of: int | None = None
    logprobs: Likeliest | bool | None = None
    echo: bool | None = None
    suffix: str | None = None


class Completions(Exchange):
    """Requests to ``/v1/completions``."""

    def __init__(self, body: bytes, who: Who) -> None:
        sent = decode(body, CompletionBody)
        super().__init__("cmpl-")
        self._usage = sent.wants_usage
        check(
            (sent.suffix, unsupported("suffix is not supported: this model writes forward alone.", "suffix")),
            (
                sent.best_of is not None and sent.best_of != (sent.n or 1),
                unsupported("best_of is not supported: ask for n choices, and choose.", "best_of"),
            ),
            (
                sent.max_tokens == 0 and not sent.echo,
                wrong("max_tokens is 0 without echo: there is nothing to answer.", "max_tokens"),
            ),
        )
        self.asked = Complete(
            id=0,
            key=who.key,
            model=sent.model,
            prompts=prompts(sent.prompt),
            wishes=sent.wishes(
                max_tokens=USUAL_TOKENS if sent.max_tokens is None else sent.max_tokens,
                logprobs=sent.logprobs is not None and sent.logprobs is not False,
                top_logprobs=int(sent.logprobs or 0),
            ),
            echo=bool(sent.echo),
            stream=bool(sent.stream),
            agent=who.agent,
            once=who.once,
            retry=who.retry,
        )
        if len(self.asked.prompts) * self.asked.wishes.n > MOST_CHOICES:
            raise wrong(f"All prompts together may have {MOST_CHOICES} choices.", "n")

    def reply(self, answer: Answered) -> dict[str, Any]:
        rows = [
            self._row(choice.choice, choice.text, self._logprobs(choice.tokens, 0), choice.finish)
            for choice in answer.choices
        ]
        return {**self._head(answer.model), "choices": rows, "usage": usage(answer)}

    def piece(self, piece: Piece, offset: int) -> Iterable[bytes]:
        if piece.text or piece.tokens:
            yield self._chunk(piece.choice, piece.text, self._logprobs(piece.tokens, offset))

    def choice(self, choice: Choice) -> Iterable[bytes]:
        yield self._chunk(choice.choice, "", None, choice.finish)

    def closing(self, answer: Answered) -> Iterable[bytes]:
        if self._usage:
            yield event({**self._head(answer.model), "choices": [], "usage": usage(answer)})
        yield END

    def _head(self, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": model}

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None = None) -> bytes:
        chunk = {**self._head(self.asked.model), "choices": [self._row(index, text, logprobs, finish)]}
        return event({**chunk, "usage": None} if self._usage else chunk)

    def _row(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any] | None:
        if not self.asked.wishes.logprobs:
            return None
        sizes = [len(token.text) for token in tokens[:-1]]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
            "top_logprobs": [_likeliest(token) for token in tokens] if self.asked.wishes.top_logprobs else None,
            "text_offset": [*accumulate(sizes, initial=offset)][: len(tokens)],
        }


def prompts(sent: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    """The prompts of a body, each as text or as tokens. Raises ``Refusal`` if they are empty or mixed."""
    if isinstance(sent, str):
        return (sent,)
    ids = tuple(prompt for prompt in sent if isinstance(prompt, int))
    if ids and len(ids) == len(sent):
        return (ids,)
    check(
        (not sent, wrong("prompt is empty.", "prompt")),
        (ids, wrong("prompt mixes token ids with prompts: send a list of lists.", "prompt")),
        (len(sent) > MOST_PROMPTS, wrong(f"prompt has {len(sent)} prompts, and may have {MOST_PROMPTS}.", "prompt")),
        ([] in sent, wrong("prompt has a list without a token.", "prompt")),
    )
    return tuple(one if isinstance(one, str) else tuple(one) for one in sent if not isinstance(one, int))


def _likeliest(token: Token) -> dict[str, float] | None:
    """The likeliest in a token's place by their text, with the token itself; None for the first of a prompt."""
    if token.logprob is None:
        return None
    row: dict[str, float] = {}
    for text, logprob in [*((text, finite(value)) for _, text, value in token.likeliest), (token.text, token.logprob)]:
        row[text] = max(row.get(text, finite(None)), finite(logprob))
    return row
