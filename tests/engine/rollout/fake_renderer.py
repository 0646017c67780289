"""A renderer without a base model, for tests only."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from marlaas.engine.errors import ConfigError
from marlaas.engine.rollout.renderer import Continuation, Opening, Said
from marlaas.engine.rollout.spoken import Spoken
from marlaas.plugins.messages import Message


class FakeRenderer:
    """Bytes of the text, folded into the fake sampler's vocabulary."""

    stop_ids = (0,)
    shows_tools = True
    thinks = False
    vocabulary: Any = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
    warning = ""
    rewrites = False
    """Whether every turn rewrites those before it."""

    thread = wanted = None
    """Whatever is long is rendered in a thread of asyncio's own."""

    def known(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), thinking: bool | None = None
    ) -> None:
        return None

    def open(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        thinking: bool | None = None,
        room: int | None = None,
    ) -> list[int]:
        if any(message.role == "oracle" for message in messages):
            raise ValueError("A message has the role 'oracle'.")
        return [1 + byte % 49 for message in messages for byte in message.content.encode()] or [1]

    def opening(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        thinking: bool | None = None,
        room: int | None = None,
    ) -> Opening:
        return Opening.of(self.open(messages))

    def follow(
        self,
        history: Sequence[Said],
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        thinking: bool | None = None,
        room: int | None = None,
        anew: bool = False,
    ) -> Continuation:
        if not anew:
            return Continuation(self.open(new), anew=self.rewrites)
        texts = (each.tokens if isinstance(each, Spoken) else self.open([each]) for each in [*history, *new])
        return Continuation([token for tokens in texts for token in tokens], anew=True)

    def parse(self, tokens: Sequence[int], prompt: Sequence[int] = (), tools: bool = False) -> Spoken:
        text = " ".join(map(str, tokens))
        return Spoken(tuple(tokens), text, (), text)

    def stopped_at(self, tokens: Sequence[int], stops: Sequence[str]) -> int:
        return len(tokens)

    def check_thinking(self, wanted: bool | None) -> None:
        if wanted:
            raise ConfigError("The base model's chat template knows no thinking.")
