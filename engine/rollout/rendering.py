"""Renders one payer's conversations one after the other, and long ones in another thread.

Rendering takes time that grows with the text, and all tasks share the event loop: so only short texts are rendered on
it, and others get their turn between two of this payer. What cannot fit into the context is not rendered at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from marlaas.plugins.messages import Ask, Message

from .placeholders import Said
from .renderer import Continuation, Opening, Renderer, TooLong, Tools, characters

SHORT = 4000
"""Most characters that are rendered on the loop: a few milliseconds, about as long as changing threads takes."""
_EACH = 200
"""Characters that are added for every rendered conversation."""

PLAIN = "text"
"""Role of a message that is put to the base as it is, without the template. Environments cannot use it."""

Made = TypeVar("Made")


class Rendering:
    """A renderer for one payer."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._turn = asyncio.Lock()
        self._spent = 0
        """Characters that were rendered on the loop since others had their turn."""
        self._last: tuple[Ask, bool | None, Opening] | None = None
        """The ask that was rendered last: it is rendered to be recognised, and then to be answered."""

    async def open(self, ask: Ask, thinking: bool | None, room: int) -> Opening:
        """``Renderer.opening`` of a first ask."""
        if self._last is not None and self._last[0] is ask and self._last[1] == thinking:
            return self._last[2]
        if _plain(ask.messages):
            return Opening.of(await self._encoded(ask.messages, room))
        opening = self.renderer.known(ask.messages, ask.tools, thinking)
        if opening is None:
            size = characters(ask.messages, ask.tools)
            opening = await self._made(size, lambda: self.renderer.opening(ask.messages, ask.tools, thinking, room))
        self._last = ask, thinking, opening
        return opening

    async def follow(
        self, history: Sequence[Said], new: Sequence[Message], tools: Tools, thinking: bool | None, room: int
    ) -> Continuation:
        """``Renderer.follow``."""
        if _plain(new):
            return Continuation(await self._encoded(new, room), anew=False)
        said = [each for each in history if isinstance(each, Message)]
        size = characters([*said, *new], tools)
        return await self._made(size, lambda: self.renderer.follow(history, new, tools, thinking, room))

    async def _encoded(self, messages: Sequence[Message], room: int) -> list[int]:
        """Tokens of texts as they are."""
        text = "".join(message.content for message in messages)
        least = len(text) // self.renderer.vocabulary.longest
        if least >= room:
            raise TooLong(least)
        return await self._made(len(text), lambda: self.renderer.vocabulary.encode(text))

    async def _made(self, size: int, make: Callable[[], Made]) -> Made:
        async with self._turn:
            if size <= SHORT:
                made = make()
                self._spent += size + _EACH
                if self._spent > SHORT:
                    self._spent = 0
                    await asyncio.sleep(0)  # others have their turn before the next of this payer
                return made
            return await asyncio.get_running_loop().run_in_executor(self.renderer.thread, make)


def _plain(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0].role == PLAIN


class PromptRuler:
    """Counts the tokens of first prompts as conversations of this base do."""

    def __init__(self, renderer: Renderer, context: int) -> None:
        self.context = context
        """Tokens that a conversation may grow to."""
        self._rendering = Rendering(renderer)

    async def tokens(self, ask: Ask) -> int:
        """Tokens of an agent's first ask; for one that is much too long, a lower bound.

        Raises ``ValueError`` or ``BaseModelError`` where the template refuses it.
        """
        try:
            return len((await self._rendering.open(ask, None, self.context)).tokens)
        except TooLong as error:
            return error.tokens
