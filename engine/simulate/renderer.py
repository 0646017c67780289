"""A renderer without a tokenizer: a message gives its number of tokens and its instance.

The tokens of a first prompt are the same within a group, and differ between instances, as real ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from marlaas.plugins.messages import Message

from ..rollout import Continuation, Opening, Said, Spoken
from .sampler import STOP

CHARACTERS = 4
"""Characters of a token: texts in the store are as long as real ones."""


def message(tokens: int, about: str) -> Message:
    """A message of this many tokens; ``about`` distinguishes instances."""
    head = f"{tokens} {about} "
    return Message("user", head + "." * max(0, CHARACTERS * tokens - len(head)))


class SimulatedRenderer:
    """``rollout.Renderer`` for ``message``."""

    stop_ids = (STOP,)
    warning = ""
    rewrites = thinks = switch = False
    thread = None

    def known(self, messages: Sequence[Message], tools: Any = (), thinking: bool | None = None) -> None:
        """See ``Renderer``."""

    def opening(
        self, messages: Sequence[Message], tools: Any = (), thinking: bool | None = None, room: int | None = None
    ) -> Opening:
        tokens, about, *_ = messages[0].content.split(" ", 2)
        digest = blake2b(about.encode(), digest_size=16).digest()
        first = 2 + int.from_bytes(digest[:3], "little")
        return Opening((first, *[1] * (max(1, int(tokens)) - 1)), digest)

    def follow(
        self,
        history: Sequence[Said],
        new: Sequence[Message],
        tools: Any = (),
        thinking: bool | None = None,
        room: int | None = None,
    ) -> Continuation:
        return Continuation([1] * max(1, int(new[0].content.split(" ", 1)[0])), anew=False)

    def parse(self, tokens: Sequence[int], prompt: Sequence[int] = (), tools: bool = False) -> Spoken:
        text = f"{tokens[0] if tokens else ''}".ljust(CHARACTERS * len(tokens), ".")
        return Spoken(tuple(tokens), text, (), text)

    def stopped_at(self, tokens: Sequence[int], stops: Sequence[str]) -> int:
        return len(tokens)

    def check_thinking(self, wanted: bool | None) -> None:
        """See ``Renderer``."""
