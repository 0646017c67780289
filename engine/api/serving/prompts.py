"""What a client's prompt is in tokens: a conversation by the base's template, a text, or tokens as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from marlaas.plugins.messages import Ask, Message

from ...errors import BaseModelError, ConfigError
from ...gateway import Refusal
from ...rollout import Renderer, Rendering, TooLong
from ...trajectories import Tokens
from .messages import refused

SHORT = 4000
"""Most characters that are tokenised on the event loop."""
LARGEST = 2**31 - 1
"""The largest id that tokens can have."""


async def of_chat(
    rendering: Rendering,
    said: tuple[Message, ...],
    tools: tuple[dict[str, object], ...],
    thinking: bool | None,
    context: int,
) -> Tokens:
    """The tokens of a conversation, up to where the reply begins. Raises ``Refusal``."""
    try:
        rendering.renderer.check_thinking(thinking)
        opening = await rendering.open(Ask("client", said, tools), thinking, context)
    except TooLong as error:
        _overfull(f"at least {error.tokens:,}", context, "messages")
    except ConfigError as error:
        where = "messages" if isinstance(error, BaseModelError) else "thinking"
        raise refused(f"The base model's chat template refuses it: {error}", where) from error
    except ValueError as error:
        raise refused(f"The messages cannot be put to the base model: {error}", "messages") from error
    return _fitting(opening.tokens, context, "messages")


async def of_prompt(renderer: Renderer, prompt: str | Sequence[int], context: int) -> Tokens:
    """The tokens of a prompt. Raises ``Refusal``."""
    if not isinstance(prompt, str):
        if any(not 0 <= one <= LARGEST for one in prompt):
            raise refused("The prompt has ids that no token has.", "prompt")
        return _fitting(prompt, context, "prompt")
    least = len(prompt) // renderer.vocabulary.longest
    if least >= context:
        _overfull(f"at least {least:,}", context, "prompt")
    tokens, begin = await _encoded(renderer, prompt), renderer.vocabulary.beginning
    begun = len(begin) != 1 or tokens[:1] == [*begin]  # some tokenizers put an end behind an empty text, too
    return _fitting(tokens if begun else [*begin, *tokens], context, "prompt")


async def _encoded(renderer: Renderer, text: str) -> list[int]:
    """A text in tokens; of a long one in another thread."""
    if len(text) <= SHORT:
        return renderer.vocabulary.encode(text)
    return await asyncio.get_running_loop().run_in_executor(renderer.thread, renderer.vocabulary.encode, text)


def _fitting(tokens: Sequence[int], context: int, where: str) -> Tokens:
    if not tokens:
        raise refused("The prompt is empty.", where)
    if len(tokens) >= context:
        _overfull(f"{len(tokens):,}", context, where)
    return np.array(tokens, np.int32)


def _overfull(tokens: str, context: int, where: str) -> NoReturn:
    message = f"The prompt has {tokens} tokens; the context has room for {context:,}, the answer included."
    raise Refusal(400, "context_length_exceeded", message, where) from None
