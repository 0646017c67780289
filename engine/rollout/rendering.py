"""One payer's way to the renderer: one conversation after the other, and long ones beside the event loop.

Asks flow in, tokens flow out. To render takes time that grows with the text, and the loop is everybody's: so it renders
only what is short itself, and nothing of this payer before others had their turn. What cannot fit into the context is
not rendered at all. Knows no sampler and no policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from marlaas.plugins.messages import Ask, Message

from .placeholders import Said
from .renderer import Continuation, Renderer, TooLong, Tools, characters

SHORT = 4000
"""Characters that are rendered on the loop: a few milliseconds at the most. To change threads takes about as long."""
_EACH = 200
"""Characters for which every conversation counts that is rendered, beside its own."""

Made = TypeVar("Made")


class Rendering:
    """A renderer for one payer."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._turn = asyncio.Lock()
        self._spent = 0
        """Characters that were rendered on the loop, since others had their turn for it."""

    async def open(self, ask: Ask, thinking: bool | None, room: int) -> list[int]:
        """``Renderer.open`` of a first ask."""
        known = self.renderer.known(ask.messages, ask.tools, thinking)
        if known is not None:
            return known
        size = characters(ask.messages, ask.tools)
        return await self._made(size, lambda: self.renderer.open(ask.messages, ask.tools, thinking, room))

    async def follow(
        self, history: Sequence[Said], new: Sequence[Message], tools: Tools, thinking: bool | None, room: int
    ) -> Continuation:
        """``Renderer.follow``."""
        said = [each for each in history if isinstance(each, Message)]
        size = characters([*said, *new], tools)
        return await self._made(size, lambda: self.renderer.follow(history, new, tools, thinking, room))

    async def _made(self, size: int, make: Callable[[], Made]) -> Made:
        async with self._turn:
            if size <= SHORT:
                made = make()
                self._spent += size + _EACH
                if self._spent > SHORT:
                    self._spent = 0
                    await asyncio.sleep(0)  # everybody else's turn, before the next of this payer
                return made
            return await asyncio.get_running_loop().run_in_executor(self.renderer.thread, make)


class PromptRuler:
    """Measures as the conversations of this base do."""

    def __init__(self, renderer: Renderer, context: int) -> None:
        self.context = context
        """Tokens that a conversation may grow to."""
        self._rendering = Rendering(renderer)

    async def tokens(self, ask: Ask) -> int:
        """Of an agent's first ask; of one that is much too long, as many as it has at least.

        Raises ``ValueError`` or ``BaseModelError`` where the template refuses it.
        """
        try:
            return len(await self._rendering.open(ask, None, self.context))
        except TooLong as error:
            return error.tokens
