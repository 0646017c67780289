"""OpenAI's older completions, with prompts as text or as token ids, alone or in batches: what evaluators use."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta

from ..answerer import Answered, Refusal
from ..wire import Choice, Complete, Piece, Token
from .errors import Form, body as error_body
from .exchange import Who, new_id
from .logprobs import finite
from .openai_body import SamplingBody, usage
from .reading import (
    Likeliest,
    decode,
    unsupported,
    wrong,
)
from .sse import END, Event
from .streamed import StreamedChoice

TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
MOST_PROMPTS = 1024
MOST_CHOICES = 4096
USUAL_TOKENS = 16
"""OpenAI's ``max_tokens``, where a client says none."""


class CompletionBody(SamplingBody, kw_only=True):
    """Body of ``/v1/completions``; keys that are not here are ignored."""

    model: str
    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    best_of: int | None = None
    logprobs: Likeliest | bool | None = None
    echo: bool | None = None
    suffix: str | None = None


class Completions:
    """Implements ``exchange.Exchange``."""

    form: Form = "openai"

    def __init__(self, body: bytes, who: Who) -> None:
        sent = decode(body, CompletionBody)
        self._usage = sent.wants_usage
        self._id = new_id("cmpl-")
        self._created = int(time.time())
        _refuse(sent)
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
        )
        if len(self.asked.prompts) * self.asked.wishes.n > MOST_CHOICES:
            raise wrong(f"All prompts together may have {MOST_CHOICES} choices.", "n")
        self._streamed = [StreamedChoice() for _ in range(len(self.asked.prompts) * self.asked.wishes.n)]

    def reply(self, answer: Answered) -> dict[str, Any]:
        """A ``text_completion``."""
        rows = [
            self._row(choice.choice, choice.text, self._logprobs(choice.tokens, 0), choice.finish)
            for choice in answer.choices
        ]
        return {**self._head(answer.model), "choices": rows, "usage": usage(answer)}

    def opening(self) -> Iterable[Event]:
        """Nothing: a choice begins with its text."""
        return ()

    def piece(self, piece: Piece) -> Iterable[Event]:
        """Text, and the tokens that it is."""
        streamed = self._streamed[piece.choice]
        streamed.add(piece)
        if piece.text or piece.tokens:
            yield self._chunk(piece.choice, piece.text, self._logprobs(piece.tokens, streamed.offset))
        streamed.offset += sum(len(token.text) for token in piece.tokens)

    def choice(self, choice: Choice) -> Iterable[Event]:
        """Why the choice ends."""
        yield from self.piece(self._streamed[choice.choice].rest(choice))
        yield self._chunk(choice.choice, "", None, choice.finish)

    def closing(self, answer: Answered) -> Iterable[Event]:
        """What it cost, where the client asked for it."""
        if self._usage:
            yield Event({**self._head(answer.model), "choices": [], "usage": usage(answer)})
        yield END

    def broken(self, refusal: Refusal) -> Iterable[Event]:
        """An error in place of a chunk."""
        return (Event(error_body(refusal, self.form)), END)

    def _head(self, model: str) -> dict[str, Any]:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": model}

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None = None) -> Event:
        chunk = {**self._head(self.asked.model), "choices": [self._row(index, text, logprobs, finish)]}
        return Event({**chunk, "usage": None} if self._usage else chunk)

    def _row(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any] | None:
        if not self.asked.wishes.logprobs:
            return None
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
            "top_logprobs": [_likeliest(token) for token in tokens] if self.asked.wishes.top_logprobs else None,
            "text_offset": offsets,
        }


def prompts(sent: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    """The prompts of a body, each as text or as tokens. Raises ``Refusal`` where they are none, or mixed."""
    if isinstance(sent, str):
        return (sent,)
    if not sent:
        raise wrong("prompt is empty.", "prompt")
    if all(isinstance(one, int) for one in sent):
        return (tuple(one for one in sent if isinstance(one, int)),)
    if any(isinstance(one, int) for one in sent):
        raise wrong("prompt mixes token ids with prompts: send a list of lists.", "prompt")
    if len(sent) > MOST_PROMPTS:
        raise wrong(f"prompt has {len(sent)} prompts, and may have {MOST_PROMPTS}.", "prompt")
    if [] in sent:
        raise wrong("prompt has a list without a token.", "prompt")
    return tuple(one if isinstance(one, str) else tuple(one) for one in sent if not isinstance(one, int))


def _refuse(sent: CompletionBody) -> None:
    if sent.suffix:
        raise unsupported("suffix is not supported: this model writes forward alone.", "suffix")
    if sent.best_of is not None and sent.best_of != (sent.n or 1):
        raise unsupported("best_of is not supported: ask for n choices, and choose.", "best_of")
    if sent.max_tokens == 0 and not sent.echo:
        raise wrong("max_tokens is 0 without echo: there is nothing to answer.", "max_tokens")


def _likeliest(token: Token) -> dict[str, float] | None:
    """The likeliest in a token's place by their text, with the token itself; None for the first of a prompt."""
    if token.logprob is None:
        return None
    row: dict[str, float] = {}
    for text, logprob in [*((text, finite(value)) for _, text, value in token.likeliest), (token.text, token.logprob)]:
        row[text] = max(row.get(text, finite(None)), finite(logprob))
    return row
