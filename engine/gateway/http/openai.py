"""OpenAI's chat completions and older completions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated, Any

from msgspec import Meta, Struct

from ...wire import Answered, Chat, Choice, Complete, Message, Piece, Token, ToolCall, Wishes
from .exchange import (
    END,
    Body,
    Choices,
    Exchange,
    Likeliest,
    Part,
    Penalty,
    Seed,
    Share,
    Tokens,
    Tools,
    check,
    decode,
    event,
    schema_of,
    text_of,
    unsupported,
    wishes_of,
    wrong,
)

LEAST = -9999.0
"""For missing values and minus infinity, which JSON lacks."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
FINISH = {"stop": "stop", "length": "length", "tool": "tool_calls"}


def finite(logprob: float | None) -> float:
    """As a JSON number."""
    return logprob if logprob is not None and math.isfinite(logprob) else LEAST


def content(tokens: Iterable[Token]) -> list[dict[str, Any]]:
    """A row per token with its likeliest alternatives."""
    return [
        {**_row(token.text, token.logprob), "top_logprobs": [_row(*near[1:]) for near in token.likeliest]}
        for token in tokens
    ]


def _row(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode("utf-8", "surrogatepass"))}


class SamplingBody(Body, kw_only=True):
    """How to sample and to stream."""

    min_p: Share | None = None
    n: Choices | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None


