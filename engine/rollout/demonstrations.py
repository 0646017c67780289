"""Conversations whose replies are given: the tokens that a model would have read and sampled.

Trained tokens of a reply go from the end of its prompt to the token that ends its turn. They are those that a sampler
would draw, with or without ``{% generation %}`` in the template.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from marlaas.plugins.messages import Ask, Message

from ..errors import BaseModelError
from ..trajectories import Span
from .conversation import Order, Part
from .renderer import Renderer
from .spoken import OPEN, Spoken

ASSISTANT = "assistant"


@dataclass(frozen=True)
class Turn:
    """One given reply with what comes before it."""

    messages: tuple[Message, ...]
    """New ones."""
    context: tuple[int, ...]
    """Their tokens; the whole prompt if ``anew``."""
    reply: Spoken
    """With the token that ends the turn."""
    anew: bool
    """The template rewrote earlier turns."""


def prompt_of(ask: Ask) -> Ask:
    """The question that the first reply answers. Raises ``ValueError`` without one."""
    first = next((place for place, message in enumerate(ask.messages) if message.role == ASSISTANT), 0)
    if not first:
        raise ValueError("a demonstration is a conversation in which a reply of the assistant follows a message")
    return replace(ask, messages=ask.messages[:first], demonstrated=False)


def turns_of(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), thinking: bool | None = None
) -> list[Turn]:
    """One for each reply of the assistant; later messages are left out.

    Raises ``ValueError`` for an unknown role, ``BaseModelError`` if the template refuses the conversation.
    """
    said, shown, mark = renderer.guarded(messages, tools)
    render, encode = renderer.template.render, renderer.vocabulary.encode
    turns: list[Turn] = []
    before, left, begun = "", tuple[int, ...](), 0
    for place, message in enumerate(messages):
        if message.role != ASSISTANT:
            continue
        prompt = render(said[:place], shown, thinking)
        whole = render(said[: place + 1], shown, thinking, asks=False)
        head = prompt if whole.startswith(prompt) else prompt[: prompt.rfind(OPEN)]  # without an empty thought
        if not whole.startswith(head):
            raise BaseModelError("The base model's chat template writes a reply otherwise than it asks for one.")
        anew = bool(turns) and not prompt.startswith(before)
        context = encode(prompt if anew else prompt[len(before) :], mark)
        written = encode(whole[len(head) :], mark)
        end = max((at for at, token in enumerate(written, 1) if token in renderer.stop_ids), default=len(written))
        reply = renderer.parse(written[:end], context, bool(tools))
        turns.append(Turn(tuple(messages[begun:place]), (*(() if anew else left), *context), reply, anew))
        before, left, begun = prompt + whole[len(head) :], tuple(written[end:]), place + 1
    return turns


def parts_of(turns: Sequence[Turn], version: int, order: Order) -> list[Part]:
    """Trajectories with replies of ``version``, whose log-probabilities are NaN: nobody sampled them."""
    parts = [Part()]
    for turn in turns:
        if turn.anew:
            parts.append(Part())
        now = parts[-1]
        now.add_context(turn.context, turn.messages, order)
        span = Span(len(now.tokens), len(now.tokens) + len(turn.reply.tokens), version)
        now.speak(turn.reply.tokens, [math.nan] * len(turn.reply.tokens), span, turn.reply, order)
    return parts
