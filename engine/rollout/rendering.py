"""Renders one payer's conversations in their order: short ones on the event loop, so many in each of its turns, and
long ones in another thread.

Rendering takes time that grows with the text, and all tasks share the event loop. What is too much for a turn of it
waits for the next, all in one line: were each to wake the next, one would be rendered in a turn, and with many tasks a
turn takes tens of milliseconds. What cannot fit into the context is not rendered at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from marlaas.plugins.messages import Ask, Message

from .placeholders import Said
from .renderer import Continuation, Opening, Renderer, TooLong, Tools, characters

SHORT = 4000
"""Most characters that are rendered on the loop: a few milliseconds, about as long as changing threads takes. A turn of
the loop has room for as many of a payer's, and what exceeds them with its last conversation."""
_EACH = 200
"""Characters that are added for every rendered conversation."""

PLAIN = "text"
"""Role of a message that is put to the base as it is, without the template. Environments cannot use it."""

Made = TypeVar("Made")


class Rendering:
    """A renderer for one payer."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._alone = asyncio.Lock()
        """Held by the long conversation that is being rendered."""
        self._line: deque[tuple[asyncio.Future[Any], int, Callable[[], Any]]] = deque()
        """Short ones for which this turn of the loop has no room: who waits, their characters, and what makes them."""
        self._spent = 0
        """Characters that were rendered in this turn of the loop."""
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
        loop = asyncio.get_running_loop()
        if size > SHORT:
            async with self._alone:
                return await loop.run_in_executor(self.renderer.thread, make)
        if self._spent > SHORT:
            waits: asyncio.Future[Made] = loop.create_future()
            self._line.append((waits, size, make))
            return await waits
        self._spend(size)
        return make()

    def _spend(self, size: int) -> None:
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._spent += size + _EACH

    def _next_turn(self) -> None:
        """The loop has turned: render those that have waited, as far as there is room."""
        self._spent = 0
        while self._line and self._spent <= SHORT:
            waits, size, make = self._line.popleft()
            if waits.done():  # whoever asked is gone
                continue
            self._spend(size)
            try:
                waits.set_result(make())
            except Exception as error:
                waits.set_exception(error)


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