class OpenAI(Exchange):
    """Both interfaces' options, chunks and usage."""

    kind: str
    chunk: str
    _usage = False

    def wishes(self, sent: SamplingBody, **others: Any) -> Wishes:
        if sent.logit_bias:
            raise unsupported("logit_bias is not supported: tokens are sampled as the model has them.", "logit_bias")
        self._usage = bool((sent.stream_options or {}).get("include_usage"))
        return wishes_of(sent, sent.stop, schema=schema_of(sent.response_format, "response_format"), **others)

    def reply(self, answer: Answered) -> dict[str, Any]:
        rows = [self.row(choice) for choice in answer.choices]
        return {**self._head(self.kind, answer.model), "choices": rows, "usage": _usage(answer)}

    @abstractmethod
    def row(self, choice: Choice) -> dict[str, Any]:
        """A whole choice."""

    def closing(self, answer: Answered) -> Iterable[bytes]:
        if self._usage:
            yield event({**self._head(self.chunk, self.asked.model), "choices": [], "usage": _usage(answer)})
        yield END

    def _chunk(self, row: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self._usage else {}
        return event({**self._head(self.chunk, self.asked.model), "choices": [row], **usage})

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": model, "system_fingerprint": None}


def _usage(answer: Answered) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


class Called(Struct):
    """The function in a call of a tool."""

    name: str
    arguments: str = "{}"


class CalledText(Struct):
    """The free text in a call of a tool."""

    name: str
    input: str = ""


class SentCall(Struct):
    """A call of a tool in an assistant's message."""

    id: str
    function: Called | None = None
    custom: CalledText | None = None


class SentMessage(Struct):
    """A message of the conversation."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[SentCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class TemplateOptions(Struct):
    """vLLM's options for the chat template; others are ignored."""

    enable_thinking: bool | None = None


class ChatBody(SamplingBody, kw_only=True):
    """Body of ``/v1/chat/completions``; unknown keys are ignored."""

    messages: list[SentMessage]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Likeliest | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateOptions | None = None
    modalities: list[str] | None = None


class ChatCompletions(OpenAI):
    """Requests to ``/v1/chat/completions``."""

    prefix, kind, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def ask(self, body: bytes) -> Chat:
        sent = decode(body, ChatBody)
        silent = {"text"}.issuperset(sent.modalities or ())
        check(
            (not sent.messages, wrong("messages is empty.", "messages")),
            (sent.functions, unsupported("functions is the older form of tools: send tools.", "functions")),
            (not silent, unsupported("This model writes text alone: modalities may name nothing else.", "modalities")),
            (
                sent.top_logprobs and not sent.logprobs,
                wrong("top_logprobs needs logprobs to be true.", "top_logprobs"),
            ),
        )
        for index, tool in enumerate(sent.tools or ()):
            _add(self.tools, tool, f"tools[{index}]")
        choice = self.tools.openai_choice(sent.tool_choice)
        wishes = self.wishes(
            sent,
            max_tokens=sent.max_completion_tokens or sent.max_tokens,
            logprobs=sent.logprobs,
            top_logprobs=sent.top_logprobs,
            tool_choice=choice,
            thinking=_thinking(sent),
        )
        messages = tuple(self._message(message, f"messages[{place}]") for place, message in enumerate(sent.messages))
        return Chat(messages, self.tools.functions, model=sent.model, wishes=wishes, stream=bool(sent.stream))

    def row(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.thinking:
            message |= {"reasoning_content": choice.thinking, "reasoning": choice.thinking}
        if choice.tool_calls:
            message |= {"content": choice.text or None, "tool_calls": [*map(self._call, choice.tool_calls)]}
        finish = FINISH.get(choice.finish, choice.finish)
        return {
            "index": choice.choice,
            "message": message,
            "logprobs": self._logprobs(choice),
            "finish_reason": finish,
        }

    def opening(self, prompt_tokens: int) -> Iterable[bytes]:
        return (self._delta(index, {"role": "assistant", "content": ""}) for index in range(self.asked.wishes.n))

    def piece(self, piece: Piece) -> Iterable[bytes]:
        parts = {"reasoning_content": piece.thinking, "reasoning": piece.thinking, "content": piece.text}
        delta = {name: text for name, text in parts.items() if text}
        if delta or piece.tokens:
            yield self._delta(piece.choice, delta, self._logprobs(piece))

    def choice(self, choice: Choice) -> Iterable[bytes]:
        for index, call in enumerate(choice.tool_calls):
            yield self._delta(choice.choice, {"tool_calls": [{"index": index, **self._call(call)}]})
        yield self._delta(choice.choice, {}, finish=FINISH.get(choice.finish, choice.finish))

    def _delta(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        return self._chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})

    def _logprobs(self, part: Choice | Piece) -> dict[str, Any] | None:
        return {"content": content(part.tokens), "refusal": None} if self.asked.wishes.logprobs else None

    def _message(self, sent: SentMessage, where: str) -> Message:
        check(
            (
                sent.role not in ROLES,
                wrong(f"{where}.role is {sent.role!r}, and must be one of {', '.join(ROLES)}.", f"{where}.role"),
            ),
            (
                sent.role == "tool" and not sent.tool_call_id,
                wrong(f"{where} is a tool's result without tool_call_id.", f"{where}.tool_call_id"),
            ),
        )
        read = self.tools.result if sent.role == "tool" else text_of
        return Message(
            role=ROLES[sent.role],
            content=read(sent.content, f"{where}.content"),
            thinking=sent.reasoning_content or sent.reasoning or "",
            tool_calls=tuple(self._read(call, where) for call in sent.tool_calls or ()),
            tool_call_id=sent.tool_call_id or "",
            name=sent.name or "",
        )

    def _read(self, call: SentCall, where: str) -> ToolCall:
        if call.custom is not None:
            return self.tools.text_call(call.id, call.custom.name, call.custom.input)
        if call.function is None:
            raise wrong(f"A call in {where} has neither function nor custom.", where)
        return self.tools.call(call.id, call.function.name, call.function.arguments)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        sent = self.tools.sent(call)
        kind, key = ("custom", "input") if sent.tool.text else ("function", "arguments")
        return {"id": sent.id, "type": kind, kind: {"name": sent.tool.name, key: sent.arguments}}


def _add(tools: Tools, tool: dict[str, Any], where: str) -> None:
    kind = tool.get("type", "function")
    if kind not in ("function", "custom"):
        return tools.leave_out("tools", kind)
    inner = tool.get(kind)
    if not isinstance(inner, dict):
        raise wrong(f"{where} has no {kind}.", where)
    if kind == "custom":
        tools.add_text(inner.get("name"), inner.get("description"), inner.get("format"), where)
    else:
        tools.add(inner.get("name"), inner.get("description"), inner.get("parameters"), where)


def _thinking(sent: ChatBody) -> bool | None:
    """vLLM's option for the chat template, else OpenAI's effort."""
    if sent.chat_template_kwargs is not None and sent.chat_template_kwargs.enable_thinking is not None:
        return sent.chat_template_kwargs.enable_thinking
    return None if sent.reasoning_effort is None else sent.reasoning_effort != "none"


# For evaluators: prompts as text or token ids, single or in batches.

TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
MOST_PROMPTS = 1024
MOST_CHOICES = 1024
USUAL_TOKENS = 16


class CompletionBody(SamplingBody, kw_only=True):
    """Body of ``/v1/completions``; unknown keys are ignored."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    best_of: int | None = None
    logprobs: Likeliest | bool | None = None
    echo: bool | None = None
    suffix: str | None = None


class Completions(OpenAI):
    """Requests to ``/v1/completions``."""

    prefix, kind, chunk = "cmpl-", "text_completion", "text_completion"

    def ask(self, body: bytes) -> Complete:
        sent = decode(body, CompletionBody)
        given, choices = prompts(sent.prompt), sent.n or 1
        check(
            (sent.suffix, unsupported("suffix is not supported: this model writes forward alone.", "suffix")),
            (
                sent.best_of not in (None, choices),
                unsupported("best_of is not supported: ask for n choices, and choose.", "best_of"),
            ),
            (
                sent.max_tokens == 0 and not sent.echo,
                wrong("max_tokens is 0 without echo: there is nothing to answer.", "max_tokens"),
            ),
            (
                len(given) * choices > MOST_CHOICES,
                wrong(f"All prompts together may have {MOST_CHOICES} choices.", "n"),
            ),
        )
        self._offsets: Counter[int] = Counter()
        wishes = self.wishes(
            sent,
            max_tokens=USUAL_TOKENS if sent.max_tokens is None else sent.max_tokens,
            logprobs=sent.logprobs is not None and sent.logprobs is not False,
            top_logprobs=int(sent.logprobs or 0),
        )
        return Complete(given, bool(sent.echo), model=sent.model, wishes=wishes, stream=bool(sent.stream))

    def row(self, choice: Choice) -> dict[str, Any]:
        return self._row(choice.choice, choice.text, choice.tokens, choice.finish)

    def piece(self, piece: Piece) -> Iterable[bytes]:
        if piece.text or piece.tokens:
            yield self._chunk(self._row(piece.choice, piece.text, piece.tokens))

    def choice(self, choice: Choice) -> Iterable[bytes]:
        yield self._chunk({**self._row(choice.choice, "", (), choice.finish), "logprobs": None})

    def _row(self, index: int, text: str, tokens: Sequence[Token], finish: str | None = None) -> dict[str, Any]:
        logprobs = None
        if self.asked.wishes.logprobs:
            *offsets, self._offsets[index] = accumulate(
                (len(token.text) for token in tokens), initial=self._offsets[index]
            )
            logprobs = {
                "tokens": [token.text for token in tokens],
                "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
                "top_logprobs": [_likeliest(token) for token in tokens] if self.asked.wishes.top_logprobs else None,
                "text_offset": offsets,
            }
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def prompts(sent: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    """Text or tokens. Raises ``Refusal`` if empty or mixed."""
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
    """By text, with the token itself; None for a prompt's first."""
    if token.logprob is None:
        return None
    rows = [*((text, finite(logprob)) for _, text, logprob in token.likeliest), (token.text, finite(token.logprob))]
    return {text: max(logprob for other, logprob in rows if other == text) for text, _ in rows}
