"""A renderer without a base model, for tests only."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from marlaas.engine.environments.protocol import Message


class FakeRenderer:
    """Bytes of the text, folded into the fake sampler's vocabulary."""

    stop_ids = (0,)

    def open(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        if any(message.role == "oracle" for message in messages):
            raise ValueError("A message has the role 'oracle'.")
        return [1 + byte % 49 for message in messages for byte in message.content.encode()] or [1]

    def extend(self, history: Sequence[Message], finish: str, new: Sequence[Message]) -> list[int]:
        return self.open(new)

    def parse(self, tokens: Sequence[int]) -> Any:
        text = " ".join(map(str, tokens))
        return SimpleNamespace(text=text, tool_calls=(), shown=text)
